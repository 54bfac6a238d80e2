"""Plots the best learning rate against sizes, and the held-out loss of the rates at each size.

How to read them: the dots are the best rates, one for each seed, and the line is the law, drawn on
to twice the largest size; the thin lines are its range of 95%. A flat line: the rate transfers. In
the second plot, curves whose lowest points are above each other have the same best rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.plots.chart import Axis, Chart, Series


def law(
    name: str,
    points: Sequence[tuple[float, float]],
    places: NDArray[np.float64],
    curve: Sequence[tuple[float, float, float]],
) -> Chart:
    """The best rates by size (size, rate), and the law (rate, low, high) at `places`."""
    measured, drawn = np.array(points, np.float64), np.array(curve, np.float64)
    return Chart(
        f"Best learning rate by {name}",
        Axis(name, log=True),
        Axis("lr", log=True),
        (
            Series("law", places, drawn[:, 0]),
            Series("95%", places, drawn[:, 1], "thin"),
            Series("", places, drawn[:, 2], "thin"),
            Series("best of a seed", measured[:, 0], measured[:, 1], "scatter", 1),
        ),
    )


def losses(curves: Sequence[tuple[str, Mapping[float, float]]]) -> Chart:
    """The held-out loss by rate, a line for each size."""
    series = []
    for tone, (label, by_rate) in enumerate(curves):
        rates = np.array(sorted(by_rate), np.float64)
        values = np.array([by_rate[lr] for lr in sorted(by_rate)], np.float64)
        finite = np.isfinite(values)
        series.append(Series(label, rates[finite], values[finite], "dots", tone))
    return Chart(
        "Held-out loss by learning rate", Axis("lr", log=True), Axis("held-out loss"), tuple(series)
    )
