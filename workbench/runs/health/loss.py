"""Finds a loss that does not move, and validation data that no longer agree."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from workbench.events import Event, Resumed, RunStarted, StepsDone, Validated
from workbench.runs.health.finding import Finding, several, taken
from workbench.runs.record.series import column


class Standstill:
    """A loss that is after 300 updates where it began."""

    AFTER = 300
    """Updates after the warm-up: fewer are within the patience of a person who watches."""
    FIRST, LAST = 50, 100
    MOVED = 0.01
    """Of the first loss: a model that learns anything has passed this many times over by then."""

    def __init__(self, start: RunStarted) -> None:
        warmup = start.settings.get("warmup", 0) or 0
        updates = start.updates or 0
        self._from = int(warmup * updates) if isinstance(warmup, float) and warmup < 1 else int(warmup)
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self.LAST)
        self._step, self._seen = 0, 0
        self._knows = True

    def on_event(self, event: Event) -> None:
        if isinstance(event, Resumed):
            self._knows = self._seen > 0  # it may have begun where another run's loss had come down already
        if not isinstance(event, StepsDone):
            return
        if several(event):
            self._knows = False  # in a game of two, a loss that stays says nothing
        good = taken(event) & (event.steps >= self._from)
        loss = column(event, "loss")[good].tolist()
        self._first += loss[: self.FIRST - len(self._first)]
        self._last.extend(loss)
        self._seen += len(loss)
        self._step = int(event.steps[-1]) + 1 if event.rows else self._step

    def findings(self) -> Iterator[Finding]:
        if not self._knows or self._seen < self.AFTER:
            return
        first, last = np.array(self._first), np.array(self._last)
        fell = float(first.mean() - last.mean())
        noise = math.sqrt(float(first.var()) / len(first) + float(last.var()) / len(last))
        if abs(fell) < self.MOVED * abs(float(first.mean())) and abs(fell) < 2 * noise + 1e-12:
            text = f"the loss has not moved in {self._step} updates: from {first.mean():.4g} to {last.mean():.4g}"
            yield Finding("info", text, "unless it began where it ends, find_lr() tells whether the learning rate is too low")


class Overfitting:
    """Validation rises while training falls: the generalisation loss of Prechelt (1998), "Early Stopping - But When?"

    It speaks where the last three checks are all above the best one, the last by more than 5% (his GL of 5), while the
    training loss (the median of the last 200 updates) has fallen by as much.
    """

    ABOVE = 0.05
    CHECKS = 3
    NAME = "val_loss"

    def __init__(self, start: RunStarted) -> None:
        self._recent: deque[float] = deque(maxlen=200)
        self._best, self._last, self._since = math.inf, math.inf, 0
        self._train_at_best = math.nan
        self._behind = 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            loss = column(event, "loss")
            self._recent.extend(loss[np.isfinite(loss)].tolist())
        elif isinstance(event, Validated):
            self._check(event)

    def _check(self, event: Validated) -> None:
        value = event.metrics.get(self.NAME)
        if value is None or not math.isfinite(value) or not self._recent:
            return
        self._last = value
        self._behind += 1
        if value < self._best:
            self._best, self._since, self._behind = value, event.step, 0
            self._train_at_best = self._train

    @property
    def _train(self) -> float:
        return float(np.median(self._recent)) if self._recent else math.nan

    def findings(self) -> Iterator[Finding]:
        rises = self._behind >= self.CHECKS and self._best > 0 and self._last > (1 + self.ABOVE) * self._best
        if rises and self._train < (1 - self.ABOVE) * self._train_at_best:
            text = f"validation has risen since update {self._since}, from {self._best:.4g} to {self._last:.4g}, while training falls"
            remedy = "early_stopping='val_loss' ends it in time; more data, or weight_decay, puts it off"
            yield Finding("warning", text, remedy, self._since)
