"""Computes a sweep: its rates, the smoothing of its losses, when it ends.

The range test is Leslie Smith's ("Cyclical Learning Rates for Training Neural Networks", 2015); the
smoothing and the factor of four that ends it are fastai's. The functions use no models or devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.settings import SettingsError
from workbench.values import shown

Mode = Literal["exponential", "linear"]
Array = NDArray[np.float64]

ALL_DONE = "all points done"
NOT_FINITE = "loss not finite"
STOPPED = "stopped"

_AT_ONCE = 1 << 20
"""How many numbers `running_median` copies at once."""
WARMUP = 10
"""After this many points the smoothed loss is no longer dominated by the noise of its first
values.
"""


def rates(
    min_lr: float = 1e-5, max_lr: float = 10.0, num_training: int = 100, mode: str = "exponential"
) -> Array:
    """The learning rates of a sweep, one per update, shape (num_training,); first and last are
    exact.
    """
    _check_range(min_lr, max_lr)
    _check_count(num_training)
    fraction = np.arange(num_training, dtype=np.float64) / (num_training - 1)
    if mode == "exponential":
        lrs = min_lr * (max_lr / min_lr) ** fraction
    elif mode == "linear":
        lrs = min_lr + (max_lr - min_lr) * fraction
    else:
        raise SettingsError(
            f"mode={mode!r}: give 'exponential' (even steps in log lr) or 'linear'."
        )
    lrs[0], lrs[-1] = min_lr, max_lr  # the powers are rounded, and the ends must be exact
    return lrs


def _check_range(min_lr: float, max_lr: float) -> None:
    for name, value in (("min_lr", min_lr), ("max_lr", max_lr)):
        if not _is_number(value) or not math.isfinite(value) or value <= 0:
            raise SettingsError(
                f"{name}={shown(value)}: a learning rate above 0 is needed, such as 1e-5."
            )
    if max_lr <= min_lr:
        raise SettingsError(
            f"max_lr={max_lr!r} is not above min_lr={min_lr!r}: raise max_lr or lower min_lr."
        )
    if not math.isfinite(max_lr / min_lr):
        raise SettingsError(
            f"min_lr={min_lr!r} and max_lr={max_lr!r} are too far apart: raise min_lr."
        )


def _check_count(num_training: int) -> None:
    if not isinstance(num_training, int | np.integer) or isinstance(num_training, bool):
        raise SettingsError(
            f"num_training={num_training!r}: a whole number of points is needed, such as 100."
        )
    if num_training < 3:
        raise SettingsError(
            f"num_training={num_training}: a curve needs at least 3 points; 100 is usual."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


class Smoother:
    """Exponential moving average with bias correction, as in Adam and in fastai's smoothing.

    The mean moves towards each new value by (1 - beta) / (1 - beta^n). That equals the corrected
    average, and keeps a constant loss exactly constant.
    """

    def __init__(self, beta: float = 0.98) -> None:
        if not 0 <= beta < 1:
            raise SettingsError(f"beta={beta!r}: smoothing needs 0 <= beta < 1; 0 smooths nothing.")
        self.beta = beta
        # beta^n, the weight of the initial zero in an average without correction
        self._unseen = 1.0
        self._mean = 0.0

    def update(self, loss: float) -> float:
        """Return the smoothed loss after `loss`. A loss that is not finite is returned unchanged
        and not averaged.
        """
        if not math.isfinite(loss):
            return loss
        self._unseen *= self.beta
        self._mean += (loss - self._mean) * (1 - self.beta) / (1 - self._unseen)
        return self._mean


def smooth(losses: Iterable[float], beta: float = 0.98) -> Array:
    """Smooth `losses` in order, shape (n,)."""
    smoother = Smoother(beta)
    return np.array([smoother.update(float(loss)) for loss in losses], dtype=np.float64)


def running_median(values: NDArray[Any], half: int) -> Array:
    """The median of each value and of up to `half` on each side of it, along the first axis; at
    the two ends there are fewer.
    """
    count = len(values)
    ends = [
        np.median(values[max(0, i - half) : i + half + 1], axis=0)
        for i in range(count)
        if not half <= i < count - half
    ]
    if count <= 2 * half:
        return np.stack(ends)
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1, axis=0)
    rows = max(1, _AT_ONCE // windows[0].size)
    # copies the windows
    middle = [np.median(windows[at : at + rows], axis=-1) for at in range(0, len(windows), rows)]
    return np.concatenate(
        [*(end[None] for end in ends[:half]), *middle, *(end[None] for end in ends[half:])]
    )


@dataclass(frozen=True, slots=True)
class Level:
    """The losses at the start of a sweep, above which a loss has risen."""

    base: float
    """Their median."""
    high: float
    """The highest of them: single samples differ more than any average does."""
    spread: float | None
    """Their range, if a multiple of them has no meaning, since one is below 0 or their median
    is 0.
    """

    @classmethod
    def of(cls, losses: Array) -> Level:
        """The level of these losses, which are finite; at least one is needed."""
        base = float(np.median(losses))
        positive = base > 0 and losses.min() >= 0
        return cls(base, float(losses.max()), None if positive else float(np.ptp(losses)))

    @property
    def size(self) -> float:
        """The size of a loss at the start, in shares of which falls are given."""
        return self.base if self.spread is None else max(abs(self.base), self.spread)

    def limit(self, threshold: float, lowest: float | None = None) -> float:
        """The loss above which it has risen by this factor: `threshold` x the highest one.

        If losses go below 0, it is a rise from the median by (threshold - 1) times its size, or
        times the range of the losses down to the `lowest` so far if that is wider.
        """
        if self.spread is None:
            return threshold * self.high
        fallen = 0.0 if lowest is None else self.base - lowest
        return self.base + (threshold - 1) * max(self.size, fallen)


class StopRule:
    """Decides after each point whether the sweep ends, and why.

    `threshold`: the sweep ends when the smoothed loss is above this many times its best value so
    far; None: never for that reason. A loss that is not finite always ends it. The first ten points
    end it for no other reason, and the best value begins with the tenth: before, the smoothed loss
    is that of a few batches, which may be four times that of others. Once a loss was below zero, or
    while the best is zero, the rise is measured against the range of smoothed losses up to the
    best.
    """

    def __init__(self, threshold: float | None = 4.0) -> None:
        if threshold is not None and (not _is_number(threshold) or not threshold > 1):
            raise SettingsError(
                f"early_stop_threshold={threshold!r}: give a number above 1 (the smoothed loss may"
                " rise to so many times its best), or None to visit every rate."
            )
        self.threshold = threshold
        self.best = math.inf
        self._below_zero = False
        self._seen = 0
        self._highest = -math.inf
        # the highest loss in the first points or up to the best one, without the rise after it
        self._start = -math.inf

    def check(self, loss: float, smoothed: float) -> str | None:
        """Why the sweep ends with this point; None: it continues."""
        if not math.isfinite(loss):
            return NOT_FINITE
        self._note(loss, smoothed)
        if self.threshold is None or self._seen <= WARMUP:
            return None
        if self._below_zero or self.best <= 0:
            size = max(abs(self.best), self._start - self.best)
            if smoothed > self.best + (self.threshold - 1) * size:
                return (
                    "the loss diverged, as expected (smoothed loss rose by more than"
                    f" {self.threshold - 1:g} x its range)"
                )
        elif smoothed > self.threshold * self.best:
            return (
                f"the loss diverged, as expected (smoothed loss above {self.threshold:g} x its"
                " best)"
            )
        return None

    def _note(self, loss: float, smoothed: float) -> None:
        self._seen += 1
        self._below_zero = self._below_zero or loss < 0
        self._highest = max(self._highest, smoothed)
        if smoothed <= self.best or self._seen <= WARMUP:
            self._start = self._highest
        if self._seen >= WARMUP:
            self.best = min(self.best, smoothed)
