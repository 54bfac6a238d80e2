"""Finds a loss that diverges but stays finite, a loss that rises again, and a learning rate at
which the loss does not fall.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench import units
from workbench.events import Event, RunEnded, RunStarted, StepsDone
from workbench.runs.health.finding import (
    FIND_RATE,
    HEAVY,
    Finding,
    Rule,
    lower_rate,
    noise_of,
    several,
    taken,
    warmup_of,
)
from workbench.runs.record.series import column
from workbench.units import number

_ADVICE = "lower the learning rate (find_lr() measures one), or clip the gradient"


class Divergence(Rule):
    """Compares the loss of the last updates with that of the first ones, which is about the loss of
    guessing.

    A loss that rose and falls again is reported until it is back at its first value.
    """

    FIRST, LAST = 20, 20
    """The numbers of first and of last updates whose medians are compared."""
    TIMES = 30.0
    """A healthy loss may grow, but by less: a value function's targets move, a second term gains
    weight.
    """
    SIGNED = 1000.0
    """The limits for losses below zero, which have no natural zero to be a multiple of."""
    AT_ONCE = 100.0
    """The factor over the very first loss, which no step has changed, but which is that of a
    single batch.
    """
    FEW = 8
    """Samples in an update: with fewer, the first loss may be small by chance, so it is not used
    alone.
    """
    USUAL = 3.0
    """The rise began at the last update with a loss up to this many times the first one."""
    LARGE = 1.0
    """Losses below it may begin near zero by construction, and grow to their usual range (a
    student that begins as a copy of its teacher).
    """
    SUPERVISED, SURELY = 3.0, 0.03
    """The first two limits if targets do not change: the loss of a model that learns does not
    stay at three times its first value.
    """

    EVERY, LEAST = 10, 5
    """Updates between two checks of the last losses, so that findings do not depend on the
    flushes; the second number is for a run that ends sooner.
    """

    def __init__(self, start: RunStarted) -> None:
        self._supervised = start.supervised
        self._first: list[float] = []
        self._last: NDArray[np.float64] = np.empty(0)
        self._seen, self._since = 0, 0
        size, many = (
            start.settings.get(name) for name in ("batch_size", "accumulate_grad_batches")
        )
        self._few = (
            isinstance(size, int)
            and size * (many if isinstance(many, int) else 1) * start.ranks < self.FEW
        )
        self._knows = True
        self._peak, self._began = 0.0, 0.0
        """The highest loss so far that surely was a divergence (0: there was none), and the
        update at which the rise began.
        """

    def on_event(self, event: Event) -> None:
        if (
            isinstance(event, RunEnded)
            and self._knows
            and self._seen >= self.LEAST
            and self._seen % self.EVERY
        ):
            self._look(self._last, np.empty(0, np.int64), np.array([self._seen]))
        if not isinstance(event, StepsDone):
            return
        if several(event):
            # with several optimizers (a GAN), one loss grows while the other falls
            self._knows = False
        good = taken(event)
        losses = column(event, "loss")[good]
        self._first += losses[: self.FIRST - len(self._first)].tolist()
        if not len(losses) or not self._knows:
            return
        before, self._seen = self._seen, self._seen + len(losses)
        values = np.concatenate([self._last, losses])
        self._look(
            values,
            event.steps[good],
            np.arange(before // self.EVERY + 1, self._seen // self.EVERY + 1) * self.EVERY,
        )
        self._last = values[-self.LAST :]

    def _look(
        self, values: NDArray[np.float64], steps: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Check the losses up to each of `ends`, shape (checks,), counted from the first loss of
        the run.

        values: the losses that are kept, up to the last one. steps: the updates of the new ones.
        """
        usual = steps[values[len(values) - len(steps) :] <= self.USUAL * abs(self._first[0])]
        gone = self._seen - len(values)  # losses that are no longer kept
        for end in ends[ends < self.LAST].tolist():
            self._judge(values[None, : end - gone], np.array([end]), steps, usual)
        ends = ends[ends >= self.LAST]
        if len(ends):
            windows = np.lib.stride_tricks.sliding_window_view(values, self.LAST)[
                ends - gone - self.LAST
            ]
            self._judge(windows, ends, steps, usual)
        if not self._peak and len(usual):
            self._since = int(usual[-1]) + 1

    def _judge(
        self,
        windows: NDArray[np.float64],
        ends: NDArray[np.int64],
        steps: NDArray[np.int64],
        usual: NDArray[np.int64],
    ) -> None:
        """Check windows of losses, shape (checks, losses), each of which ends at one of `ends`."""
        now, began = np.median(windows, axis=1), self._rose_from(windows, ends)
        if not began.any() and (not self._peak or now.min() > self._began):
            return
        for end, median, start in zip(ends.tolist(), now.tolist(), began.tolist(), strict=True):
            if self._peak and median <= self._began:
                self._peak = 0.0  # the loss has fallen again
            if start:
                if not self._peak:
                    later = self._seen - end  # losses after the window
                    known = usual[usual <= steps[-1 - later]] if later < len(steps) else usual[:0]
                    self._since = int(known[-1]) + 1 if len(known) else self._since
                self._peak, self._began = max(self._peak, median), start

    def _rose_from(
        self, windows: NDArray[np.float64], ends: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The first loss from which the loss of each window has risen so far that it surely
        diverges; 0: it has not.
        """
        # from 20 on all of them are known
        first, now = np.array(self._first[: int(ends[0])]), np.median(windows, axis=1)
        initial, positive = abs(float(first[0])), bool((first > 0).all())
        usual = max(abs(float(np.median(first))), float(np.quantile(np.abs(first), 0.9)))
        whole = ends >= self.FIRST + self.LAST
        rose = (
            whole
            & (now >= (self.TIMES if not (first < 0).any() else self.SIGNED) * usual)
            & (usual > 0)
        )
        # the first loss alone: with many samples, it is not small by chance
        if positive and not self._few:
            later = windows[:, 1:].min(axis=1)
            rose |= (now >= self.AT_ONCE * initial) & (later > 10 * initial)
        began = np.where(rose & (now >= self.LARGE), initial, 0.0)
        few = float(np.median(first[:5]))
        # the rise must be larger than the differences between batches
        if self._supervised and positive:
            candidates = np.flatnonzero(
                (began == 0)
                & whole
                & (now >= max(self.SURELY, self.SUPERVISED * min(few, initial)))
                & (windows > 0).all(axis=1)
            )
            middle, spread = noise_of(windows[candidates])
            limit = middle - math.log(self.SUPERVISED)
            alone = (spread < HEAVY) & (limit >= math.log(initial) + 2.5 * spread)
            began[candidates] = np.where(
                limit >= math.log(few) + spread, few, np.where(alone, initial, 0.0)
            )
        return began

    def findings(self) -> Iterator[Finding]:
        if not self._peak:
            return
        began, now = self._began, float(np.median(self._last))
        since = (
            f"since update {self._since}"
            if now >= self._peak / self.USUAL
            else f"from update {self._since} on, and is {number(now)} now"
        )
        text = f"the loss has risen from {number(began)} to {number(self._peak)} {since}"
        yield Finding("error", text, _ADVICE, self._since, FIND_RATE, trouble="diverged")


class Rebound(Rule):
    """A loss with fixed targets that had fallen and rises again: the learning rate is close to
    one at which it diverges.
    """

    SPAN, BLOCKS = 20, 3
    """Updates of a block, whose median is used, and how many consecutive blocks must be high;
    spikes are shorter.
    """
    FELL = 0.2
    """The share of the first loss by which the loss must have fallen; batches may differ by
    less.
    """
    ROSE = 1 / 3
    """The share of that fall by which the loss must have risen, also by more than batches differ; a
    schedule that restarts at a high rate raises losses by less.
    """

    def __init__(self, start: RunStarted) -> None:
        # with sorted samples the loss changes in phases
        self._knows = start.supervised and start.settings.get("shuffle", True) is True
        self._lower = lower_rate(start, 3)
        self._began: float | None = None
        self._rest: NDArray[np.float64] = np.empty(0)
        self._best, self._at, self._now, self._high = math.inf, 0, math.nan, 0

    def on_event(self, event: Event) -> None:
        if not self._knows or not isinstance(event, StepsDone):
            return
        self._knows = not several(event)
        good = taken(event)
        steps, values = event.steps[good], np.concatenate([self._rest, column(event, "loss")[good]])
        whole = len(values) // self.SPAN * self.SPAN
        self._rest = values[whole:]
        if self._began is None and whole:
            self._began = float(np.median(values[:5]))
        blocks = values[:whole].reshape(-1, self.SPAN)
        self._knows &= bool((blocks > 0).all())
        if not self._knows or not whole:
            return
        medians, spreads = noise_of(blocks)
        later = len(values) - self.SPAN * np.arange(1, len(blocks) + 1)  # losses after each block
        for median, spread, after in zip(
            np.exp(medians).tolist(), np.exp(spreads).tolist(), later.tolist(), strict=True
        ):
            self._block(median, spread, int(steps[-1 - after]) + 1)

    def _block(self, median: float, spread: float, step: int) -> None:
        assert self._began is not None
        fell = self._began - min(self._best, median)
        high = (
            fell > self.FELL * self._began
            and median - self._best > self.ROSE * fell
            and median > spread * self._best
        )
        self._high, self._now = self._high + 1 if high else 0, median
        if median < self._best:
            self._best, self._at = median, step

    def findings(self) -> Iterator[Finding]:
        if self._knows and self._high >= self.BLOCKS:
            text = (
                f"the loss fell to {number(self._best)} by update {self._at}, and has risen to"
                f" {number(self._now)} since"
            )
            yield Finding(
                "warning",
                text,
                "the learning rate is near one at which it diverges: lower it",
                self._at,
                self._lower,
                "unstable",
            )


class Rate(Rule):
    """A learning rate far outside the usual range, at which the loss does not fall."""

    AFTER = 50
    """Updates after the warm-up."""
    HIGH = 1e3
    """Rates of 10 and more occur with plain SGD and tiny gradients; no training needs 1000."""
    LOW = 1e-9
    """float32 numbers of 0.02, a usual size for a weight, are 2e-9 apart: Adam's steps, of about
    the rate, are lost.
    """
    MOVED = 0.01
    """The share of the first loss by which the loss must change to count as changing."""

    def __init__(self, start: RunStarted) -> None:
        self._from = warmup_of(start)
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=20)
        self._seen, self._highest, self._rate = 0, 0.0, 0.0
        self._knows = True

    def on_event(self, event: Event) -> None:
        if not isinstance(event, StepsDone):
            return
        if several(event) or "lr" not in event.columns:
            self._knows = False
            return
        good = taken(event) & (event.steps >= self._from)
        losses, rates = column(event, "loss")[good].tolist(), column(event, "lr")[good]
        self._first += losses[: 20 - len(self._first)]
        self._last.extend(losses)
        self._seen += len(losses)
        if len(rates):
            self._highest, self._rate = max(self._highest, float(rates.max())), float(rates[-1])

    def findings(self) -> Iterator[Finding]:
        if not self._knows or self._seen < self.AFTER:
            return
        # the mean, which one huge loss in twenty raises
        first, last = self._first[0], float(np.mean(self._last))
        if self._rate >= self.HIGH and last > first - self.MOVED * abs(first):
            text = f"the loss does not fall at a learning rate of {units.rate(self._rate)}"
            yield Finding(
                "warning",
                text,
                "find_lr() measures one that it falls at",
                remedy=FIND_RATE,
                trouble="not learning",
            )
        first, last = float(np.median(self._first)), float(np.median(self._last))
        noise = 2 * float(np.std(self._first)) / np.sqrt(len(self._first))
        if self._highest <= self.LOW and abs(first - last) <= max(self.MOVED * abs(first), noise):
            text = (
                f"the learning rate is {units.rate(self._highest)}, and the loss has not changed in"
                f" {self._seen} updates"
            )
            yield Finding(
                "warning",
                text,
                "set a higher one: find_lr() measures it",
                remedy=FIND_RATE,
                trouble="not learning",
            )
