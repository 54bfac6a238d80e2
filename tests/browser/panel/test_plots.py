"""What every plot can do, on the canvas alone: zoom, axes, smoothing, metrics, linked hover, saving, the batch sizes, the drawer."""

from __future__ import annotations

import dataclasses
import itertools
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.canvas import Canvas, canvas_in
from tests.ui.canvas.test_widget import job
from tests.ui.fakes import sizes, sweep, training
from workbench.events import (
    BenchEvent,
    Logged,
    RunStarted,
    SearchEnded,
    SettingsSet,
    StepsDone,
    Trial,
    Validated,
    pack,
)
from workbench.settings import Settings

pytestmark = pytest.mark.browser

UPDATES = 980


def fit() -> Iterator[BenchEvent]:
    """A fit with metrics, counted samples, memory, and layers that get no gradient, rounding noise, zero and almost none."""
    yield SettingsSet(Settings.make(batch_size=64).model_dump())
    for event in training(job("fit", gradient_clip_val=1.0), 5, UPDATES // 5):
        if isinstance(event, StepsDone):
            norms = event.array("layer_norms")
            norms[:, 3], norms[:, 7], norms[:, 8], norms[:, 9] = np.nan, 1e-9, 0.0, 1e-9
            columns = {
                **event.columns,
                "layer_norms": pack(norms),
                "noise": pack(np.sin(event.steps / 50) + 2),
            }
            yield dataclasses.replace(
                event,
                columns=columns,
                samples=64 * event.rows,
                memory=int(2e9 + 1e6 * event.steps[-1]),
            )
        elif isinstance(event, RunStarted):
            yield dataclasses.replace(
                event,
                layers=tuple(
                    f"{name}.bias" if i == 7 else name for i, name in enumerate(event.layers)
                ),
            )
        elif isinstance(event, Validated):
            better = 1 - math.exp(-3 * event.step / UPDATES)
            yield dataclasses.replace(
                event, metrics={**event.metrics, "val_accuracy": better, "val_oddness": better}
            )
            yield Logged(event.step, event.epoch, {"train_accuracy": better + 0.01})
        else:
            yield event


def searched() -> Iterator[BenchEvent]:
    """A search whose three bounds are three sizes."""
    for event in sizes(job("find_batch_size")):
        if isinstance(event, Trial):
            yield dataclasses.replace(
                event,
                updates_per_epoch=-(-1437 // event.size),
                uncertainty=0.05 if event.ok else None,
            )
            if event.size == 256:  # so near to another that their numbers have no room side by side
                yield dataclasses.replace(event, size=288, updates_per_epoch=5)
        elif isinstance(event, SearchEnded):
            reason = "64: the largest size tried with 20 updates in an epoch or more. It makes 23, and 256 makes 6."
            yield SearchEnded(
                64,
                512,
                "1024 did not fit",
                fastest=256,
                reason=reason,
                noise_scale=140.0,
                noise_reason="larger batches save little",
            )
        else:
            yield event


def drawn(canvas: Canvas, dark: bool = False) -> None:
    canvas.open(dark)
    for event in (*searched(), *sweep(job("find_lr")), *fit()):
        canvas.view.draw(event)
    canvas.settle()


def axis(card: Locator) -> tuple[float, float]:
    """The range that a plot shows of its horizontal axis."""
    low, high = card.locator(".u-over").evaluate(
        "over => { const plot = over.closest('.uplot'); return [plot.dataset.from, plot.dataset.to] }"
    )
    return float(low), float(high)


def drag(canvas: Canvas, card: Locator, start: float, end: float, shift: bool = False) -> None:
    """From one share of a plot's width to another."""
    over = card.locator(".u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    mouse, height = canvas.page.mouse, box["y"] + box["height"] / 2
    if shift:
        canvas.page.keyboard.down("Shift")
    mouse.move(box["x"] + start * box["width"], height)
    mouse.down()
    mouse.move(box["x"] + (start + end) / 2 * box["width"], height)
    mouse.move(box["x"] + end * box["width"], height)
    mouse.up()
    if shift:
        canvas.page.keyboard.up("Shift")
    canvas.settle()


def test_zoom_axes_and_hover(browser: Browser) -> None:
    with canvas_in(browser) as canvas:
        drawn(canvas)
        page, loss, norm, heat = (
            canvas.page,
            *(canvas.page.locator(f".wb-{name}") for name in ("loss", "norm", "heat")),
        )
        out = loss.get_by_role("button", name="Zoom out")
        expect(out).to_be_disabled()
        whole = axis(loss)
        assert whole == pytest.approx((0, UPDATES - 1))

        # Drag zooms, drag with Shift moves, new updates leave it alone, a double click shows all.
        drag(canvas, loss, 0.25, 0.75)
        low, high = axis(loss)
        assert (low, high) == pytest.approx((0.25 * UPDATES, 0.75 * UPDATES), abs=10)
        drag(canvas, loss, 0.5, 0.3, shift=True)
        moved = axis(loss)
        assert moved == pytest.approx((low + 0.2 * (high - low), high + 0.2 * (high - low)), abs=6)
        canvas.draw(Validated(UPDATES, 5, {"val_loss": 0.4}))
        assert axis(loss) == moved
        loss.locator(".u-over").dblclick()
        assert axis(loss) == whole
        expect(out).to_be_disabled()

        # The same by keyboard, and by the button, which gives the focus on.
        over = loss.locator(".u-over")
        over.press("+")
        assert np.diff(axis(loss))[0] == pytest.approx(np.diff(whole)[0] / 2)
        over.press("PageDown")
        # from the middle half to the last half
        assert axis(loss)[1] == pytest.approx(whole[1], abs=3)
        out.press("Enter")
        assert axis(loss) == whole
        expect(over).to_be_focused()

        # What lies under the mouse is marked in all plots of the fit; nothing on the page moves.
        def places() -> list[float]:
            return page.locator(".wb-card").evaluate_all(
                "all => all.filter((one) => one.getClientRects().length).flatMap((one) => { const box = one.getBoundingClientRect(); return [box.top + scrollY, box.height] })"
            )

        canvas.tab("Gradients and clipping")
        still = places()
        over.hover(position={"x": 220, "y": 100})
        canvas.settle()
        said = loss.locator(".wb-at").inner_text().partition(", lr ")[0]
        expect(loss.locator("> .wb-key")).to_contain_text("each update")
        step = int(said.removeprefix("at update "))
        # that update may be a clipped one
        there = norm.locator(".wb-at").inner_text().partition(" · ")[0]
        assert int(there.removeprefix("at update ")) == pytest.approx(step, abs=2)
        assert places() == still
        canvas.tab("Speed and time")
        over.hover(position={"x": 220, "y": 100})
        canvas.settle()
        there = page.locator(".wb-pace .wb-at").inner_text()
        assert int(there.removeprefix("at update ")) == pytest.approx(step, abs=100)
        canvas.tab("Gradients and clipping")
        still = places()
        heat.locator("canvas").hover(position={"x": 300, "y": 80})
        canvas.settle()
        expect(norm.locator(".wb-at")).to_contain_text("at update")
        assert places() == still
        # A layer is told by its full name; one that never gets a gradient has a word of its own.
        names, rows = [], heat.locator("canvas").evaluate("canvas => canvas.clientHeight - 18 - 34")
        for row in range(15):
            heat.locator("canvas").hover(
                position={"x": 300, "y": 18 + int((row + 0.5) * rows / 15)}
            )
            names.append(heat.locator(".wb-readout").inner_text())
        assert names[3].startswith("block1.conv2")
        assert "never a gradient" in names[3]
        assert names[7].startswith("block2.norm.bias")
        assert "rounding noise (1e-9)" in names[7]
        assert "a gradient of zero" in names[8]
        assert "hardly a gradient (1e-9)" in names[9]
        assert not any(
            "gradient" in name or "noise" in name
            for i, name in enumerate(names)
            if i not in (3, 7, 8, 9)
        )
        expect(heat.locator(".wb-key")).to_contain_text("hardly or never a gradient")
        low_end, high_end = (
            float(text) for text in heat.locator(".wb-key-item").first.inner_text().split()
        )
        assert low_end > 1e-4, "dead layers do not stretch the colours"
        assert high_end < 10

        # One choice of the horizontal axis for all of them.
        for name, end in (
            ("epoch", 5),
            ("samples", 64 * UPDATES),
            ("time", UPDATES / 7.6),
            ("update", UPDATES),
        ):
            loss.get_by_role("combobox").select_option(name)
            canvas.settle()
            assert axis(loss)[1] == pytest.approx(end, rel=0.01)
            assert axis(norm) == axis(loss)
            expect(norm.get_by_role("combobox")).to_have_value(name)
        assert canvas.view.looks["axis"] == "update"

        # A wide range is logarithmic by itself, and linear by a click.
        log = loss.get_by_role("button", name="Logarithmic")
        expect(log).to_have_attribute("aria-pressed", "false")
        falling = pack(np.geomspace(10, 1e-4, 15))
        canvas.draw(
            StepsDone(
                UPDATES,
                1,
                15,
                5,
                200.0,
                {"loss": falling, "lr": pack(np.ones(15)), "grad_norm": falling},
            )
        )
        expect(log).to_have_attribute("aria-pressed", "true")
        log.click()
        expect(log).to_have_attribute("aria-pressed", "false")

        # Smoothing: off, the smooth line is the raw one. It lies in a menu, which Escape closes.
        options, slider = (
            loss.get_by_role("button", name="Options of this plot"),
            loss.get_by_role("slider", name="Smoothing"),
        )
        expect(slider).to_be_hidden()
        options.press("Enter")
        loss.get_by_role("button", name="previous runs").focus()
        expect(slider).to_have_attribute("aria-valuetext", "a mean over the last tenth of the run")
        slider.press("Home")
        expect(slider).to_have_attribute("aria-valuetext", "off")
        canvas.settle()
        items = loss.locator(".wb-key-item").all_inner_texts()
        raw = (
            next(text for text in items if text.startswith("each update"))
            .removeprefix("each update")
            .split()[-1]
        )
        assert raw in next(text for text in items if text.startswith("smooth"))
        slider.press("Escape")
        expect(slider).to_be_hidden()
        expect(options).to_be_focused()
        assert canvas.complaints == []


def test_metrics_saving_and_sizes(browser: Browser) -> None:
    with canvas_in(browser) as canvas:
        drawn(canvas)
        loss, sizes_ = canvas.page.locator(".wb-loss"), canvas.page.locator(".wb-sizes")
        tabs = loss.locator(".wb-quantity")
        expect(tabs.locator(".wb-quantity-name")).to_have_text(
            ["loss", "noise", "accuracy", "oddness"]
        )
        expect(tabs.get_by_text("0.9502")).to_have_count(2)
        tabs.get_by_text("accuracy").click()
        canvas.settle()
        metrics = loss.get_by_role("list", name="Metrics")
        expect(metrics).to_contain_text(f"val_accuracybest 0.9502 at update {UPDATES}last 0.9502")
        expect(loss.locator("> .wb-key")).to_contain_text("train_accuracy 0.9602".replace(" ", ""))
        metrics.get_by_role("button", name="Monitor (val_accuracy)").click()
        canvas.settle()
        tabs.get_by_text("oddness").click()
        metrics.get_by_role("button", name="Monitor: higher is better").click()
        canvas.settle()
        assert canvas.asked == [
            {"what": "monitor", "name": "val_accuracy", "mode": None}, {"what": "monitor", "name": "val_oddness", "mode": "max"},
        ]  # fmt: skip
        canvas.draw(SettingsSet(Settings.make(batch_size=64, monitor="val_accuracy").model_dump()))
        tabs.get_by_text("accuracy").click()
        expect(metrics.get_by_role("button", name="monitored (val_accuracy)")).to_have_attribute(
            "aria-pressed", "true"
        )

        # Pictures and numbers of any plot.
        def saves(card: str) -> None:
            svg = canvas.saved("SVG", card).decode()
            root = ET.fromstring(svg)
            assert len(list(root.iter())) > 15, card
            assert canvas.saved("PNG", card).startswith(b"\x89PNG")
            rows = [line.split(",") for line in canvas.saved("CSV", card).decode().splitlines()]
            assert len({len(row) for row in rows}) == 1, card
            assert len(rows) > 5, card

        saves(".wb-loss")
        canvas.tab("Speed and time")
        saves(".wb-pace")
        canvas.tab("Gradients and clipping")
        saves(".wb-norm")
        saves(".wb-heat")
        heat = [line.split(",") for line in canvas.saved("CSV", ".wb-heat").decode().splitlines()]
        assert heat[0][:2] == ["update", "stem.conv"]
        assert {row[4] for row in heat[1:]} == {""}, "a layer without gradients has no numbers"
        accuracy = [
            line.split(",") for line in canvas.saved("CSV", ".wb-loss").decode().splitlines()
        ]
        assert accuracy[0] == ["update", "val_accuracy", "train_accuracy"]
        assert float(accuracy[-1][1]) == pytest.approx(1 - math.exp(-3))

        canvas.draw(*sweep(job("find_lr")))
        saves(".wb-finder")
        expect(loss).to_be_hidden()
        answers = canvas.page.locator(".wb-answers")
        expect(answers).to_contain_text("Recommended learning rate4.7e-3")
        canvas.asked.clear()
        answers.get_by_role("button", name="Use 4.7e-3").click()
        canvas.settle()
        assert canvas.asked == [{"what": "use", "kind": "find_lr"}]
        canvas.draw(SettingsSet(Settings.make(batch_size=64, lr=4.7e-3).model_dump()))
        used = answers.get_by_role("button", name="4.7e-3 in use")
        expect(used).to_be_focused()
        used.press("Enter")
        canvas.settle()
        assert len(canvas.asked) == 1, "there is nothing to set"
        canvas.draw(*searched())
        saves(".wb-sizes")

        # The batch sizes: three bounds with their reasons, each leads to a size that was tried.
        bounds = sizes_.get_by_role("list", name="What limits the batch size")
        expect(bounds).to_contain_text("fits up to 5121024 did not fit.")
        expect(bounds).to_contain_text("noise suggests about 140 nowLarger batches save little.")
        expect(
            sizes_.get_by_role("button", name="64 in use, 23 updates an epoch")
        ).to_have_attribute("aria-pressed", "true")
        canvas.asked.clear()
        for name in (
            "fits up to 512: use 512",
            "fastest from 256: use 256",
            "noise suggests about 140 now: use 128",
            "Use 32, 45 updates an epoch",
        ):
            sizes_.get_by_role("button", name=name).click()
        canvas.settle()
        assert [asked["value"] for asked in canvas.asked] == [512, 256, 128, 32]
        sizes_.locator(".u-over").press("Home")
        expect(sizes_.locator(".uplot > .wb-spoken")).to_have_text(
            "samples/s 260 ±5%, peak memory 288 MB, at 2, 719 updates an epoch"
        )
        sizes_.get_by_role("button", name="Full screen").click()
        canvas.page.wait_for_function(
            "() => document.fullscreenElement?.classList.contains('wb-sizes')"
        )
        canvas.page.keyboard.press("Escape")
        assert canvas.complaints == []


def test_a_browser_that_falsifies_pixels_shows_the_theme_of_the_page(browser: Browser) -> None:
    with canvas_in(browser) as canvas:
        canvas.page.add_init_script(
            "CanvasRenderingContext2D.prototype.getImageData = () => ({ data: [255, 255, 255, 255] })"
        )
        drawn(canvas, dark=True)
        expect(canvas.page.locator(".wb-live")).to_have_attribute("data-dark", "")


def full(canvas: Canvas) -> None:
    """Nothing sticks out of its card or overlaps, and no card is blank in part."""
    wide = canvas.page.locator(".wb-card").evaluate_all(
        "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.className)"
    )
    assert wide == []
    overlaid = canvas.page.locator(".wb-head").evaluate_all(
        "all => all.filter((one) => [...one.querySelectorAll('button, select, label')].some((part) => part.getBoundingClientRect().right > one.getBoundingClientRect().right + 1)).length"
    )
    assert overlaid == 0

    # The tools of a plot are one row, and a plot is as high as its card: nothing is blank beside a higher one.
    seen = (
        "all => [...all].filter((one) => one.getClientRects().length && !one.closest('.wb-empty'))"
    )
    assert (
        max(canvas.page.locator(".wb-head").evaluate_all(f"{seen}.map((one) => one.clientHeight)"))
        < 30
    )
    blank = canvas.page.locator(".wb-card").evaluate_all(
        f"{seen}.map((one) => one.getBoundingClientRect().bottom - Math.max(...[...one.querySelectorAll('*')].map((part) => part.getBoundingClientRect().bottom)))"
    )
    assert max(blank) < 12

    # No name of a line stands alone below the others.
    rows = canvas.page.locator(".wb-key").evaluate_all(
        f"{seen}.map((key) => Object.values(Object.groupBy(key.children, (item) => item.offsetTop)).map((row) => row.length))"
    )
    assert rows
    assert all(len(row) == 1 or row[-1] > 1 for row in rows), rows


@pytest.mark.parametrize(("width", "dark"), [(700, False), (1200, True), (1600, False)])
def test_cards_are_full_and_nothing_overlaps(browser: Browser, width: int, dark: bool) -> None:
    with canvas_in(browser, width) as canvas:
        drawn(canvas, dark)
        shade = "-dark" if dark else ""
        for tab in ("Speed and time", "Gradients and clipping"):
            canvas.tab(tab)
            full(canvas)
        canvas.screenshot(f"plots-{width}{shade}")
        canvas.draw(*sweep(job("find_lr")))
        full(canvas)
        canvas.screenshot(f"stage-lr-{width}{shade}")
        canvas.draw(*searched())
        full(canvas)
        canvas.screenshot(f"stage-sizes-{width}{shade}")
        # Numbers of an axis and names of lines stand side by side.
        canvas.draw(SettingsSet(Settings.make(batch_size=32).model_dump()))
        texts = [
            (float(one.get("x", 0)), one.text or "")
            for one in ET.fromstring(canvas.saved("SVG", ".wb-sizes")).iter()
            if one.tag.endswith("text")
        ]
        numbers = [
            (x, len(text))
            for x, text in texts
            if text.isdigit() and text in {"2", "32", "64", "256", "288", "512", "1024"} and x > 0
        ]
        assert all(
            right - left > 3 * (wide + other)
            for (left, wide), (right, other) in itertools.pairwise(numbers)
        )
        assert {"2", "32", "64", "1024"} <= {text for _, text in texts}
        (used, _), (best, _) = ((x, text) for x, text in texts if text in ("in use", "recommended"))
        assert best > used + 25

        # So they do when the card becomes narrower.
        if width == 700:
            canvas.page.evaluate("""() => {
                const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
                const sizes = (context) => context.canvas.closest('.wb-sizes');
                CanvasRenderingContext2D.prototype.clearRect = function (...given) { if (sizes(this)) window.written = []; return clearRect.apply(this, given); };
                CanvasRenderingContext2D.prototype.fillText = function (...given) { if (sizes(this)) written.push(given.slice(0, 3)); return fillText.apply(this, given); };
            }""")
            canvas.page.set_viewport_size({"width": 340, "height": 1000})
            canvas.page.wait_for_function("() => window.written?.length")
            written = canvas.page.evaluate("() => written")
            below = max(y for text, _, y in written if text == "1024")
            numbers = sorted((x, len(text)) for text, x, y in written if y == below)
            assert len(numbers) > 3
            assert all(
                right - left > 3 * (wide + other)
                for (left, wide), (right, other) in itertools.pairwise(numbers)
            )
        assert canvas.complaints == []
