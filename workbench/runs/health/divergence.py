"""Finds a loss that diverges and stays finite, and a learning rate at which it does not fall."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench.events import Event, RunStarted, StepsDone
from workbench.runs.health.finding import Finding, several, taken
from workbench.runs.record.series import column

_REMEDY = "lower the learning rate (find_lr() measures one), or clip the gradient"


class Divergence:
    """The loss of the last updates, against that of the first ones, which is about what guessing gives."""

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

    def __init__(self, start: RunStarted) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self.LAST)
        self._seen, self._since = 0, 0
        self._knows = True

    def on_event(self, event: Event) -> None:
        if not isinstance(event, StepsDone):
            return
        if several(event):
            self._knows = False  # in a game of two, one loss grows where the other falls
        good = taken(event)
        steps, losses = event.steps[good], column(event, "loss")[good]
        self._first += losses[: self.FIRST - len(self._first)].tolist()
        usual = steps[losses <= self.USUAL * abs(self._first[0])] if self._first else steps[:0]
        if len(usual):
            self._since = int(usual[-1]) + 1
        self._last.extend(losses.tolist())
        self._seen += len(losses)

    def findings(self) -> Iterator[Finding]:
        if not self._knows or self._seen < self.SOON:
            return
        first, now = np.array(self._first), float(np.median(self._last))
        if now >= self.LARGE and (self._rose(first, now) or self._rose_at_once(first, now)):
            began = float(first[0])
            text = f"the loss has risen from {began:.4g} to {now:.4g} since update {self._since}"
            yield Finding("warning", text, _REMEDY, self._since)

    def _rose(self, first: NDArray[np.float64], now: float) -> bool:
        if self._seen < self.FIRST + self.LAST:
            return False
        usual = max(abs(float(np.median(first))), float(np.quantile(np.abs(first), 0.9)))
        return bool(now >= (self.SIGNED if (first < 0).any() else self.TIMES) * usual > 0)

    def _rose_at_once(self, first: NDArray[np.float64], now: float) -> bool:
        later = list(self._last)[-(self._seen - 1) :]
        began = float(first[0])
        # A first batch that was easy by chance has others like it.
        return bool((first > 0).all()) and now >= self.AT_ONCE * began and min(later) > 10 * began


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
        warmup, updates = start.settings.get("warmup", 0) or 0, start.updates or 0
        self._from = int(warmup * updates) if isinstance(warmup, float) and warmup < 1 else int(warmup)
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
            yield Finding("warning", f"the loss does not fall at a learning rate of {self._rate:.3g}", "find_lr() measures one that it falls at")
        first, last = float(np.median(self._first)), float(np.median(self._last))
        noise = 2 * float(np.std(self._first)) / np.sqrt(len(self._first))
        if self._highest <= self.LOW and abs(first - last) <= max(self.MOVED * abs(first), noise):
            text = f"the learning rate is {self._highest:.3g}, and the loss has not changed in {self._seen} updates"
            yield Finding("warning", text, "set a higher one: find_lr() measures it")
