"""Groups runs by the values of a column: how many have each, and the means and ranges of others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.runs.run import Run
from workbench.runs.tables.facts import is_missing, sort_key
from workbench.runs.tables.filter import Facts, Value
from workbench.runs.tables.render import data_frame, html_table, text_table
from workbench.settings import Settings, setting_text
from workbench.units import duration, number

if TYPE_CHECKING:
    from pandas import DataFrame


class Statistics(NamedTuple):
    """The mean, the lowest and the highest of the finite values of a column."""

    mean: float
    low: float
    high: float


def members(runs: Sequence[Facts], column: str) -> list[tuple[Value, list[int]]]:
    """For each value of a column the places of the runs that have it. A run with two tags is in
    two groups; None: the runs without a value.
    """
    places: dict[Value, tuple[Value, list[int]]] = {}
    for index, run in enumerate(runs):
        value = run.get(column)
        values = value if isinstance(value, tuple) and value else (hashable(value),)
        for member in values:
            places.setdefault(identity(column, member), (member, []))[1].append(index)
    return [*places.values()]


def statistics(runs: Sequence[Facts], column: str) -> Statistics | None:
    """Of a column of numbers; None: no run has a finite one."""
    values = [run.get(column) for run in runs]
    finite = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not finite:
        return None
    numbers = np.array(finite, np.float64)
    return Statistics(float(numbers.mean()), float(numbers.min()), float(numbers.max()))


def hashable(value: Value) -> Value:
    """The value of a group; an empty list of tags, an empty text and NaN are no value."""
    return None if is_missing(value) else value


@lru_cache(4096, typed=True)
def identity(column: str, value: Value) -> Value:
    """What is equal for runs of one group: of a setting its text, since 1 batch and 1.0 of all
    batches are equal numbers.
    """
    if value is None or column not in Settings.model_fields:
        return value
    return setting_text.recorded(column, value)


@dataclass(frozen=True, eq=False)
class RunGroups:
    """Runs by the values of a column, `by`, in the order of these values; those without a value
    come last. It prints as a table.

        for lr, runs in bench.runs.groupby("lr"):
            print(lr, len(runs))

    How to read it: "0.31 (0.2 – 0.5)" is the mean and the range of the runs of a group. A metric
    has its best value in each run, "loss" is the smoothed training loss at the end, "time" is in
    seconds. `to_pandas()` has the numbers.
    """

    by: str
    groups: list[tuple[Value, list[Run]]]
    _facts: list[list[Facts]]
    """What is known of the runs of each group."""
    _columns: tuple[str, ...]

    @classmethod
    def of(
        cls, runs: list[Run], known: Sequence[Facts], by: str, columns: Sequence[str]
    ) -> RunGroups:
        """Group these runs by a column; known: what is known of each, columns: those with
        numbers that are summed up.
        """
        ordered = sorted(
            members(known, by), key=lambda group: (is_missing(group[0]), sort_key(group[0]))
        )
        groups = [(value, type(runs)(runs[i] for i in places)) for value, places in ordered]
        facts = [[known[i] for i in places] for _, places in ordered]
        return cls(by, groups, facts, tuple(name for name in columns if name != by))

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[tuple[Value, list[Run]]]:
        return iter(self.groups)

    def to_pandas(self) -> DataFrame:
        """Return a data frame with a row a group: "count", and of each column ("val_loss",
        "mean"), ("val_loss", "min") and ("val_loss", "max"); NaN: no value.
        """
        columns: dict[Any, Any] = {("count", ""): [len(runs) for _, runs in self.groups]}
        for name in self._columns:
            of_groups = [statistics(facts, name) for facts in self._facts]
            for at, kind in enumerate(("mean", "min", "max")):
                columns[name, kind] = [
                    math.nan if of_group is None else of_group[at] for of_group in of_groups
                ]
        frame = data_frame(columns)
        frame.index = [value for value, _ in self.groups]
        return frame.rename_axis(self.by)

    def __repr__(self) -> str:
        return text_table(self._table()) if self.groups else "[]"

    def _repr_html_(self) -> str:
        return html_table(f"Runs by {self.by}", self._table())

    def _table(self) -> list[list[str]]:
        rows = [[self.by, "runs", *self._columns]]
        for (value, runs), facts in zip(self.groups, self._facts, strict=True):
            cells = [_cell(name, statistics(facts, name)) for name in self._columns]
            rows.append([group_text(self.by, value) or "none", str(len(runs)), *cells])
        return rows


def group_text(column: str, value: Value) -> str:
    """The value of a group, as a table shows it; "": it is missing."""
    if is_missing(value):
        return ""
    if column in Settings.model_fields:
        return setting_text.short(column, value)
    if isinstance(value, float):
        return number(value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _cell(column: str, of_group: Statistics | None) -> str:
    if of_group is None:
        return ""
    text = duration if column == "time" else number
    mean, low, high = map(text, of_group)
    return mean if low == high else f"{mean} ({low} – {high})"
