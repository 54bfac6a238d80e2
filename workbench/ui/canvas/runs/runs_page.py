"""Makes the part of the table of runs that is seen: filtered, sorted, a page of it, or groups."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.metric_mode import known_mode
from workbench.runs.folder.annotations import Annotations
from workbench.runs.tables.brief import LiveChange, RunBrief
from workbench.runs.tables.compare import differences, setting_cell
from workbench.runs.tables.facts import columns_of, facts, is_missing, metric_column, sort_key
from workbench.runs.tables.filter import (
    Condition,
    Facts,
    Value,
    is_condition,
    name_in_condition,
    no_such_value,
    parse,
    value_in_condition,
)
from workbench.runs.tables.groups import group_text, hashable, identity, members, statistics
from workbench.runs.tables.importance import LEAST, Factor, importances
from workbench.settings import Settings
from workbench.ui import format, texts
from workbench.ui.canvas.metrics import is_loss
from workbench.ui.canvas.runs.runs_table import ADDED, CELL, COLUMNS, METRICS, finite, moving
from workbench.ui.canvas.transport.messages import cut
from workbench.units import duration

CURVE = "curve"
"""The column with the loss as a small line, by which nothing is sorted or filtered."""
PAGE = 50
"""How many rows a page has."""
CHOSEN = 16
"""How many columns a person can choose."""
OFFERED = 250
"""How many columns are offered: the first ones."""
GROUPS = 60
"""How many groups are listed: the largest ones."""
ROOM = 30_000
"""Bytes of the rows of one message; a page may need several."""
AXES, LINES = 8, 300
"""How many axes and lines the parallel coordinates have."""
VALUE = 120
"""Bytes of the text of a group."""


@dataclass(frozen=True)
class View:
    """What a person wants to see of the runs."""

    filter: str = ""
    sort: str = "started"
    down: bool = True
    start: int = 0
    """The number of the first row."""
    columns: tuple[str, ...] | None = None
    """None: those that are chosen by what differs."""
    group: str = ""
    """The column by whose values runs are grouped; "": they are listed."""
    explain: bool = False
    """Whether the settings are drawn against the results."""
    picked: tuple[str, ...] = ()
    """The runs that are drawn against the results; empty: all that match."""

    def changed(self, message: Mapping[str, Any]) -> View:
        """The view after a request; values of a wrong type change nothing."""
        types: dict[str, type] = {
            "filter": str, "sort": str, "down": bool, "start": int, "group": str, "explain": bool
        }  # fmt: skip
        new = {
            name: message[name]
            for name, kind in types.items()
            if name in message and type(message[name]) is kind
        }
        for name in ("columns", "picked"):
            names = message.get(name)
            if isinstance(names, list) and all(isinstance(text, str) for text in names):
                new[name] = tuple(names)
        if "columns" in message and message["columns"] is None:
            new["columns"] = None
        return replace(self, **{"start": 0, **new})


@dataclass
class Page:
    """What is sent of the runs: `head` says what the table is, `parts` are its rows."""

    head: dict[str, Any]
    parts: list[list[dict[str, Any]]]
    shown: list[RunBrief]
    """The runs of the rows."""


@dataclass(eq=False)
class _Known:
    """A run with what is known of it."""

    brief: RunBrief
    annotations: Annotations
    facts: Facts

    @property
    def compared(self) -> tuple[Any, ...]:
        """What does not move while it trains, besides its metrics."""
        run = self.brief
        fixed = run.id, run.settings, run.changes, run.build, run.model, run.trial
        return *fixed, self.facts["status"], self.annotations.tags


@dataclass
class Pages:
    """Makes pages; it keeps the last filter without a mistake, which holds while a person types."""

    _condition: Condition = field(default=lambda run: True)
    _known: dict[str, _Known] = field(default_factory=dict)
    """The runs that were read for the last page."""
    _matching: list[_Known] = field(default_factory=list)
    _compared: list[tuple[Any, ...]] = field(default_factory=list)
    """What `_differing` and `_groupable` depend on, for each run."""
    _differing: Mapping[str, Any] = field(default_factory=dict)
    _groupable: list[str] = field(default_factory=list)

    def page(
        self,
        view: View,
        briefs: Sequence[RunBrief],
        counts: tuple[int, int],
        annotated: Mapping[str, Annotations],
    ) -> Page:
        """What is seen of these fits, which come newest first; counts: how many there are in the
        folder, and how many of them are still to be read.
        """
        count, waiting = counts
        known = [self._known_of(brief, annotated.get(brief.id, Annotations())) for brief in briefs]
        self._known = {run.brief.id: run for run in known}
        columns = columns_of([run.facts for run in known])
        problem = self._parse(view.filter, columns)
        matching = [run for run in known if self._condition(run.facts)]
        hint = ""
        if known and not matching and not problem:
            hint = no_such_value(view.filter, columns, [run.facts for run in known])
        _sort(matching, view)
        differing, groupable = self._distinct(matching)
        shown = list(view.columns) if view.columns is not None else _usual(matching, differing)
        shown = [name for name in shown if name == CURVE or name in columns][:CHOSEN]
        start = min(max(0, view.start), max(0, len(matching) - 1)) // PAGE * PAGE
        rows = matching[start : start + PAGE]
        head = {
            "columns": shown,
            "numeric": [_is_numeric(name, matching) for name in shown],
            "offered": [cut(name, CELL) for name in [CURVE, *columns][:OFFERED]],
            "automatic": view.columns is None,
            "filter": cut(view.filter, ADDED),
            "problem": cut(problem, ADDED),
            "hint": cut(hint, ADDED),
            "sort": cut(view.sort, CELL),
            "down": view.down,
            "start": start,
            "matching": len(matching),
            "known": len(known),
            "waiting": waiting,
            "unread": max(0, count - len(known) - waiting),
            "groupable": groupable,
            "group": cut(view.group, CELL),
            "groups": None,
            "explain": view.explain,
        }
        if view.group in columns:
            numeric = [name for name in shown if name != view.group and _is_numeric(name, matching)]
            groups = _groups(matching, view, numeric)
            head |= {"groups": groups, "columns": numeric, "numeric": [True] * len(numeric)}
            rows = []
        parts = _parts([_row(run, [_cell(run, name) for name in shown]) for run in rows])
        self._matching = matching
        return Page(head, parts, [run.brief for run in rows])

    def explained(self, view: View) -> dict[str, Any] | None:
        """What draws the settings of all runs that match against their results."""
        return _explained(self._matching, view) if view.explain else None

    def brushed(self, view: View, brushes: Mapping[str, Any]) -> str:
        """The filter of the view for the runs within these parts of the axes, each from a place
        to a place.
        """
        runs = _valued(self._matching, view)
        conditions = []
        for name, interval in brushes.items():
            axis = _Axis.of(name, runs)
            match interval:
                case [float() | int() as low, float() | int() as high] if axis is not None:
                    conditions.append(_condition_within(axis, runs, low, high))
        return _narrowed(view.filter, " and ".join(filter(None, conditions)))

    def _distinct(self, runs: Sequence[_Known]) -> tuple[Mapping[str, Any], list[str]]:
        """The settings that differ between these runs, and the columns that can group them; made
        again only where they may have changed, since a fit that trains moves every two seconds.
        """
        compared = [run.compared for run in runs]
        if compared != self._compared:
            self._compared = compared
            self._differing = differences(
                [run.brief.settings for run in runs], [run.brief.changes for run in runs]
            )
            self._groupable = _groupable(runs, self._differing)
        return self._differing, self._groupable

    def _known_of(self, brief: RunBrief, annotations: Annotations) -> _Known:
        before = self._known.get(brief.id)
        if before is not None and before.brief is brief and before.annotations == annotations:
            return before
        return _Known(brief, annotations, facts(brief, annotations))

    def _parse(self, text: str, columns: Sequence[str]) -> str:
        """Keep the condition of this text; returns the mistake in it, "" for none."""
        try:
            self._condition = parse(text, columns)
        except ValueError as error:
            return str(error)
        return ""


def _sort(runs: list[_Known], view: View) -> None:
    """Pinned runs first, then by the column; equal ones stay newest first, and those without a
    value come last.
    """
    if view.sort != "started":
        runs.sort(key=lambda run: sort_key(run.facts.get(view.sort)), reverse=view.down)
        runs.sort(key=lambda run: is_missing(run.facts.get(view.sort)))
    elif not view.down:
        runs.reverse()
    runs.sort(key=lambda run: not run.annotations.pinned)


def _usual(runs: Sequence[_Known], differing: Mapping[str, Any]) -> list[str]:
    """The columns that nobody has chosen: what differs, and the first metrics."""
    several = len({run.brief.model for run in runs}) > 1
    built = dict.fromkeys(f"build.{name}" for run in runs for name in run.brief.build)
    measured = dict.fromkeys(name for run in runs for name in run.brief.metrics)
    metrics = [metric_column(name) for name in measured if not is_loss(name)][:METRICS]
    return [
        "status",
        CURVE,
        "loss",
        "validation",
        *(["model"] if several and not built else []),
        *[name for name in built if len({str(run.facts.get(name)) for run in runs}) > 1][:3],
        *[*differing][:COLUMNS],
        *metrics,
        "time",
        "started",
    ]


def _groupable(runs: Sequence[_Known], differing: Mapping[str, Any]) -> list[str]:
    """The columns by which these runs can be grouped: few values, of which one is common."""
    built = dict.fromkeys(f"build.{name}" for run in runs for name in run.brief.build)
    names = ["study", "tags", "status", "model", *built, *differing]
    different = {name: {identity(name, run.facts.get(name)) for run in runs} for name in names}
    return [name for name, values in different.items() if 1 < len(values) <= GROUPS]


def _is_numeric(name: str, runs: Sequence[_Known]) -> bool:
    values = [run.facts.get(name) for run in runs]
    numbers = [value for value in values if isinstance(value, int | float)]
    return bool(numbers) and not any(isinstance(value, str | bool) for value in values)


def _cell(run: _Known, name: str) -> str:
    value = run.facts.get(name)
    if name in Settings.model_fields and name in run.brief.settings:
        change: LiveChange | None = run.brief.changes.get(name)
        return setting_cell(name, run.brief.settings[name], change)
    return _text(name, value)


def _text(name: str, value: Value) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, tuple):
        return ", ".join(value)
    if name == "time":
        assert isinstance(value, int | float)
        return duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return str(value) if isinstance(value, int) else format.number(value)


def _row(run: _Known, cells: Sequence[str]) -> dict[str, Any]:
    added = run.annotations
    return {
        **moving(run.brief),
        "from": cut(run.brief.origin, CELL),
        "study": cut(run.brief.study, CELL),
        "cells": [cut(cell, CELL) for cell in cells],
        "created": finite(run.brief.created) or 0,
        "name": cut(added.name, ADDED),
        "tags": [cut(tag, ADDED) for tag in added.tags],
        "pinned": added.pinned,
        "noted": bool(added.notes),
    }


def _parts(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows in parts, each of which fits into a message."""
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for row in rows:
        length = len(json.dumps(row))
        if size + length > ROOM and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += length
    return parts


# -- groups


def _groups(runs: Sequence[_Known], view: View, columns: Sequence[str]) -> list[dict[str, Any]]:
    """For each value of a column how many runs have it, and the mean and range of these columns
    with numbers.
    """
    known = [run.facts for run in runs]
    by_value = [(value, [known[i] for i in places]) for value, places in members(known, view.group)]
    largest = sorted(by_value, key=lambda group: -len(group[1]))[:GROUPS]

    def order(group: tuple[Value, list[Facts]]) -> tuple[bool, Any]:
        if view.sort in columns:
            of_group = statistics(group[1], view.sort)
            return of_group is None, sort_key(None if of_group is None else of_group.mean)
        return is_missing(group[0]), sort_key(group[0])

    ordered = sorted(largest, key=order, reverse=view.sort in columns and view.down)
    times = Counter(value for value, _ in by_value)
    return [
        {
            "value": cut(group_text(view.group, value), VALUE),
            "filter": _within(view, value) if times[value] == 1 else "",
            "count": len(inside),
            "cells": [_statistics(name, inside) for name in columns],
        }
        for value, inside in ordered
    ]


def _within(view: View, value: Value) -> str:
    """The filter that shows the runs of a group; "": none can name its value."""
    text = value_in_condition(value)
    if text is None:
        return ""
    return _narrowed(view.filter, f"{name_in_condition(view.group)} == {text}")


def _narrowed(filter: str, condition: str) -> str:
    """A filter with one more condition, which takes the place of a search for words; with none it
    stays.
    """
    if not condition:
        return filter
    return f"({filter}) and {condition}" if is_condition(filter) else condition


def _statistics(name: str, runs: Sequence[Facts]) -> str:
    """The mean, and the range where it has one: "0.31 (0.2 – 0.5)"."""
    of_group = statistics(runs, name)
    if of_group is None:
        return ""
    mean, low, high = (_text(name, value) for value in of_group)
    return mean if low == high else f"{mean} ({low} – {high})"


# -- settings against results


def _explained(runs: Sequence[_Known], view: View) -> dict[str, Any]:
    """What the parallel coordinates and the bars of importance draw: the settings that differ,
    and the result of each run.

    A place on an axis is a whole number from 0 to 999. The runs are those with the most common
    monitored metric.
    """
    valued = _valued(runs, view)
    monitor = valued[0].brief.monitor if valued else ""
    columns = columns_of([run.facts for run in valued])
    # its name has the values of the function that made it
    is_built = any(name.startswith("build.") for name in columns)
    names = [name for name in columns if _is_cause(name) and not (is_built and name == "model")]
    axes = [axis for name in names for axis in [_Axis.of(name, valued)] if axis is not None]
    scores = np.array([run.brief.value for run in valued], np.float64)
    mode = _mode(valued, monitor)
    factors = {axis.name: Factor(axis.units, axis.has_choices) for axis in axes}
    shares = importances(-scores if mode == "max" else scores, factors)
    axes.sort(key=lambda axis: -shares[axis.name].share if axis.name in shares else 1.0)
    result = _Axis.of("validation", valued)
    drawn = [*axes[:AXES], *([result] if result is not None else [])]
    return {
        "metric": cut(monitor, CELL),
        "mode": mode,
        "least": LEAST,
        "all": len(_picked(runs, view)),
        "axes": [axis.told() for axis in drawn],
        "runs": [
            {"run": run.brief.id, "at": [axis.places[i] for axis in drawn]}
            for i, run in enumerate(valued)
        ],
        "shares": [
            {"name": cut(name, CELL), "share": s.share, "low": s.low, "high": s.high}
            for name, s in sorted(shares.items(), key=lambda pair: -pair[1].share)[:AXES]
        ],
    }


def _picked(runs: Sequence[_Known], view: View) -> list[_Known]:
    wanted = {*view.picked}
    return [run for run in runs if not wanted or run.brief.id in wanted]


def _valued(runs: Sequence[_Known], view: View) -> list[_Known]:
    """The runs that are drawn: those with the most common monitored metric."""
    valued = [run for run in _picked(runs, view) if finite(run.brief.value) is not None]
    monitors = Counter(run.brief.monitor for run in valued)
    monitor = monitors.most_common(1)[0][0] if monitors else ""
    return [run for run in valued if run.brief.monitor == monitor][:LINES]


def _condition_within(axis: _Axis, runs: Sequence[_Known], low: float, high: float) -> str:
    """The condition that holds for the runs within a part of an axis; "": no text can name
    it.
    """
    name = name_in_condition(axis.name)
    values = [
        hashable(run.facts.get(axis.name))
        for run, at in zip(runs, axis.places, strict=True)
        if at is not None and low <= at <= high
    ]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not axis.has_choices and numbers:
        return f"{min(numbers)!r} <= {name} <= {max(numbers)!r}"
    named = [value_in_condition(value) for value in dict.fromkeys(values)]
    choices = [f"{name} == {text}" for text in named if text is not None]
    return f"({' or '.join(choices)})" if len(choices) > 1 else "".join(choices)


def _is_cause(name: str) -> bool:
    """Whether a column may be why a run is as good as it is."""
    return name in Settings.model_fields or name.startswith("build.") or name == "model"


def _mode(runs: Sequence[_Known], monitor: str) -> str:
    chosen = next(
        (
            run.brief.settings.get("monitor_mode")
            for run in runs
            if run.brief.settings.get("monitor") == monitor
        ),
        None,
    )
    return str(chosen or known_mode(monitor) or "min")


@dataclass(eq=False)
class _Axis:
    """One column of n runs as an axis."""

    name: str
    units: np.ndarray[Any, np.dtype[np.float64]]
    """Shape (n,), from 0 to 1, NaN: no value; of choices their numbers."""
    places: list[int | None]
    has_choices: bool
    ends: list[str]
    """The texts at its lower and upper end, or of each choice from the lowest one."""

    @classmethod
    def of(cls, name: str, runs: Sequence[_Known]) -> _Axis | None:
        """The axis of a column; None: its values do not differ, or too many texts do."""
        values = [hashable(run.facts.get(name)) for run in runs]
        different = {value for value in values if value is not None}
        if len({*values}) < 2 or not different:
            return None
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in different):
            within = [not _has_diverged(run) for run in runs] if name == "validation" else []
            return cls._of_numbers(name, values, np.array(within, bool))
        choices = sorted({*values}, key=lambda value: (is_missing(value), sort_key(value)))
        if len(choices) > 12:
            return None
        numbers = [choices.index(value) for value in values]
        step = 999 / (len(choices) - 1)
        labels = [_text(name, choice) or texts.NO_VALUE for choice in choices]
        places: list[int | None] = [round(number * step) for number in numbers]
        return cls(name, np.array(numbers, np.float64), places, True, labels)

    @classmethod
    def _of_numbers(
        cls, name: str, values: Sequence[Value], within: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> _Axis | None:
        """within: the runs that decide how far the axis reaches, shape (n,) or, for all, (0,);
        others are at its ends.
        """
        numbers = np.array(
            [float(v) if isinstance(v, int | float) else math.nan for v in values], np.float64
        )
        numbers[~np.isfinite(numbers)] = np.nan
        if np.isnan(numbers).all():
            return None
        deciding = numbers[within] if len(within) else numbers
        if len({*deciding[np.isfinite(deciding)].tolist()}) < 2:
            deciding = numbers
        low, high = float(np.nanmin(deciding)), float(np.nanmax(deciding))
        if low == high:
            return None
        beyond = [bool((numbers < low).any()), bool((numbers > high).any())]
        numbers = np.clip(numbers, low, high)
        is_log = low > 0 and high / low > 8
        units = np.log(numbers) if is_log else numbers
        bottom, top = (math.log(low), math.log(high)) if is_log else (low, high)
        units = (units - bottom) / (top - bottom)
        places = [None if math.isnan(unit) else round(999 * float(unit)) for unit in units]
        ends = [
            texts.or_beyond(_text(name, _whole(value)), sign)
            if has_more
            else _text(name, _whole(value))
            for value, sign, has_more in zip((low, high), "≤≥", beyond, strict=True)
        ]
        return cls(name, units, places, False, ends)

    def told(self) -> dict[str, Any]:
        """What is sent of it."""
        return {
            "name": cut(self.name, CELL),
            "choices": self.has_choices,
            "ends": [cut(text, CELL) for text in self.ends],
        }


def _has_diverged(run: _Known) -> bool:
    """Whether its loss has blown up: its result would leave no room on an axis for the others."""
    trouble = run.brief.trouble
    return trouble is not None and trouble.level == "error"


def _whole(value: float) -> float | int:
    """The value, as an int where it is one."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
