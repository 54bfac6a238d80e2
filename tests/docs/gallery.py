"""Draws the pictures of docs/gallery.md anew: `python -m tests.docs.gallery [NAME …]`.

The blocks of the page run in order, those too that its test leaves out. A picture shows what the block above it ends with. A bench or
a study is shown in a page of Chromium. With names, only these pictures are written.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Locator, sync_playwright

import workbench as wb
from tests.browser import chromium
from tests.browser.html_manager import WidgetPage, page_of
from tests.browser.lab import launch
from tests.docs.pages import DOCS, blocks
from tests.docs.panel import small
from workbench.plots.drawing.matplotlib import small_png

PAGE = DOCS / "gallery.md"
DPI = 150
"""Of charts: sharp on dense screens, too."""
HEIGHT = 560
"""Of the runs, whose table may be long."""
_PICTURE = re.compile(r"^!\[.+\]\((?P<name>[\w/-]+)\.png\)$")


def drawn() -> dict[str, str]:
    """By picture, the block that draws it; "" is what comes before the first picture."""
    starts = {block.line: block.code for block in blocks(PAGE)}
    code, found = "", {}
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        code += starts.get(number, "")
        if picture := _PICTURE.match(line):
            found[picture["name"]] = code
            code = ""
    return found


def last_value(code: str, names: dict[str, Any]) -> Any:
    """Run a block as a cell of a notebook; the value of its last line."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, str(PAGE), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names)


def clipped(view: Locator, height: float) -> bytes:
    """A picture of what is seen of this, down to so many pixels."""
    box = view.bounding_box()
    assert box is not None
    return view.page.screenshot(clip={**box, "height": height}, full_page=True)


def of_panel(page: WidgetPage, bench: wb.Workbench) -> bytes:
    """The panel, down to the chips of its jobs."""
    page.show(bench._display_())
    panel, chips = page.page.locator(".wb-panel"), page.page.locator(".wb-timeline")
    page.until(lambda: chips.locator(".wb-chip").count() > 1)
    end = chips.evaluate("chips => chips.getBoundingClientRect().bottom")
    start = panel.evaluate("panel => panel.getBoundingClientRect().top")
    return clipped(panel, end - start)


def of_study(page: WidgetPage, study: wb.Study) -> bytes:
    """The live view of a study."""
    page.show(study._display_())
    view = page.page.locator(".wb-study")
    page.until(lambda: view.locator("canvas").count() > 1)
    return view.screenshot()


def of_runs(page: WidgetPage, bench: wb.Workbench) -> bytes:
    """The settings of all runs against their results, and the first rows of the table below."""
    page.show(bench._display_())
    page.page.locator(".wb-drawer-tab", has_text="Runs").click()
    page.until(lambda: page.page.locator(".wb-runs tbody tr").count() > 1)
    page.page.get_by_role("button", name="Settings against results").click()
    view = page.page.locator(".wb-runs")
    page.until(lambda: view.locator(".wb-parallel-line").count() > 1)
    page.until(lambda: "being read" not in view.inner_text())
    return clipped(view, HEIGHT)


IN_A_PAGE: dict[str, Callable[[WidgetPage, Any], bytes]] = {
    "panel": of_panel,
    "gallery/study": of_study,
    "gallery/settings-against-results": of_runs,
}


def main(*wanted: str) -> None:
    """Draw the pictures with these names; without names all."""
    (DOCS / "gallery").mkdir(exist_ok=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    path = chromium.find()
    assert path is not None, "run `make browser`"
    with (
        sync_playwright() as playwright,
        launch(playwright, path) as browser,
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as place,
    ):
        patch.chdir(place)  # for the folders of its runs
        for name, code in drawn().items():
            value = last_value(code, names)
            if wanted and name not in wanted:
                continue
            if isinstance(value, Figure):
                picture = small_png(value, DPI)
            else:
                with page_of(browser, patch, 1200, scale=1.5) as page:
                    picture = small(IN_A_PAGE[name](page, value))
            (DOCS / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
