"""Lists the findings of a run's health (`runs/health`) for the canvas, and shows the error that ended a job."""

from __future__ import annotations

import contextlib
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

MOST = 12
TEXT = 700
"""The most bytes of a finding, and of its advice."""
MESSAGE, TRACEBACK = 4000, 16_000
"""Bytes of an error's message, and of its traceback, of which the end is shown."""
EVERY = 1.0
"""Seconds of the run between two examinations."""


class Findings:
    """Takes a fit's events, and examines them about once a second, and at the fit's end.

    The updates of that second are passed on together: the rules cost by the event, and training waits for them.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.root: Path | None = None
        """Where the searches are recorded whose results a finding may have; None: nowhere."""
        self._outbox = outbox
        self._results = SearchResults(None)
        self._health = Health()
        self._held: list[Event] = []
        self._looked = 0.0

    def clear(self) -> None:
        """Begin without a fit."""
        self._health, self._held, self._looked = Health(), [], 0.0
        self._outbox.put("health", None)
        self.error("", None)

    def on_event(self, event: Event) -> None:
        """Keep an event until the rules are next asked."""
        self._held.append(event)
        if isinstance(event, StepsDone):
            if 0 <= event.seconds - self._looked < EVERY:
                return
            self._looked = event.seconds
        elif isinstance(event, RunStarted):
            self._looked = -EVERY  # its first updates are examined alone: rules measure from there on
            self._results = SearchResults(None if self.root is None else _folder(self.root, event.run))
        held, self._held = self._held, []
        for one in joined(held, across_epochs=True):
            self._health.on_event(one)
        self._outbox.put("health", described(self._results.with_results(self._health.findings[:MOST])))

    def error(self, kind: str, event: RunEnded | None) -> None:
        """Show the error that ended this job; None, or no error: nothing."""
        self._outbox.put("failure", None if event is None else failure(kind, event))


def described(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as the browser gets them, without that of an error, since `failure` says more about it."""
    return [
        {
            "level": found.level, "text": cut(found.text, TEXT), "advice": cut(found.advice, TEXT), "remedy": cut(found.remedy, TEXT),
            "trouble": found.trouble,
        }
        for found in findings if found.trouble != "failed"
    ]  # fmt: skip


def failure(kind: str, event: RunEnded) -> dict[str, str] | None:
    """The error that ended a job of this kind, as the browser gets it; None: there was none. Health tells of values that are not finite."""
    if event.error is None or (kind == "fit" and event.error.startswith("NonFiniteError: ")):
        return None
    error = event.error.strip()
    text = in_a_line(error) if error.startswith("Traceback") else error
    name, _, message = text.partition(": ")
    if not name.replace(".", "").isidentifier():  # words, and no error of Python
        name, message = "", text
    trace = event.traceback or (error if error.startswith("Traceback") else "")
    return {
        "title": texts.job_failed(format.job(kind)), "type": cut(name, TEXT), "message": cut(message, MESSAGE), "where": cut(event.where, TEXT),
        "traceback": cut(trace[:-TRACEBACK:-1], TRACEBACK)[::-1],
    }  # fmt: skip


def _folder(root: Path, run: str) -> Path | None:
    """The folder of a run of this id; None: no folder can have it, as in a record of somebody else's making."""
    with contextlib.suppress(ValueError):
        return root / RUNS / check_id(run)
    return None
