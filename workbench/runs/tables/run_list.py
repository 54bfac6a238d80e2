"""Defines `RunList`, the recorded fits of a bench: a list that prints as a table and can be
indexed by position or id.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, SupportsIndex, overload

import numpy as np

from workbench.events import Event, StepsDone
from workbench.runs import read
from workbench.runs.folder.annotations import Annotations, read_annotations
from workbench.runs.folder.lookup import matching_ids, near
from workbench.runs.health import examine, in_doubt
from workbench.runs.health.search_results import answer
from workbench.runs.printable import printable
from workbench.runs.read import RunSummary
from workbench.runs.record.series import column
from workbench.runs.record.stream import joined, sampled
from workbench.runs.run import Run
from workbench.runs.tables.brief import COLUMNS, RunBrief
from workbench.runs.tables.compare import differences
from workbench.runs.tables.facts import columns_of, facts, metric_column
from workbench.runs.tables.filter import Facts, no_such_value, parse, unknown_column
from workbench.runs.tables.groups import RunGroups
from workbench.runs.tables.render import html_table, sparkline, text_table
from workbench.units import duration, number
from workbench.values import shown, value_text

_HEAD = ("run", "status", "updates", "time", "loss", "last values", "study", "name and tags")
_ALWAYS = 4
"""Columns that are never left out."""
_LOSS = 4
"""The place of the loss, before which the settings are."""
_SETTINGS, _METRICS = 6, 6
"""How many settings that differ, and metrics of groups, have a column: the first ones."""
_BARS = 16
"""The number of bars of a sparkline."""
_PLACES = 4 * _BARS
"""The number of places in a long record at which losses are read."""


class RunList(list[Run]):
    """Runs in a list: `runs[-1]`, `runs[2:5]`, `runs["0012-fit"]` or `runs["12"]`.

    It prints as a table. It reads only the end of each record and a few places in between, so long
    runs take no longer.
    """

    @classmethod
    def of(cls, root: Path, model: Callable[[], Any] | None = None) -> Self:
        """The fits recorded under `root`, oldest first. model: returns the model of their bench,
        while it exists.
        """
        runs = cls()
        for summary in read.list_runs(root):
            if summary.kind == "fit":
                # another process has deleted it meanwhile
                with contextlib.suppress(OSError, ValueError):
                    runs.append(Run.from_summary(summary, model))
        return runs

    @overload
    def __getitem__(self, index: SupportsIndex | str) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | str | slice) -> Run | Self:
        """The run at a position, or with an id or a number given as text; the runs of a slice."""
        if isinstance(index, slice):
            return type(self)(super().__getitem__(index))
        if isinstance(index, str):
            return self._named(index)
        if not isinstance(index, SupportsIndex):
            raise TypeError(
                f"runs[{index!r}]: give a place (runs[-1]), a slice (runs[2:5]) or an id"
                " (runs['0012-fit'])."
            )
        try:
            return super().__getitem__(index)
        except IndexError:
            hint = (
                f"the last of {len(self)} is runs[{len(self) - 1}], or runs[-1]"
                if self
                else "there are none"
            )
            number = (
                f" The run of this number is runs['{index}']."
                if matching_ids(str(index), [run.id for run in self])
                else ""
            )
            raise IndexError(f"runs[{index!r}]: {hint}.{number}") from None

    def filter(self, condition: str) -> Self:
        """The runs for which a condition holds: `runs.filter("lr < 1e-3 and val_loss < 0.1")`.

        It compares settings, metrics (their best values; "val_loss.last" is the last one), "loss",
        "time" in seconds, "updates", "status", "tags", "study", "model" and "build.width". Words
        without a comparison are a search. Each record is read once for it. The panel's table of
        runs takes the same text. A warning names a text that no run has (`status == finish`).
        """
        if not isinstance(condition, str):
            raise TypeError(
                f"filter({shown(condition)}): give a condition as a text, 'lr < 1e-3 and val_loss <"
                " 0.1'."
            )
        if not self:  # nobody knows which metrics there will be
            return type(self)()
        known = _known(self)
        columns = columns_of(known)
        try:
            holds = parse(condition, columns)
        except ValueError as error:
            raise ValueError(f"condition={shown(condition)}: {error}") from None
        runs = type(self)(run for run, values in zip(self, known, strict=True) if holds(values))
        if not runs and (why := no_such_value(condition, columns, known)):
            warnings.warn(f"condition={shown(condition)}: {why}", stacklevel=2)
        return runs

    def groupby(self, by: str) -> RunGroups:
        """The runs by the values of a column: `runs.groupby("lr")` prints the mean and the range
        of the losses, metrics and times for each rate.

        by: a name that `filter` knows: a setting, "tags", "study", "status", "model",
        "build.width". `for lr, runs in …` has the runs of each group, `.to_pandas()` the numbers.
        The panel's table of runs has the same groups. Each record is read once for it. Raises
        ValueError where no run has such a column.
        """
        if not isinstance(by, str):
            raise TypeError(f"groupby({shown(by)}): give the name of a column, 'lr', say.")
        known = _known(self)
        columns = columns_of(known)
        if self and by not in columns:
            raise ValueError(f"by={shown(by)}: {unknown_column(by, columns)}")
        measured = dict.fromkeys(name for run in self for name in run.metrics if name != "loss")
        metrics = [metric_column(name) for name in measured][:_METRICS]
        return RunGroups.of(self, known, by, ["loss", *metrics, "time"])

    def _named(self, text: str) -> Run:
        ids = [run.id for run in self]
        matches = matching_ids(text, ids)
        if len(matches) == 1:
            return self[ids.index(matches[0])]
        if matches:
            raise KeyError(
                f"{text} is the number of several runs: {', '.join(map(printable, matches))}. Give "
                "the whole id."
            )
        raise KeyError(
            f"there is no fit {text!r}:"
            f" {f'near it are {near(text, ids)}' if ids else 'there are none'}."
        )

    def __repr__(self) -> str:
        return text_table(self._table()) if self else "[]"

    def _repr_html_(self) -> str:
        return html_table("Runs", self._table())

    def _table(self) -> list[list[str]]:
        return table([*map(_now, self)])


def _known(runs: Iterable[Run]) -> list[Facts]:
    """What is known of each run, by the names of columns."""
    briefs = [RunBrief.of(run) for run in runs]
    return [
        facts(brief, Annotations() if brief.path is None else read_annotations(brief.path))
        for brief in briefs
    ]


def table(runs: Iterable[RunSummary]) -> list[list[str]]:
    """A header and a row for each run: status, length, loss, the settings that differ, last
    metrics, annotations; empty columns are left out.
    """
    runs = [*runs]
    rows = [[*_HEAD], *map(_row, runs)]
    kept = [at for at in range(len(_HEAD)) if at < _ALWAYS or any(row[at] for row in rows[1:])]
    differ = [[name, *cells] for name, cells in _differing(runs).items()][:_SETTINGS]
    beside = [[cells[at] for cells in differ] for at in range(len(rows))]
    return [
        [
            *(row[at] for at in kept if at < _LOSS),
            *settings,
            *(row[at] for at in kept if at >= _LOSS),
        ]
        for row, settings in zip(rows, beside, strict=True)
    ]


def _differing(runs: Sequence[RunSummary]) -> dict[str, tuple[str, ...]]:
    """The settings at their starts that differ between these fits, and the values of the models'
    functions; a text for each run.
    """
    fits = [run for run in runs if run.kind == "fit"]
    if len(fits) < len(runs) or len(fits) < 2:  # of searches the last values are of interest
        return {}
    started = []
    for run in fits:
        settings = run.header.get("settings") or {}
        named = settings.get("optimizer") or read.optimization(run.header)[0]
        started.append({**settings, "optimizer": named or None})
    built = [read.build_values(run.header) for run in fits]
    texts = {
        name: tuple(value_text(values[name]) if name in values else "" for values in built)
        for name in dict.fromkeys(name for values in built for name in values)
    }
    settings_that_differ = differences(started, [{} for _ in fits])
    return {name: cells for name, cells in texts.items() if len({*cells}) > 1} | (
        settings_that_differ
    )


def _now(run: Run) -> RunSummary:
    """The present summary of a run, or the last known one if it can no longer be read."""
    assert run.folder is not None  # all listed runs have a folder
    with contextlib.suppress(OSError, ValueError):  # it was deleted meanwhile
        return read.summary(run.folder)
    return RunSummary(
        run.id,
        run.kind,
        0.0,
        run.status,
        run.step,
        run.seconds,
        run.error,
        {},
        run.folder,
        {},
        run.unseen,
    )


def _row(run: RunSummary) -> list[str]:
    values = [
        f"{name} {number(value)}"
        for name, value in run.metrics.items()
        if f"{name}_epoch" not in run.metrics
    ]
    result = answer(run)
    sample = [*sampled(run.path, _PLACES, COLUMNS)]
    added = read_annotations(run.path)
    words = ["pinned" * added.pinned, added.name, *(f"#{tag}" for tag in added.tags)]
    status = read.shown_status(run.status, run.unseen, _trouble(sample))
    return [
        run.id,
        status if run.path.is_dir() else "deleted",
        str(run.step),
        duration(run.seconds),
        _losses(sample),
        printable(run.waits_for) or result or "  ".join(values),
        read.study_text(run.header),
        "  ".join(filter(None, words)),
    ]


def _trouble(sample: Iterable[Event]) -> str:
    """Why the result is in doubt, as far as these events of the run say; "": they do not."""
    finding = in_doubt(examine(joined(sample)))
    return "" if finding is None else finding.trouble


def _losses(sample: Iterable[Event]) -> str:
    """The training loss as a sparkline over the updates; each bar is the mean of the losses that
    were read for it. "": none is recorded.
    """
    flushes = [event for event in sample if isinstance(event, StepsDone) and event.rows]
    if not flushes:
        return ""
    steps = np.concatenate([event.steps for event in flushes])
    losses = np.concatenate([column(event, "loss") for event in flushes]).astype(np.float64)
    first, known = steps.min(), np.isfinite(losses)
    bars = min(_BARS, len(steps))
    at = (steps - first) * bars // (steps.max() + 1 - first)
    rows, finite = np.bincount(at, minlength=bars), np.bincount(at[known], minlength=bars)
    means = np.bincount(at[known], losses[known], minlength=bars) / np.where(finite, finite, np.nan)
    read_of = np.flatnonzero(rows)
    return sparkline(np.interp(np.arange(bars), read_of, means[read_of]))
