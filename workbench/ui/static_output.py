"""Adds a picture and a small table to the output when a job ends.

With them a notebook shows its results without the live panel, and how that comes back: on a web
page, in nbconvert, after a restart, and where it is not trusted. While the panel is live, the style
sheet hides them.
"""

from __future__ import annotations

import base64
import contextlib
import html
import threading
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display, update_display

from workbench.events import Event
from workbench.plots.chart import Chart
from workbench.plots.drawing import matplotlib
from workbench.runs.run import Run
from workbench.ui import texts
from workbench.ui.controls.widget_utils import aside

_BESIDE = "display:flex;flex-wrap:wrap;gap:4px 24px;align-items:flex-start"
PATIENCE = 60.0
"""The most seconds that the end of a cell waits for the pictures of jobs that have ended in it."""
_ORDER = ("find_batch_size", "find_lr", "fit")


class StaticOutput:
    """The last job of each kind as one table and one picture, in two outputs of the notebook.

    There are two, since pages that show notebooks (GitHub) may drop pictures within HTML.
    """

    def __init__(self, name: str) -> None:
        self._places = name, f"{name}-picture"
        self._opened = False
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self._filled.set()
        self._filling = 0
        self._runs: dict[str, Run] = {}
        self._drawn: tuple[list[Run], bytes] = [], b""
        self._one = threading.Lock()
        """Serializes making and filling of outputs, so that the last one has all jobs."""

    def over(self, events: Sequence[Event], failed: Callable[[Exception], None]) -> None:
        """Add a job that has ended, and update the open outputs in a thread; `failed` is called
        with an error.
        """
        run = Run.from_events(events)
        with self._lock:
            self._runs[run.kind] = run
            if not self._opened:
                return
            self._filling += 1
            self._filled.clear()
        aside(self._fill, failed, "still")

    def text(self) -> str:
        """The jobs, a line each; empty before the first."""
        return "\n".join(map(repr, self._ordered()))

    def png(self) -> str | None:
        """The picture of the jobs, as base64; None before the first job that has something to
        draw.
        """
        drawn = self._png(self._ordered())
        return base64.b64encode(drawn).decode("ascii") or None

    def bundles(self) -> tuple[dict[str, str], dict[str, str]]:
        """The contents of the two outputs, the table and the picture; empty before the first
        job.
        """
        tables = "".join(f"<div>{run._repr_html_()}</div>" for run in self._ordered())
        words = f"<p>{html.escape(texts.PANEL_BACK)}</p>"
        table = f'<div class="wb-still">{words}<div style="{_BESIDE}">{tables}</div></div>'
        png = self.png()
        picture = (
            {"text/html": '<div class="wb-still"></div>'} if png is None else {"image/png": png}
        )
        return {"text/plain": self.text(), "text/html": table}, {"text/plain": "", **picture}

    def open(self) -> None:
        """Make the two outputs in the cell that runs now."""
        with self._one:
            self._opened = True
            for bundle, display_id in zip(self.bundles(), self._places, strict=True):
                display(bundle, raw=True, display_id=display_id)

    def settled(self, timeout: float = PATIENCE) -> bool:
        """Wait until all outputs are filled; returns whether they are."""
        return self._filled.wait(timeout)

    def _fill(self) -> None:
        try:
            with self._one:
                for bundle, display_id in zip(self.bundles(), self._places, strict=True):
                    update_display(bundle, raw=True, display_id=display_id)
        finally:
            with self._lock:
                self._filling -= 1
                if not self._filling:
                    self._filled.set()

    def _ordered(self) -> list[Run]:
        with self._lock:
            known = [self._runs[kind] for kind in _ORDER if kind in self._runs]
        return known

    def _png(self, runs: list[Run]) -> bytes:
        """The picture, with the searches in the first column and the fit in the second; empty if
        there is nothing to draw.
        """
        of, drawn = self._drawn
        if [*map(id, of)] != [*map(id, runs)]:
            columns: tuple[list[Chart], list[Chart]] = [], []
            for run in runs:
                with contextlib.suppress(ValueError):  # the job has nothing to draw
                    columns[run.kind == "fit"].extend(run.charts())
            # Small, since each view of a panel keeps a copy in the notebook's file.
            drawn = matplotlib.small_png(matplotlib.overview(columns)) if any(columns) else b""
            self._drawn = runs, drawn
        return drawn


class CellEnds:
    """Calls `before` when a cell ends, while its output can still change.

    When a notebook runs without a front end, that is the last chance: later output is dropped, and
    the kernel ends after the last cell.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._shell: Any = None

    def watch(self) -> None:
        """Begin to watch."""
        if self._shell is None and (shell := get_ipython()) is not None:
            self._shell = shell
            shell.events.register("post_run_cell", self._called)

    def close(self) -> None:
        """Stop watching."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.events.unregister("post_run_cell", self._called)

    def _called(self, result: object) -> None:
        self._before()


def in_notebook() -> bool:
    """Whether displayed output goes to a front end (not to a terminal, or nowhere)."""
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
