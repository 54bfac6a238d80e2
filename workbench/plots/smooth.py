"""Smoothing for the eye."""

from __future__ import annotations

import math

import numpy as np

from workbench.plots.chart import Array


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
