"""Past runs as a person uses them: listed, laid over one another, shown again, continued, deleted; and what a run says of itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab
from tests.server.records import Record

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
    lab.tab(panel, "Runs")
    rows = panel.locator(".wb-runs tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("0003-fit")
    expect(rows.first).to_contain_text("finished")
    expect(rows.first.locator("svg polyline")).to_have_count(1)
    expect(panel.locator(".wb-runs thead")).to_contain_text("lr")
    expect(panel.locator(".wb-runs thead")).not_to_contain_text("batch_size")  # the same in all
    # Those before it lie behind the loss, by name.
    expect(panel.locator(".wb-loss .wb-foot")).to_contain_text(
        re.compile(r"Previous runs:\s*0002-fit\s*\d\S+\s*last val_loss")
    )
    # one row, whatever else is drawn
    expect(panel.locator(".wb-loss > .wb-key")).not_to_contain_text("-fit")
    expect(panel.locator(".wb-health")).to_contain_text("No problems detected.")
    # A view of what is over has all of it, up to its right edge; the plots share their cursor.
    lab.settle()
    lab.tab(panel, "Gradients and clipping")
    over = panel.locator(".wb-norm .u-over")
    box = over.bounding_box()
    assert box is not None
    over.hover(position={"x": box["width"] - 2, "y": box["height"] / 2})
    # of 352
    expect(panel.locator(".wb-loss .wb-at")).to_contain_text(re.compile(r"at update 3[45]\d"))
    lab.page.mouse.move(0, 0)
    lab.tab(panel, "Runs")

    # Two over one another, by keyboard; the line of code is shown.
    rows.nth(0).locator("input").focus()
    lab.page.keyboard.press("Space")
    expect(panel.locator(".wb-runs")).to_contain_text("1 selected: select one more to compare")
    rows.nth(2).locator("input").focus()
    lab.page.keyboard.press("Space")
    compare = panel.locator(".wb-compare")
    expect(compare.locator("canvas")).to_have_count(2)  # the loss, val_loss
    expect(panel.locator(".wb-code code")).to_have_text("bench.compare('0003-fit', '0001-fit')")
    expect(compare.locator("table")).to_contain_text("1e-4")
    compare.get_by_role("button", name="epoch").click()
    expect(compare.get_by_role("button", name="epoch")).to_have_attribute("aria-pressed", "true")
    panel.locator(".wb-loss").get_by_role("button", name="Options of this plot").click()
    panel.locator(".wb-loss").get_by_role("button", name="lr", exact=True).click()
    expect(panel.locator(".wb-strip canvas")).to_be_visible()
    looks(lab, panel)

    # The same in code, with one more.
    lab.execute("bench.compare(*bench.runs)")
    expect(compare.locator("thead th, tr:first-child th")).to_have_count(3)
    expect(panel.locator(".wb-runs tbody input:checked")).to_have_count(3)

    # One is shown again, as if it had just run, and the way back.
    rows.nth(2).get_by_role("button", name="0001-fit", exact=True).click()
    expect(panel.locator(".wb-opened")).to_contain_text("Run 0001-fit, from its record")
    expect(panel.locator(".wb-loss .wb-at")).to_have_text("lr 1e-4")
    expect(panel.locator(".wb-code code")).to_have_text("bench.show('0001-fit')")
    lab.page.wait_for_timeout(300)
    lab.screenshot("runs-opened", panel)
    paint = (
        rows.nth(2)
        .locator(".wb-run-actions")
        .evaluate("cell => getComputedStyle(cell).backgroundColor")
    )
    assert not re.search("rgba|/", paint), (
        "what is scrolled below the buttons does not show through"
    )
    panel.get_by_role("button", name="Back to now").click()
    expect(panel.locator(".wb-opened")).to_be_hidden()
    expect(rows.nth(2).get_by_role("button", name="0001-fit", exact=True)).to_be_focused()
    expect(panel.locator(".wb-loss .wb-at")).to_have_text("lr 0.01")

    annotated(lab, panel)
    deleted(lab, panel)

    # A run that has come to its end can be continued to more epochs; until then its menu says why not.
    lab.execute("bench.set(max_epochs=8)")
    go_on = action(panel, "0001-fit", "Continue")
    expect(go_on).to_have_attribute("aria-disabled", "true")
    expect(go_on).to_contain_text(re.compile("max_epochs=8 reached.*enter more epochs"))
    expect(panel.get_by_role("menuitem", name="Rerun")).to_have_attribute(
        "title", re.compile("^Repeat 0001-fit")
    )
    lab.page.keyboard.press("Escape")
    expect(panel.get_by_role("button", name="Actions of 0001-fit")).to_be_focused()
    lab.execute("bench.set(max_epochs=9)")
    lab.settle()
    action(panel, "0001-fit", "Continue").click()
    lab.until("print(len(bench.jobs), bench.job.status, bench.job.updates)", "4 finished 396")
    expect(panel.locator(".wb-code code")).to_have_text("bench.fit(start='0001-fit', max_epochs=9)")
    lab.execute("bench.delete(bench.job.id)")
    expect(rows).to_have_count(2)

    refusals(lab, panel)
    preview(lab, panel)
    running(lab, panel)
    findings(lab, panel)

    # All of it is there again on a page that is loaded again: the models hold it.
    lab.save()
    lab.reload()
    again = lab.panel(0)
    expect(again.locator(".wb-runs tbody tr")).to_have_count(2)
    expect(again.locator(".wb-compare canvas").first).to_be_visible()
    expect(again.locator(".wb-strip canvas")).to_be_visible()  # switches are as they were set
    expect(again.locator(".wb-loss .wb-foot")).to_contain_text(
        re.compile(r"Previous runs:\s*0003-fit.*0001-fit")
    )
    # JupyterLab asks for a run that has ended; some were deleted as soon as they had.
    assert [
        line for line in lab.complaints if not re.search(r"404.*/api/runs/\w+/000[24-9]-fit$", line)
    ] == []


def action(panel: Locator, run: str, name: str) -> Locator:
    """An entry of the menu of a run, which is opened."""
    panel.get_by_role("button", name=f"Actions of {run}").click()
    return panel.get_by_role("menuitem", name=name)


def annotated(lab: Lab, panel: Locator) -> None:
    """A run gets a name, tags, notes and a pin; the table is sorted, filtered and grouped, with other columns."""
    rows = panel.locator(".wb-runs tbody tr")
    names = panel.locator(".wb-runs tbody .wb-run-name")
    action(panel, "0001-fit", "Edit").click()
    form = panel.get_by_role("form", name="Name, tags and notes of 0001-fit")
    expect(form.get_by_label("Name")).to_be_focused()
    lab.page.keyboard.type("Slow <b>baseline</b>")
    form.get_by_label("Tags").fill("sgd, too low")
    form.get_by_label("Notes").fill("learns, but slowly")
    lab.screenshot("runs-edit", panel.locator(".wb-runs"))
    form.get_by_label("Name").press("Enter")
    expect(rows.nth(2)).to_contain_text("Slow <b>baseline</b>")
    expect(rows.nth(2).locator(".wb-run-tag")).to_have_text(["sgd", "too low"])
    expect(rows.nth(2).get_by_role("button", name="Actions of 0001-fit")).to_be_focused()
    told = lab.execute("run = bench.runs[0]; print(run.name, run.tags, run.notes)")
    assert told == "Slow <b>baseline</b> ('sgd', 'too low') learns, but slowly"
    rows.nth(2).get_by_role("button", name="Pin 0001-fit").click()
    expect(names.first).to_contain_text("0001-fit")
    expect(panel.locator(".wb-code code")).to_have_text("bench.annotate('0001-fit', pinned=True)")
    expect(names.first.locator("xpath=..").locator(".wb-pin")).to_be_focused()
    lab.screenshot("runs-pinned", panel.locator(".wb-runs"))
    names.first.locator("xpath=..").locator(".wb-pin").click()
    expect(names.first).to_contain_text("0003-fit")

    by_loss = panel.locator(".wb-runs thead").get_by_role("button", name="loss", exact=True)
    by_loss.click()
    head = panel.locator(".wb-runs thead th[aria-sort=ascending]")
    expect(head).to_have_text("loss")
    cells = panel.locator(".wb-runs tbody tr > td:nth-child(5)")
    losses = [float(text) for text in cells.all_inner_texts()]
    assert losses == sorted(losses)
    by_loss.click()
    expect(names.first).to_contain_text("0001-fit")
    by_loss.click()
    expect(names.first).to_contain_text("0003-fit")

    box = panel.get_by_label("Filter runs")
    box.fill("slowly sgd")
    expect(names).to_have_count(1)
    expect(panel.locator(".wb-runs .wb-foot")).to_contain_text("2 of 3 runs do not match")
    box.fill("lr < 1e-2 and tags != sgd")
    expect(names).to_contain_text(["0002-fit"])
    box.fill("lrr < 1e-2")
    expect(panel.locator(".wb-runs-problem")).to_contain_text("'lrr' is no column: near it are lr")
    expect(names).to_have_count(1)
    box.fill("")
    expect(names).to_have_count(3)
    assert (
        lab.execute('print([run.id for run in bench.runs.filter("lr < 1e-2 and tags != sgd")])')
        == "['0002-fit']"
    )

    panel.get_by_role("button", name="Columns").click()
    panel.get_by_label("Find a column").fill("weight_decay")
    panel.locator(".wb-columns").get_by_label("weight_decay", exact=True).check()
    head = panel.locator(".wb-runs thead th[data-column=weight_decay]")
    expect(head).to_be_visible()
    lab.page.keyboard.press("Escape")
    width = head.evaluate("cell => cell.offsetWidth")
    head.get_by_role("separator").press("ArrowRight")
    assert head.evaluate("cell => cell.offsetWidth") == width + 16
    panel.get_by_role("button", name="Columns").click()
    panel.get_by_role("button", name="What differs").click()
    expect(head).to_have_count(0)
    lab.page.keyboard.press("Escape")

    panel.get_by_role("button", name="Settings against results").click()
    expect(panel.locator(".wb-parallel-line")).to_have_count(3)
    expect(panel.locator(".wb-shares")).to_contain_text("It takes 9 runs")
    panel.get_by_role("button", name="Settings against results").click()
    panel.get_by_label("Group runs").select_option("tags")
    groups = panel.locator(".wb-run-group")
    expect(groups).to_have_count(3)
    groups.filter(has_text="too low").get_by_role("button").click()
    expect(box).to_have_value('tags == "too low"')
    expect(names).to_contain_text(["0001-fit"])
    box.fill("")
    expect(names).to_have_count(3)
    assert lab.violations(".wb-runs") == []


def deleted(lab: Lab, panel: Locator) -> None:
    """A deleted run leaves the table at once and the disk later: until then Undo brings it back."""
    rows = panel.locator(".wb-runs tbody tr")
    lab.execute(
        "from workbench.ui.canvas.runs import pending_deletions; pending_deletions.SECONDS = 600.0"
    )
    action(panel, "0002-fit", "Delete").click()
    expect(rows).to_have_count(2)
    undo = panel.get_by_role("button", name="Undo the deletion of 0002-fit")
    expect(undo).to_be_focused()
    lab.screenshot("runs-undo", panel.locator(".wb-runs"))
    assert lab.execute("print(len(bench.runs))") == "3"
    lab.page.keyboard.press("Enter")
    expect(rows).to_have_count(3)
    lab.execute("pending_deletions.SECONDS = 0.2")
    lab.execute("told = []; bench.subscribe(lambda event: told.append(getattr(event, 'code', '')))")
    action(panel, "0002-fit", "Delete").click()
    # the comparison of the other two may be told after it
    lab.until("print(\"bench.delete('0002-fit')\" in told)", "True")
    expect(panel.locator(".wb-runs-deleted")).to_be_hidden()
    expect(rows).to_have_count(2)
    assert lab.execute("print([run.id for run in bench.runs])") == "['0001-fit', '0003-fit']"


def refusals(lab: Lab, panel: Locator) -> None:
    """What the bench refuses leaves no trace in the table."""
    lab.execute(
        "def no(*runs):\n    raise RuntimeError('not ' + ' nor '.join(runs))\n"
        "bench.fit(lr=1e-3, max_epochs=1).result()\nbench.compare, bench.delete = no, no"
    )
    new = panel.locator(".wb-runs tbody tr").first
    new.locator("input").check()
    expect(panel.locator(".wb-notice")).to_contain_text("Compare: RuntimeError: not ")
    action(panel, "0005-fit", "Delete").click()
    expect(panel.locator(".wb-notice")).to_contain_text("Delete: RuntimeError: not ")
    expect(new).to_contain_text("0005-fit")
    expect(new.locator("input")).not_to_be_checked()
    expect(panel.locator(".wb-runs tbody input:checked")).to_have_count(2)
    lab.execute("del bench.compare, bench.delete")


def preview(lab: Lab, panel: Locator) -> None:
    """The script that is shown is that of the last fit, also when another one becomes that."""
    script = panel.locator(".wb-script")
    panel.locator(".wb-run").get_by_role("button", name="Export").click()
    expect(script.locator("pre")).to_contain_text("0.001")
    # What the script does besides the training is in it where it is ticked.
    expect(script.locator("pre")).not_to_contain_text("log_file")
    script.get_by_label("log file").check()
    expect(script.locator("pre")).to_contain_text("log_file")
    script.get_by_label("What is written").select_option("settings")
    expect(script.get_by_label("log file")).to_be_hidden()
    script.get_by_label("What is written").select_option("script")
    expect(script.get_by_label("log file")).to_be_checked()
    lab.screenshot("export-sheet")
    lab.execute("bench.fit(lr=0.0314, max_epochs=1).result()")
    expect(script.locator("pre")).to_contain_text("0.0314")
    panel.locator(".wb-run").get_by_role("button", name="Export").click()
    expect(script).to_be_hidden()
    lab.execute("[bench.delete(run) for run in bench.runs[2:]]")
    expect(panel.locator(".wb-runs tbody tr")).to_have_count(2)


def running(lab: Lab, panel: Locator) -> None:
    """The row of a fit that runs has its place among the others, and moves as its loss falls."""
    names = panel.locator(".wb-runs tbody .wb-run-name")
    by_loss = panel.locator(".wb-runs thead").get_by_role("button", name="loss", exact=True)
    by_loss.click()
    lab.execute("job = bench.fit(lr=1e-9, max_epochs=100000)")
    expect(names.last).to_contain_text(lab.execute("print(job.id)"))
    expect(panel.locator(".wb-runs tbody tr").last).to_contain_text("running")
    lab.execute("job.change(lr=1e-2)")
    expect(names.first).to_contain_text(lab.execute("print(job.id)"))
    lab.execute("job.stop(); job.wait(); bench.delete(job.id)")
    expect(names).to_have_count(2)
    by_loss.click(click_count=2)
    expect(names.first).to_contain_text("0003-fit")


def findings(lab: Lab, panel: Locator) -> None:
    """A screen reader says lines that are added: a worse finding is a new line above the others, which stay where they are."""
    lines = panel.locator(".wb-findings > li")
    lab.execute(
        "from workbench.ui.panel import Panel; canvas = Panel.of(bench).canvas; note = dict(level='warning', text='12 of 30 are slow', advice='', remedy='')"
    )
    lab.execute("canvas.put('health', [note])")
    expect(lines).to_contain_text(["12 of 30 are slow"])
    lines.first.evaluate("line => { line.old = true; }")
    lab.execute(
        "canvas.put('health', [dict(note, level='error', text='the loss is not finite'), dict(note, text='14 of 40 are slow')])"
    )
    expect(lines).to_contain_text(["The loss is not finite", "14 of 40 are slow"])
    assert lines.evaluate_all("all => all.map((line) => line.old === true)") == [False, True]
    lab.execute("canvas.put('health', [])")
    expect(lines).to_contain_text(["No problems detected."])


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


SMALL = """import torch
import torch.nn.functional as F
from torch import nn
import workbench as wb
x = torch.randn(64, 3)
bench = wb.Workbench(nn.Linear(3, 1), train=(x, x[:, :1]), val=(x, x[:, :1]), loss=F.mse_loss, accelerator="cpu")
bench"""


def test_runs_of_a_study_say_their_place_in_it(lab: Lab) -> None:
    for trial in (1, 2):
        place = {"id": "0003-study", "trial": trial, "seed": 0, "rung": 1, "length": 1 / 3}
        record = Record(lab.folder / ".workbench", f"000{trial}-fit", study=place)
        record.steps(40).checked(0.5).ended(val_loss=0.5)
    lab.open_notebook([SMALL], name="runs.ipynb")
    lab.run_cell(0)
    panel = lab.panel(0)
    lab.tab(panel, "Runs")
    rows = panel.locator(".wb-runs tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("0003-study trial 2, seed 0, 1/3 fit")
    panel.get_by_label("Filter runs").fill("trial 1,")
    expect(rows).to_have_count(1)
