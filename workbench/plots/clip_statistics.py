"""Computes from gradient norms which updates were cut, what share a clip value would cut, and which value to suggest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.plots.chart import Array

WINDOW = 200
"""The number of last updates of which a share is computed, and a clip value."""
_ROUNDING = 1e-4


def was_cut(before: Array, after: Array) -> Array:
    """1 where the norm fell by more than rounding, 0 where it did not, NaN where it was not measured."""
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    known = np.isfinite(before) & ~np.isnan(after)
    return np.where(known, (after < before * (1 - _ROUNDING)).astype(np.float64), np.nan)


def moving_share(cut: Array, window: int = WINDOW) -> Array:
    """The mean of the known among the last `window` values, shape (rows,); NaN where the value itself is unknown."""
    known = np.isfinite(cut)
    ones = np.concatenate([[0.0], np.cumsum(np.where(known, cut, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    first = np.maximum(np.arange(len(cut)) + 1 - window, 0)
    total = count[1:] - count[first]
    return np.where(known, (ones[1:] - ones[first]) / np.maximum(total, 1), np.nan)


ENOUGH = 20
"""The fewest norms from which a clip value is proposed."""
_PERCENTILE = 90


def suggest_clip(*norms: Array) -> float | None:
    """A clip value from the norms before clipping, shape (rows,) for each optimizer: nine of ten of the last `WINDOW` lie below.

    It cuts the tail and leaves the rest alone, and a spike does not move it. Of several optimizers, each clipped by its own
    norm, the largest: none is cut more often than that. Two digits; None where fewer than `ENOUGH` finite norms are known.

    Taking it from norms that were seen is the advice of Pascanu, Mikolov & Bengio (2013), "On the difficulty of training
    recurrent neural networks", section 3.2; taking a percentile is AutoClip (Seetharaman et al., 2020), whose own choice, the
    10th, cuts nine of ten and so sets the length of nearly every step: more than a suggestion should do.
    """
    found = []
    for one in norms:
        known = np.asarray(one, np.float64)
        known = known[np.isfinite(known)][-WINDOW:]
        if len(known) >= ENOUGH:
            found.append(float(np.percentile(known, _PERCENTILE)))
    return float(f"{max(found):.2g}") if found and max(found) > 0 else None


def clip_share(norms: Sequence[Array], clip_val: float) -> float:
    """The share of updates that a clip value would cut, by their norms before clipping (shape (rows,) for each optimizer)."""
    known = np.concatenate([np.asarray(one, np.float64) for one in norms] or [np.empty(0)])
    known = known[np.isfinite(known)]
    return float((known > clip_val * (1 + _ROUNDING)).mean()) if len(known) else 0.0
