"""Computes from gradient norms which updates were cut, what share a clip value would cut, and
which value to suggest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.plots.chart import Array

WINDOW = 200
"""The number of last updates of which a moving share is computed."""
_ROUNDING = 1e-4


def was_cut(before: Array, after: Array) -> Array:
    """1 where the norm fell by more than rounding, 0 where it did not, NaN where it was not
    measured.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    known = np.isfinite(before) & ~np.isnan(after)
    return np.where(known, (after < before * (1 - _ROUNDING)).astype(np.float64), np.nan)


def moving_share(cut: Array, window: int = WINDOW) -> Array:
    """The mean of the known among the last `window` values, shape (rows,); NaN where the value
    itself is unknown.
    """
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
    """A clip value from the norms before clipping, shape (rows,) for each optimizer: nine of ten do
    not exceed it.

    It cuts the tail and leaves the rest alone, and a spike does not move it. Of several optimizers,
    each
    clipped by its own norm, the largest: none is cut more often than that. It has three digits, and
    is rounded up, so that this holds of what is shown, too. None where fewer than `ENOUGH` finite
    norms are
    known. Give the norms of the whole run: those of its end often lie far below those with which
    the next run begins.

    Taking it from norms that were seen is the advice of Pascanu, Mikolov & Bengio (2013), "On the
    difficulty of training recurrent neural networks", section 3.2; taking a percentile is AutoClip
    (Seetharaman et al., 2020), whose own choice, the 10th, cuts nine of ten and so sets the length
    of nearly every step: more than a suggestion should do.
    """
    percentiles = []
    for norm in norms:
        known = np.asarray(norm, np.float64)
        known = known[np.isfinite(known)]
        if len(known) >= ENOUGH:
            percentiles.append(float(np.percentile(known, _PERCENTILE, method="higher")))
    return _rounded_up(max(percentiles)) if percentiles and max(percentiles) > 0 else None


def _rounded_up(value: float) -> float:
    """The next number with three digits, or `value` itself where it has three but for rounding."""
    digit = math.floor(math.log10(value)) - 2
    return float(f"{math.ceil(value / 10.0**digit * (1 - _ROUNDING / 10)) * 10.0**digit:.3g}")


def clip_share(norms: Sequence[Array], clip_val: float) -> float:
    """The share of updates that a clip value would cut, by their norms before clipping (shape
    (rows,) for each optimizer).
    """
    known = np.concatenate([np.asarray(norm, np.float64) for norm in norms] or [np.empty(0)])
    known = known[np.isfinite(known)]
    return float((known > clip_val * (1 + _ROUNDING)).mean()) if len(known) else 0.0


class RunNorms:
    """The norms before clipping of a run of any length: of all parameters, and of each optimizer
    where there are several.

    Of a long run it keeps every second one, every fourth, and so on: a share of them is the share
    of the run's updates.
    """

    MOST = 8192
    """The most norms that are kept of each."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}
        self._every: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def add(self, norms: Mapping[str, Array]) -> None:
        """Add the norms of further updates, by the names of their columns, each of shape (rows,).

        NaN: a norm is not known.
        """
        for name, values in norms.items():
            new = np.asarray(values, np.float64)
            new = new[np.isfinite(new)]
            every, seen = self._every.get(name, 1), self._seen.get(name, 0)
            kept = np.concatenate([self._kept.get(name, np.empty(0)), new[-seen % every :: every]])
            while len(kept) > self.MOST:
                kept, every = kept[::2], 2 * every
            self._kept[name], self._every[name], self._seen[name] = kept, every, seen + len(new)

    @property
    def updates(self) -> int:
        """How many updates have a finite norm of all parameters."""
        return self._seen.get("grad_norm", 0)

    @property
    def clipped(self) -> tuple[Array, ...]:
        """The norms that a clip value limits, shape (rows,) for each optimizer."""
        apart = tuple(norms for name, norms in self._kept.items() if name != "grad_norm")
        return apart or tuple(self._kept.values())
