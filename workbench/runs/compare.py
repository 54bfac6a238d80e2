"""Compares runs: their losses in one plot, the settings in which they differ, and how they ended.

    wb.compare(bench.runs[-2:])
    bench.compare("0011-fit", "0012-fit").plot()
How to read it: a run that is lower at the same update learned more from each; at the same time, more in a minute.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.plots.chart import Chart
from workbench.plots.compare import AXES, Compared, X, compare_losses
from workbench.runs import setting_text
from workbench.runs.brief import RunBrief
from workbench.runs.printable import printable
from workbench.runs.read import shown_status
from workbench.runs.run import Run, duration
from workbench.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from plotly.graph_objects import Figure as PlotlyFigure

MOST = 5
"""Lines that colours and dashes still tell apart."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Up to five fits. Its repr is a table."""

    runs: tuple[RunBrief, ...]

    @property
    def settings(self) -> dict[str, tuple[str, ...]]:
        """The settings in which they differ: of each run its value, as it would be typed."""
        return differences([run.settings for run in self.runs])

    @property
    def metrics(self) -> dict[str, tuple[float | None, ...]]:
        """The last value of every metric that one of them has; None: this one has not."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        return {name: tuple(run.metrics.get(name) for run in self.runs) for name in names}

    def chart(self, x: X = "update") -> Chart:
        """Their smoothed losses, and those of their checks. x: "update", "epoch" or "time"."""
        if x not in AXES:
            raise ValueError(f"x={x!r}: give one of {', '.join(map(repr, AXES))}.")
        at = AXES.index(x)
        lines = [
            Compared(run.id, run.curve[:, at], run.curve[:, 3], run.checks[:, at], run.checks[:, 3]) for run in self.runs
        ]
        return compare_losses(lines, x, {run.monitor for run in self.runs if run.monitor})

    def figure(self, x: X = "update") -> PlotlyFigure:
        """The chart as an interactive plotly figure."""
        from workbench.plots import plotly

        return plotly.figure(self.chart(x))

    def plot(self, ax: Axes | None = None, x: X = "update") -> Figure | Axes:
        """The chart as a matplotlib figure; with `ax` given, it is drawn there and `ax` comes back."""
        from workbench.plots import matplotlib

        return matplotlib.figure(self.chart(x)) if ax is None else matplotlib.draw(self.chart(x), ax)

    def __repr__(self) -> str:
        table = [[printable(cell) for cell in row] for row in self._table()]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        cell = "style='text-align:left'"
        names = "".join(f"<th {cell}>{html.escape(name)}</th>" for name in head)
        body = "".join(
            f"<tr><th {cell}>{html.escape(row[0])}</th>{''.join(f'<td {cell}>{html.escape(text)}</td>' for text in row[1:])}</tr>"
            for row in rows
        )
        return f"<table><caption>Runs compared</caption><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"

    def _table(self) -> list[list[str]]:
        """A column a run; a row for what it was, each setting that differs, each metric at its end."""
        rows = [["", *(run.id for run in self.runs)]]
        rows.append(["status", *(shown_status(run.status, run.unseen) for run in self.runs)])
        rows += [[name, *values] for name, values in self.settings.items()]
        rows += [[name, *("–" if v is None else f"{v:.4g}" for v in values)] for name, values in self.metrics.items()]
        rows.append(["updates", *(str(run.step) for run in self.runs)])
        rows.append(["time", *(duration(run.seconds) for run in self.runs)])
        return rows


def compare(runs: Iterable[Run | RunBrief]) -> Comparison:
    """Fits side by side, two to five of them: `wb.compare(bench.runs[-3:])`."""
    given = [runs] if isinstance(runs, Run | RunBrief) or not isinstance(runs, Iterable) else list(runs)
    wrong = next((run for run in given if not isinstance(run, Run | RunBrief)), None)
    if wrong is not None:
        hint = " Ids belong to a bench: bench.compare('0011-fit', '0012-fit')." if isinstance(wrong, str) else ""
        raise TypeError(f"compare({wrong!r}): give runs, wb.compare(bench.runs[-2:]), say.{hint}")
    check_count(len(given))
    other = next((run for run in given if isinstance(run, Run) and run.kind != "fit"), None)
    if other is not None:
        raise ValueError(f"run {other.id} is a {other.kind}: only fits can be compared.")
    twice = next((run for i, run in enumerate(given) if any(_same(run, other) for other in given[:i])), None)
    if twice is not None:
        raise ValueError(f"run {twice.id} is given twice: compare it with another one.")
    return Comparison(tuple(run if isinstance(run, RunBrief) else RunBrief.of(run) for run in given))


def _same(one: Run | RunBrief, other: Run | RunBrief) -> bool:
    """Whether it is one run; two folders may each have one of the same id."""
    first, second = (run.folder if isinstance(run, Run) else run.path for run in (one, other))
    return one is other or (first is not None and first == second)


def check_count(count: int) -> None:
    """Two to five, else ValueError."""
    if not 2 <= count <= MOST:
        raise ValueError(f"{count} run{'s' * (count != 1)} to compare: give two to {MOST}, bench.compare('0011-fit', '0012-fit'), say.")


def differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The settings that are not the same in all of these records; one that an older record lacks had its default."""
    known = [name for name in Settings.model_fields if any(name in one for one in settings)]
    out = {}
    for name in known:
        default = Settings.model_fields[name].default
        values = [one.get(name, default) for one in settings]
        if any(value != values[0] for value in values[1:]):
            told = tuple(setting_text.recorded(name, value) for value in values)
            if len({*told}) > 1:
                out[name] = told
    return out
