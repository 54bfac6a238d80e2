"""Estimates how much each setting of several runs matters for their results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEAST = 9
"""The fewest runs with a value."""
_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Importance:
    """The share of the variance of the runs' ranks that a setting explains by itself."""

    share: float
    low: float
    high: float
    """Nine of ten resamples of the runs lie between these."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A setting of n runs. `units`: its values, shape (n,), NaN where a run lacks it; of a setting
    with choices their numbers.
    """

    units: Array
    has_choices: bool


def importances(
    scores: Array, factors: Mapping[str, Factor], seed: int = 0
) -> dict[str, Importance]:
    """The share of each factor; empty for fewer than nine runs. What two factors explain together
    alone belongs to neither.

    scores: the results of n runs, shape (n,), lower is better; those that are not finite are
    equally bad.
    """
    if len(scores) < LEAST:
        return {}
    order = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    ranks = order / (len(scores) - 1)
    ranks[~np.isfinite(scores)] = 1.0
    shares = {}
    random = np.random.default_rng(seed)
    samples = random.integers(len(scores), size=(_RESAMPLES, len(scores)))
    for name, factor in factors.items():
        units = factor.units
        has = ~np.isnan(units)
        if has.sum() < LEAST or np.ptp(units[has]) == 0:
            continue
        resampled = [_explained(factor, units[s][has[s]], ranks[s][has[s]]) for s in samples]
        low, high = np.quantile(resampled, [0.05, 0.95])
        share = _explained(factor, units[has], ranks[has])
        shares[name] = Importance(share, float(min(low, share)), float(max(high, share)))
    return shares


def _explained(factor: Factor, units: Array, ranks: Array) -> float:
    """The adjusted share of variance that a parabola explains, or the means of the values of a
    choice.
    """
    if factor.has_choices:
        values = np.unique(units)
        columns = np.stack([units == value for value in values], axis=1).astype(float)
    else:
        columns = np.stack([np.ones_like(units), units, units**2], axis=1)
    freedom = len(ranks) - columns.shape[1]
    total = float(np.sum((ranks - ranks.mean()) ** 2))
    if freedom < 1 or total <= 0 or not math.isfinite(total):
        return 0.0
    coefficients, *_ = np.linalg.lstsq(columns, ranks, rcond=None)
    rest = float(np.sum((ranks - columns @ coefficients) ** 2))
    return max(0.0, float(1 - rest / freedom / (total / (len(ranks) - 1))))
