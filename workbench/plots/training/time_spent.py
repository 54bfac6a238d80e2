"""Plots where the time of a run went: seconds by part of the training.

How to read it: in a run that is limited by its model, forward and backward take most of the time. A
tall bar for data means that the loaders are too slow (`bench.find_num_workers()`); for validation,
that it comes too often.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from workbench.plots.chart import Axis, Chart, Mark, Series


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums of seconds by part, the largest first."""
    sums: dict[str, float] = {}
    for seconds_by_part in parts:
        for name, seconds in seconds_by_part.items():
            if math.isfinite(seconds) and seconds > 0:
                sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def time_spent(spent: Mapping[str, float]) -> Chart:
    """The chart of these seconds by part."""
    seconds = np.array(list(spent.values()))
    of_all = seconds.sum() if len(seconds) else 1.0
    marks = tuple(
        Mark(index, f"{duration / of_all:.0%}", duration) for index, duration in enumerate(seconds)
    )
    series = (Series("seconds", np.arange(len(seconds)), seconds, "bar"),)
    note = "Sampled: some of the updates were timed in parts."
    return Chart(
        "Where the time went",
        Axis("part", ticks=tuple(spent)),
        Axis("time", "s"),
        series,
        marks,
        notes=(note,),
    )
