"""The fixture `lab`: a page of a JupyterLab that all tests of this folder share; in `make soak` of a Notebook 7, too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.conftest import SOAK

from . import chromium
from .faces import LAB, NOTEBOOK
from .lab import FLAGS, Lab, launch
from .server import TIMEOUT, Server

FAILED = pytest.StashKey[bool]()


# Playwright keeps an event loop in this thread, which tests elsewhere would trip over (asyncio.run), so it ends when the
# last test of this folder is over: hence scope="package".
@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def chromium_path() -> str:
    """Debian's Chromium. Without one the tests are skipped, except on CI, where they fail."""
    path = chromium.find()
    if path is None:
        reason = "no Chromium: `sudo apt-get install chromium`, or name one in WORKBENCH_CHROMIUM"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="package")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    browser = launch(playwright, chromium_path)
    yield browser
    browser.close()


@pytest.fixture(scope="package")
def profile(
    playwright: Playwright, chromium_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """A Chromium that keeps the compiled scripts of JupyterLab from one page to the next, which halves what a page costs."""
    folder = tmp_path_factory.mktemp("profile")
    context = playwright.chromium.launch_persistent_context(
        folder, executable_path=chromium_path, args=FLAGS, timeout=TIMEOUT * 1000
    )
    yield context
    context.close()


@pytest.fixture(
    scope="package", params=[LAB, NOTEBOOK] if SOAK else [LAB], ids=lambda face: face.module
)
def server(
    request: pytest.FixtureRequest, chromium_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A JupyterLab, or a Notebook 7, with no notebook and no kernel yet."""
    server = Server(tmp_path_factory.mktemp("lab"), request.param)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def new_page(profile: BrowserContext, server: Server) -> Page:
    """A page that knows nothing of the test before, but how its scripts are compiled."""
    page = profile.new_page()
    kept = {
        "origin": f"http://127.0.0.1:{server.port}",
        "storageTypes": "cookies,local_storage,indexeddb,service_workers,cache_storage",
    }
    profile.new_cdp_session(page).send("Storage.clearDataForOrigin", kept)
    return page


@pytest.fixture(scope="package")
def reusable(profile: BrowserContext, server: Server) -> Iterator[list[Page]]:
    """The page of the test before, if another test can use it: to load a page takes four times as long as all else in it."""
    pages: list[Page] = []
    yield pages
    for page in pages:
        page.close()


@pytest.fixture
def lab(
    profile: BrowserContext, server: Server, reusable: list[Page], request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """A page where no notebook is open, and a new one for a test marked `new_page`; if the test fails, a screenshot is kept in tests/artefacts.

    A test that asks for a new page may change what it likes, such as a property of `window`: the page is closed at the end.
    """
    marked = request.node.get_closest_marker("new_page") is not None
    page = reusable.pop() if reusable and not marked else new_page(profile, server)
    with ExitStack() as cleanup:
        cleanup.callback(server.stop_kernels)
        cleanup.callback(page.close)
        lab = Lab(server, page)
        lab.viewport(1280, 900)
        yield lab
        failed = request.node.stash.get(FAILED, None)  # None: the test was not called
        if failed:
            path = lab.screenshot("failed-" + re.sub(r"\W+", "-", request.node.name).strip("-"))
            print(f"screenshot: {path}")
            for line in lab.complaints:
                print(f"page: {line}")
        if failed is False and not marked and lab.reset():
            cleanup.pop_all()
            reusable.append(page)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # many waits in a row, each of them short but on a slow machine
            item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
