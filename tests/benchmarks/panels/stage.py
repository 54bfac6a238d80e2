"""A notebook in a real browser whose parts have a core each, and what each of them costs while something goes on."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from tests.browser import chromium
from tests.browser.lab import Lab, launch
from tests.browser.server import LabError, Server

ROOT = Path(__file__).resolve().parents[3]
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""The last of them is the kernel's, the others the browser's and the server's; with a single one they share it."""


class Watch:
    """Five times a second what the browser's pages, those that are open now, use of the processor; `share` says it of any time since."""

    def __init__(self) -> None:
        self._pages = renderers()
        self._seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def share(self, spans: Sequence[Sequence[float]]) -> float:
        """Percent of one core over these spans, each (from, to) in seconds since 1970."""
        used = sum(self._at(end) - self._at(start) for start, end in spans)
        return 100 * used / sum(end - start for start, end in spans)

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _at(self, when: float) -> float:
        """Seconds used until then, on the line between the two looks around it."""
        before = max((one for one in self._seen if one[0] <= when), default=self._seen[0])
        after = min((one for one in self._seen if one[0] >= when), default=self._seen[-1])
        if after[0] <= before[0]:
            return before[1]
        return before[1] + (after[1] - before[1]) * (when - before[0]) / (after[0] - before[0])

    def _run(self) -> None:
        while not self._over.wait(0.2):
            self._seen.append((time.time(), sum(map(_used, self._pages))))


def renderers() -> list[psutil.Process]:
    """The processes of this browser that run pages."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "--type=renderer" in child.cmdline():
                found.append(child)
    return found


def _used(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        spent = process.cpu_times()
        return float(spent.user + spent.system)
    return 0.0


@contextmanager
def stage(cells: Sequence[str], height: int = 1800, script: str = "") -> Iterator[Lab]:
    """A notebook whose first cell makes `inside` known to a kernel with a core and a thread of its own; the others follow."""
    path = chromium.find()
    if path is None:
        raise SystemExit("These figures need a Chromium: python -m tests.browser.chromium")
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[:-1])
    first = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.benchmarks.panels import inside\ninside.begin({CORES[-1:]})"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        try:
            server.start()
            browser = launch(playwright, path)
            page = browser.new_context(viewport={"width": 1280, "height": height}).new_page()
            page.add_init_script(script)
            lab = Lab(server, page)
            lab.open_notebook([first, *cells])
            for i in range(1 + len(cells)):
                lab.run_cell(i)
            yield lab
            if lab.complaints:
                raise LabError(f"the page complained: {lab.complaints[:3]}")
            browser.close()
        finally:
            server.stop()


def ask(lab: Lab, code: str, timeout: float = 500.0) -> Any:
    """The value of an expression in the kernel, by way of JSON."""
    text = lab.execute(f"import json; print('\\n' + json.dumps({code}))", timeout)
    return json.loads(text.splitlines()[-1])
