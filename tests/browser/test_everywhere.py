"""The quickstart in each front end, kernel and theme: by keyboard, announced, and there again after whatever happens to the page."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import BrowserContext, Locator, expect

from tests.conftest import SOAK

from .conftest import new_page
from .faces import LAB, NOTEBOOK, Face, older_kernel
from .lab import Lab
from .server import Server

pytestmark = pytest.mark.browser

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "1_quickstart.ipynb"
BENCH, AGAIN = 1, 2
MOST = 500_000
"""Bytes by which a finished run may make a notebook larger."""


@dataclass(frozen=True)
class Place:
    face: Face
    older: bool
    """Whether its kernel is the older ipykernel."""
    dark: bool

    def __str__(self) -> str:
        return f"{self.face.module}-{'older' if self.older else 'kernel'}-{'dark' if self.dark else 'light'}"


# Here the one that no other test of this folder opens: they are in a light JupyterLab. All combinations in `make soak`.
PLACES = [Place(NOTEBOOK, True, True)]
if SOAK:
    PLACES = [
        Place(*each) for each in itertools.product((LAB, NOTEBOOK), (False, True), (False, True))
    ]


@pytest.fixture
def place(
    request: pytest.FixtureRequest, profile: BrowserContext, tmp_path: Path
) -> Iterator[tuple[Place, Lab]]:
    where: Place = request.param
    packages = older_kernel(Path(str(request.config.rootpath)) / ".venv") if where.older else None
    server = Server(tmp_path, where.face, packages)
    try:
        server.start()
        page = new_page(profile, server)
        page.emulate_media(color_scheme="dark" if where.dark else "light")
        lab = Lab(server, page)
        lab.viewport(1200, 1500)
        yield where, lab
        page.close()
    finally:
        server.stop()


@pytest.mark.parametrize("place", PLACES, ids=str, indirect=True)
def test_the_panel(place: tuple[Place, Lab]) -> None:
    where, lab = place
    sources = [
        cell.source
        for cell in nbformat.read(QUICKSTART, as_version=4).cells
        if cell.cell_type == "code"
    ]
    lab.open_notebook([sources[0], sources[1], "bench"], name="everywhere.ipynb")
    if where.dark:
        lab.theme("dark")
    lab.run_cell(0)
    before = len(lab.save().read_bytes())
    lab.run_cell(BENCH)
    panel = lab.panel(BENCH)
    assert (
        lab.execute("import ipykernel; print(ipykernel.version_info[:2] < (7, 4))") == "True"
    ) == where.older
    assert lab.violations(".wb-panel") == []

    by_keyboard(lab, panel)
    plots_and_script(lab, panel)
    assert lab.violations(".wb-panel") == []
    lab.page.mouse.move(0, 0)
    lab.frames()
    lab.screenshot(f"everywhere-{where}", panel)
    lab.viewport(620, 1500)
    narrow(lab)
    lab.screenshot(f"everywhere-{where}-narrow", panel)
    lab.viewport(1200, 1500)

    seen = drawn(panel)
    lab.run_cell(AGAIN)
    draws(lab.panel(AGAIN), seen)  # a second view of the same bench
    lab.reopen()
    draws(there_again(where, lab), seen)
    lab.execute("bench.fit(max_epochs=2, lr=100.0).wait()")
    expect(lab.panel(BENCH)).to_contain_text("epoch 2/2")
    expect(lab.panel(BENCH).locator(".wb-progress .wb-trouble")).to_have_text("diverged")
    expect(lab.panel(BENCH).locator(".wb-health .wb-finding-error")).to_contain_text(
        "The loss has risen from"
    )
    lab.tab(lab.panel(BENCH), "Runs")
    expect(lab.panel(BENCH).locator(".wb-runs tbody tr").first.locator(".wb-trouble")).to_have_text(
        "diverged"
    )
    lab.settle()
    lab.screenshot(f"everywhere-{where}-diverged", lab.panel(BENCH))

    saved = lab.save()
    assert len(saved.read_bytes()) - before < MOST
    without_the_kernel(lab, saved)
    assert lab.complaints == []


def there_again(where: Place, lab: Lab) -> Locator:
    """The panel of a notebook that was opened again.

    The older kernel sometimes loses the messages with which Notebook asks for its widgets; none appears then, of whatever
    package, until the page is loaded once more. What the page complained of before is forgotten then.
    """
    for _ in range(3 if where.older else 0):
        lab.scroll_to(BENCH)
        with suppress(AssertionError):
            expect(lab.output(BENCH).locator(".wb-live .wb-progress")).to_be_visible(timeout=20_000)
            break
        before = len(lab.complaints)
        lab.reload()
        lab.complaints[:before] = [
            one for one in lab.complaints[:before] if "widget model not found" not in one
        ]
    return lab.panel(BENCH)


def by_keyboard(lab: Lab, panel: Locator) -> None:
    """Find a rate, use it, fit: with Tab, Enter and arrows alone."""
    lab.execute("bench.set(max_epochs=4, batch_size=64, gradient_clip_val=2.0)")
    panel.locator("input").first.focus()  # as a Tab out of the cell's editor would
    assert all(tab_to(lab, "Find") for _ in range(2))  # the batch size's, then the rate's
    lab.page.keyboard.press("Enter")
    lab.until("print(bench.job and bench.job.status)", "finished")
    expect(panel.locator(".wb-progress .wb-spoken")).to_contain_text("finished")
    expect(panel.locator(".wb-answers button")).to_be_visible()
    assert tab_to(lab, "Use ")
    lab.page.keyboard.press("Enter")
    lab.until("print(bench.settings.lr)", lambda lr: float(lr) != 1e-3)
    lab.settle()
    assert tab_to(lab, "Train", back=True)
    lab.page.keyboard.press("Enter")
    lab.until("print(bench.job.kind, bench.job.status)", "fit finished")
    expect(panel.locator(".wb-progress .wb-spoken")).to_contain_text("Training: finished")
    assert tab_to(lab, "Gradients and clipping")
    lab.page.keyboard.press("Enter")
    lab.settle()
    assert tab_to(lab, "Train", back=True)
    wanted = [
        "Export",
        "More actions",
        "Logarithmic",
        "lr ",
        "Copy",
        "All settings",
        "Gradient norms of",
        "Chosen clip value",
    ]
    met = names_ahead(lab, 60)
    assert [name for name in wanted if not any(name in one for one in met)] == [], met
    assert "" not in met, "something without a name takes the focus"


def plots_and_script(lab: Lab, panel: Locator) -> None:
    """The user's metric in its tab, a zoom and back, an option; and the script beside, which moves nothing: by keyboard, too."""
    loss, script = panel.locator(".wb-loss"), panel.locator(".wb-script")
    for name in ("accuracy", "loss"):
        loss.locator(".wb-quantity", has_text=name).press("Enter")
        expect(loss.get_by_role("list", name="Metrics")).to_be_visible(visible=name == "accuracy")
    lab.tab(panel, "Runs")
    expect(panel.locator(".wb-runs thead")).to_contain_text("val_accuracy")
    lab.tab(panel, "Gradients and clipping")
    out = loss.get_by_role("button", name="Zoom out")
    loss.locator(".u-over").first.press("+")
    expect(out).to_be_enabled()
    out.press("Enter")
    expect(out).to_be_disabled()
    loss.get_by_role("button", name="Options of this plot").press("Enter")
    loss.get_by_role("slider", name="Smoothing").press("Escape")
    expect(loss.get_by_role("button", name="Options of this plot")).to_be_focused()
    still = panel.locator(".wb-stage").evaluate("grid => [grid.offsetTop, grid.offsetHeight]")
    panel.locator(".wb-run").get_by_role("button", name="Export").press("Enter")
    expect(script.locator("pre")).to_contain_text("import torch")
    assert (
        panel.locator(".wb-stage").evaluate("grid => [grid.offsetTop, grid.offsetHeight]") == still
    )
    script.get_by_role("button", name="Close").press("Enter")
    expect(script).to_be_hidden()


_NAME = """() => {
  const at = document.activeElement;
  const said = at.getAttribute('aria-label') || at.getAttribute('aria-labelledby') || at.innerText || at.title || at.placeholder || '';
  return at.closest('.wb-panel') ? said.trim() : null;
}"""


def tab_to(lab: Lab, name: str, most: int = 60, back: bool = False) -> bool:
    for _ in range(most):
        lab.page.keyboard.press("Shift+Tab" if back else "Tab")
        if name in (lab.page.evaluate(_NAME) or ""):
            return True
    return False


def names_ahead(lab: Lab, most: int) -> list[str]:
    """What the focus meets on its way out of the panel."""
    met = []
    for _ in range(most):
        lab.page.keyboard.press("Tab")
        name = lab.page.evaluate(_NAME)
        if name is None:
            break
        met.append(name)
    return met


def narrow(lab: Lab) -> None:
    """The cards stand one below the other, and nothing sticks out, once they have the page's new width."""
    lab.page.wait_for_function(
        """() => {
      const cards = [...document.querySelectorAll('.wb-live .wb-card')].filter((card) => card.offsetParent);
      return new Set(cards.map((card) => card.offsetLeft)).size === 1 && cards.every((card) => card.scrollWidth <= card.clientWidth + 1);
    }"""
    )


HEAT, EXTENT, KEY, CHIPS = (
    ".wb-heat canvas",
    ".wb-heat .wb-extent",
    ".wb-loss > .wb-key",
    ".wb-timeline ol",
)


def drawn(panel: Locator) -> tuple[str, str, str]:
    """What is drawn from the first point to the last, in words; all of it is there."""
    expect(panel.locator(HEAT)).to_have_attribute("aria-label", re.compile("Gradient norms of"))
    expect(panel.locator(EXTENT)).to_have_text(
        re.compile(r"^\d+ rows of layers, up to update \S+\.$")
    )
    heat = panel.locator(EXTENT).text_content() or ""
    return heat, panel.locator(KEY).inner_text(), panel.locator(CHIPS).inner_text()


def draws(panel: Locator, seen: tuple[str, str, str]) -> None:
    """The same, once its last part has come."""
    expect(panel).to_contain_text("Training: finished")
    expect(panel.locator(HEAT)).to_have_attribute("aria-label", re.compile("Gradient norms of"))
    expect(panel.locator(EXTENT)).to_have_text(seen[0])
    expect(panel.locator(KEY)).to_have_text(seen[1], use_inner_text=True)
    expect(panel.locator(CHIPS)).to_have_text(seen[2], use_inner_text=True)


def without_the_kernel(lab: Lab, saved: Path) -> None:
    """The picture and the table of the last job, on the page and in what nbconvert makes of it."""
    lab.page.goto("about:blank")  # a page that is open would complain of its kernel
    lab.server.stop_kernels()
    page = HTMLExporter(template_name="basic").from_filename(str(saved))[0]
    assert [
        part for part in ("image/png;base64,", "wb-still", "max_epochs") if part not in page
    ] == []
    content = json.loads(saved.read_text())
    pictures = [
        part["data"]["image/png"]
        for cell in content["cells"]
        for part in cell["outputs"]
        if "image/png" in part.get("data", {})
    ]
    assert page.count("image/png;base64,") == len(pictures) > 0, "each picture once"
    del content["metadata"]["kernelspec"]  # nobody starts another
    quiet = saved.with_name("without.ipynb")
    quiet.write_text(json.dumps(content))
    lab.go_to("without.ipynb")
    lab.scroll_to(BENCH)
    expect(lab.output(BENCH).locator(".jp-RenderedImage img")).to_be_visible()
    expect(lab.output(BENCH).locator(".wb-still")).to_contain_text("finished")
    expect(lab.output(BENCH)).to_contain_text("Run the cell to have the panel back.")
    lab.screenshot(f"without-the-kernel-{lab.server.face.module}")
