"""The Runs panel in JupyterLab's left side bar: runs of other processes, with the real server."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Locator, expect

import workbench as wb
from tests.launch.launched import kernel

from .lab import Lab

pytestmark = pytest.mark.browser

SLOW = """
import sys, time, torch, workbench as wb

def loss(output, y):
    time.sleep(0.02)
    return torch.nn.functional.mse_loss(output, y)

data = torch.randn(64, 3), torch.randn(64, 1)
bench = wb.Workbench(torch.nn.Linear(3, 1), train=data, val=data, loss=loss, root=sys.argv[1], accelerator="cpu", batch_size=8)
print(bench.fit(max_epochs=5000).result().status, flush=True)
"""
"""A fit in another process; it goes on until it is stopped."""


def record(root: Path, *rates: float) -> list[str]:
    """The ids of fits of a few updates, one for each learning rate."""
    data = torch.randn(32, 3), torch.randn(32, 1)
    with wb.Workbench(torch.nn.Linear(3, 1), train=data, val=data, loss=F.mse_loss, root=root, accelerator="cpu", batch_size=8) as bench:
        return [bench.fit(max_epochs=3, lr=lr).result().id for lr in rates]


class Panel:
    """The Runs panel, opened, with the runs of this test alone."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.root = lab.page.locator("#tuning-workbench-runs")
        lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
        expect(self.root).to_be_visible()
        self.folder = self.root.get_by_label("Folder", exact=True)

    def only(self) -> Panel:
        """Of the folders that the server knows, that of this test."""
        self.folder.select_option(label=self.lab.folder.name)
        return self

    def row(self, run: str) -> Locator:
        return self.root.locator(f'[role="option"][data-run="{run}"]')

    @property
    def rows(self) -> Locator:
        return self.root.get_by_role("listbox", name="Training runs").get_by_role("option")

    def action(self, name: str) -> Locator:
        return self.root.get_by_role("toolbar").get_by_role("button", name=name, exact=True)

    def accept(self, label: str) -> None:
        self.lab.page.locator(".jp-Dialog").get_by_role("button", name=label, exact=True).click()


def test_runs_of_other_processes(lab: Lab) -> None:
    root = lab.folder / ".workbench"
    record(root, 0.1, 0.01)
    record(lab.folder / "elsewhere" / ".workbench", 0.2)
    lab.open_notebook(["import time\nprint('busy', flush=True)\ntime.sleep(1000)"])
    panel = Panel(lab).only()
    expect(panel.rows).to_have_count(2)
    expect(panel.row("0002-fit")).to_contain_text("finished")
    expect(panel.row("0002-fit")).to_contain_text("lr 0.01")
    expect(panel.rows.first).to_contain_text("0002-fit")
    lab.run_cell(0, wait=False)  # the kernel is busy from here on
    expect(lab.output(0)).to_contain_text("busy")
    with kernel(SLOW, str(root)) as other:
        running = panel.row("0003-fit")
        expect(running).to_contain_text("running")
        expect(panel.rows.first).to_have_attribute("data-run", "0003-fit")
        before = running.inner_text()
        expect(running).not_to_have_text(before, use_inner_text=True)
        lab.screenshot("runs-panel-light")
        lab.theme("dark")
        lab.screenshot("runs-panel-dark")
        print(running.inner_text(), file=sys.stderr)
        running.click()
        panel.action("Pause").click()
        expect(running).to_contain_text("paused")
        panel.action("Resume").click()
        expect(running).to_contain_text("running")
        panel.action("Stop…").click()
        panel.accept("Stop")
        expect(running).to_contain_text("stopped")
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "stopped"
    lab.theme("light")
    lab.interrupt()
    assert lab.complaints == []
    assert re
