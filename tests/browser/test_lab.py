"""The harness itself: a slider in a real notebook, dragged in a real browser, and a kernel that follows."""

from __future__ import annotations

import pytest

from .lab import Lab, LabError

pytestmark = pytest.mark.browser

CELLS = [
    "import ipywidgets as widgets\n"
    "slider = widgets.IntSlider(value=10, min=0, max=100, description='speed')\n"
    "twice = widgets.Label()\n"
    "slider.observe(lambda change: setattr(twice, 'value', f'twice is {2 * change.new}'), 'value')\n"
    "widgets.VBox([slider, twice])",
    "print('the second cell')",
]


def test_slider_moves_the_kernel_in_both_themes(lab: Lab) -> None:
    lab.open_notebook(CELLS)
    lab.run_all()
    assert lab.cell_text(1).strip() == "the second cell"
    assert lab.execute("slider.value") == "10"

    handle = lab.page.locator(".widget-slider .noUi-handle")
    lab.drag(handle, dx=80)
    moved = int(lab.page.locator(".widget-slider .widget-readout").inner_text())
    assert moved > 20
    lab.until("print(slider.value)", str(moved), timeout=10)
    lab.page.get_by_text(f"twice is {2 * moved}").wait_for(timeout=10_000)

    handle.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.until("print(slider.value)", str(moved + 1), timeout=10)

    lab.execute("slider.value = 3")
    lab.page.get_by_text("twice is 6").wait_for(timeout=10_000)
    lab.screenshot("harness-light")

    lab.theme("dark")
    lab.viewport(800, 600)
    lab.screenshot("harness-dark")
    assert lab.page.evaluate("() => [innerWidth, innerHeight]") == [800, 600]
    lab.theme("light")
    assert lab.complaints == []


def test_a_failing_cell_is_reported_and_a_wait_has_an_end(lab: Lab) -> None:
    lab.open_notebook(["1 / 0", "import time; time.sleep(60)"])
    with pytest.raises(LabError, match="ZeroDivisionError"):
        lab.run_cell(0)
    with pytest.raises(LabError, match="NameError"):
        lab.execute("nothing_of_that_name")

    lab.run_cell(1, wait=False)
    with pytest.raises(Exception, match=r"not within 0\.5 s"):
        lab.execute("1", timeout=0.5)
    lab.interrupt()
    lab.wait_idle(timeout=10)
    lab.restart()
    assert lab.execute("print('time' in globals())") == "False"
