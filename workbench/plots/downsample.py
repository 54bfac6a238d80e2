"""Thins a line to fewer points with the same picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def downsample(x: NDArray[Any], y: NDArray[Any], n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most `n` of the points (x, y), both of shape (len,), in order: the least and greatest of
    each bucket.

    The first and last point stay, and from n = 4 on so do the least and greatest y. With at most
    `n` points all are returned. NaN is passed over unless a whole bucket is NaN, which keeps a gap
    a gap.
    """
    if n < 2:
        raise ValueError(f"n={n}: at least the first and the last point are kept")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} points and y has {len(y)}")
    if len(y) <= n:
        return x, y
    inner = y[1:-1].astype(np.float64)
    ends = np.array([0, len(y) - 1])
    buckets = (n - 2) // 2
    if not buckets:
        return x[ends], y[ends]
    width = -(-len(inner) // buckets)
    full = -(-len(inner) // width)
    # NaN, and the filling of the last bucket, lose against every number; ties go to the first, so
    # the filling, which comes last, is never taken.
    low = np.full(full * width, np.inf)
    high = np.full(full * width, -np.inf)
    blank = np.isnan(inner)
    low[: len(inner)] = np.where(blank, np.inf, inner)
    high[: len(inner)] = np.where(blank, -np.inf, inner)
    first = 1 + width * np.arange(full)
    least = first + low.reshape(full, width).argmin(axis=1)
    greatest = first + high.reshape(full, width).argmax(axis=1)
    kept = np.unique(np.concatenate([ends, least, greatest]))
    return x[kept], y[kept]


def corners(limit: NDArray[Any]) -> NDArray[Any]:
    """The places where a stepped line gets another value, and its two ends."""
    same = (limit[1:] == limit[:-1]) | (np.isnan(limit[1:]) & np.isnan(limit[:-1]))
    return np.unique(np.concatenate([[0], np.flatnonzero(~same) + 1, [len(limit) - 1]]))
