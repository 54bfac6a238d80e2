"""Gradients in a real notebook, mostly by keyboard: a module is opened, a layer gets a line, ratios are measured, a clip value is used."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.canvas import canvas_in
from tests.browser.lab import Lab
from tests.ui.canvas.test_widget import started
from tests.ui.fakes import flush
from workbench.events import Histogram, LayerHistograms, LayersMeasured

pytestmark = pytest.mark.browser

# Deep enough that rows are modules (45 layers of parameters), and slow enough to be looked at while it trains.
DEEP = """import time, torch
import workbench as wb
torch.manual_seed(0)
block = lambda: torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24), torch.nn.LayerNorm(24))
model = torch.nn.Sequential(*(block() for _ in range(7)), torch.nn.Linear(24, 1))
x = torch.randn(2048, 24)
def loss(output, y):
    time.sleep(0.004)
    return torch.nn.functional.mse_loss(output, y)
bench = wb.Workbench(model, train=(x, x.sin().sum(1, keepdim=True)), loss=loss, max_epochs=100000)
bench"""


def test_gradients_by_keyboard(lab: Lab) -> None:
    lab.viewport(1300, 1500)
    lab.open_notebook([DEEP], name="gradients.ipynb")
    lab.run_cell(0)
    panel = lab.panel(0)
    heat, norm = panel.locator(".wb-heat"), panel.locator(".wb-norm")
    panel.get_by_role("button", name="Train").click()
    lab.tab(panel, "Gradients and clipping")

    # A module opens, a layer of it gets a line, and the way back is in words.
    canvas, crumbs, readout = (
        heat.locator("canvas"),
        heat.locator(".wb-crumbs"),
        heat.locator(".wb-readout"),
    )
    expect(canvas).to_be_visible()
    canvas.focus()
    lab.page.keyboard.press("ArrowDown")
    lab.page.keyboard.press("ArrowDown")
    expect(readout).to_contain_text("(largest of 2)")
    lab.page.keyboard.press("Enter")
    expect(crumbs.locator("b")).to_be_visible()
    lab.page.keyboard.press("ArrowUp")
    expect(readout).to_contain_text("weight")
    lab.page.keyboard.press("Enter")
    expect(norm.locator(".wb-pick")).to_have_count(1)
    expect(norm.locator(".wb-pick")).to_contain_text("%")
    lab.page.keyboard.press("Escape")
    expect(crumbs).to_be_hidden()
    lab.page.keyboard.press(" ")
    expect(norm.locator(".wb-pick")).to_have_count(2)
    lab.screenshot("gradients-picked", panel)
    norm.locator(".wb-pick").first.press("Enter")
    expect(norm.locator(".wb-pick")).to_have_count(1)
    expect(norm.locator(".wb-pick")).to_be_focused()

    # Ratios are measured from the moment somebody wants to see them, in the fit that runs.
    heat.get_by_role("button", name="update ratio").click()
    expect(heat).to_contain_text("hardly learns")
    expect(heat.get_by_role("button", name="measuring")).to_have_attribute("aria-pressed", "true")
    lab.until("print(bench.settings.track_update_ratio)", "True")
    expect(canvas).to_be_visible()
    canvas.focus()
    expect(canvas).to_have_attribute("aria-label", re.compile("^Update ratios of"))
    expect(canvas).to_have_attribute(
        "aria-describedby", heat.locator(".wb-extent").get_attribute("id") or "none"
    )
    expect(heat.locator(".wb-extent")).to_have_text(
        re.compile(r"^\d+ rows of layers, up to update [\d.]+[kM]?\.$")
    )
    lab.screenshot("gradients-ratios", panel)

    # The suggested clip value, which stays while the fit is paused, then the same line moved by keyboard; the run is asked apart.
    use = norm.get_by_role("button", name="Use ")
    expect(use).to_be_hidden()
    panel.get_by_role("button", name="Pause").click()
    expect(use).to_be_visible()
    suggested = float(use.inner_text().removeprefix("Use "))
    use.focus()
    use.press("Enter")
    lab.until("print(bench.settings.gradient_clip_val)", lambda clip: clip not in ("None", ""))
    expect(panel.get_by_role("button", name="Apply to the run")).to_be_visible()
    chosen = float(lab.execute("print(bench.settings.gradient_clip_val)"))
    assert chosen == suggested
    share = re.search(r"would cut ([\d.]+)% of the [\d,]+ updates", norm.inner_text())
    assert share is not None
    assert float(share[1]) <= 10
    grip = norm.locator(".wb-grip")
    expect(grip).to_be_visible()  # before the value has arrived there is none
    expect(norm.locator(":focus")).to_have_count(1)  # the button has gone
    lab.screenshot("gradients-suggested", panel)
    grip.press("Shift+ArrowUp")
    lab.until("print(bench.settings.gradient_clip_val)", lambda clip: float(clip) > 1.5 * chosen)
    panel.get_by_role("button", name="Stop").click()
    lab.until("print(bench.job.status)", "stopped")
    plots(lab, panel)
    lab.theme("dark")
    lab.screenshot("gradients-dark", panel)
    lab.theme("light")
    assert lab.complaints == []


def plots(lab: Lab, panel: Locator) -> None:
    """Line plots are read by keyboard, too, and share their cursor; and what has the focus keeps it when the next fit begins."""
    lab.settle()
    heat, norm, at_loss = (
        panel.locator(".wb-heat"),
        panel.locator(".wb-norm"),
        panel.locator(".wb-loss .wb-at"),
    )
    plot, said = norm.locator(".u-over"), norm.locator(".uplot > .wb-spoken")
    plot.press("Home")
    expect(said).to_have_text(re.compile(r"^update \d+: total .*, clip value "))
    first = said.text_content() or ""
    at = re.search(r"update \d+", first)
    assert at is not None
    expect(at_loss).to_contain_text(f"at {at[0]}")
    plot.press("ArrowRight")
    expect(said).not_to_have_text(first)
    expect(at_loss).not_to_contain_text(f"at {at[0]}")
    plot.press("Escape")
    expect(said).to_be_empty()
    expect(at_loss).not_to_contain_text("at update")

    heat.get_by_role("button", name="norm", exact=True).click()
    heat.locator("canvas").focus()
    lab.execute("bench.fit(max_epochs=2, log_every_n_steps=10)")
    lab.until("print(bench.job.status)", "finished")
    lab.settle()
    expect(heat.locator("canvas")).to_be_focused()
    # those that were recorded
    for at_key, update in (("Home", 0), ("ArrowRight", 10), ("End", 120)):
        plot.press(at_key)
        expect(said).to_have_text(re.compile(rf"^update {update}: total "))
    plot.blur()
    expect(said).to_be_empty()
    expect(at_loss).not_to_contain_text("at update")
    heat.get_by_role("button", name="update ratio").click()


def test_layers_are_measured_on_demand(browser: Browser) -> None:
    rng = np.random.default_rng(0)

    def histogram(values: np.ndarray) -> Histogram:
        counts, edges = np.histogram(values, 40)
        return Histogram(float(edges[0]), float(edges[-1]), tuple(map(int, counts)))

    def normal(scale: float) -> Histogram:
        return histogram(rng.normal(0, scale, 20000))

    relu = histogram(np.maximum(rng.normal(-0.4, 1, 20000), 0))
    layers = (
        LayerHistograms("encoder.0.weight", normal(0.05), relu, "ReLU", 0.34, None),
        LayerHistograms("encoder.2.weight", normal(0.4), histogram(np.tanh(rng.normal(0, 3, 20000))), "Tanh", 0.0, 0.46),
        LayerHistograms("head.weight", normal(0.1), normal(1.2), "", 0.004, None),
        LayerHistograms("unused.weight", normal(0.1)),
    )  # fmt: skip
    with canvas_in(browser) as page:
        page.open()
        page.draw(started(tuple(layer.name for layer in layers)), flush(0, 50, layers=4))
        page.tab("Gradients and clipping")
        card = page.page.locator(".wb-histograms")
        card.get_by_role("button", name="Measure layers").click()
        page.settle()
        assert page.asked == [{"what": "histograms", "layers": []}]
        page.draw(LayersMeasured(50, layers, 7))
        rows = card.get_by_role("row")
        expect(rows).to_have_count(5)
        expect(rows.nth(1)).to_contain_text("after ReLU")
        expect(rows.nth(1).locator(".wb-histograms-much")).to_have_text("34%")
        expect(rows.nth(2)).to_contain_text("46%")
        expect(rows.nth(3)).to_contain_text("<1%")
        expect(card).to_contain_text("7 more layers were not measured")
        page.screenshot("histograms")
        assert page.complaints == []
