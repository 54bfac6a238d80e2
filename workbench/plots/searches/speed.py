"""Plots a search for faster settings: updates per second of each trial.

How to read it: taller is faster. A trial that failed has a cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from workbench.plots.chart import Axis, Chart, Mark, Series
from workbench.plots.names import shorten


class SpeedTrialLike(Protocol):
    """The attributes of a trial that are drawn (`events.SpeedTrial` has them)."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def updates_per_second(self) -> float | None: ...
    @property
    def waiting(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...


def speed(trials: Sequence[SpeedTrialLike], best: Mapping[str, Any]) -> Chart:
    """The chart of the trials, in their order."""
    heights = np.array(
        [np.nan if t.updates_per_second is None else t.updates_per_second for t in trials],
        dtype=np.float64,
    )
    finite = np.flatnonzero(np.isfinite(heights))
    marks = []
    for index, trial in enumerate(trials):
        if trial.updates_per_second is None:
            marks.append(
                Mark(
                    index,
                    shorten((trial.error or "failed").splitlines()[0]),
                    0.0,
                    failed=True,
                    why=(trial.error or "")[:400],
                )
            )
        elif dict(trial.values) == dict(best):
            waits = "" if trial.waiting is None else f", waits {trial.waiting:.0%}"
            marks.append(Mark(index, f"best{waits}", trial.updates_per_second, emphasis=True))
    ticks = tuple(", ".join(str(value) for value in t.values.values()) for t in trials)
    label = " and ".join(dict.fromkeys(name for t in trials for name in t.values)) or "settings"
    series = (Series("updates/s", finite, heights[finite], "bar"),)
    return Chart(
        "Speed", Axis(label, ticks=ticks), Axis("speed", "updates/s"), series, tuple(marks)
    )
