"""Past runs as a person uses them: listed, laid over one another, shown again, continued, deleted; and what a run says of itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab

pytestmark = pytest.mark.browser

# Small and quick, and long enough that a curve has a shape. One learns too slowly, one well, one diverges.
BENCH = """import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
import workbench as wb

class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(288, 10)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).flatten(1))

pictures, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
torch.manual_seed(0)
bench = wb.Workbench(DigitNet(), train=(x[:1400], y[:1400]), val=(x[1400:], y[1400:]), loss=F.cross_entropy, accelerator="cpu")
for lr in (1e-4, 1e-3, 1e-2):
    bench.fit(lr=lr, max_epochs=8).result()
bench"""


@pytest.fixture
def panel(lab: Lab) -> Locator:
    lab.viewport(1300, 2100)
    lab.open_notebook([BENCH], name="runs.ipynb")
    lab.run_cell(0)
    return lab.panel(0)


def test_a_morning_with_several_runs(lab: Lab, panel: Locator) -> None:
    rows = panel.locator(".wb-runs tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("0003-fit")
    expect(rows.first).to_contain_text("finished")
    expect(rows.first.locator("svg polyline")).to_have_count(1)
    expect(panel.locator(".wb-runs thead")).to_contain_text("lr")
    expect(panel.locator(".wb-runs thead")).not_to_contain_text("batch_size")  # the same in all
    # Those before it lie behind the loss, by name.
    expect(panel.locator(".wb-loss .wb-caption")).to_contain_text("behind: 0002-fit (loss")
    expect(panel.locator(".wb-health")).to_contain_text("Nothing to report.")
    # A view of what is over has all of it, up to its right edge; the plots share their cursor.
    lab.settle()
    over = panel.locator(".wb-norm .u-over")
    box = over.bounding_box()
    assert box is not None
    over.hover(position={"x": box["width"] - 2, "y": box["height"] / 2})
    expect(panel.locator(".wb-loss .wb-head .wb-key")).to_contain_text(re.compile(r"at update 3[45]\d"))  # of 352
    lab.page.mouse.move(0, 0)

    # Two over one another, by keyboard; the line of code is shown.
    rows.nth(0).locator("input").focus()
    lab.page.keyboard.press("Space")
    expect(panel.locator(".wb-runs")).to_contain_text("tick one more to compare")
    rows.nth(2).locator("input").focus()
    lab.page.keyboard.press("Space")
    compare = panel.locator(".wb-compare")
    expect(compare.locator("canvas")).to_be_visible()
    expect(panel.locator(".wb-code code")).to_have_text("bench.compare('0003-fit', '0001-fit')")
    expect(compare.locator("table")).to_contain_text("0.0001")
    compare.get_by_role("button", name="epoch").click()
    expect(compare.get_by_role("button", name="epoch")).to_have_attribute("aria-pressed", "true")
    panel.locator(".wb-loss").get_by_role("button", name="lr", exact=True).click()
    expect(panel.locator(".wb-strip canvas")).to_be_visible()
    looks(lab, panel)

    # The same in code, with one more.
    lab.execute("bench.compare(*bench.runs)")
    expect(compare.locator("thead th, tr:first-child th")).to_have_count(3)
    expect(panel.locator(".wb-runs input:checked")).to_have_count(3)

    # One is shown again, as if it had just run, and the way back.
    rows.nth(2).get_by_role("button", name="Open 0001-fit").click()
    expect(panel.locator(".wb-opened")).to_contain_text("Run 0001-fit, from its record")
    expect(panel.locator(".wb-loss .wb-head .wb-key")).to_contain_text("1e-4")
    expect(panel.locator(".wb-code code")).to_have_text("bench.show('0001-fit')")
    lab.page.wait_for_timeout(300)
    lab.screenshot("runs-opened", panel)
    paint = rows.nth(2).locator(".wb-run-actions").evaluate("cell => getComputedStyle(cell).backgroundColor")
    assert not re.search("rgba|/", paint), "what is scrolled below the buttons does not show through"
    panel.get_by_role("button", name="Back to now").click()
    expect(panel.locator(".wb-opened")).to_be_hidden()
    expect(rows.nth(2).get_by_role("button", name="Open 0001-fit")).to_be_focused()
    expect(panel.locator(".wb-loss .wb-head .wb-key")).to_contain_text("lr0.01")

    # Deleting asks first; Escape keeps. Then the row is gone, from the comparison too, and the keyboard is on the next one.
    delete = rows.nth(1).get_by_role("button", name="Delete 0002-fit")
    delete.click()
    expect(rows.nth(1).get_by_role("button", name="Keep")).to_be_focused()
    lab.page.keyboard.press("Escape")
    expect(delete).to_be_focused()
    delete.click()
    rows.nth(1).get_by_role("button", name="Delete 0002-fit for good").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1).locator(":focus")).to_have_count(1)
    expect(panel.locator(".wb-code code")).to_have_text("bench.delete('0002-fit')")
    assert lab.execute("print([run.id for run in bench.runs])") == "['0001-fit', '0003-fit']"
    expect(compare.locator("tr:first-child th")).to_have_count(2)

    # A run goes on from another one; its end is refused for want of more to do, and the panel says so.
    rows.nth(1).get_by_role("button", name="Continue 0001-fit").click()
    expect(panel.locator(".wb-notice")).to_contain_text("0001-fit")

    refusals(lab, panel)
    preview(lab, panel)
    findings(lab, panel)

    # All of it is there again on the reloaded page.
    lab.save()
    lab.reload()
    again = lab.panel(0)
    expect(again.locator(".wb-runs tbody tr")).to_have_count(2)
    expect(again.locator(".wb-compare canvas")).to_be_visible()
    expect(again.locator(".wb-strip canvas")).to_be_visible()  # switches are as they were left
    expect(again.locator(".wb-loss .wb-caption")).to_contain_text(re.compile(r"behind: 0003-fit \(.*\) · 0001-fit \("))
    assert lab.complaints == []


def refusals(lab: Lab, panel: Locator) -> None:
    """What the bench refuses leaves no trace in the table."""
    lab.execute(
        "def no(*runs):\n    raise RuntimeError('not ' + ' nor '.join(runs))\n"
        "bench.fit(lr=1e-3, max_epochs=1).result()\nbench.compare, bench.delete = no, no"
    )
    new = panel.locator(".wb-runs tbody tr").first
    new.locator("input").check()
    expect(panel.locator(".wb-notice")).to_contain_text("Compare: RuntimeError: not ")
    new.get_by_role("button", name="Delete").click()
    new.get_by_role("button", name="for good").click()
    expect(panel.locator(".wb-notice")).to_contain_text("Delete: RuntimeError: not ")
    expect(new.get_by_role("button", name="Delete")).to_be_focused()
    expect(new.locator("input")).not_to_be_checked()
    expect(panel.locator(".wb-runs input:checked")).to_have_count(2)
    lab.execute("del bench.compare, bench.delete")


def preview(lab: Lab, panel: Locator) -> None:
    """The script that is shown is that of the last fit, also when another one becomes that."""
    script = panel.locator(".wb-script")
    panel.locator(".wb-run").get_by_role("button", name="Export").click()
    expect(script.locator("pre")).to_contain_text("0.001")
    lab.execute("bench.fit(lr=0.0314, max_epochs=1).result()")
    expect(script.locator("pre")).to_contain_text("0.0314")
    panel.locator(".wb-run").get_by_role("button", name="Export").click()
    expect(script).to_be_hidden()
    lab.execute("[bench.delete(run) for run in bench.runs[2:]]")
    expect(panel.locator(".wb-runs tbody tr")).to_have_count(2)


def findings(lab: Lab, panel: Locator) -> None:
    """A screen reader says lines that are added: a worse finding is a new line above the others, which stay where they are."""
    lines = panel.locator(".wb-findings > li")
    lab.execute("from workbench.ui.panel import Panel; canvas = Panel.of(bench).canvas; note = dict(level='warning', text='12 of 30 are slow', remedy='')")
    lab.execute("canvas.put('health', [note])")
    expect(lines).to_contain_text(["12 of 30 are slow"])
    lines.first.evaluate("line => { line.old = true; }")
    lab.execute("canvas.put('health', [dict(note, level='error', text='the loss is not finite'), dict(note, text='14 of 40 are slow')])")
    expect(lines).to_contain_text(["The loss is not finite", "14 of 40 are slow"])
    assert lines.evaluate_all("all => all.map((line) => line.old === true)") == [False, True]
    lab.execute("canvas.put('health', [])")
    expect(lines).to_contain_text(["Nothing to report."])


def looks(lab: Lab, panel: Locator) -> None:
    """Pictures to look at: light and dark, wide and narrow."""
    for theme, widths in (("light", (1300, 600)), ("dark", (600, 1300))):
        if theme == "dark":
            lab.theme("dark")
        for width in widths:
            lab.viewport(width, 2600)
            lab.page.wait_for_timeout(400)
            lab.screenshot(f"runs-{theme}-{width}", panel)
    lab.theme("light")
    lab.viewport(1300, 2100)
