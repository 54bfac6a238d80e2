"""Estimates how much each dimension of a space matters, from the trials of a study."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.runs.study.record import StudyRecord
from workbench.settings.space import Choice, Dimension, Space

Array = NDArray[np.float64]
_LEAST = 9
"""The fewest trials with a value at one rung."""
_RESAMPLES = 100


@dataclass(frozen=True, slots=True)
class Importance:
    """The share of the variance of the trials' ranks that a dimension explains by itself."""

    share: float
    low: float
    high: float
    """Nine of ten resamples of the trials lie between these."""


def importance(record: StudyRecord) -> dict[str, Importance]:
    """The share of each dimension, at the rung at which most trials have a value; empty where
    these are fewer than nine. What two dimensions explain together alone belongs to neither.
    """
    space = Space.from_record(record.space, record.priors)
    by_rung: list[list[tuple[float, list[float | None]]]] = [[] for _ in record.head.rungs]
    for trial in record.trials:
        for rung in range(len(by_rung)):
            score = record.score_at(trial, rung)
            end = trial.end(rung)
            if end is not None and (math.isfinite(score) or end.status == "infeasible"):
                by_rung[rung].append((score, space.units(trial.values)))
    rows = max(by_rung, key=len)
    if len(rows) < _LEAST:
        return {}
    scores = np.array([score for score, _ in rows])
    order = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    ranks = order / (len(rows) - 1)
    # trials that cannot be trained are equally bad
    ranks[~np.isfinite(scores)] = 1.0
    shares = {}
    random = np.random.default_rng(record.head.seed)
    samples = random.integers(len(rows), size=(_RESAMPLES, len(rows)))
    for k, dimension in enumerate(space.dimensions):
        units = np.array([math.nan if row[1][k] is None else row[1][k] for row in rows])
        has = ~np.isnan(units)
        if has.sum() < _LEAST or np.ptp(units[has]) == 0:
            continue
        resampled = [_explained(dimension, units[s][has[s]], ranks[s][has[s]]) for s in samples]
        low, high = np.quantile(resampled, [0.05, 0.95])
        share = _explained(dimension, units[has], ranks[has])
        shares[dimension.name] = Importance(share, float(min(low, share)), float(max(high, share)))
    return shares


def _explained(dimension: Dimension, units: Array, ranks: Array) -> float:
    """The adjusted share of variance that a parabola explains, or the means of the values of a
    choice.
    """
    if isinstance(dimension, Choice):
        values = np.unique(units)
        columns = np.stack([units == value for value in values], axis=1).astype(float)
    else:
        columns = np.stack([np.ones_like(units), units, units**2], axis=1)
    freedom = len(ranks) - columns.shape[1]
    total = float(np.sum((ranks - ranks.mean()) ** 2))
    if freedom < 1 or total <= 0:
        return 0.0
    coefficients, *_ = np.linalg.lstsq(columns, ranks, rcond=None)
    rest = float(np.sum((ranks - columns @ coefficients) ** 2))
    return max(0.0, float(1 - rest / freedom / (total / (len(ranks) - 1))))
