"""Chooses axis ranges that a few wild values cannot ruin."""

from __future__ import annotations

import numpy as np

from workbench.plots.chart import Array


def span(*arrays: Array, log: bool = False) -> tuple[float, float] | None:
    """The range of all finite values with a margin of 5% at each side; None without finite values.

    With `log` only what is above zero counts, and the margin is in the logarithm.
    """
    values = np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays] or [np.empty(0)])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if log:
        margin = max((high / low) ** 0.05, 1.05)
        return low / margin, high * margin
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def typical(values: Array, share: float = 0.99) -> Array:
    """The finite values without the outer tails, `share` of them."""
    kept = np.asarray(values, np.float64)
    kept = kept[np.isfinite(kept)]
    if kept.size < 20:
        return kept
    low, high = np.quantile(kept, [(1 - share) / 2, (1 + share) / 2])
    inner: Array = kept[(kept >= low) & (kept <= high)]
    return inner


def wide(values: Array, ratio: float = 50.0) -> bool:
    """Whether positive values span so much that only a logarithmic axis shows them."""
    kept = np.asarray(values, np.float64)
    kept = kept[np.isfinite(kept)]
    return bool(kept.size) and bool(kept.min() > 0) and bool(kept.max() / kept.min() > ratio)
