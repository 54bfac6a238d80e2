"""The controls that the front end draws: the form of all settings, the slider, the notices, on a bench that only pretends to train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.canvas import Canvas, canvas_in
from tests.ui.fakes import FakeBench
from workbench.events import Message, RunStarted
from workbench.ui.panel import Panel

pytestmark = pytest.mark.browser


@pytest.fixture
def bench() -> FakeBench:
    return FakeBench(speed=0.02, epochs=100_000, num_workers=2)


@pytest.fixture
def panel(bench: FakeBench) -> Iterator[Panel]:
    panel = Panel(bench)
    yield panel
    for job in bench.jobs:
        job.stop()
    panel.close()


@pytest.fixture
def page(browser: Browser, panel: Panel) -> Iterator[Canvas]:
    with canvas_in(browser, panel=panel) as page:
        page.open()
        yield page
        assert page.complaints == []


def group(page: Canvas, title: str) -> Locator:
    return page.page.locator(".wb-form-group", has=page.page.locator("summary", has_text=title))


def test_groups_stay_open_and_a_search_reads_help(page: Canvas) -> None:
    page.tab("All settings")
    for title in ("Length", "Data"):
        group(page, title).locator("summary").press("Enter")
    page.settle()
    page.open()  # as after a reload: the tab and both groups are open
    expect(group(page, "Length").get_by_label("max_steps")).to_be_visible()
    data = group(page, "Data")
    expect(data).to_contain_text("Processes that load batches")
    expect(data.get_by_label("num_workers", exact=True)).to_have_value("2")
    expect(
        data.locator(".wb-form-row", has=page.page.get_by_label("num_workers", exact=True))
    ).to_contain_text("processes")
    expect(page.page.get_by_label("ema_decay", exact=True)).to_be_hidden()

    search = page.page.get_by_role("searchbox", name="Search names and help")
    search.fill("no such words")
    expect(page.page.locator(".wb-form-group:visible")).to_have_count(0)
    expect(page.page.locator(".wb-form-none")).to_have_text("No setting matches.")
    search.fill("DECAY average")
    expect(page.page.get_by_label("ema_decay", exact=True)).to_be_visible()
    expect(page.page.get_by_label("max_steps", exact=True)).to_be_hidden()
    search.fill("")
    expect(page.page.get_by_label("max_steps", exact=True)).to_be_visible()
    expect(page.page.get_by_label("ema_decay", exact=True)).to_be_hidden()
    page.page.get_by_role("button", name="Open all").press("Enter")
    expect(page.page.get_by_label("ema_decay", exact=True)).to_be_visible()
    page.page.get_by_role("button", name="Close all").press("Enter")
    expect(page.page.get_by_label("max_steps", exact=True)).to_be_hidden()


def test_what_differs_is_on_top(page: Canvas, bench: FakeBench, panel: Panel) -> None:
    page.tab("All settings")
    differs = page.page.locator(".wb-form-changed")
    expect(differs).to_contain_text("num_workers = 2")
    bench.set(shuffle=False)
    assert panel.dispatcher.drain(60)
    page.settle()
    expect(differs).to_contain_text("shuffle = no")
    expect(group(page, "Data").locator("summary")).to_contain_text("2 changed")
    page.page.get_by_role("button", name="shuffle = no").press("Enter")
    expect(page.page.get_by_label("shuffle", exact=True)).to_be_focused()
    page.page.get_by_role("button", name="Set shuffle to its default").press("Enter")
    page.settle()
    assert bench.settings.shuffle is True
    expect(page.page.get_by_label("shuffle", exact=True)).to_be_checked()
    expect(differs).not_to_contain_text("shuffle")
    drawing = page.page.locator(".wb-form-schedule")
    expect(drawing).to_be_hidden()
    bench.set(lr_schedule="cosine", warmup=0.1)
    assert panel.dispatcher.drain(60)
    group(page, "Optimisation").locator("summary").press("Enter")
    page.settle()
    expect(drawing.locator("svg polyline")).to_be_visible()
    expect(drawing).to_have_text("The learning rate over a run.")


def test_a_refused_value_is_counted_where_its_group_is_closed(
    page: Canvas, bench: FakeBench
) -> None:
    page.tab("All settings")
    data = group(page, "Data")
    data.locator("summary").press("Enter")
    box = data.get_by_label("num_workers", exact=True)
    box.fill("-3")
    box.press("Tab")
    page.settle()
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(data).to_contain_text("Should be at least 0")
    data.locator("summary").press("Enter")
    expect(data.locator("summary")).to_contain_text("1 not valid")
    assert bench.settings.num_workers == 2


def test_what_is_typed_stays_while_other_settings_change(
    page: Canvas, bench: FakeBench, panel: Panel
) -> None:
    box = page.page.get_by_role("textbox", name="Learning rate")
    box.press("Control+A")
    box.type("4e-")
    bench.set(lr=0.3)
    assert panel.dispatcher.drain(60)
    page.settle()
    expect(box).to_have_value("4e-")
    box.type("2")
    box.press("Enter")
    page.settle()
    assert bench.settings.lr == 0.04


def test_the_slider_steps_snaps_and_says_what_is_beyond(
    page: Canvas, bench: FakeBench, panel: Panel
) -> None:
    slider = page.page.get_by_role("slider", name="Learning rate, as a power")
    slider.press("ArrowRight")
    page.settle()
    assert bench.settings.lr == 1.05e-3
    expect(slider).to_have_attribute("aria-valuetext", "1.05e-3")
    panel.header.find_lr.click()
    assert bench.jobs[-1].wait(60)
    assert panel.dispatcher.drain(60)
    page.settle()
    expect(page.page.locator(".wb-slider-tick")).to_be_visible()
    bench.set(lr=4.4e-3)
    assert panel.dispatcher.drain(60)
    page.settle()
    slider.press("ArrowRight")  # near the suggestion
    page.settle()
    assert bench.settings.lr == 4.7e-3
    step = page.page.locator(".wb-step-lr")
    expect(step).not_to_contain_text("beyond divergence")
    slider.press("End")
    page.settle()
    assert bench.settings.lr == 10
    expect(step).to_contain_text("beyond divergence")


def test_stop_answers_at_once_and_a_second_one_is_shown(
    page: Canvas, bench: FakeBench, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.page.get_by_role("button", name="Train").press("Enter")
    page.settle()
    job, stops = bench.jobs[0], []
    with monkeypatch.context() as busy:
        busy.setattr(job, "stop", lambda: stops.append(1))  # in a long update
        stop = page.page.locator("[data-button=stop]")
        while not stop.is_enabled():
            page.settle()
        stop.press("Enter")
        page.settle()
        expect(stop).to_have_text("Stopping…")
        stop.press("Enter")
        page.settle()
        expect(stop).to_have_text("Stopping now…")
        assert len(stops) == 2


def test_a_notice_is_announced_once_and_can_be_closed(
    page: Canvas, bench: FakeBench, panel: Panel
) -> None:
    bench.tell(RunStarted("x", "fit", bench.settings.model_dump(), "cpu"))
    bench.tell(Message("weights <changed>", "warning"))
    assert panel.dispatcher.drain(60)
    page.settle()
    notice = page.page.locator(".wb-notice")
    [line] = notice.get_by_role("status").all()
    expect(line).to_have_text("weights <changed>")
    line.evaluate("line => { line.old = true; }")
    panel.notice.say("it was refused", "error")
    page.settle()
    expect(notice.get_by_role("alert")).to_have_text("it was refused")
    assert line.evaluate("line => line.old"), "a line that stays is not said again"
    page.page.get_by_role("button", name="Close these messages").press("Enter")
    page.settle()
    expect(notice).to_be_hidden()
    assert panel.notice.lines == []
