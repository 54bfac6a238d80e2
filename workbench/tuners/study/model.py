"""A Gaussian process over the trials of a study, which says how much another point may gain.

All rungs are one process: values at two rungs are strongly correlated, and each rung has its own
level. How far a value reaches follows from how sure the prior of each dimension is. Sources: Jones
et al., 1998 (expected improvement); Swersky et al., 2014 (fits of several lengths in one process).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from workbench.runs.study.record import StudyRecord
from workbench.settings.space import Choice, Space
from workbench.tuners.study.brackets import ranked
from workbench.tuners.study.priors import Prior

Array = NDArray[np.float64]
_REACH = 2.5
"""The length in which values are alike, in deviations of the prior."""
_ACROSS = 0.9
"""The correlation of the values of one point at two neighbouring rungs."""
_LEVEL = 4.0
"""The variance of a rung's own level, beside that of the values, 1."""
_NOISE = 0.05
"""The variance of the noise of a value."""
_APART = 0.5
"""The distance of two values without an order, and of a dimension that only one point has."""
_MOST = 100
"""The most trials that the process knows: the best half, and others. Its cost is cubic."""


def expected_gains(
    record: StudyRecord, space: Space, prior: Prior, points: Array, candidates: Array
) -> Array | None:
    """How much each candidate may be better than the best trial after a whole fit, in deviations of
    the values; None: fewer than two values are known.

    points: of the record's trials, a row each; NaN where a trial has no value of a dimension.
    """
    kept = _kept(record)
    rows, rungs, scores, begun = [], [], [], []
    for trial, point in zip(record.trials, points, strict=True):
        if trial.number not in kept:
            continue
        for piece in trial.pieces:
            if piece.seed == 0:
                rows.append(point)
                rungs.append(piece.rung)
                begun.append(piece.end is None)
                scores.append(record.score_at(trial, piece.rung))
    known = ~np.array(begun, dtype=bool)
    rung, score = np.array(rungs), np.array(scores)
    if np.isfinite(score).sum() < 2:
        return None
    heights = _heights(score[known], rung[known])
    where = np.array(rows)
    # at all points the process is asked for whole fits
    asked = np.concatenate([candidates, where[known]])
    last = np.full(len(asked), record.last_rung)
    kernel = _kernel(space, prior, where, rung, where, rung) + _NOISE * np.eye(len(where))
    across = _kernel(space, prior, asked, last, where, rung)
    weights = np.linalg.solve(kernel[np.ix_(known, known)], heights)
    mean = across[:, known] @ weights
    # what others train now has no value, and leaves less to learn near it
    explained = np.linalg.solve(kernel, across[: len(candidates)].T)
    variance = 1 + _LEVEL - np.sum(across[: len(candidates)].T * explained, axis=0)
    deviation = np.sqrt(np.clip(variance, 1e-6, 1.0))
    best = mean[len(candidates) :].min()
    gains = (best - mean[: len(candidates)]) / deviation
    below = np.array([0.5 * math.erfc(-gain / math.sqrt(2)) for gain in gains])
    density = np.exp(-0.5 * gains**2) / math.sqrt(2 * math.pi)
    expected: Array = deviation * (gains * below + density)
    return expected


def _kept(record: StudyRecord) -> set[int]:
    """The numbers of the trials that the process knows."""
    numbers = [trial.number for trial in record.trials]
    if len(numbers) <= _MOST:
        return set(numbers)
    best = {trial.number for trial in ranked(record)[: _MOST // 2]}
    others = [number for number in numbers if number not in best]
    steps = np.linspace(0, len(others) - 1, _MOST - len(best)).round().astype(int)
    return best | {others[k] for k in steps}


def _heights(scores: Array, rungs: NDArray[np.int64]) -> Array:
    """The scores in deviations, with logarithms of how far they are above the best of their rung,
    so that bad ones do not hide what good ones tell. Trials that cannot be trained are the worst.
    """
    above = np.full(len(scores), math.nan)
    finite = np.isfinite(scores)
    for rung in {*rungs.tolist()}:
        at = finite & (rungs == rung)
        if at.any():
            above[at] = scores[at] - scores[at].min()
    positive = above[finite & (above > 0)]
    unit = float(np.median(positive)) if len(positive) else 1.0
    heights = np.log1p(np.where(finite, above, 0.0) / unit)
    heights[~finite] = max(float(heights[finite].max()), 1.0) + 0.5
    standard: Array = (heights - heights.mean()) / max(float(heights.std()), 0.3)
    return standard


def _kernel(
    space: Space,
    prior: Prior,
    points: Array,
    rungs: NDArray[np.int64],
    others: Array,
    other_rungs: NDArray[np.int64],
) -> Array:
    """The covariances of values at points and rungs: Matérn with 5/2, times that of the rungs."""
    squares = np.zeros((len(points), len(others)))
    for k, dimension in enumerate(space.dimensions):
        column, other = points[:, k, None], others[None, :, k]
        distance = np.abs(column - other)
        if isinstance(dimension, Choice) and not dimension.ordered:
            distance = np.where(distance > 0, _APART, distance)
        has, other_has = ~np.isnan(column), ~np.isnan(other)
        distance = np.where(has & other_has, distance, np.where(has == other_has, 0.0, _APART))
        squares += (distance / (_REACH * prior.deviations[k])) ** 2
    root = np.sqrt(5 * squares)
    alike = (1 + root + root**2 / 3) * np.exp(-root)
    apart = np.abs(rungs[:, None] - other_rungs[None, :])
    covariance: Array = alike * _ACROSS**apart + _LEVEL * (apart == 0)
    return covariance
