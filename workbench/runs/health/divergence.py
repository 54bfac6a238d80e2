"""Finds a loss that diverges and stays finite, one that rises again, and a learning rate at which it does not fall."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench import units
from workbench.events import Event, RunStarted, StepsDone
from workbench.runs.health.finding import (
    FIND_RATE,
    HEAVY,
    Finding,
    lower_rate,
    noise_of,
    several,
    taken,
    warmup_of,
)
from workbench.runs.record.series import column

_ADVICE = "lower the learning rate (find_lr() measures one), or clip the gradient"


class Divergence:
    """The loss of the last updates, against that of the first ones, which is about what guessing gives.

    A loss that rose and comes down again is reported until it is where it began.
    """

    FIRST, LAST = 20, 20
    """Updates whose median is taken for the beginning, and for now."""
    TIMES = 30.0
    """Losses that grow in health do so by less: the targets of a value function, the weight of a second term."""
    SIGNED = 1000.0
    """The same where losses are below zero: they have no natural zero to be a multiple of."""
    AT_ONCE, SOON = 100.0, 10
    """The factor over the very first loss, within this many updates: the only loss that no step has touched, but of
    a single batch.
    """
    USUAL = 3.0
    """Times the first loss: the last update up to that is where the rise began."""
    LARGE = 1.0
    """Losses below it may begin near zero by construction, and grow into their usual range (a student that begins as
    its teacher)."""
    SUPERVISED, SURELY = 3.0, 0.03
    """The same two where targets do not change: nothing that learns stays at three times its first loss."""

    def __init__(self, start: RunStarted) -> None:
        self._supervised = start.supervised
        self._first: list[float] = []
        self._last: NDArray[np.float64] = np.empty(0)
        self._seen, self._since = 0, 0
        self._knows = True
        self._peak, self._began = 0.0, 0.0
        """The highest loss so far that was sure to be a divergence (0: there was none), and where it began."""

    def on_event(self, event: Event) -> None:
        if not isinstance(event, StepsDone):
            return
        if several(event):
            self._knows = False  # in a game of two, one loss grows where the other falls
        good = taken(event)
        steps, losses = event.steps[good], column(event, "loss")[good]
        self._first += losses[: self.FIRST - len(self._first)].tolist()
        usual = steps[losses <= self.USUAL * abs(self._first[0])] if self._first and not self._peak else steps[:0]
        if len(usual):
            self._since = int(usual[-1]) + 1
        if not len(losses) or not self._knows:
            return
        values = np.concatenate([self._last, losses])
        before, self._last = self._seen - len(self._last), values[-self.LAST :]
        self._seen += len(losses)
        whole = len(values) // self.LAST * self.LAST
        if whole > self.LAST:  # of many updates at once, those with the highest loss too
            medians = np.median(values[-whole:].reshape(-1, self.LAST), axis=1)
            end = len(values) - whole + self.LAST * (int(medians.argmax()) + 1)
            self._look(values[end - self.LAST : end], before + end)
        self._look(self._last, self._seen)

    def _look(self, last: NDArray[np.float64], seen: int) -> None:
        """Examine these losses, the last of `seen`."""
        if seen < self.SOON:
            return
        first, now = np.array(self._first), float(np.median(last))
        if self._peak and now <= self._began:
            self._peak = 0.0  # it came back
        if now >= self.LARGE and (self._rose(first, last, seen) or self._rose_at_once(first, last, seen)):
            self._peak, self._began = max(self._peak, now), abs(float(first[0]))
        elif self._supervised and now >= self.SURELY and seen >= self.FIRST + self.LAST and (began := self._surely_rose_from(first, last)):
            self._peak, self._began = max(self._peak, now), began

    def findings(self) -> Iterator[Finding]:
        if not self._peak:
            return
        began, now = self._began, float(np.median(self._last))
        since = f"since update {self._since}" if now >= self._peak / self.USUAL else f"from update {self._since} on, and is {now:.4g} now"
        text = f"the loss has risen from {began:.4g} to {self._peak:.4g} {since}"
        yield Finding("error", text, _ADVICE, self._since, FIND_RATE, trouble="diverged")

    def _rose(self, first: NDArray[np.float64], last: NDArray[np.float64], seen: int) -> bool:
        if seen < self.FIRST + self.LAST:
            return False
        usual = max(abs(float(np.median(first))), float(np.quantile(np.abs(first), 0.9)))
        return bool(np.median(last) >= (self.SIGNED if (first < 0).any() else self.TIMES) * usual > 0)

    def _rose_at_once(self, first: NDArray[np.float64], last: NDArray[np.float64], seen: int) -> bool:
        later, began = last[-(seen - 1) :], float(first[0])
        # A first batch that was easy by chance has others like it.
        return bool((first > 0).all() and np.median(last) >= self.AT_ONCE * began and later.min() > 10 * began)

    def _surely_rose_from(self, first: NDArray[np.float64], last: NDArray[np.float64]) -> float:
        """From where a loss of fixed targets rose by more than its batches differ; 0: it did not."""
        if not ((first > 0).all() and (last > 0).all()):
            return 0.0
        now, spread = noise_of(last)
        few, one, limit = float(np.median(first[:5])), float(first[0]), now - math.log(self.SUPERVISED)
        if limit >= math.log(few) + spread:
            return few
        return one if spread < HEAVY and limit >= math.log(one) + 2.5 * spread else 0.0


class Rebound:
    """A loss of fixed targets that had fallen and has risen again: the learning rate is near one at which it diverges."""

    SPAN, BLOCKS = 20, 3
    """Updates of a block, whose median is taken, and how many blocks on end are high: spikes are over sooner."""
    FELL = 0.2
    """Of the loss at the beginning: of a smaller fall batches may differ by as much."""
    ROSE = 1 / 3
    """Of the fall: where a schedule begins anew with a high rate, losses rise by less. And beyond what batches differ by."""

    def __init__(self, start: RunStarted) -> None:
        self._knows = start.supervised and start.settings.get("shuffle", True) is True  # sorted samples come in phases
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
        for median, spread, after in zip(np.exp(medians).tolist(), np.exp(spreads).tolist(), later.tolist(), strict=True):
            self._block(median, spread, int(steps[-1 - after]) + 1)

    def _block(self, median: float, spread: float, step: int) -> None:
        assert self._began is not None
        fell = self._began - min(self._best, median)
        high = fell > self.FELL * self._began and median - self._best > self.ROSE * fell and median > spread * self._best
        self._high, self._now = self._high + 1 if high else 0, median
        if median < self._best:
            self._best, self._at = median, step

    def findings(self) -> Iterator[Finding]:
        if self._knows and self._high >= self.BLOCKS:
            text = f"the loss fell to {self._best:.4g} by update {self._at}, and has risen to {self._now:.4g} since"
            yield Finding("warning", text, "the learning rate is near one at which it diverges: lower it", self._at, self._lower, "unstable")


class Rate:
    """A learning rate beyond all that is usual, at which the loss does not fall."""

    AFTER = 50
    """Updates after the warm-up."""
    HIGH = 1e3
    """Rates of 10 and more belong to plain SGD with tiny gradients; nothing needs a thousand."""
    LOW = 1e-9
    """float32 numbers of 0.02, a usual size for a weight, are 2e-9 apart: Adam's steps, of about the rate, are lost."""
    MOVED = 0.01
    """The share of the first loss, as for a loss that does not move."""

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
        first, last = self._first[0], float(np.mean(self._last))  # one huge loss in twenty is not health
        if self._rate >= self.HIGH and last > first - self.MOVED * abs(first):
            text = f"the loss does not fall at a learning rate of {units.rate(self._rate)}"
            yield Finding("warning", text, "find_lr() measures one that it falls at", remedy=FIND_RATE, trouble="not learning")
        first, last = float(np.median(self._first)), float(np.median(self._last))
        noise = 2 * float(np.std(self._first)) / np.sqrt(len(self._first))
        if self._highest <= self.LOW and abs(first - last) <= max(self.MOVED * abs(first), noise):
            text = f"the learning rate is {units.rate(self._highest)}, and the loss has not changed in {self._seen} updates"
            yield Finding("warning", text, "set a higher one: find_lr() measures it", remedy=FIND_RATE, trouble="not learning")
