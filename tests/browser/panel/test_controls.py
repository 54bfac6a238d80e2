"""The panel's boxes and its Train button: what is typed stays until it is valid, and clicks start one fit at a time."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab

pytestmark = pytest.mark.browser

BENCH = """import time, torch
import torch.nn.functional as F
from torch import nn
import workbench as wb

torch.manual_seed(0)
x = torch.randn(1437, 8)
def loss(output, y):
    time.sleep(0.004)
    return F.cross_entropy(output, y)
bench = wb.Workbench(nn.Linear(8, 3), train=(x, x[:, :3].argmax(1)), loss=loss, accelerator="cpu", max_epochs=3)
bench"""
REFUSED = (
    (0, "1.5", "Should be a whole number"), (0, "0", "Should be at least 1"), (0, "-5", "Should be at least 1"),
    (0, "99999", "batch_size=99999 is larger than the train data (1437 samples)"), (1, "1e9", "Should be at most 1000"),
    (2, "-3", "Should be at least 0"), (3, "-2", "Should be at least -1"),
)  # fmt: skip


def enter(lab: Lab, box: Locator, text: str) -> None:
    box.fill(text)
    lab.page.keyboard.press("Enter")


def test_boxes_and_jobs(lab: Lab) -> None:
    lab.viewport(1300, 1500)
    lab.open_notebook([BENCH], name="controls.ipynb")
    lab.run_cell(0)
    panel = lab.panel(0)
    # Before the first job there is a line that says what to do, and the tabs, all closed.
    expect(panel.locator(".wb-progress")).to_contain_text("Press Find beside the batch size")
    expect(panel.locator(".wb-card:visible")).to_have_count(0)
    expect(panel.locator(".wb-drawer-tab[aria-expanded=false]:visible")).to_have_count(4)
    before = lab.execute("print(bench.settings.changed())")
    for step, text, why in REFUSED:
        part = panel.locator(".wb-step").nth(step)
        box = part.locator("input[type=text]")
        enter(lab, box, text)
        expect(part.locator(".wb-why")).to_contain_text(why)
        expect(box).to_have_value(text)
        expect(box).to_have_attribute("aria-invalid", "true")
        described = box.get_attribute("aria-describedby")
        expect(part.locator(f"#{described}")).to_contain_text(why)
    train = panel.locator(".wb-run button").first
    expect(train).to_have_text("Train: correct lr and 3 more")
    expect(train).to_have_attribute("aria-disabled", "true")
    train.press("Enter")
    expect(panel.locator(".wb-notice")).to_contain_text(
        "Train: correct lr, batch_size, gradient_clip_val, max_epochs first."
    )
    assert lab.execute("print(len(bench.jobs), bench.settings.changed())") == f"0 {before}"
    assert lab.violations(".wb-panel") == []
    lab.screenshot("controls-refused", panel)
    lab.theme("dark")
    lab.screenshot("controls-refused-dark", panel)
    lab.theme("light")

    for step, text in enumerate(("48", "3e-3", "", "100000")):
        box = panel.locator(".wb-step").nth(step).locator("input[type=text]")
        enter(lab, box, text)
        expect(panel.locator(".wb-step").nth(step).locator(".wb-why")).to_be_hidden()
        expect(box).to_have_value(text)
        expect(box).not_to_have_attribute("aria-invalid", "true")
    lab.until(
        "print(bench.settings.batch_size, bench.settings.lr, bench.settings.max_epochs)",
        "48 0.003 100000",
    )
    expect(train).to_have_text("▶ Train")
    expect(panel.locator(".wb-notice")).to_be_hidden()

    # One fit, however often it is clicked; what code adds waits, can be removed one by one, and stopped together.
    train.click(click_count=3)
    expect(train).to_have_text("Training…")
    assert lab.execute("print(len(bench.jobs))") == "1"
    queue = panel.locator(".wb-queue")
    expect(queue).to_be_hidden()
    lab.execute("waiting = [bench.find_lr(), bench.fit(), bench.fit()]")
    expect(queue.locator("li")).to_have_count(3)
    lab.screenshot("controls-queue", panel)
    assert lab.violations(".wb-panel") == []
    queue.get_by_role("button", name="Remove 0002-find_lr").click()
    expect(queue.locator("li")).to_have_count(2)
    expect(queue.locator("li").first.locator("button")).to_be_focused()
    assert (
        lab.execute("print([job.status for job in bench.jobs])")
        == "['running', 'stopped', 'queued', 'queued']"
    )
    expect(panel.locator(".wb-code code")).to_have_text("bench.jobs[1].stop()")
    queue.get_by_role("button", name="Stop all").click()
    expect(queue).to_be_hidden()
    expect(train).to_have_text("▶ Train")
    expect(panel.locator(".wb-progress")).to_contain_text("Training: stopped")
    assert (
        lab.execute("print([job.result().status for job in bench.jobs if job.kind == 'fit'])")
        == "['stopped', 'stopped', 'stopped']"
    )
    assert lab.complaints == []
