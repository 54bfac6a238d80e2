"""The panel in a real marimo, where no ipywidgets are shown but those within one anywidget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

import workbench as wb
from workbench.events import Changed

from .lab import ARTEFACTS
from .server import TIMEOUT, LabError, on_free_port

pytestmark = pytest.mark.browser

NOTEBOOK = """import marimo
app = marimo.App()

@app.cell
def _():
    import torch, workbench as wb
    def slow(output, target):  # it leaves the processor to what is looked at; when its cell runs again, marimo deletes what that imported
        import time, torch
        time.sleep(0.01)
        return torch.nn.functional.mse_loss(output, target)
    x = torch.randn(2048, 8, generator=torch.Generator().manual_seed(0))
    bench = wb.Workbench(torch.nn.Linear(8, 1), train=(x, x.sum(1, keepdim=True)), loss=slow, lr=1e-3, max_epochs=100_000)
    return (bench,)

@app.cell(expand_output=True)
def _(bench):
    bench

@app.cell(expand_output=True)
def _():
    import pathlib as _pathlib, workbench as _wb
    _wb.attach("0002-fit") if _pathlib.Path(".workbench/runs/0002-fit").exists() else None

@app.cell(expand_output=True)
def _(bench):
    import pathlib as _pathlib
    bench if _pathlib.Path("beside").exists() else None
"""
BENCH, PANEL, ATTACHED, BESIDE = range(4)
TRAIN, STOP = re.compile("Train$"), re.compile("Stop$")
CONFIG = """[display]
theme = "dark"
[runtime]
auto_instantiate = true
"""


@contextmanager
def marimo(folder: Path) -> Iterator[str]:
    """A marimo on loopback that runs the notebook when it is opened in its editor; its address."""
    (folder / "notebook.py").write_text(NOTEBOOK)
    (folder / "home" / "marimo").mkdir(parents=True)
    (folder / "home" / "marimo" / "marimo.toml").write_text(CONFIG)
    process, address = on_free_port(lambda port: _start(folder, port), folder / "log")
    try:
        yield address
    finally:
        _end(process)


def _start(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """Up and answering, or an error with its own words."""
    command = [sys.executable, "-m", "marimo", "--quiet", "edit", "notebook.py", "--headless", "--no-token",
               "--skip-update-check", "--host=127.0.0.1", f"--port={port}"]  # fmt: skip
    homes = {
        name: str(folder / "home")
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | homes,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}/"
    end = time.monotonic() + TIMEOUT
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > end:
            _end(process)
            raise LabError((folder / "log").read_text(errors="replace"))
        time.sleep(0.1)
    return process, address


def _end(process: subprocess.Popen[bytes]) -> None:
    family = []
    with suppress(psutil.NoSuchProcess):
        family = [
            *psutil.Process(process.pid).children(recursive=True),
            psutil.Process(process.pid),
        ]
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    for one in psutil.wait_procs(family, timeout=20)[1]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"{address}health", timeout=5
        ):
            return True
    except OSError:
        return False


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that complains of what is outside of this machine, and of errors in its scripts."""
    context = browser.new_context(viewport={"width": 1200, "height": 1400})
    page = context.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            complaints.append(request.url)
            if re.match(r"(http|ws)s?://(?!127\.0\.0\.1)", request.url)
            else None
        ),
    )
    yield page
    context.close()
    assert complaints == []


def test_the_panel_in_marimo(page: Page, tmp_path: Path) -> None:
    """Train, another rate while it trains, Stop; a page that is loaded again shows the same. So does a run that `wb.attach` follows."""
    progress, box = page.locator(".wb-progress"), page.locator(".wb-step-lr input[type=text]")
    with marimo(tmp_path) as address:
        page.goto(address)
        page.get_by_role("button", name=TRAIN).click()
        expect(progress).to_contain_text("Training")
        expect(page.locator(".wb-loss > .wb-key")).to_contain_text("smoothed")
        drawn = page.locator(".wb-loss > .wb-key").inner_text()
        expect(page.locator(".wb-loss > .wb-key")).not_to_have_text(drawn, use_inner_text=True)
        box.fill("0.02")
        box.press("Enter")
        page.get_by_role("button", name="Apply to the run: lr 0.02").click()
        expect(page.get_by_role("button", name="Apply to the run: lr 0.02")).to_be_hidden()
        assert (
            box.evaluate("box => getComputedStyle(box.closest('.wb-live')).colorScheme") == "dark"
        )
        page.reload()
        expect(box).to_have_value("0.02")
        expect(progress).to_contain_text("Training")
        page.get_by_role("button", name=STOP).click()
        expect(progress).to_contain_text("stopped")
        ARTEFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTEFACTS / "marimo.png")
        loss = page.locator(".wb-loss")
        for is_full in (True, False):
            loss.get_by_role("button", name="Full screen").click()
            page.wait_for_function(
                "([card, is_full]) => card.matches(':fullscreen') === is_full",
                arg=[loss.element_handle(), is_full],
            )
        page.locator(".wb-panel").evaluate("panel => panel.dataset.before = ''")
        run(page, PANEL)  # marimo forgets the widgets of a cell that runs again
        again = page.locator(".wb-panel:not([data-before])")
        expect(again.locator(".wb-progress")).to_contain_text("stopped")
        again.get_by_role("button", name=TRAIN).click()
        expect(progress).not_to_contain_text("stopped")
        expect(progress).to_contain_text("Training")
        run(page, ATTACHED)
        attached = page.locator(".wb-panel", has_text="by another process")
        expect(attached.locator(".wb-title")).to_contain_text("0002-fit")
        # A plot out of sight is not drawn, an empty one has no place to scroll to, and the panel above still grows.
        drawn = "live => { live.scrollIntoView(); return live.querySelector('.wb-loss > .wb-key').textContent.includes('smoothed'); }"
        page.wait_for_function(
            drawn, arg=attached.locator(".wb-live").element_handle(), polling=200
        )
        faster = attached.locator(".wb-run input[type=text]").first
        faster.fill("0.03")
        faster.press("Enter")
        attached.get_by_role("button", name="Apply to the run: lr 0.03").click()
        expect(attached.get_by_role("button", name="Apply to the run: lr 0.03")).to_be_hidden()
        page.screenshot(path=ARTEFACTS / "marimo-attached.png", full_page=True)
        attached.get_by_role("button", name=STOP).click()
        expect(attached.get_by_role("button", name=STOP)).to_be_disabled()
        expect(again.first.locator(".wb-progress")).to_contain_text("stopped")
        (tmp_path / "beside").touch()
        a_cell_runs_again_while_a_fit_trains(page)
    runs = [*map(wb.Run.open, sorted(tmp_path.glob(".workbench/*/*-fit")))]
    assert [run.status for run in runs] == ["stopped"] * 4
    assert [
        [event.values["lr"] for event in run.events if isinstance(event, Changed)] for run in runs
    ] == [[0.02], [0.03], [], []]
    assert runs[1].settings.lr == 0.02


def a_cell_runs_again_while_a_fit_trains(page: Page) -> None:
    """That of the panel: another cell says that its panel has ended. That of the bench: the old fit can be stopped."""
    run(page, BESIDE)
    panel = page.locator(".wb-panel", has_not_text="by another process")
    expect(panel).to_have_count(2)
    here, beside = panel.first, panel.last
    status = here.locator(".wb-progress")
    beside.get_by_role("button", name=TRAIN).click()
    expect(status).not_to_contain_text("stopped")
    expect(status).to_contain_text("Training")
    run(page, PANEL)
    expect(page.get_by_text("Run this cell again, too.")).to_have_count(1)
    expect(status).to_contain_text("Training")
    run(page, BENCH)
    expect(beside.locator(".wb-notice")).to_contain_text("no cell shows any more: 0003-fit")
    here.get_by_role("button", name=TRAIN).click()
    expect(status).to_contain_text("queued")
    here.get_by_role("button", name="Stop 0003-fit").click()
    expect(status).to_contain_text("Training")
    expect(here.get_by_text("no cell shows")).to_be_hidden()
    page.screenshot(path=ARTEFACTS / "marimo-again.png")
    here.get_by_role("button", name=STOP).click()
    expect(status).to_contain_text("stopped")


def run(page: Page, cell: int) -> None:
    page.locator(".cm-content").nth(cell).press("Control+Enter")
