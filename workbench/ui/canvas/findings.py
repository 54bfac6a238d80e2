"""Lists the findings of a run's health (`runs/health`) for the canvas, and shows the error that
ended a job.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.events import Event, RunEnded, RunStarted, StepsDone
from workbench.runs.folder.ids import check_id
from workbench.runs.health import Health
from workbench.runs.health.finding import Finding, in_a_line
from workbench.runs.health.search_results import SearchResults
from workbench.runs.read import RUNS
from workbench.runs.record.stream import joined
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox, cut

_RAN_OUT = re.compile(r"^Memory\sran\sout\sat\sbatch_size=(\d+): .+$", re.MULTILINE)
"""The note of `instruments/memory.py: explain_out_of_memory`, which needs torch."""
MOST = 12
TEXT = 700
"""How many bytes a finding, and its advice, may have."""
MESSAGE, TRACEBACK = 4000, 16_000
"""How many bytes of an error's message, and of the end of its traceback, are shown."""
EVERY = 1.0
"""Seconds of the run between two checks of the rules."""


class Findings:
    """Takes a fit's events, and applies the rules about once a second, and at the fit's end.

    The updates of a second are passed to the rules together: each event takes time, for which
    training waits.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.root: Path | None = None
        """The root of the records of searches, whose results a finding may mention; None: there
        is none.
        """
        self._outbox = outbox
        self._results = SearchResults(None)
        self._health = Health()
        self._held: list[Event] = []
        self._looked, self._from = 0.0, 0
        """When it looked last, in seconds of the run; the update at which the fit continues."""

    def clear(self) -> None:
        """Begin without a fit."""
        self._health, self._held, self._looked = Health(), [], 0.0
        self._outbox.put("health", None)
        self.error("", None)

    def on_event(self, event: Event) -> None:
        """Keep an event until the next check of the rules."""
        self._held.append(event)
        if isinstance(event, StepsDone):
            if 0 <= event.seconds - self._looked < EVERY:
                return
            self._looked = event.seconds
        elif isinstance(event, RunStarted):
            # the first updates are checked at once: rules measure from them on
            self._looked, self._from = -EVERY, event.resumed_at
            self._results = SearchResults(
                None if self.root is None else _folder(self.root, event.run)
            )
        held, self._held = self._held, []
        for joined_event in joined(held, across_epochs=True):
            self._health.on_event(joined_event)
        if isinstance(event, StepsDone) and event.step < self._from:
            return  # of what came before a fit that continues: it is shown when that is over
        self._outbox.put(
            "health", described(self._results.with_results(self._health.findings[:MOST]))
        )

    @property
    def failing(self) -> bool:
        """Whether the fit has gone wrong for sure, as far as was checked: its loss has diverged,
        say.
        """
        finding = self._health.trouble
        return finding is not None and finding.level == "error"

    def error(self, kind: str, event: RunEnded | None, accumulated: object = 1) -> None:
        """Show the error that ended this job; None, or no error: nothing. accumulated: its
        setting `accumulate_grad_batches`.
        """
        self._outbox.put("failure", None if event is None else failure(kind, event, accumulated))


def described(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings in the form for the browser, without that of an error, about which `failure` says
    more.
    """
    return [
        {
            "level": finding.level,
            "text": cut(finding.text, TEXT),
            "advice": cut(finding.advice, TEXT),
            "remedy": cut(finding.remedy, TEXT),
            "trouble": finding.trouble,
        }
        for finding in findings
        if finding.trouble != "failed"
    ]


def failure(kind: str, event: RunEnded, accumulated: object = 1) -> dict[str, Any] | None:
    """The error that ended a job of this kind, in the form for the browser; None: there was
    none, or a finding reports it (non-finite values).

    Where memory ran out, `advice` says what to do, and `remedies` are the lines of code that do it.
    """
    if event.error is None or (kind == "fit" and event.error.startswith("NonFiniteError: ")):
        return None
    error = event.error.strip()
    text = in_a_line(error) if error.startswith("Traceback") else error
    name, _, message = text.partition(": ")
    if not name.replace(".", "").isidentifier():  # a sentence, and no name of a Python error
        name, message = "", text
    ran_out = _RAN_OUT.search(event.traceback)
    trace = event.traceback or (error if error.startswith("Traceback") else "")
    return {
        "title": texts.job_failed(format.job(kind)),
        "type": cut(name, TEXT),
        "message": cut(message, MESSAGE),
        "where": cut(event.where, TEXT),
        "advice": "" if ran_out is None else cut(ran_out[0], TEXT),
        "remedies": [] if ran_out is None else _remedies(int(ran_out[1]), accumulated),
        "traceback": cut(trace[:-TRACEBACK:-1], TRACEBACK)[::-1],
    }


def _remedies(batch_size: int, accumulated: object) -> list[str]:
    """The lines of code that help where memory ran out at this batch size."""
    if batch_size < 2:
        return []
    find = "bench.find_batch_size()"
    if not isinstance(accumulated, int | None):  # by epochs, which no one number replaces
        return [find]
    twice = 2 * (accumulated or 1)
    return [f"bench.set(batch_size={batch_size // 2}, accumulate_grad_batches={twice})", find]


def _folder(root: Path, run: str) -> Path | None:
    """The folder of a run with this id; None: no folder can have this id, which a foreign record
    may contain.
    """
    with contextlib.suppress(ValueError):
        return root / RUNS / check_id(run)
    return None
