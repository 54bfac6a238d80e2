"""Makes the rows of the list of runs: small dictionaries of plain data, whatever a record holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from workbench.runs import read
from workbench.runs.folder.annotations import Annotations, read_annotations
from workbench.runs.folder.control import TAKES, why_not_taken
from workbench.runs.health.finding import Finding, in_a_line
from workbench.runs.health.search_results import answer
from workbench.runs.printable import printable
from workbench.runs.read import RunSummary
from workbench.runs.tables.brief import LiveChange, RunBrief
from workbench.runs.tables.compare import differences
from workbench.runs.tables.facts import facts
from workbench.runs.tables.filter import Facts
from workbench.server.roots import Root
from workbench.settings import Settings, setting_text
from workbench.ui import format
from workbench.ui.canvas.runs.runs_table import ADDED, CELL, COLUMNS, finite, moving
from workbench.ui.canvas.transport.messages import cut
from workbench.units import duration

METRICS = 12
"""For how many metrics of a run a value is kept."""
NOTES, ERROR = 12_000, 1000
"""The most bytes of a user's notes, and of an error."""
_RECENT = 40
"""How many points at the end of the loss curve (400 at most) the time left is estimated from."""
_OF_COMMANDS = (TAKES, "launched", "pid", "host")
_NONE = Annotations()
_DEFAULTS = {
    name: json.loads(json.dumps(field_info.default))
    for name, field_info in Settings.model_fields.items()
}
"""The default settings, as a header has them."""


@dataclass(slots=True)
class Entry:
    """The part of a run that the list keeps in memory; there may be ten thousand runs."""

    root: Root
    summary: RunSummary
    """With as much of its header as says whether it takes commands."""
    stamp: tuple[int, int]
    """Of its folder, which changes when a file in it is replaced."""
    annotations: Annotations = _NONE
    settings: dict[str, Any] = field(default_factory=dict)
    """Those that are not at their default values."""
    model: str = ""
    launched: bool = False
    loss: float | None = None
    value: float | None = None
    metric: str = ""
    changes: dict[str, LiveChange] = field(default_factory=dict)
    """The settings that were changed while it trained, as far as its record was read."""
    origin: str = ""
    """The run that it continues, as far as its record was read."""
    trouble: Finding | None = None
    """Why its result is in doubt."""
    answer: str = ""
    """What a search found."""
    trial: read.TrialPlace | None = None
    """Its place in a study; None: it is in none."""
    build: dict[str, Any] = field(default_factory=dict)
    """The values with which a function made its model."""
    best: dict[str, float] = field(default_factory=dict)
    """The best value of each metric, or the last one where nobody knows what is better; of the
    first `METRICS`.
    """
    exact: bool = False
    """Whether the record was read for loss and value."""
    unreadable_until: float = 0.0
    """The `time.monotonic` before which its record is not tried again."""

    @classmethod
    def read(cls, root: Root, summary: RunSummary, stamp: tuple[int, int]) -> Entry:
        """Make the entry of a run from its header, the end of its record, and its annotations."""
        header, settings = summary.header, summary.header.get("settings") or {}
        added = read_annotations(summary.path)
        return cls(
            root,
            replace(
                summary,
                header={name: header[name] for name in _OF_COMMANDS if name in header},
                metrics={},
            ),
            stamp,
            _NONE if added == _NONE else added,
            read.accepted(
                {
                    name: value
                    for name, value in settings.items()
                    if not setting_text.same(value, _DEFAULTS.get(name, value))
                }
            ),
            read.model_text(header),
            header.get("launched") is True or settings.get("strategy") == "launch",
            answer=answer(summary),
            trial=read.trial_place(header),
            build=read.build_values(header),
        )

    @property
    def key(self) -> tuple[str, str]:
        """The key of its root, and its id."""
        return self.root.key, self.summary.id

    @property
    def study(self) -> str:
        """Its place in a study, in a line; "": it is in none."""
        return "" if self.trial is None else str(self.trial)

    @property
    def facts(self) -> Facts:
        """What a condition of the search compares; metrics, origin and trouble only once the record
        was read."""
        run = self.summary
        curve = np.empty((0, 4)) if self.loss is None else np.array([[0.0, 0.0, 0.0, self.loss]])
        brief = RunBrief(
            run.id,
            run.status,
            run.step,
            run.seconds,
            run.created,
            self.settings,
            self.best,
            self.metric,
            curve,
            np.empty((0, 4)),
            self.origin,
            model=(self.model, None),
            best=self.best,
            unseen=run.unseen,
            trouble=self.trouble,
            trial=self.trial,
            build=self.build,
        )
        return facts(brief, self.annotations)

    @property
    def live(self) -> bool:
        """Whether it may still change."""
        return not self.summary.over

    @property
    def status(self) -> str:
        """Its text for users."""
        return read.shown_status(self.summary.status, self.summary.unseen)

    def take_state(self, now: RunBrief | RunSummary) -> None:
        """Take over the present state of a run."""
        self.summary = replace(
            self.summary,
            status=now.status,
            step=now.step,
            seconds=now.seconds,
            error=now.error,
            unseen=now.unseen,
            waits_for=now.waits_for,
            created=now.created,
        )

    def take(self, brief: RunBrief) -> None:
        """Take over the loss, the value, the changes and the answer of a run from its brief."""
        self.loss, self.value, self.metric, self.exact = (
            finite(brief.loss),
            finite(brief.value),
            brief.monitor,
            True,
        )
        self.changes, self.answer = brief.changes, brief.answer
        self.origin, self.trouble = brief.origin, brief.trouble
        known = {name: value for name, value in brief.metrics.items() if math.isfinite(value)}
        self.best = dict(islice((known | brief.best).items(), METRICS))


def row(entry: Entry, brief: RunBrief | None, cells: Sequence[str] = ()) -> dict[str, Any]:
    """One row. brief: of a fit, once it is read; until then the row has no values and no
    sparkline.
    """
    run, added = entry.summary, entry.annotations
    drawn = (
        moving(brief)
        if brief is not None
        else {
            "loss": _number(entry.loss),
            "metric": cut(entry.metric, CELL),
            "value": _number(entry.value),
            "spark": [],
            "dots": [],
            "trouble": None,
        }
    )
    total = brief.updates if brief is not None and run.kind == "fit" else None
    return {
        "root": entry.root.key,
        "run": run.id,
        "kind": cut(printable(run.kind), CELL),
        "status": entry.status,
        "loss": drawn["loss"] if run.kind == "fit" else "",
        "answer": cut(printable(entry.answer), ADDED),
        "metric": drawn["metric"],
        "value": drawn["value"],
        "step": run.step,
        "total": total,
        "progress": min(1.0, run.step / total) if total else None,
        "left": _left(brief),
        "time": duration(run.seconds),
        "created": finite(run.created) or 0,
        "from": cut(brief.origin, CELL) if brief is not None else "",
        "study": cut(entry.study, CELL),
        "name": cut(added.name, ADDED),
        "tags": [cut(tag, ADDED) for tag in added.tags],
        "pinned": added.pinned,
        "notes": cut(added.notes, NOTES),
        "version": added.version,
        "cells": [cut(cell, CELL) for cell in cells],
        "spark": drawn["spark"],
        "dots": drawn["dots"],
        "trouble": drawn["trouble"],
        "commands": not why_not_taken(run),
        "launched": entry.launched,
        "waits": cut(printable(run.waits_for), ERROR),
        "error": "" if run.error is None else cut(printable(in_a_line(run.error)), ERROR),
    }


def cells(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """The settings that differ among these fits, at most six, and the values of each run; "" for
    a job of another kind.
    """
    fits = [entry for entry in entries if entry.summary.kind == "fit"]
    every = differences([entry.settings for entry in fits], [entry.changes for entry in fits])
    differ = dict(list(every.items())[:COLUMNS])
    values = iter(zip(*differ.values(), strict=True)) if differ else iter([()] * len(fits))
    return [*differ], [
        [*next(values)] if entry.summary.kind == "fit" else [""] * len(differ) for entry in entries
    ]


def words(entry: Entry) -> str:
    """Return the text in which a search looks for words, in lower case."""
    added = entry.annotations
    named = (f"{name}={value}" for name, value in _texts(entry.settings).items())
    return " ".join(
        [
            entry.summary.id,
            added.name,
            *(f"#{tag}" for tag in added.tags),
            added.notes,
            entry.model,
            entry.study,
            entry.summary.kind,
            *named,
        ]
    ).lower()


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: setting_text.recorded(name, value)
        for name, value in settings.items()
        if name in Settings.model_fields
    }


def _number(value: float | None) -> str:
    return "" if value is None else format.number(value)


def _left(brief: RunBrief | None) -> str:
    """Estimate the time until a running fit ends from the speed of its last updates, as text;
    "": unknown.
    """
    if brief is None or brief.status != "running" or not brief.updates or len(brief.curve) < 2:
        return ""
    recent = brief.curve[-_RECENT:]
    steps, seconds = (float(recent[-1, at] - recent[0, at]) for at in (0, 2))
    return (
        duration(max(0, brief.updates - brief.step) * seconds / steps)
        if steps > 0 and seconds > 0
        else ""
    )
