"""Has the rules of other libraries for a swept curve, a pure function for each, and the helpers
that all rules share.

`steepest`, `valley`, `minimum` and `slide` read the smoothed loss. They accept any curve: points
from the first one that is not finite on are left out.
Sources: steepest and minimum are fastai's of 2018; valley is ESRI's and slide Andrew Chang's
(Novetta), both as published in fastai 2.3 (pull request 3377).
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.events import Suggestion
from workbench.units import counted, rate

Array = NDArray[np.float64]

FULL = 100
"""The number of points of a sweep for which the rules were made; their windows are scaled for
other numbers.
"""
_WILD = 1e100  # larger losses count as infinite, so that sums and slopes stay finite


def steepest(lrs: ArrayLike, smoothed: ArrayLike, *, num_training: int | None = None) -> Suggestion:
    """The rate at which the smoothed loss falls fastest per decade of learning rate.

    The first tenth of the sweep is left out, where the moving average has few values and follows
    their noise.
    """
    x, y = before_wild(lrs, smoothed)
    skip = points_of(10, num_training, len(x))
    if len(x) - skip < 3:
        return none_of(
            "steepest", f"only {counted(len(x), 'finite point')}: a slope needs at least {skip + 3}"
        )
    slopes = np.gradient(y[skip:], np.log10(x[skip:]))
    at = int(np.argmin(slopes))
    # slopes of a flat line are zero except for rounding
    if slopes[at] >= 0 or not (np.diff(y[skip:]) < 0).any():
        return none_of("steepest", "the smoothed loss never falls")
    why = f"the smoothed loss falls fastest here, by {-slopes[at]:.3g} per decade of learning rate"
    return Suggestion("steepest", float(x[skip + at]), skip + at, why)


def valley(lrs: ArrayLike, smoothed: ArrayLike) -> Suggestion:
    """The middle of the longest fall: the longest sequence of points, each lower than the one
    before, with others in between.
    """
    x, y = before_wild(lrs, smoothed)
    fall = longest_fall(y)
    if fall is None:
        return none_of(
            "valley",
            (
                "the smoothed loss never falls"
                if len(x) > 1
                else f"only {counted(len(x), 'finite point')}"
            ),
        )
    at, length, end = fall
    why = (
        f"the middle of the longest fall of the smoothed loss, {length} points that end at"
        f" {rate(x[end], 2)}"
    )
    return Suggestion("valley", float(x[at]), at, why)


def minimum(lrs: ArrayLike, smoothed: ArrayLike) -> Suggestion:
    """A tenth of the rate at the lowest smoothed loss."""
    x, y = before_wild(lrs, smoothed)
    if len(x) < 2:
        return none_of("minimum", f"only {counted(len(x), 'finite point')}")
    low = int(np.argmin(y))
    if low == 0:
        return none_of("minimum", "the smoothed loss never falls below its first value")
    lr = float(x[low]) / 10
    return Suggestion(
        "minimum",
        lr,
        nearest(x, lr),
        f"a tenth of {rate(x[low], 2)}, where the smoothed loss is lowest",
    )


def slide(lrs: ArrayLike, smoothed: ArrayLike, *, num_training: int | None = None) -> Suggestion:
    """The rate at which the explosion begins, seen from the right.

    An interval of 15 points slides from the end to the left while the slopes at its two ends differ
    by more than 5% of the curve's height per decade; its left end is the suggestion. fastai
    compares slopes per point with a fixed loss of 0.005; relative to the curve's height, the result
    does not depend on the unit of the loss.
    """
    x, y = before_wild(lrs, smoothed)
    width = max(1, points_of(15, num_training, len(x)))
    if len(x) < width + 2:
        return none_of(
            "slide",
            f"only {counted(len(x), 'finite point')}: the interval needs at least {width + 2}",
        )
    slopes = np.gradient(y, np.log10(x))
    # for a flat line, so that rounding does not count as slope
    height = max(float(np.ptp(y)), 1e-9 * float(np.abs(y).max()))
    apart = np.abs(slopes[width:] - slopes[:-width]) > 0.05 * height
    if not apart[-1]:
        return none_of("slide", "the curve is straight to its end, and has no rise")
    if apart.all():
        return none_of("slide", "the curve has no straight stretch left of the rise")
    at = int(np.flatnonzero(~apart)[-1]) + 1
    why = f"the straight part of the smoothed loss ends here: within {width} points it turns"
    return Suggestion("slide", float(x[at]), at, why)


def longest_fall(y: Array) -> tuple[int, int, int] | None:
    """Middle, length and end (indices) of the longest strictly decreasing subsequence of `y`; None
    if `y` never falls.

    Of equally long ones it is the first. As in fastai, the middle is half the length before the
    end, whatever points the subsequence skips. It uses patience sorting: O(n log n), where the
    usual loop is O(n^2).
    """
    # [k]: the last value, negated, of the fall of k + 1 points that ends highest
    tails: list[float] = []
    best = end = 0
    for i, value in enumerate(y):
        index = bisect_left(tails, -float(value))
        tails[index : index + 1] = [-float(value)]
        if index + 1 > best:
            best, end = index + 1, i
    if best < 2:
        return None
    return max(0, end - best + best // 3 + best // 6), best, end


def pair(lrs: ArrayLike, losses: ArrayLike) -> tuple[Array, Array]:
    """The curve as two arrays of float64; huge losses become infinite. Raises ValueError if
    rates do not rise, or lack a loss.
    """
    x, y = np.asarray(lrs, dtype=np.float64).ravel(), np.asarray(losses, dtype=np.float64).ravel()
    if len(x) != len(y):
        raise ValueError(
            f"{len(x)} learning rates and {len(y)} losses: a curve needs one loss for each rate."
        )
    if len(x) and not (x[0] > 0 and np.isfinite(x[-1]) and (np.diff(x) > 0).all()):
        raise ValueError("learning rates must be above 0 and rise from point to point.")
    return x, np.where(np.abs(y) > _WILD, np.inf, y)


def before_wild(lrs: ArrayLike, losses: ArrayLike) -> tuple[Array, Array]:
    """The points before the first one that is not finite."""
    x, y = pair(lrs, losses)
    bad = np.flatnonzero(~np.isfinite(y))
    end = int(bad[0]) if len(bad) else len(y)
    return x[:end], y[:end]


def length_of(num_training: int | None, seen: int) -> int:
    """The planned number of points of a sweep, of which `seen` were measured; num_training=None:
    the usual number, or `seen` if larger.
    """
    return max(FULL, seen) if num_training is None else max(num_training, seen)


def points_of(of_hundred: int, num_training: int | None, seen: int) -> int:
    """A number of points for a sweep of 100, scaled to the length of this sweep."""
    return round(of_hundred * length_of(num_training, seen) / FULL)


def nearest(x: Array, lr: float) -> int:
    """The index of the rate nearest to `lr`, by their ratio."""
    return int(np.argmin(np.abs(np.log(x) - math.log(lr))))


def none_of(name: str, reason: str) -> Suggestion:
    """A suggestion without a rate, and the reason."""
    return Suggestion(name, None, None, reason)
