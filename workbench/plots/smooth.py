"""Smooths curves for display."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from workbench.plots.chart import Array

Floats64 = NDArray[np.float64]
_AT_ONCE = 256
"""The number of values that are added together: few enough that the weight of the first is no
rounding error.
"""


def ema(y: Array, beta: float) -> Array:
    """The debiased exponential moving average of y, shape (n,), float64.

    Values that are not finite are left out of the average and stay NaN, so a gap is drawn as a gap.
    """
    average, weight = 0.0, 0.0
    out = np.full(len(y), np.nan)
    for i, value in enumerate(y.tolist()):
        if math.isfinite(value):
            average = beta * average + (1 - beta) * value
            weight = beta * weight + (1 - beta)
            out[i] = average / weight
    return out


def beta_for(n: int) -> float:
    """A smoothing that averages over about 1% of n points, ten at least."""
    return 1 - 1 / max(10.0, n / 100)


class Smoother:
    """A running mean over the last tenth of the run, 5 updates at least and 200 at most.

    The window grows with the run, so that 50 updates and 50,000 both show a trend; what is drawn
    never changes.
    """

    def __init__(self) -> None:
        self._mean = math.nan
        self._seen = 0

    def add(self, values: Floats64) -> Floats64:
        """The mean after each of `values`, shape (rows,); values that are not finite do not
        change it.
        """
        finite = np.isfinite(values)
        if finite.all() and 0 < len(values) <= _AT_ONCE:  # nearly always, and ten times a second
            return self._fold(values)
        known = np.flatnonzero(finite)
        means = np.empty(len(known) + 1)
        means[0] = self._mean
        for start in range(0, len(known), _AT_ONCE):
            here = values[known[start : start + _AT_ONCE]]
            means[start + 1 : start + 1 + len(here)] = self._fold(here)
        return means[np.searchsorted(known, np.arange(len(values)), side="right")]

    def _fold(self, values: Floats64) -> Floats64:
        """mean += (value - mean) / window, for all of them at once: the sum of what each still
        weighs.
        """
        if self._seen == 0:
            self._mean = float(values[0])
        seen = self._seen + 1 + np.arange(len(values))
        share = 1 / np.minimum(np.clip(seen / 10, 5.0, 200.0), seen)
        share[seen == 1] = 0.0  # the first value is the mean
        kept = np.cumprod(1 - share)
        means: Floats64 = kept * (self._mean + np.cumsum(share * values / kept))
        self._seen, self._mean = int(seen[-1]), float(means[-1])
        return means
