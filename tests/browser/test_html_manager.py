"""The panel on a page of widgets without a notebook: its controls work, and nothing comes from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect
from torch import nn

import workbench as wb
from workbench.events import Changed
from workbench.ui.panel import Panel

from .html_manager import page_of
from .lab import ARTEFACTS

pytestmark = pytest.mark.browser


def test_the_panel_on_a_page_of_html_manager(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    data = x, x.sum(1, keepdim=True)
    with (
        page_of(browser, monkeypatch, 1200) as page,
        wb.Workbench(
            nn.Linear(8, 1),
            train=data,
            loss=nn.functional.mse_loss,
            max_epochs=100_000,
            root=tmp_path,
        ) as bench,
    ):
        panel = page.page.locator(".wb-panel")
        page.show(Panel.of(bench).canvas)
        panel.get_by_text("All settings").click()
        page.settle()
        expect(panel.get_by_text("Optimisation")).to_be_visible()
        panel.get_by_text("All settings").click()
        panel.get_by_text("▶ Train").click()
        page.until(lambda: bench.job is not None and len(bench.job.events) > 10)
        box = panel.locator(".wb-step-lr input[type=text]")
        box.fill("0.02")
        box.press("Enter")
        page.until(lambda: bench.settings.lr == 0.02)
        panel.get_by_role("button", name="Apply to the run: lr 0.02").click()
        page.until(lambda: any(isinstance(event, Changed) for event in bench.job.events))
        panel.get_by_text("■ Stop").click()
        page.until(lambda: bench.job.done())
        page.until(lambda: "stopped" in panel.locator(".wb-progress").inner_text())
        expect(panel.locator(".wb-loss > .wb-key")).to_contain_text("smoothed")
        panel.locator(".wb-drawer-tab", has_text="Runs").click()
        # its folder is read aside
        page.until(lambda: "stopped" in panel.locator(".wb-runs tbody").inner_text())
        ARTEFACTS.mkdir(exist_ok=True)
        for width in (1200, 400):
            page.page.set_viewport_size({"width": width, "height": 1000})
            page.settle()
            page.page.screenshot(path=ARTEFACTS / f"html-manager-{width}.png", full_page=True)
            assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth + 1"), width
    assert (page.elsewhere, page.complaints) == ([], [])
