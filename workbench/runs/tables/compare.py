"""Compares runs: their losses in one plot, the settings in which they differ, and their last
metrics.

    wb.compare(*bench.runs[-2:])
    bench.compare("0011-fit", "0012-fit").plot()
How to read it: a run with a lower loss at the same update learned more in each update; at the same
time, more in each minute.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.plots.chart import Chart
from workbench.plots.training.compare import AXES, Compared, X, compare_losses
from workbench.runs.run import Run
from workbench.runs.tables.brief import LiveChange, RunBrief
from workbench.runs.tables.render import data_frame, html_table, text_table
from workbench.settings import Settings, setting_text
from workbench.units import counted, duration, number
from workbench.values import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from workbench.plots.drawing.interactive import Interactive
    from workbench.plots.drawing.picture import Picture

MOST = 5
"""How many lines colours and dashes can distinguish."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A comparison of two fits or more. Its repr is a table with a column for each run, or a row
    for each if there are more than five.
    """

    runs: tuple[RunBrief, ...]

    @property
    def settings(self) -> dict[str, tuple[str, ...]]:
        """The settings in which the runs differ, with the value in each run, as text; rates have
        three digits if these differ.

        A setting that was changed while a run trained: "6.93e-3 → 2e-3 at update 908".
        """
        return differences([run.settings for run in self.runs], [run.changes for run in self.runs])

    @property
    def metrics(self) -> dict[str, tuple[float | None, ...]]:
        """The last value in each run of every metric that one of them has; "loss" is that of the
        last update. None: the run lacks the metric.
        """
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        return {name: tuple(run.metrics.get(name) for run in self.runs) for name in names}

    def chart(self, x: X = "update") -> Chart:
        """Their smoothed losses, and those of their validations. x: "update", "epoch" or "time"."""
        if x not in AXES:
            raise ValueError(f"x={x!r}: give one of {', '.join(map(repr, AXES))}.")
        if len(self.runs) > MOST:
            raise ValueError(
                f"a plot of {len(self.runs)} runs cannot be read: compare at most {MOST}. The table"
                " shows any number."
            )
        at = AXES.index(x)
        lines = [
            Compared(name, run.curve[:, at], run.curve[:, 3], run.checks[:, at], run.checks[:, 3])
            for name, run in zip(names(self.runs), self.runs, strict=True)
        ]
        return compare_losses(lines, x, {run.monitor for run in self.runs if run.monitor})

    def figure(self, x: X = "update") -> Interactive:
        """The chart as an interactive plotly figure."""
        from workbench.plots.drawing import plotly

        return plotly.figure(self.chart(x))

    def plot(self, ax: Axes | None = None, x: X = "update") -> Picture | Axes:
        """The chart as a matplotlib figure; with `ax`, it is drawn there, and `ax` is returned."""
        from workbench.plots.drawing import matplotlib

        return (
            matplotlib.figure(self.chart(x)) if ax is None else matplotlib.draw(self.chart(x), ax)
        )

    def to_pandas(self) -> DataFrame:
        """Return the table as a pandas data frame with a row for each run, indexed by its id;
        metrics are numbers, NaN: none.
        """
        default = {name: field.default for name, field in Settings.model_fields.items()}
        columns: dict[str, Iterable[Any]] = {
            "run": names(self.runs),
            "status": [run.status for run in self.runs],
        }
        if any(run.trouble for run in self.runs):
            columns["trouble"] = [run.trouble.trouble if run.trouble else "" for run in self.runs]
        if self._models:
            columns["model"] = self._models
        for name in self.settings:
            starts = [run.settings.get(name, default[name]) for run in self.runs]
            changes = [run.changes.get(name) for run in self.runs]
            columns[name] = starts
            if any(changes):
                ends = [
                    change.value if change else start
                    for change, start in zip(changes, starts, strict=True)
                ]
                columns[f"{name} at the end"] = ends
        columns |= {
            "updates": [run.step for run in self.runs],
            "seconds": [run.seconds for run in self.runs],
        }
        for name, values in self._endings():
            column = f"{name} (metric)" if name in columns else name
            columns[column] = [math.nan if value is None else value for value in values]
        return data_frame(columns).set_index("run")

    @property
    def _models(self) -> list[str]:
        """The model of each run; empty where none is known to differ."""
        models = [run.model[0] for run in self.runs]
        return models if len({model for model in models if model}) > 1 else []

    def __repr__(self) -> str:
        return text_table(self._table())

    def _repr_html_(self) -> str:
        return html_table("Runs compared", self._table())

    def _table(self) -> list[list[str]]:
        """The table with a column for each run, and rows for its facts, the settings that
        differ, the last metrics.
        """
        rows = [["", *names(self.runs)]]
        rows.append(["status", *(run.shown_status for run in self.runs)])
        if self._models:
            rows.append(["model", *self._models])
        rows += [[name, *values] for name, values in self._settings.items()]
        rows += [[name, *_cells(values)] for name, values in self._endings()]
        rows.append(["updates", *(str(run.step) for run in self.runs)])
        rows.append(["time", *(duration(run.seconds) for run in self.runs)])
        return rows if len(self.runs) <= MOST else [*map(list, zip(*rows, strict=True))]

    @property
    def _settings(self) -> dict[str, tuple[str, ...]]:
        """The settings that differ, with the optimizers and groups that the benches were given."""
        named = self.settings.get("optimizer", ("none",) * len(self.runs))
        optimizers = tuple(
            run.optimizer or name if name == "none" else name
            for run, name in zip(self.runs, named, strict=True)
        )
        groups = tuple(run.groups or "none" for run in self.runs)
        others = {name: values for name, values in self.settings.items() if name != "optimizer"}
        of_benches = {"optimizer": optimizers, "groups": groups}
        return {name: texts for name, texts in of_benches.items() if len({*texts}) > 1} | others

    def _endings(self) -> Iterator[tuple[str, list[float | None]]]:
        """Each metric at the ends of the runs, followed by its best values if one of these was
        better than at the end.
        """
        endings = [run.ending for run in self.runs]
        for name in dict.fromkeys(chain(*endings)):
            values = [ending.get(name) for ending in endings]
            yield name, values
            best = [run.best.get(name) for run in self.runs]
            if any(
                value != last for value, last in zip(best, values, strict=True) if value is not None
            ):
                yield f"best {name}", best


def _cells(values: Iterable[float | None]) -> Iterator[str]:
    return ("–" if value is None else number(value) for value in values)


def compare(*runs: Run | RunBrief) -> Comparison:
    """Compare two or more fits: `wb.compare(*bench.runs[-3:])`."""
    wrong = next((run for run in runs if not isinstance(run, Run | RunBrief)), None)
    if wrong is not None:
        check_no_list(wrong, "wb")
        hint = (
            " Ids belong to a bench: bench.compare('0011-fit', '0012-fit')."
            if isinstance(wrong, str)
            else ""
        )
        raise TypeError(
            f"compare({shown(wrong)}): give runs, wb.compare(*bench.runs[-2:]), say.{hint}"
        )
    check_count(len(runs))
    other = next((run for run in runs if isinstance(run, Run) and run.kind != "fit"), None)
    if other is not None:
        raise ValueError(f"run {other.id} is a {other.kind}: only fits can be compared.")
    twice = next(
        (run for i, run in enumerate(runs) if any(_same(run, other) for other in runs[:i])), None
    )
    if twice is not None:
        raise ValueError(f"run {twice.id} is given twice: compare it with another one.")
    return Comparison(tuple(run if isinstance(run, RunBrief) else RunBrief.of(run) for run in runs))


def _same(one: Run | RunBrief, other: Run | RunBrief) -> bool:
    """Whether both are the same run; runs in different roots may have the same id."""
    first, second = (run.folder if isinstance(run, Run) else run.path for run in (one, other))
    if one is other:
        return True
    return first is not None and second is not None and first.resolve() == second.resolve()


def check_count(count: int) -> None:
    """Raise ValueError for fewer than two runs."""
    if count < 2:
        raise ValueError(
            f"{counted(count, 'run')} to compare: give two or more, such as '0011-fit' and"
            " '0012-fit'."
        )


def check_no_list(run: object, of: str) -> None:
    """Raise TypeError if several runs were given as one argument."""
    if isinstance(run, Iterable) and not isinstance(run, str):
        raise TypeError(
            f"compare() got a {type(run).__name__}: give each run as an argument of its own,"
            f" {of}.compare(*runs)."
        )


def names(runs: Sequence[RunBrief]) -> list[str]:
    """What to call these runs: their ids; those of several roots with the same id also by their
    roots.
    """
    ids = [run.id for run in runs]
    roots = [run.path.resolve().parents[1] if run.path is not None else None for run in runs]
    known = {
        root for id, root in zip(ids, roots, strict=True) if root is not None and ids.count(id) > 1
    }
    if len(known) < 2:
        return ids
    common = Path(os.path.commonpath(known))
    return [
        (
            f"{id} ({root.relative_to(common)})"
            if root is not None and root in known and ids.count(id) > 1
            else id
        )
        for id, root in zip(ids, roots, strict=True)
    ]


def differences(
    settings: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, LiveChange]]
) -> dict[str, tuple[str, ...]]:
    """The settings that differ between runs, or were changed while one of them trained. A setting
    that an older record lacks counts as its default.

    settings, changes: for each run those at its start, and what was changed while it trained.
    """
    known = [
        name
        for name in Settings.model_fields
        if any(name in values for values in (*settings, *changes))
    ]
    out = {}
    for name in known:
        default = Settings.model_fields[name].default
        values = [
            (start.get(name, default), changed.get(name))
            for start, changed in zip(settings, changes, strict=True)
        ]
        first, _ = values[0]
        if not any(change for _, change in values) and all(
            setting_text.same(start, first) for start, _ in values
        ):
            continue  # a text of each would take a second for some hundred runs
        # Compared as texts, since 1 batch and 1.0 of all batches are equal numbers.
        texts = tuple(
            _value_text(name, start, change, setting_text.recorded) for start, change in values
        )
        if len({*texts}) > 1:
            short = tuple(
                _value_text(name, start, change, setting_text.short) for start, change in values
            )
            out[name] = short if len({*short}) == len({*texts}) else texts
    return out


def setting_cell(name: str, start: Any, change: LiveChange | None) -> str:
    """A setting of one run in a table: "6.93e-3", or "6.93e-3 → 2e-3 at update 908"."""
    return _value_text(name, start, change, setting_text.short)


def _value_text(
    name: str, start: Any, change: LiveChange | None, text: Callable[[str, Any], str]
) -> str:
    if change is None:
        return text(name, start)
    more = f" ({change.count} changes)" if change.count > 1 else ""
    return f"{text(name, start)} → {text(name, change.value)} at update {change.step}{more}"
