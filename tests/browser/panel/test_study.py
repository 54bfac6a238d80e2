"""A study as the last line of a cell: it is followed live and steered by its buttons, and its page stays in the saved notebook."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.faces import LAB
from tests.browser.lab import Lab

pytestmark = pytest.mark.browser

BENCH = """
import torch, workbench as wb
from torch import nn
torch.set_num_threads(1)
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
data = x, (x.sum(1) > 0).long()
def build(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))
bench = wb.Workbench(build, train=data, val=data, loss=nn.functional.cross_entropy, max_epochs=3, batch_size=64)
study = bench.study({"lr": (1e-4, 0.1), "width": [8, 16, 32]}, budget=40)
"""
STUDY, PANEL = 1, 2


def test_a_study_is_followed_and_steered(lab: Lab) -> None:
    lab.viewport(1440, 900)
    lab.open_notebook([BENCH, "study", "bench"], name="study.ipynb")
    lab.run_cell(0)
    lab.run_cell(STUDY)
    view = lab.output(STUDY).locator(".wb-study")
    expect(view.locator(".wb-study-state")).to_contain_text("running")
    expect(view.locator(".wb-study-spent")).to_contain_text("of 40 fits")
    plots_come(view)
    lab.screenshot("study-running")
    assert lab.violations(".wb-study") == []

    view.get_by_role("button", name="+ 4 fits").click()
    expect(view.locator(".wb-study-spent")).to_contain_text("of 44 fits")
    expect(lab.output(STUDY).locator(".wb-code")).to_contain_text("study.more(4)")

    box = view.get_by_label("Value of lr in the trial to add")
    box.fill("nothing")
    box.press("Enter")
    expect(lab.output(STUDY).get_by_role("alert")).to_contain_text("study.add(lr='nothing')")
    box.fill("3e-3")
    view.get_by_label("Value of width in the trial to add").select_option("8")
    view.get_by_role("button", name="study.add(lr=3e-3, width=8)").click()
    added = view.locator(".wb-study-table tbody tr", has_text="by hand")
    expect(added).to_contain_text("3e-3")

    by_mouse(lab, view)
    upper = view.get_by_role("slider", name="Upper end of lr")
    upper.press("Shift+ArrowLeft")
    narrowed = view.locator(".wb-study-draft .wb-study-code")
    expect(narrowed).to_have_text("study.space(lr=(1e-4, 0.025))")
    narrowed.click()
    expect(upper).to_have_attribute("aria-valuenow", "0.025")

    on_the_stage(lab)
    if lab.server.face is LAB:
        in_a_pane(lab)
    lab.scroll_to(STUDY)
    view.locator(".wb-study-head").get_by_role("button", name="Stop").click()
    expect(view.locator(".wb-study-state")).to_contain_text("ended")
    lab.page.mouse.move(0, 0)
    lab.settle()
    lab.screenshot("study-ended", view)

    lab.viewport(700, 900)
    lab.settle()
    assert view.evaluate("view => view.scrollWidth <= view.clientWidth + 1")
    lab.viewport(1440, 900)

    lab.reopen()
    lab.scroll_to(STUDY)
    expect(lab.output(STUDY).locator(".wb-study-state")).to_contain_text("ended")
    assert lab.output(STUDY).locator(".wb-still").is_hidden()
    assert "Run the cell to have the panel back" in lab.save().read_text()
    assert lab.complaints == []


def plots_come(view: Locator) -> None:
    """The first whole fits are drawn and listed."""
    expect(view.locator(".wb-study-curves canvas")).to_be_visible()
    expect(view.locator(".wb-study-cost canvas")).to_be_visible()
    expect(view.locator(".wb-slice")).to_have_count(2)
    expect(view.locator(".wb-study-table tr[data-best]")).to_contain_text("whole fit")


def by_mouse(lab: Lab, view: Locator) -> None:
    """A brush narrows a range, an end that is dragged outwards extends it, and Undo takes both back."""
    narrowed = view.locator(".wb-study-draft .wb-study-code")
    area = view.locator(".wb-slice-area").first
    lab.drag(area, 40)
    expect(narrowed).to_have_text(re.compile(r"study\.space\(lr=\([\d.e-]+, [\d.e-]+\)\)"))
    upper = view.get_by_role("slider", name="Upper end of lr")
    assert float(upper.get_attribute("aria-valuenow") or 0) < 0.1
    view.get_by_role("button", name="Undo").click()
    expect(upper).to_have_attribute("aria-valuenow", "0.1")
    lab.drag(upper, 30)
    assert float(upper.get_attribute("aria-valuenow") or 0) > 0.1
    view.locator(".wb-slice-choice").first.click()
    expect(narrowed).to_contain_text("width=[16, 32])")
    view.get_by_role("button", name="Undo").click()
    expect(narrowed).to_be_hidden()


def in_a_pane(lab: Lab) -> None:
    """JupyterLab lists it, and opens its view, which needs no kernel."""
    side = lab.page.locator("#tuning-workbench-runs")
    lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
    listed = side.locator(".wb-side-study").first
    expect(listed).to_contain_text("0001-study")
    expect(listed).to_contain_text("running")
    expect(listed).to_contain_text("of 44 fits")
    assert lab.violations("#tuning-workbench-runs") == []
    listed.click()
    pane = lab.page.locator(".wb-pane:visible")
    plots_come(pane)
    expect(pane.locator(".wb-live")).to_have_count(1)
    expect(pane.get_by_role("button", name="Export")).to_have_count(0)
    pane.locator(".wb-study-head").get_by_role("button", name="+ 4 fits").click()
    expect(pane.locator(".wb-study-spent")).to_contain_text("of 48 fits")
    expect(pane.locator(".wb-code")).to_contain_text("study.more(4)")
    box = pane.get_by_label("Value of lr in the trial to add")
    box.fill("nothing")
    box.press("Enter")
    refused = pane.get_by_text("should be a number")
    expect(refused).to_be_visible()
    box.fill("")
    lab.settle()
    lab.screenshot("study-pane")
    assert lab.violations(".wb-pane") == []
    lab.page.evaluate("() => jupyterapp.commands.execute('application:close')")
    expect(pane).to_have_count(0)
    lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()


def on_the_stage(lab: Lab) -> None:
    """The panel of the bench shows it until a job begins, and again by its chip."""
    lab.run_cell(PANEL)
    panel = lab.panel(PANEL)
    expect(panel.locator(".wb-stage .wb-study-state")).to_contain_text("running")
    panel.get_by_role("button", name="▶ Train").click()
    expect(panel.locator(".wb-stage .wb-loss")).to_be_visible()
    expect(panel.locator(".wb-stage .wb-study")).to_be_hidden()
    chip = panel.locator(".wb-chip", has_text="study 0001")
    chip.click()
    expect(panel.locator(".wb-stage .wb-study-table")).to_contain_text("by hand")
    expect(chip).to_have_attribute("aria-current", "true")
    lab.screenshot("study-stage")
