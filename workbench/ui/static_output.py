"""Leaves a picture and a small table in the output when a job ends.

So a notebook reads well on a page, in nbconvert, and after a restart, without the live panel. While the panel lives,
the style sheet hides them.
"""

from __future__ import annotations

import base64
import html
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display, update_display

from workbench.events import Event
from workbench.runs.run import Run
from workbench.ui.controls.widget_utils import aside

_BESIDE = "display:flex;flex-wrap:wrap;gap:4px 24px;align-items:flex-start"
PATIENCE = 60.0
"""Seconds that the end of a cell waits at most for pictures of jobs that have ended in it."""
_ORDER = ("find_batch_size", "find_lr", "fit")


class StaticOutput:
    """The last job of each kind as pictures, drawn on first use, and their place in the notebook's output."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened = False
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self._filled.set()
        self._filling = 0
        self._runs: dict[str, Run] = {}
        self._drawn: dict[str, tuple[Run, bytes]] = {}
        self._one = threading.Lock()
        """Places are made and filled one after another, so that the last one has everything."""

    def over(self, events: Sequence[Event], failed: Callable[[Exception], None]) -> None:
        """A job has ended; its events. Update what is open, on a thread of its own; errors go to `failed`."""
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
        """The picture of the most important job (a fit, if there was one), as base64."""
        runs = self._ordered()
        return base64.b64encode(self._png(runs[-1])).decode("ascii") if runs else None

    def bundle(self) -> dict[str, str]:
        """The contents of the place: tables and pictures, or nothing yet."""
        parts = []
        for run in self._ordered():
            data = base64.b64encode(self._png(run)).decode("ascii")
            alt = html.escape(f"{run.kind}, {run.status}")
            picture = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
            parts.append(f'<div style="{_BESIDE}"><div>{run._repr_html_()}</div><div>{picture}</div></div>')
        if not parts:
            return {"text/plain": "", "text/html": '<div class="wb-still"></div>'}
        return {"text/plain": self.text(), "text/html": f'<div class="wb-still">{"".join(parts)}</div>'}

    def open(self) -> None:
        """Make the place in the output of the cell that runs now."""
        with self._one:
            self._opened = True
            display(self.bundle(), raw=True, display_id=self._name)

    def settled(self, timeout: float = PATIENCE) -> bool:
        """Wait until everything is filled in."""
        return self._filled.wait(timeout)

    def _fill(self) -> None:
        try:
            with self._one:
                update_display(self.bundle(), raw=True, display_id=self._name)
        finally:
            with self._lock:
                self._filling -= 1
                if not self._filling:
                    self._filled.set()

    def _ordered(self) -> list[Run]:
        with self._lock:
            known = [self._runs[kind] for kind in _ORDER if kind in self._runs]
        return known

    def _png(self, run: Run) -> bytes:
        of, drawn = self._drawn.get(run.kind, (None, b""))
        if of is not run:
            figure: Any = run.plot()
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=100)
            drawn = file.getvalue()
            self._drawn[run.kind] = run, drawn
        return drawn


class CellEnds:
    """Calls `before` when a cell ends, while its output can still change.

    Without a screen that is the last moment: later output is dropped, and a kernel ends after its last cell.
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
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.events.unregister("post_run_cell", self._called)

    def _called(self, result: object) -> None:
        self._before()


def in_notebook() -> bool:
    """Whether displayed output goes to a front end (not to a terminal, or nowhere)."""
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
