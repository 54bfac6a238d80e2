"""The quickstart as a person uses it: find, drag, fit, and Stop while another cell is busy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab
from tests.browser.server import TIMEOUT

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "1_quickstart.ipynb"
# A cell that computes in pure Python until enough was seen, or until all who wait for that have given up.
BUSY = f"""import pathlib, time
pathlib.Path('begun').touch()
busy_from, count = time.time(), 0
while time.time() < busy_from + {3 * TIMEOUT}:
    count += 1
    if count % 100_000 == 0 and pathlib.Path('seen').exists():
        break
busy_until = time.time()"""
ENDED = "ended_at = []; bench.subscribe(lambda e: ended_at.append(__import__('time').time()) if type(e).__name__ == 'RunEnded' else None)"
BENCH, BUSY_CELL = 1, 2


@pytest.fixture
def panel(lab: Lab) -> Locator:
    """The panel of the quickstart's bench, in a notebook that ends with a busy cell."""
    sources = [
        cell.source
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code"
    ]
    lab.viewport(1300, 1950)
    lab.open_notebook([sources[0], sources[1], BUSY], name="quickstart-panel.ipynb")
    lab.run_cell(0)
    lab.run_cell(BENCH)
    lab.execute(ENDED)
    return lab.panel(BENCH)


def lr_box(panel: Locator) -> Locator:
    return panel.locator(".wb-step-lr input[type=text]")


def drag_slider(lab: Lab, panel: Locator, dx: float) -> None:
    """Take hold of the slider's handle with the mouse, and move it by so many pixels."""
    slider = panel.locator(".wb-step-lr input[type=range]")
    slider.hover()
    box, value = slider.bounding_box(), float(slider.input_value())
    assert box is not None
    # the middle of the handle, which is 16 pixels wide, over powers from -7 to 1
    x, y = box["x"] + 8 + (value + 7) / 8 * (box["width"] - 16), box["y"] + box["height"] / 2
    lab.page.mouse.move(x, y)
    lab.page.mouse.down()
    lab.page.mouse.move(x + dx, y, steps=8)
    lab.page.mouse.up()


def lr_of(lab: Lab) -> float:
    return float(lab.execute("print(bench.settings.lr)"))


def settled_lr(lab: Lab, panel: Locator, moved: Callable[[float], bool]) -> float:
    """The learning rate once it has `moved` and the number box and the marker both show it.

    A drag sends values on its way, so the first one that has moved need not be the last one.
    """
    grip = panel.locator(".wb-handle-x .wb-grip")
    end = time.monotonic() + TIMEOUT
    while True:
        lr = lr_of(lab)
        box, marker = (
            float(lr_box(panel).input_value() or "nan"),
            float(grip.get_attribute("aria-valuenow") or "nan"),
        )
        if (
            moved(lr)
            and box == pytest.approx(lr, rel=1e-3)
            and marker == pytest.approx(lr, rel=1e-2)
        ):
            return lr
        assert time.monotonic() < end, f"setting {lr}, number box {box}, marker {marker}"
        time.sleep(0.1)


def drag_the_slider_and_race(lab: Lab, panel: Locator) -> None:
    """The rate that is in use is moved by the mouse on slider and curve; the race suggests another."""
    suggestion = lr_of(lab)
    # Its chip puts the search on the stage again.
    panel.locator(".wb-chip", has_text="lr ").click()
    expect(panel.locator(".wb-chip[aria-current]")).to_contain_text("lr ")
    expect(panel.locator(".wb-finder .wb-flag", has_text="Recommended")).to_be_visible()
    expect(panel.locator(".wb-answers button")).to_have_text("in use")
    lab.settle()
    drag_slider(lab, panel, dx=60)
    moved = settled_lr(lab, panel, lambda lr: lr > 1.5 * suggestion)
    lab.screenshot("quickstart-lr-finder", panel)

    # The other way: the marker on the curve moves slider, box and setting.
    lab.settle()
    lab.drag(panel.locator(".wb-handle-x .wb-grip"), dx=-40)
    settled_lr(lab, panel, lambda lr: lr < 0.9 * moved)

    # The race: four rates and the present one train on, their losses are rings beside the curve, and its rate is the one to use.
    panel.locator(".wb-step-lr button", has_text="Race").click()
    lab.until("print(len(bench.jobs), bench.job.status)", "4 finished")
    assert lab.execute("print(len(bench.job.result().race))").splitlines()[-1] == "5"
    expect(panel.locator(".wb-code")).to_contain_text("bench.find_lr(race=True)")
    expect(panel.locator(".wb-finder .wb-key")).to_contain_text("raced")
    expect(panel.locator(".wb-finder .wb-flag", has_text="Recommended")).to_have_count(1)
    raced = float(lab.execute("print(bench.job.result().suggestions['race'].lr)").splitlines()[-1])
    panel.locator(".wb-answers button").click()
    lab.until(
        "print(bench.settings.lr)", lambda text: float(text) == pytest.approx(raced, rel=0.01)
    )
    lab.settle()
    lab.screenshot("quickstart-lr-race", panel)


def test_the_quickstart(lab: Lab, panel: Locator) -> None:
    """Stop while a cell is busy, continue, train on two devices; then, in another folder, find, use and fit by clicks."""
    stop_and_continue(lab, panel)
    on_two_devices(lab, panel)
    lab.execute("os = __import__('os'); os.mkdir('clicks'); os.chdir('clicks')")
    lab.run_cell(BENCH)
    four_clicks(lab, lab.panel(BENCH))
    assert lab.complaints == []


def stop_and_continue(lab: Lab, panel: Locator) -> None:
    lab.execute("bench.set(max_epochs=5000, batch_size=64)")
    expect(panel.locator(".wb-run").get_by_role("button", name="Continue")).to_be_hidden()
    panel.get_by_role("button", name="Train").click()
    lab.until("print(bench.job is not None and len(bench.job.events) > 12)", "True")
    before = int(lab.execute("print(max(getattr(event, 'step', 0) for event in bench.job.events))"))
    lab.screenshot("quickstart-fit", panel)

    stop = panel.get_by_role("button", name="Stop")
    get_busy(lab)
    lab.scroll_to(BENCH)
    clicked = time.time()
    stop.click()
    expect(panel).to_contain_text("Training: stopped")
    seen = time.time()
    lab.screenshot("quickstart-stopped-while-busy", panel)
    let_go(lab)
    lab.settle()  # all have heard of the end
    ended, busy_until = json.loads(
        lab.execute("import json; print(json.dumps([ended_at[-1], busy_until]))")
    )
    assert ended < busy_until, "the run went on until the cell was done"
    assert seen < busy_until, "the panel said so only when the cell was done"
    print(f"stopped {ended - clicked:.2f} s after the click")
    lab.execute("run = bench.job.result()")
    assert lab.execute("print(run.status)") == "stopped"
    assert int(lab.execute("print(len(run.history['loss']))")) >= before > 0
    go_on_from_there(lab, panel)


def get_busy(lab: Lab) -> None:
    """Run the busy cell, until it computes."""
    for name in ("begun", "seen"):
        (lab.folder / name).unlink(missing_ok=True)
    lab.run_cell(BUSY_CELL, wait=False)
    end = time.monotonic() + TIMEOUT
    while not (lab.folder / "begun").exists():
        assert time.monotonic() < end, "the busy cell has not begun"
        time.sleep(0.02)


def let_go(lab: Lab) -> None:
    """End the busy cell: enough was seen."""
    (lab.folder / "seen").touch()
    lab.wait_idle()


def go_on_from_there(lab: Lab, panel: Locator) -> None:
    """A fit that was stopped goes on where it was; one that came to its end goes on to more epochs."""
    go_on = panel.locator(".wb-run").get_by_role("button", name="Continue")
    stopped = int(lab.execute("print(bench.job.updates)"))
    # of 23 updates; two more, as `set` counts
    lab.execute("bench.set(max_epochs=-(-bench.job.updates // 23) + 2)")
    go_on.click()
    lab.until("print(len(bench.jobs), bench.job.status)", "2 finished")
    told = lab.execute(
        "run = bench.job.result(); print([e.step for e in run.resumes], run.resumes[0].run == bench.jobs[0].id)"
    )
    assert told.splitlines()[-1] == f"[{stopped}] True"
    expect(panel.locator(".wb-code")).to_contain_text("bench.fit(start='continue')")
    expect(panel).to_contain_text("finished")
    expect(go_on).to_be_hidden()

    epochs = panel.locator(".wb-step").nth(3).locator("input")
    more = int(lab.execute("print(bench.settings.max_epochs)")) + 1
    expect(epochs).to_have_value(str(more - 1))
    epochs.fill(str(more))
    epochs.press("Tab")
    go_on.click()
    lab.until("print(len(bench.jobs), bench.job.status)", "3 finished")
    expect(panel.locator(".wb-code")).to_contain_text(
        f"bench.fit(start='continue', max_epochs={more})"
    )
    lab.screenshot("quickstart-continued", panel)


def on_two_devices(lab: Lab, panel: Locator) -> None:
    """Typed into the form; the fit is by two processes, and its Stop works while a cell is busy."""
    lab.execute("bench.set(max_epochs=5000, accelerator='cpu')")
    panel.get_by_role("button", name="All settings").click()
    panel.locator("summary", has_text="Devices").click()
    devices = panel.get_by_label("devices", exact=True)
    devices.fill("two")
    devices.press("Tab")
    expect(devices.locator("xpath=ancestor::*[contains(@class, 'wb-form-row')]")).to_contain_text(
        "Should be 'auto', a number of devices"
    )
    devices.fill("2")
    devices.press("Tab")
    expect(panel.locator(".wb-step").first).to_contain_text("each of 2")
    lab.screenshot("quickstart-devices", panel)
    panel.get_by_role("button", name="All settings").click()
    panel.get_by_role("button", name="Train").click()
    expect(panel).to_contain_text("on 2 x cpu")
    lab.until("print(len(bench.job.events) > 12)", "True")
    lab.screenshot("quickstart-two-devices", panel)
    get_busy(lab)
    lab.scroll_to(BENCH)
    panel.get_by_role("button", name="Stop").click()
    expect(panel).to_contain_text("Training: stopped")
    let_go(lab)
    assert lab.execute("print(bench.job.result().status)").splitlines()[-1] == "stopped"


def four_clicks(lab: Lab, panel: Locator) -> None:
    """Find, use, find, use, fit: what the README's picture shows; then the page is loaded again, and the slider dragged."""
    lab.short_trials()
    # it is not tried, since it is below the sizes that are: any best one is another
    lab.execute("bench.set(max_epochs=12, batch_size=1)")
    panel.locator(".wb-step").first.get_by_role("button", name="Find").click()
    lab.until("print(bench.job and bench.job.status)", "finished", timeout=2 * TIMEOUT)
    panel.locator(".wb-answers button").click()
    tried = lab.execute("print([t.size for t in bench.job.result().trials if t.ok])").splitlines()[
        -1
    ]
    lab.until("print(bench.settings.batch_size)", lambda size: int(size) in json.loads(tried))
    lab.execute("bench.set(batch_size=64)")  # of 1437 digits: enough updates in an epoch
    panel.locator(".wb-step-lr button", has_text="Find").click()
    lab.until("print(bench.job.kind, bench.job.status)", "find_lr finished")
    use = panel.locator(".wb-answers button")
    expect(use).to_be_visible()
    assert lr_of(lab) == 1e-3  # found values are never applied by themselves
    use.click()
    suggestion = float(lab.execute("print(bench.job.result().suggestion)").splitlines()[-1])
    lab.until(
        "print(bench.settings.lr)", lambda text: float(text) == pytest.approx(suggestion, rel=0.01)
    )
    expect(panel.locator(".wb-code")).to_contain_text("bench.set(lr=")
    panel.get_by_role("button", name="Train").click()
    lab.until("print(bench.job.kind, bench.job.status)", "fit finished")
    expect(panel).to_contain_text("Training: finished")
    expect(panel.locator(".wb-code")).to_contain_text("bench.fit(")
    accuracy = float(
        lab.execute("print(bench.job.result().metrics['val_accuracy'])").splitlines()[-1]
    )
    assert accuracy >= 0.95
    lab.page.mouse.move(0, 0)
    lab.settle()
    lab.screenshot("panel", panel)
    lab.theme("dark")
    lab.frames()
    lab.screenshot("panel-dark", panel)
    lab.theme("light")

    look_closer(lab, panel)
    lab.save()
    lab.reload()
    again = lab.panel(BENCH)
    expect(again).to_contain_text("Training: finished")
    expect(again.locator(".wb-norm .wb-pick")).to_have_count(1)
    expect(again.get_by_role("button", name="update ratio")).to_have_attribute(
        "aria-pressed", "true"
    )
    lab.screenshot("panel-after-reload", again)
    drag_the_slider_and_race(lab, again)


def look_closer(lab: Lab, panel: Locator) -> None:
    """A layer gets a line and ratios are looked at, which a page that is loaded again shows, too."""
    lab.tab(panel, "Gradients and clipping")
    heat = panel.locator(".wb-heat")
    heat.locator("canvas").press("ArrowDown")
    heat.locator("canvas").press(" ")
    expect(panel.locator(".wb-norm .wb-pick")).to_have_count(1)
    heat.get_by_role("button", name="update ratio").click()
    expect(heat.get_by_role("button", name="update ratio")).to_have_attribute(
        "aria-pressed", "true"
    )
