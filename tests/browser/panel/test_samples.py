"""Samples of predictions in the panel of a bench that trains: the newest, an earlier one, several functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect

import workbench as wb
from tests.browser.canvas import canvas_in
from tests.browser.lab import Lab
from workbench.ui.panel import Panel

pytestmark = pytest.mark.browser


def test_samples_of_every_validation(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")
    radius = torch.rand(64, 1, 1) * 0.6 + 0.3
    rings = torch.exp(-60 * ((x**2 + y**2).sqrt() - radius) ** 2).flatten(1)
    coder = torch.nn.Sequential(
        torch.nn.Linear(576, 12), torch.nn.Tanh(), torch.nn.Linear(12, 576), torch.nn.Sigmoid()
    )
    bench = wb.Workbench(
        coder,
        train=(rings, rings),
        val=(rings[:16], rings[:16]),
        loss=torch.nn.functional.mse_loss,
        lr=5e-3,
        max_epochs=12,
        root=tmp_path,
    )

    def rebuilt(
        batch: tuple[torch.Tensor, torch.Tensor], outputs: torch.Tensor
    ) -> dict[str, object]:
        true, again = (rows[:4].reshape(-1, 1, 24, 24) for rows in (batch[0], outputs))
        return {"true": true, "rebuilt": again, "says": "<b>ring</b>"}

    bench.watch(rebuilt)
    bench.watch(lambda batch, outputs: f"error {(batch[1] - outputs).abs().mean():.3f}")
    panel = Panel.of(bench)
    with canvas_in(browser, panel=panel) as page:
        page.open()
        samples = page.page.get_by_role("button", name="Samples")
        expect(samples).to_be_hidden()
        bench.fit().result()
        assert panel.dispatcher.drain(60)
        page.settle()
        page.tab("Samples")
        card = page.page.locator(".wb-samples-card")
        expect(card).to_contain_text("at update 24, epoch 12")
        expect(card.locator("img")).to_have_count(8)
        expect(card.locator("pre").first).to_have_text("<b>ring</b>")
        assert card.locator("img").first.evaluate("e => [e.naturalWidth, e.width]") == [24, 120]
        newest = card.locator("pre").last.inner_text()
        page.screenshot("samples")

        card.get_by_role("button", name="The validation before").press("Enter")
        page.settle()
        expect(card).to_contain_text("at update 22, epoch 11")
        card.get_by_role("slider").press("Home")
        page.settle()
        expect(card).to_contain_text("at update 2, epoch 1")
        assert card.locator("pre").last.inner_text() != newest
        bench.fit("continue", max_epochs=13).result()  # the newest is followed again
        assert panel.dispatcher.drain(60)
        page.settle()
        expect(card).to_contain_text("at update 26, epoch 13")
        expect(card.get_by_role("button", name="The next validation")).to_be_disabled()
        assert page.complaints == []
    bench.close()


WATCHED = """import torch
import workbench as wb

torch.manual_seed(0)
x = torch.randn(64, 9)
bench = wb.Workbench(torch.nn.Linear(9, 9), train=(x, x), val=(x, x), loss=torch.nn.functional.mse_loss, max_epochs=1)
bench.watch(lambda batch, outputs: outputs[:2].reshape(2, 1, 3, 3))
bench"""


def test_a_panel_with_pictures_stays_in_its_cell(lab: Lab) -> None:
    """The picture of a saved notebook is hidden beside a live panel, and the panel with pictures of its own is not."""
    lab.open_notebook([WATCHED], name="watched.ipynb")
    lab.run_cell(0)
    panel = lab.panel(0)
    lab.execute("job = bench.fit(max_epochs=10**6)")
    lab.tab(panel, "Samples")
    expect(panel.locator(".wb-samples-card img")).to_have_count(2)
    expect(panel.locator(".wb-samples-card img").first).to_be_visible()
    panel.get_by_role("button", name="Stop").click()
    lab.execute("job.wait()")
    expect(panel.locator(".wb-samples-card img").first).to_be_visible()
