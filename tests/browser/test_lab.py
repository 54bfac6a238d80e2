"""The harness itself: a slider in a real notebook, dragged in a real browser, and a kernel that follows."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .lab import Lab
from .server import LabError

pytestmark = pytest.mark.browser

SLIDER, FAILS, SLEEPS = 0, 2, 3
CELLS = [
    "import ipywidgets as widgets\n"
    "slider = widgets.IntSlider(value=10, min=0, max=100, description='speed')\n"
    "twice = widgets.Label()\n"
    "slider.observe(lambda change: setattr(twice, 'value', f'twice is {2 * change.new}'), 'value')\n"
    "widgets.VBox([slider, twice])",
    "print('the second cell')",
    "1 / 0",
    "import time; print('asleep', flush=True); time.sleep(1000)",
]


def test_slider_moves_the_kernel_in_both_themes_and_what_fails_is_reported(lab: Lab) -> None:
    lab.open_notebook(CELLS)
    lab.run_cell(SLIDER)
    lab.run_cell(1)
    expect(lab.output(1)).to_have_text("the second cell", use_inner_text=True)
    assert lab.execute("slider.value") == "10"

    handle = lab.page.locator(".widget-slider .noUi-handle")
    lab.drag(handle, dx=80)
    readout = lab.page.locator(".widget-slider .widget-readout")
    expect(readout).not_to_have_text("10")
    # A drag sends values on its way: the kernel's is the last one when it is the one that is shown.
    moved = int(lab.until("print(slider.value)", lambda value: value == readout.inner_text()))
    assert moved > 20
    expect(lab.page.get_by_text(f"twice is {2 * moved}", exact=True)).to_be_visible()

    handle.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.until("print(slider.value)", str(moved + 1))

    lab.execute("slider.value = 3")
    expect(lab.page.get_by_text("twice is 6", exact=True)).to_be_visible()
    lab.screenshot("harness-light")

    lab.theme("dark")
    lab.viewport(800, 600)
    lab.screenshot("harness-dark")
    assert lab.page.evaluate("() => [innerWidth, innerHeight]") == [800, 600]
    lab.theme("light")
    assert lab.complaints == []
    a_failing_cell_is_reported_and_a_wait_has_an_end(lab)


def a_failing_cell_is_reported_and_a_wait_has_an_end(lab: Lab) -> None:
    with pytest.raises(LabError, match="ZeroDivisionError"):
        lab.run_cell(FAILS)
    with pytest.raises(LabError, match="NameError"):
        lab.execute("nothing_of_that_name")

    lab.run_cell(SLEEPS, wait=False)
    lab.scroll_to(SLEEPS)
    expect(lab.output(SLEEPS)).to_contain_text("asleep")
    with pytest.raises(Exception, match=r"not within 0\.5 s"):
        lab.execute("1", timeout=0.5)
    lab.interrupt()
    lab.wait_idle()
    lab.restart()
    assert lab.execute("print('time' in globals())") == "False"
