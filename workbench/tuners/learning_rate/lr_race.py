"""Races learning rates around a suggestion: each trains for a short stretch from the same state,
and losses on held-out batches are compared.

A sweep uses each rate for one update. The race trains with each of four rates for some 75 updates,
so it finds effects that show only later: noise at rates that are too high, slow progress at rates
that are too low. The losses are of batches on which no stretch trains.

A stretch is short, so it favours high rates, which make more progress in few updates. A high rate
has a cost, too: the loss is noisy at the end. A constant rate shows this cost, and one that falls
to 0 hides it. So a stretch keeps its rate, whatever the run's schedule: for a run whose rate falls,
the noise compensates for the short time. Only in the last fifth the rate falls to 0, so that chance
has less influence on the loss at the end (Hägele et al., "Scaling Laws and Compute-Optimal Training
Beyond Fixed Training Durations", 2024, has runs of that shape). A run at a constant rate also ends
with noise, and has more updates in which lower rates catch up: its suggestion is half of the rate
that is best in a stretch.

If the loss does not change at the sweep's rate, as on a plateau, losses cannot rank rates. Then
higher rates are tried (`climb`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench import units
from workbench.commands import Inbox, Stop
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.events import Emit, RaceTrial, Suggestion
from workbench.tuners import stretch

NAME = "race"
CANDIDATES = 4
SPACING = 10**0.5
"""The ratio of neighbouring candidates. A sweep's suggestion is often wrong by a factor of
three, seldom by ten.
"""
SOFTNESS = 0.1
"""A rate whose loss is higher than the lowest by about this share has 1/e of the best one's
weight in the mean.
"""
CONSTANT = 0.5
"""The suggestion for a run at a constant rate, as a share of the rate that is best in a stretch."""
LEARNED = 0.05
"""Losses below this share of the loss at the start count as equal: the task is nearly learned,
and noise decides which is lower.
"""
CLOSE = 1.75
"""Two rates with a smaller ratio count as equal: a stretch cannot distinguish them."""
CLEARLY = 0.05
"""Another rate is suggested only if the loss at the sweep's rate is higher by this share than at
a rate on the same side.
"""
MOVED = 0.15
"""If no rate lowers the loss at the start by this share, the stretches only compare noise."""
STEP = 10.0
"""The ratio of the next rate to the one before, if the sweep's rate does not change the loss."""
BREAKS = 2.0
"""A rate breaks the training if the mean of ten training losses is this many times the loss at
the start.
"""
WHOLE = 0.7
"""The suggestion for a whole run, as a share of a rate that changed the loss in part of one:
after a plateau the loss is steeper.
"""


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """The result of a race."""

    suggestion: Suggestion
    lowest: float | None = None
    """The lowest held-out loss, where losses decided the rate."""
    doubt: str = ""
    """Why the rate is a guess, if it is."""


class _Stopped(Exception):
    """Raised when a Stop has arrived."""


class Watch:
    """Counts the updates of a stretch, and detects a rate that breaks the training. level: the
    training loss at the start.
    """

    def __init__(self, level: float) -> None:
        self.updates = 0
        self._level = level
        self._last: deque[float] = deque(maxlen=10)

    def __call__(self, loss: float) -> bool:
        self.updates += 1
        self._last.append(loss)
        return (
            len(self._last) == self._last.maxlen
            and not statistics.fmean(self._last) < BREAKS * self._level
        )


Stretch = Callable[..., RaceTrial]
"""Trains with a rate for some updates from the start, with or without a `Watch`."""


def race(
    session: Session,
    opt: OptimizerHandle,
    lr: float,
    level: float,
    updates: int,
    schedule: str,
    set_lr: Callable[[float], None],
    emit: Emit,
    inbox: Inbox,
) -> RaceOutcome:
    """Race rates around `lr`, the sweep's suggestion, with `updates` updates in all; the session is
    restored.

    It tries three rates with the ratio `SPACING`, then a fourth beyond the best one or between the
    best two; if the sweep's rate does not change the loss, higher rates (`climb`). A Stop ends the
    race, and `lr` stays the suggestion. level: the training loss at the start.
    """
    length = updates // CANDIDATES
    start, why = stretch.starting_loss(session, length)
    if why:
        return RaceOutcome(
            Suggestion(NAME, lr, None, f"There was no race: {why}. The sweep's rate stays")
        )
    by_val = start is not None
    if start is None:
        with scratch(session):
            start = stretch.train(session, opt, [], set_lr, by_val=False)
    if not math.isfinite(start):
        return RaceOutcome(
            Suggestion(
                NAME,
                lr,
                None,
                "There was no race: the held-out loss is not finite at the start. The sweep's rate"
                " stays",
            )
        )

    def trained(rate: float, updates: int, watch: Watch | None = None) -> RaceTrial:
        if inbox and inbox.has(Stop):
            raise _Stopped
        with scratch(session):
            loss = stretch.train(
                session,
                opt,
                [rate * share for share in _shape(updates)],
                set_lr,
                by_val=by_val,
                broken=watch,
            )
        if watch is not None and not math.isfinite(loss):
            updates = watch.updates or updates
        trial = RaceTrial(rate, updates, loss)
        emit(trial)
        return trial

    try:
        first = trained(lr, length)
        if min(level, start) > 0 and abs(first.loss - start) < MOVED * start:
            return climb(first, start, level, updates - length, schedule, trained)
        trials = [first, trained(lr / SPACING, length), trained(lr * SPACING, length)]
        trials.append(trained(stretch.next_value({t.lr: t.loss for t in trials}), length))
    except _Stopped:
        return RaceOutcome(
            Suggestion(NAME, lr, None, "The race was stopped: the sweep's rate stays")
        )
    lowest = min((t.loss for t in trials if math.isfinite(t.loss)), default=None)
    if lowest is not None and start - lowest < MOVED * abs(start):
        return _guess(first, first, trials, start)
    return RaceOutcome(conclusion(lr, trials, start, schedule), lowest)


def climb(
    first: RaceTrial, start: float, level: float, left: int, schedule: str, trained: Stretch
) -> RaceOutcome:
    """Race higher rates than the sweep's, `first`, which does not change the loss, with `left`
    updates.

    A model leaves a plateau, such as the one around a saddle, after a certain rate x updates. So
    the rate is multiplied by `STEP` until it breaks the training, which takes few updates. Then a
    rate between the highest that did not break it and the lowest that did trains for all updates
    that are left, in which the loss may change. start, level: the held-out loss and the training
    loss at the start.
    """
    trials, length = [first], first.updates
    low, high = first.lr, math.inf
    while left >= stretch.FEWEST:
        rate, updates = (
            (low * STEP, min(length, left)) if high == math.inf else (math.sqrt(low * high), left)
        )
        trial = trained(rate, updates, Watch(level))
        trials.append(trial)
        left -= trial.updates
        if trial.loss <= (1 - MOVED) * start:
            break
        if trial.loss < (1 + CLEARLY) * first.loss:
            low = rate
        else:
            high = rate
    better = [
        t
        for t in trials[1:]
        if t.loss < first.loss and _progress(t, start) > _progress(first, start)
    ]
    best = min(better, key=lambda t: t.loss, default=first)
    if min(t.loss for t in trials) > (1 - MOVED) * start:
        return _guess(best, first, trials, start)
    if best is first:
        why = (
            "no higher rate comes further in an update, and the sweep's stays."
            f" {_losses_in_words(trials, start)}"
        )
        return RaceOutcome(Suggestion(NAME, first.lr, None, why))
    # the loss changes in a stretch of the usual length, so other stretches of that length can be
    # compared with it
    if high == math.inf:
        while left >= length:
            trials.append(trained(stretch.next_value({t.lr: t.loss for t in trials}), length))
            left -= length
        return RaceOutcome(
            conclusion(first.lr, trials, start, schedule), min(t.loss for t in trials)
        )
    why = (
        f"the sweep's rate does not move the loss. {_losses_in_words(trials, start)}. For a whole"
        f" run take {WHOLE:g} of a rate that changes it in part of one"
    )
    return RaceOutcome(Suggestion(NAME, max(low, WHOLE * best.lr), None, why), best.loss)


def _progress(trial: RaceTrial, start: float) -> float:
    """How much each update lowers the loss on average; the lengths of the stretches differ."""
    return (start - trial.loss) / trial.updates


def _guess(
    best: RaceTrial, first: RaceTrial, trials: Sequence[RaceTrial], start: float
) -> RaceOutcome:
    """Suggest the rate of `best`, with a doubt, if no rate changes the loss; `first` is the
    sweep's.
    """
    lowest = min(t.loss for t in trials)
    doubt = (
        f"This rate is a guess: in the race the held-out loss only came from {start:.3g} to"
        f" {lowest:.3g}. Train until it falls, then search again from there:"
        ' find_lr(start="continue", race=True).'
    )
    which = "the sweep's rate stays" if best is first else "it is lowest at this one"
    why = f"no rate moves the loss, and {which}. {_losses_in_words(trials, start)}"
    return RaceOutcome(
        Suggestion(NAME, best.lr, None, why), None if best is first else best.loss, doubt
    )


def _losses_in_words(trials: Sequence[RaceTrial], start: float) -> str:
    """A sentence with the losses of stretches of different lengths."""
    ends = [
        (t, f"{t.loss:.3g}" if math.isfinite(t.loss) else "broken")
        for t in sorted(trials, key=lambda t: t.lr)
    ]
    listed = ", ".join(f"{units.rate(t.lr, 2)}: {end} after {t.updates} updates" for t, end in ends)
    return f"Held-out loss, {start:.3g} at the start: {listed}"


def _shape(length: int) -> list[float]:
    """The factor of the rate at each update of a stretch: 1, and in the last fifth a cosine to
    0.
    """
    falling = length // 5
    return [1.0] * (length - falling) + [
        0.5 * (1 + math.cos(math.pi * update / falling)) for update in range(falling)
    ]


def conclusion(lr: float, trials: Sequence[RaceTrial], start: float, schedule: str) -> Suggestion:
    """The geometric mean of the rates, weighted by how low their losses are; for a run at a
    constant rate, times `CONSTANT`.

    `lr`, the sweep's suggestion, is kept if the mean is close to it, or if no rate on that side is
    clearly better. Only the factor for a constant rate needs no such evidence. A rate above `lr` is
    at least a factor `SPACING` below every rate that breaks the training, since rates near that one
    break a whole run, too. start: the loss before the race.
    """
    known = {t.lr: t.loss for t in trials if math.isfinite(t.loss)}
    if not known:
        return Suggestion(
            NAME,
            lr,
            None,
            "the held-out loss is not finite after any of the stretches: the sweep's rate stays,"
            " and may be too high",
        )
    if min(known.values()) < 0 or start <= 0:
        return Suggestion(
            NAME,
            lr,
            None,
            "losses are compared by their ratios, and one of them is negative: the sweep's rate",
        )
    losses = {rate: loss + LEARNED * start for rate, loss in known.items()}
    lowest, length = min(losses.values()), trials[0].updates
    weights = {rate: (lowest / loss) ** (1 / SOFTNESS) for rate, loss in losses.items()}
    mean = math.exp(
        sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values())
    )
    listed = ", ".join(
        f"{units.rate(t.lr, 2)}: {t.loss:.3g}" for t in sorted(trials, key=lambda t: t.lr)
    )
    why = f"held-out loss after {length} updates at each rate: {listed}"
    constant = schedule == "constant"
    if constant:
        mean *= CONSTANT
        why += (
            f". For a whole run at a constant rate take {CONSTANT:g} of the rate that is best in so"
            " few updates"
        )
    if max(mean / lr, lr / mean) < CLOSE:
        return Suggestion(NAME, lr, None, f"{why}. That confirms {units.rate(lr, 2)}")
    side = "above" if mean > lr else "below"
    lowest_on_side = min(
        (loss for rate, loss in losses.items() if rate != lr and (rate > lr) == (mean > lr)),
        default=math.inf,
    )
    if (mean > lr or not constant) and losses.get(lr, math.inf) < (1 + CLEARLY) * lowest_on_side:
        return Suggestion(
            NAME, lr, None, f"{why}. No rate {side} {units.rate(lr, 2)} is clearly better"
        )
    # a rate below the best one that does not change the loss is just slow
    highest = max(lr, min(known, key=known.__getitem__))
    broken = min(
        (t.lr for t in trials if t.lr > highest and not t.loss < (start + min(known.values())) / 2),
        default=math.inf,
    )
    if mean > lr and broken / SPACING < mean:
        mean = broken / SPACING
        if mean < CLOSE * lr:
            return Suggestion(
                NAME, lr, None, f"{why}. {units.rate(broken, 2)} is near, which breaks the training"
            )
    return Suggestion(NAME, mean, None, why)
