"""Defines StudyData: the charts of a study, from its trials as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.names import shorten
from workbench.plots.ranges import wide


@dataclass(frozen=True, slots=True, eq=False)
class TrialPoint:
    """One trial as it is drawn."""

    number: int
    values: Mapping[str, Any]
    """Its settings, by the names of the space."""
    value: float | None
    """What it is compared by, at its longest piece; None: it has none, or is infeasible."""
    spent: float
    """The fits that the study had taken when this trial's last piece ended."""
    share: float = 1.0
    """The length of its longest piece, as a share of a whole fit."""
    infeasible: bool = False
    baseline: bool = False
    steps: Array | None = None
    """The updates of its validations, of shape (n,)."""
    curve: Array | None = None
    """The metric at these, of shape (n,)."""

    @property
    def name(self) -> str:
        """Its name in a legend."""
        return "baseline" if self.baseline else f"trial {self.number}"


@dataclass(frozen=True, slots=True)
class Axis1D:
    """One dimension of the space, as an axis: a range, or names."""

    name: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[str, ...] = ()

    @property
    def axis(self) -> Axis:
        """The axis, a little wider than its range, so that its ends are seen."""
        if self.choices:
            return Axis(self.name, ticks=self.choices)
        if self.low is None or self.high is None:
            return Axis(self.name, log=self.log)
        if self.log:
            margin = (self.high / self.low) ** 0.06
            return Axis(self.name, log=True, range=(self.low / margin, self.high * margin))
        margin = 0.06 * (self.high - self.low)
        return Axis(self.name, range=(self.low - margin, self.high + margin))

    def at(self, value: Any) -> float:
        """The place of a value on the axis; NaN: it has none."""
        if self.choices:
            name = str(value)
            return float(self.choices.index(name)) if name in self.choices else math.nan
        number = isinstance(value, int | float) and math.isfinite(value)
        return float(value) if number and (not self.log or value > 0) else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class StudyData:
    """The trials of a study, with the names of its metric and its dimensions."""

    monitor: str
    mode: str
    """"min" or "max": the better direction."""
    dimensions: Sequence[Axis1D]
    trials: Sequence[TrialPoint]
    importance: Mapping[str, tuple[float, float, float]]
    """The share of the differences that each dimension explains: (low, middle, high)."""

    def charts(self) -> list[Chart]:
        """All charts, the most important one first."""
        return [*self.cost(), *self.slices(), *self.importances(), *self.curves()]

    def curves(self) -> list[Chart]:
        """The metric of each trial over its updates.

        How to read it: trials that end early were stopped at a rung. Curves that still improve at
        their end want a longer fit.
        """
        drawn = [t for t in self.trials if t.curve is not None and len(t.curve)]
        if not drawn:
            return []
        best = self._best()
        series = tuple(
            Series(
                trial.name if trial is best or trial.baseline else "",
                _array(trial.steps),
                _array(trial.curve),
                "dots" if trial is best or trial.baseline else "thin",
                tone=_tone(trial, best),
                dash=0,
            )
            for trial in sorted(drawn, key=lambda t: (t is best, t.baseline))
        )
        values = np.concatenate([_array(t.curve) for t in drawn])
        log = self.mode == "min" and wide(values)
        return [
            Chart(
                "Trials",
                Axis("update"),
                Axis(self.monitor, log=log),
                series,
                notes=(f"{len(drawn)} trials; named: the best and the baseline.",),
            )
        ]

    def cost(self) -> list[Chart]:
        """The best value so far against what the study had spent.

        How to read it: a line that has been flat for long says that more trials gain little.
        """
        whole = [t for t in self._valued() if t.share >= 1]
        shown = sorted(whole or self._valued(), key=lambda t: t.spent)
        if not shown:
            return []
        values = np.array([t.value for t in shown], dtype=np.float64)
        best_so_far = (
            np.minimum.accumulate(values) if self.mode == "min" else np.maximum.accumulate(values)
        )
        spent = np.array([t.spent for t in shown])
        series = (
            Series("best so far", spent, best_so_far, "line", 0),
            Series("trials", spent, values, "scatter", 1),
        )
        marks = tuple(
            Mark(t.spent, t.name, t.value, emphasis=t is self._best())
            for t in shown
            if t is self._best() or t.baseline
        )
        return [
            Chart(
                "Best value against cost",
                Axis("spent", "fits"),
                Axis(self.monitor, log=self.mode == "min" and wide(values)),
                series,
                marks,
            )
        ]

    def slices(self) -> list[Chart]:
        """The value of each trial over one dimension, a chart for each.

        How to read it: where the best trials lie at an end of the range, extend it there. A cloud
        without a slope means that the dimension matters little. Crosses are infeasible trials.
        """
        return [chart for d in self.dimensions if (chart := self._slice(d)) is not None]

    def importances(self) -> list[Chart]:
        """How much of the differences between trials each dimension explains, with its interval.

        How to read it: fix a dimension whose interval reaches 0.
        """
        if not self.importance:
            return []
        ordered = sorted(self.importance.items(), key=lambda item: -item[1][1])
        names = tuple(name for name, _ in ordered)
        middle = np.array([triple[1] for _, triple in ordered])
        marks = tuple(
            Mark(bar, f"{low:.0%} to {high:.0%}", value, why=name)
            for bar, (name, (low, value, high)) in enumerate(ordered)
        )
        series = (Series("share explained", np.arange(len(names)), middle, "bar", 0),)
        return [
            Chart(
                "What matters",
                Axis("dimension", ticks=names),
                Axis("share of the differences"),
                series,
                marks,
            )
        ]

    def _slice(self, dimension: Axis1D) -> Chart | None:
        """The chart of one dimension; None: no trial has a value there."""
        points = [(dimension.at(t.values.get(dimension.name)), t) for t in self._valued()]
        points = [(x, t) for x, t in points if not math.isnan(x)]
        if not points:
            return None
        best = self._best()
        series = []
        for name, tone, chosen in (
            ("whole fits", 0, [(x, t) for x, t in points if t.share >= 1]),
            ("shorter", 1, [(x, t) for x, t in points if t.share < 1]),
        ):
            if chosen:
                xs = np.array([x for x, _ in chosen])
                y = np.array([t.value for _, t in chosen], dtype=np.float64)
                series.append(Series(name, xs, y, "scatter", tone))
        values = np.array([t.value for _, t in points], dtype=np.float64)
        worst = float(values.max() if self.mode == "min" else values.min())
        marks = [
            Mark(x, t.name, t.value, emphasis=t is best)
            for x, t in points
            if t is best or t.baseline
        ]
        marks += [
            Mark(x, "infeasible", worst, failed=True, why=f"trial {t.number}")
            for t in self.trials
            if t.infeasible and not math.isnan(x := dimension.at(t.values.get(dimension.name)))
        ]
        log = self.mode == "min" and wide(values)
        return Chart(
            f"{self.monitor} by {shorten(dimension.name)}",
            dimension.axis,
            Axis(self.monitor, log=log),
            tuple(series),
            tuple(marks),
        )

    def _valued(self) -> list[TrialPoint]:
        return [t for t in self.trials if t.value is not None and math.isfinite(t.value)]

    def _best(self) -> TrialPoint | None:
        """The best of the trials with the longest pieces."""
        valued = self._valued()
        if not valued:
            return None
        longest = max(t.share for t in valued)
        sign = 1 if self.mode == "min" else -1
        return min(
            (t for t in valued if t.share >= longest), key=lambda t: sign * float(t.value or 0.0)
        )


def _array(values: Array | None) -> Array:
    return np.empty(0) if values is None else values


def _tone(trial: TrialPoint, best: TrialPoint | None) -> int:
    """The place in the palette: the best, the baseline, all others."""
    if trial is best:
        return 0
    return 1 if trial.baseline else 2
