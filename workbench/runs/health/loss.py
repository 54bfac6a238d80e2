"""Finds a loss that does not fall, and validation metrics that get worse while it falls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workbench.events import (
    ENDED_EARLY,
    Event,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    StepsDone,
    Validated,
)
from workbench.metric_mode import AVERAGED
from workbench.runs.health.finding import (
    FIND_RATE,
    HEAVY,
    Finding,
    Rule,
    noise_of,
    several,
    taken,
    warmup_of,
)
from workbench.runs.health.metrics import better
from workbench.runs.record.series import column
from workbench.units import number


class Standstill(Rule):
    """Finds a loss that is no lower after 300 updates than at the beginning; in a shorter fit,
    at its end after at least 100.
    """

    AFTER, AT_END = 300, 100
    """Updates after the warm-up; with fewer, it is too early to report."""
    FIRST, LAST = 50, 100
    """The number of first and of last updates whose means are compared, in a fit that is long
    enough for both.
    """
    ROSE = 1.2
    """From this many times the first loss on the loss has risen, which no rate that is too low
    does.
    """
    MOVED = 0.01
    """The share of the first loss by which the loss must change; the loss of a model that learns
    changes by many times this share.
    """

    def __init__(self, start: RunStarted) -> None:
        self._from, self._supervised = warmup_of(start), start.supervised
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self.LAST)
        self._step, self._seen = 0, 0
        self._knows, self._over = True, False

    def on_event(self, event: Event) -> None:
        if isinstance(event, Resumed):
            # the loss may have fallen before, in the run that this one continues
            self._knows = self._seen > 0
        self._over |= isinstance(event, RunEnded)
        if not isinstance(event, StepsDone):
            return
        if several(event):
            self._knows = False  # with several optimizers (a GAN), a constant loss means nothing
        good = taken(event) & (event.steps >= self._from)
        loss = column(event, "loss")[good].tolist()
        self._first += loss[: self.FIRST - len(self._first)]
        self._last.extend(loss)
        self._seen += len(loss)
        self._step = event.done

    def findings(self) -> Iterator[Finding]:
        if not self._knows or self._seen < (self.AT_END if self._over else self.AFTER):
            return
        first, last = (
            np.array(self._first[: self._seen // 4]),
            np.array(self._last)[-(self._seen // 2) :],
        )
        fell = float(first.mean() - last.mean())
        noise = math.sqrt(float(first.var()) / len(first) + float(last.var()) / len(last))
        stands = abs(fell) < self.MOVED * abs(float(first.mean())) and abs(fell) < 2 * noise + 1e-12
        trouble = "not learning"
        advice = (
            "unless it began where it ends, find_lr() shows whether the learning rate is too low"
        )
        if self._supervised and self._is_not_lower(first, last):
            began, advice = float(first[0]), "find_lr() measures a rate at which it falls"
            trouble = "loss rose" if np.median(last) > self.ROSE * began else trouble
            text = (
                f"the loss is not lower than at its start after {self._step} updates:"
                f" {number(began)} then, {number(np.median(last))} now"
            )
        elif stands:
            text = (
                f"the loss has not moved in {self._step} updates: from {number(first.mean())} to"
                f" {number(last.mean())}"
            )
        else:
            return
        yield Finding("warning", text, advice, remedy=FIND_RATE, trouble=trouble)

    def _is_not_lower(self, first: NDArray[np.float64], last: NDArray[np.float64]) -> bool:
        """Whether the loss is at least as high as the very first one, before any step, taking the
        differences of batches into account.
        """
        if not ((first > 0).all() and (last > 0).all()):
            return False
        now, spread = noise_of(last)
        return bool(
            spread < HEAVY and now >= math.log(1 - self.MOVED) + math.log(first[0]) + spread
        )


@dataclass
class _Metric:
    """The state of one metric. `sign` times a value is lower if it is better."""

    sign: float
    best: float = math.inf
    since: int = 0
    worse: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Its last values after the best one."""
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    """The differences of consecutive validations."""
    last: float = math.nan
    train: float = math.nan
    """The training loss at the best value."""


class Overfitting(Rule):
    """Finds a validation metric that gets worse while the training loss falls.

    For val_loss it uses the generalisation loss of Prechelt (1998), "Early Stopping - But When?":
    the last three validations are all above the best one, the last by more than 5% (his GL of 5),
    while the training loss (the median of the last 200 updates) has fallen by as much. For another
    metric whose name tells its direction, the change must also be three times the difference of
    consecutive validations, since shares of few samples are noisy.
    """

    ABOVE, BELOW = 0.05, 0.1
    """The shares of the best value by which the loss, and another metric, must be worse."""
    GROSS = 0.5
    """From this share on the result is in doubt; most fits on a small data set overfit by some
    percent.
    """
    VALIDATIONS, IF_GROSS = 3, 2
    """The number of validations after the best one that must be worse; of a gross rise fewer,
    and at the end of a fit one is enough if the metric is more than twice its best value.
    """
    TWICE = 1.0
    NOISE = 3.0
    NAME = "val_loss"
    SEARCH = 800
    """Updates of `find_weight_decay()`, for four values."""
    BEYOND = 2.0
    """To show overfitting, a stretch of the search must be this many times as long as the fit up
    to its best validation.
    """

    def __init__(self, start: RunStarted) -> None:
        self._recent: deque[float] = deque(maxlen=200)
        self._metrics: dict[str, _Metric] = {}
        stops = start.settings.get("early_stopping")
        self._stops, self._run = bool(stops), start.run
        rules = stops if isinstance(stops, list | tuple) else ()
        self._restores = any(
            isinstance(rule, Mapping) and rule.get("restore_best") is True for rule in rules
        )
        self._stopped = self._over = False
        self._searches = not start.settings.get("truncated_bptt_steps")  # the search refuses it

    def on_event(self, event: Event) -> None:
        self._stopped |= isinstance(event, Message) and event.text.startswith(ENDED_EARLY)
        self._over |= isinstance(event, RunEnded)
        if isinstance(event, Resumed):
            self._stopped = self._over = False
        if isinstance(event, StepsDone):
            loss = column(event, "loss")
            self._recent.extend(loss[np.isfinite(loss)].tolist())
        elif isinstance(event, Validated) and self._recent:
            for name, value in event.metrics.items():
                sign = 1.0 if name == self.NAME else -better(name)
                if sign and math.isfinite(value) and not name.endswith("_averaged"):
                    self._check(self._metrics.setdefault(name, _Metric(sign)), value, event.step)

    def _check(self, metric: _Metric, value: float, step: int) -> None:
        if math.isfinite(metric.last):
            metric.steps.append(abs(value - metric.last))
        metric.last = value
        metric.worse.append(value)
        if metric.sign * value < metric.best:
            metric.best, metric.since, metric.train = metric.sign * value, step, self._train
            metric.worse.clear()

    @property
    def _train(self) -> float:
        return float(np.median(self._recent)) if self._recent else math.nan

    def findings(self) -> Iterator[Finding]:
        for name, metric in self._metrics.items():
            best, gross = metric.sign * metric.best, self._worse(name, metric)
            if gross is None or not self._train < metric.train - self.ABOVE * abs(metric.train):
                continue
            rises = "risen" if metric.sign > 0 else "fallen"
            label = "validation" if name == self.NAME else name
            text = (
                f"{label} has {rises} since update {metric.since}, from {number(best)} to "
                f"{number(metric.last)}, while training falls"
            )
            advice, remedy = self._remedy(name, metric)
            if self._stopped and self._restores:
                yield Finding("info", text, advice, metric.since)
            else:
                yield Finding(
                    "warning", text, advice, metric.since, remedy, "overfitting" if gross else ""
                )

    def _remedy(self, name: str, metric: _Metric) -> tuple[str, str]:
        """The advice, and the line of code that does it: early stopping, then weight decay,
        which its search judges by val_loss.
        """
        if not self._stops:
            monitor = repr(name) if metric.sign > 0 else repr({"monitor": name, "mode": "max"})
            advice = (
                f"early_stopping={monitor} ends it in time; more data or weight_decay delays"
                " overfitting"
            )
            return advice, f"bench.set(early_stopping={monitor})"
        if self._stopped:
            best = f"bench.load({self._run!r}, 'best') has the best weights"
            if self._restores:
                best = "the model has the best weights"
            return f"early stopping ended it: {best}", ""
        if name != self.NAME or not self._searches:
            return "more data or weight_decay delays overfitting", ""
        needed = math.ceil(4 * self.BEYOND * metric.since / 100) * 100
        search = (
            "find_weight_decay()"
            if needed <= self.SEARCH
            else f"find_weight_decay(updates={needed})"
        )
        return (
            (
                f"more data delays it; {search} tests in {max(needed, self.SEARCH):,} updates"
                " whether weight_decay does too"
            ),
            f"bench.{search}",
        )

    def _needed(self, name: str, metric: _Metric) -> int:
        """How many validations after the best one must be worse."""
        if name != self.NAME or not metric.last > (1 + self.GROSS) * metric.best:
            return self.VALIDATIONS
        return 1 if self._over and metric.last > (1 + self.TWICE) * metric.best else self.IF_GROSS

    def _worse(self, name: str, metric: _Metric) -> bool | None:
        """Whether the metric is much worse than its best value (True), a little worse (False),
        or not worse (None).
        """
        best = abs(metric.best)
        if (
            len(metric.worse) < self._needed(name, metric)
            or not best
            or (name == self.NAME and metric.best < 0)
        ):
            return None
        if name == self.NAME:
            drop = metric.sign * metric.last - metric.best
            return drop > self.GROSS * best if drop > self.ABOVE * best else None
        drop = metric.sign * float(np.median(metric.worse)) - metric.best
        drop = min(drop, metric.sign * metric.last - metric.best)
        if drop <= self.BELOW * best or drop <= self.NOISE * float(np.median(metric.steps)):
            return None
        return drop > self.GROSS * best


class Behind(Rule):
    """Finds averaged weights that validate worse than the raw ones at the end of a fit, whose
    model has the averaged ones.
    """

    SHARE = 0.05
    """The share of the raw weights' value by which the average must be worse."""
    GROSS = 1.0
    """From this share on the result is in doubt."""

    def __init__(self, start: RunStarted) -> None:
        self._kind = start.settings.get("weight_averaging")
        self._metrics: Mapping[str, float] = {}
        self._step, self._over = 0, False

    def on_event(self, event: Event) -> None:
        self._over |= isinstance(event, RunEnded)
        if isinstance(event, Resumed):
            self._over = False
        elif isinstance(event, Validated) and not event.asked:
            self._metrics, self._step = event.metrics, event.step

    def findings(self) -> Iterator[Finding]:
        for name, raw in self._metrics.items() if self._over else ():
            averaged = self._metrics.get(f"{name}{AVERAGED}", math.nan)
            worse = averaged - raw if name == Overfitting.NAME else -better(name) * (averaged - raw)
            if not worse > self.SHARE * abs(raw):
                continue
            text = (
                "the averaged weights, which the model has, validate worse than the raw ones: "
                f"{name} is {number(averaged)}, with the raw weights {number(raw)}"
            )
            sooner = "a smaller ema_decay, ema_warmup=True"
            if self._kind == "swa":
                sooner = "a later swa_epoch_start"
            advice = f"train for longer, or give {sooner} or weight_averaging=None"
            trouble = "average behind" if worse > self.GROSS * abs(raw) else ""
            yield Finding("warning", text, advice, self._step, trouble=trouble)
            return
