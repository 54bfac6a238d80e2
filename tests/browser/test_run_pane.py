"""The pane of a run in JupyterLab: a run of another process, of a kernel that is busy, of one that was killed; a comparison."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.launch.launched import ended, kernel

from .lab import TIMEOUT, Lab, LabError

pytestmark = pytest.mark.browser

SLOW = """import sys, time, torch
import workbench as wb

def slow(output, target):
    time.sleep(0.01)
    return torch.nn.functional.mse_loss(output, target)

torch.manual_seed(0)
x = torch.randn(400, 8)
bench = wb.Workbench(torch.nn.Linear(8, 1), train=(x, x.sum(1, keepdim=True)), val=(x, x.sum(1, keepdim=True)), loss=slow, batch_size=20, lr=1e-2, root={root!r})
"""
ENDLESS = f"{SLOW}bench.fit(max_epochs=1000, check_val_every_n_epoch=2).result()"


def test_x(lab: Lab) -> None:
    root = lab.folder / ".workbench"
    lab.viewport(1500, 1000)
    lab.open_notebook(["1"], name="beside.ipynb")
    with kernel(ENDLESS.format(root=str(root))):
        end = time.monotonic() + TIMEOUT
        rows = []
        while not any(row["status"] == "running" and row["step"] > 20 for row in rows):
            assert time.monotonic() < end
            rows = lab.server.get("workbench/api/runs")["rows"]
            time.sleep(0.2)
        row = rows[0]
        lab.page.evaluate("(ref) => jupyterapp.commands.execute('tuning-workbench:open-run', ref)", {"root": row["root"], "run": row["run"]})
        pane = lab.page.locator(".wb-pane")
        expect(pane.locator(".wb-pane-status")).to_contain_text("running")
        expect(pane.locator(".wb-live .wb-loss canvas").first).to_be_visible()
        lab.page.wait_for_timeout(3000)
        lab.screenshot("run-pane-try")
        print(json.dumps(lab.server.get(f"workbench/api/runs/{row['root']}/{row['run']}"), indent=1)[:3000])
        lab.theme("dark")
        lab.viewport(700, 900)
        for one in pane.locator("summary h3").all(): one.click()
        lab.page.wait_for_timeout(1000)
        lab.screenshot("run-pane-try-dark")
        print(lab.complaints)
