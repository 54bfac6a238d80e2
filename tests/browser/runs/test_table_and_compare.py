"""A table of many runs in pages, and a comparison with a diverged, a short and a changed run: on the canvas alone."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.canvas import Canvas, canvas_in
from tests.runs.tables.test_brief import recorded
from tests.server.records import Record
from tests.ui.fakes import FakeBench, diverging
from tests.waiting import wait_for
from workbench.events import Changed, Event, RunEnded, RunStarted, StepsDone, Validated, pack
from workbench.runs.tables.brief import RunBrief
from workbench.settings import Settings
from workbench.ui.panel import Panel

pytestmark = pytest.mark.browser


def fit(number: int, updates: int, loss: np.ndarray, lr: float) -> list[Event]:
    """A fit with this loss and two metrics of validations; the third one's rate is changed at update 160."""
    id = f"{number:04d}-fit"
    out: list[Event] = [RunStarted(id, "fit", Settings.make(lr=lr).model_dump(), "cpu", (), 400, 8)]
    for at in range(0, updates, 40):
        columns = {"loss": pack(loss[at : at + 40]), "lr": pack(np.full(40, lr))}
        out.append(StepsDone(at, 1, 40, at // 50, 0.1 * (at + 40), columns))
        if number == 3 and at == 120:
            out.append(Changed(160, {"lr": lr / 10}))
        value = float(loss[at + 39])
        metrics = {"val_loss": 1.1 * value, "val_accuracy": max(0.0, 1 - value / 3)}
        out.append(Validated(at + 40, at // 50, metrics))
    return [*out, RunEnded("finished", updates, 0.1 * updates, None, {})]


def until(canvas: Canvas, condition: Callable[[], bool]) -> None:
    """Wait for this, while the canvas draws what the panel has read."""
    wait_for(lambda: (canvas.settle(), condition())[1])


def heights(canvas: Canvas) -> list[float]:
    """The numbers at the vertical axis of the first plot of the saved picture."""
    picture = ET.fromstring(canvas.saved("SVG", ".wb-compare"))
    plot = next(element for element in picture if element.tag.endswith("svg"))
    ends = [text for text in plot.iter() if text.get("text-anchor") == "end"]
    return [float(text.text or "nan") for text in ends]


@pytest.mark.parametrize("rises", ["later", "at once"])
def test_a_diverged_run_leaves_the_others_readable(
    rises: str, browser: Browser, tmp_path: Path
) -> None:
    steps = np.arange(400)
    later, at_once = 2.3 + 0.01 * np.exp(steps / 30), 2.3 + 6000 * (1 - np.exp(-steps / 2))
    losses = (
        0.3 + 2 * np.exp(-steps / 80),
        later if rises == "later" else at_once,
        0.5 + 1.8 * np.exp(-steps / 60),
    )
    briefs = []
    for number, (updates, loss) in enumerate(zip((200, 400, 400), losses, strict=True), 1):
        path = recorded(tmp_path, fit(number, updates, loss, 0.1), f"{number:04d}-fit")
        briefs.append(RunBrief.read(path, history=True))
    with canvas_in(browser) as canvas:
        page = canvas.page
        canvas.open()
        canvas.view.put_compared(briefs)  # its tab opens by itself
        canvas.settle()
        compare = page.locator(".wb-compare")
        plots = compare.locator(".wb-multiple")
        expect(plots.locator("figcaption b")).to_have_text(
            ["training loss", "val_loss", "val_accuracy"]
        )
        expect(compare.locator(".wb-foot")).to_contain_text("Beyond the plots: 0002-fit")
        assert max(heights(canvas)) < 3
        # one cursor reads all of them
        over = plots.nth(1).locator(".u-over")
        box = over.bounding_box()
        assert box is not None
        over.hover(position={"x": 0.8 * box["width"], "y": 40})
        expect(compare.locator(".wb-at")).to_have_text(re.compile(r"at update 3[12]\d"))
        key = compare.locator(".wb-key-item")
        expect(key.nth(0)).to_contain_text("ended at update 200")
        expect(key.nth(1)).not_to_contain_text("update")
        expect(key.nth(2)).to_contain_text("lr → 0.01 since update 160")
        expect(plots.nth(2).locator("figcaption span").first).to_have_text("ended")
        over.hover(position={"x": 0.2 * box["width"], "y": 40})
        expect(key.nth(0)).not_to_contain_text("ended")
        expect(key.nth(2)).not_to_contain_text("since")
        expect(compare.locator("table")).to_contain_text("0.1 → 0.01 at update 160")
        compare.get_by_role("button", name="All values").click()
        canvas.settle()
        assert max(heights(canvas)) >= 1000
        rows = [*csv.reader(io.StringIO(canvas.saved("CSV", ".wb-compare").decode()))]
        assert {"0001-fit val_accuracy", "0002-fit training loss"} <= {*rows[0]}
        assert canvas.complaints == []


def test_many_runs_come_in_pages(browser: Browser, tmp_path: Path) -> None:
    for number in range(1, 56):
        Record(tmp_path, f"{number:04d}-fit", settings={"lr": number / 100}).steps().ended()
    bench = FakeBench()
    bench.root = tmp_path
    panel = Panel(bench)
    with canvas_in(browser, panel=panel) as canvas:
        canvas.open()
        canvas.tab("Runs")
        page = canvas.page
        rows = page.locator(".wb-runs tbody tr")
        until(canvas, lambda: rows.count() == 50)
        pages = page.get_by_role("group", name="Pages")
        expect(pages).to_contain_text("1–50 of 55")
        page.get_by_role("checkbox", name="Select 0055-fit").check()
        page.get_by_role("button", name="Next page").click()
        until(canvas, lambda: rows.count() == 5)
        expect(pages).to_contain_text("51–55 of 55")
        expect(page.get_by_role("button", name="Next page")).to_be_disabled()
        # what is selected on another page stays so, and a sort begins at the first page
        page.locator(".wb-runs th[data-column=lr] .wb-sort").click()
        until(canvas, lambda: rows.count() == 50)
        expect(rows.first).to_contain_text("0001-fit")
        page.locator(".wb-runs th[data-column=lr] .wb-sort").click()
        until(canvas, lambda: "0055-fit" in rows.first.inner_text())
        expect(page.get_by_role("checkbox", name="Select 0055-fit")).to_be_checked()
        assert canvas.complaints == []
    panel.close()


def test_chips_lay_curves_over_the_plot_and_axes_are_brushed(
    browser: Browser, tmp_path: Path
) -> None:
    steps = np.arange(400)
    for number in range(1, 9):
        loss = 0.2 + number / 10 + 2 * np.exp(-steps / 80)
        if number == 8:
            loss = 2.3 + 1e6 * (1 - np.exp(-steps / 20))
        recorded(tmp_path, fit(number, 400, loss, number / 100), f"{number:04d}-fit")
    bench = FakeBench(epochs=2, updates=100)
    bench.root = tmp_path
    panel = Panel(bench)
    with canvas_in(browser, panel=panel) as canvas:
        canvas.open()
        page = canvas.page
        for job in (bench.fit(), bench._start("fit", diverging), bench.fit()):
            assert job.wait(60)
        chips = page.locator(".wb-chip")
        until(canvas, lambda: chips.count() == 3)
        expect(chips.nth(1)).to_contain_text("diverged")
        expect(chips.nth(1)).to_have_attribute("data-trouble", "error")
        name = page.locator(".wb-loss .wb-tag")
        expect(name).to_be_hidden()
        chips.nth(0).hover()
        until(canvas, lambda: name.is_visible())
        expect(name).to_contain_text("fit-1, loss 0.")
        canvas.screenshot("chip-overlay")
        page.mouse.move(0, 0)
        expect(name).to_be_hidden()
        chips.nth(1).focus()
        until(canvas, lambda: name.is_visible())
        expect(name).to_contain_text("fit-2")
        chips.nth(2).focus()  # what the plot shows
        expect(name).to_be_hidden()

        canvas.tab("Runs")
        rows = page.locator(".wb-runs tbody tr")
        until(canvas, lambda: rows.count() == 8)
        page.get_by_role("button", name="Settings against results").click()
        lines = page.locator(".wb-parallel-line")
        until(canvas, lambda: lines.count() == 8)
        expect(page.locator(".wb-parallel")).to_contain_text("≥ 1.")
        axis = page.locator(".wb-parallel-hold").first
        axis.scroll_into_view_if_needed()
        box = axis.bounding_box()
        assert box is not None
        x, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]

        def brush() -> None:
            page.mouse.move(x, bottom - 1)
            page.mouse.down()
            page.mouse.move(x, bottom - box["height"] * 0.6, steps=4)
            page.mouse.up()

        brush()
        pale = page.locator(".wb-parallel-line.wb-pale")
        inside = 8 - pale.count()
        assert inside == 5  # rates up to 60% of the axis from 0.01 to 0.08
        expect(page.locator(".wb-brushed")).to_contain_text(f"{inside} of 8 runs are within.")
        canvas.screenshot("brushed")
        page.keyboard.press("Escape")
        expect(pale).to_have_count(0)
        brush()
        page.get_by_role("button", name="Only these").click()
        until(canvas, lambda: rows.count() == inside)
        expect(page.get_by_role("searchbox", name="Filter")).to_have_value(re.compile("<= lr <="))
        assert canvas.complaints == []
    panel.close()
