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

The present rate, which the run has without a search, trains too: it is beaten, or it stays.

If the loss hardly changes at the sweep's rate, that rate may be far too high, or the model may be
on a plateau, where losses cannot rank rates. A lower rate shows which. If it does not come further,
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
from workbench.techniques.schedules import WITHOUT_LENGTH
from workbench.tuners import stretch
from workbench.tuners.learning_rate.sweep import Level

NAME = "race"
CANDIDATES = 4
SPACING = 10**0.5
"""The ratio of neighbouring candidates. A sweep's suggestion is often wrong by a factor of
three, seldom by ten.
"""
SOFTNESS = 0.1
"""A rate whose loss is higher than the lowest by about this share (`stretch.excess`) has 1/e of the
best one's weight in the mean.
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
STEP = 10.0
"""The ratio of the next rate to the one before, if the sweep's rate does not change the loss."""
BREAKS = 2.0
"""A rate breaks the training if the mean of ten training losses is this many times the highest
loss at the start.
"""
WHOLE = 0.7
"""The suggestion for a whole run, as a share of a rate that changed the loss in part of one:
after a plateau the loss is steeper.
"""


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """The result of a race."""

    suggestion: Suggestion
    loss: float | None = None
    """The held-out loss at the suggested rate, where losses decided it; if that rate was not tried,
    the lowest one.
    """
    doubt: str = ""
    """Why the rate is a guess, if it is."""


class _Stopped(Exception):
    """Raised when a Stop has arrived."""


@dataclass(frozen=True, slots=True)
class Start:
    """The losses before a race: `loss` of the held-out batches, and `level` of the training
    batches.
    """

    loss: float
    level: Level

    @property
    def size(self) -> float:
        """The loss, in shares of which falls are given; if losses go below 0, how much the first
        training losses differ.
        """
        if self.loss > 0 and self.level.spread is None:
            return self.loss
        return self.level.spread or abs(self.loss)

    def has_moved_to(self, loss: float) -> bool:
        """Whether this held-out loss differs clearly from the one at the start."""
        return not abs(loss - self.loss) < stretch.MOVED * self.size

    def has_fallen_to(self, loss: float) -> bool:
        """Whether this held-out loss is clearly lower than the one at the start."""
        return loss <= self.loss - stretch.MOVED * self.size


class Watch:
    """Counts the updates of a stretch, and detects a rate that breaks the training. level: that of
    the training losses at the start.
    """

    def __init__(self, level: Level) -> None:
        self.updates = 0
        self._limit = level.limit(BREAKS)
        self._last: deque[float] = deque(maxlen=10)

    def __call__(self, loss: float) -> bool:
        self.updates += 1
        self._last.append(loss)
        return (
            len(self._last) == self._last.maxlen and not statistics.fmean(self._last) < self._limit
        )


Stretch = Callable[..., RaceTrial]
"""Trains with a rate for some updates from the start, with or without a `Watch`."""


def race(
    session: Session,
    opt: OptimizerHandle,
    lr: float,
    level: Level,
    updates: int,
    schedule: str,
    groups: Sequence[int] | None,
    emit: Emit,
    inbox: Inbox,
) -> RaceOutcome:
    """Race rates around `lr`, the sweep's suggestion, with `updates` updates in all; the session is
    restored.

    It tries three rates with the ratio `SPACING`, then a fourth beyond the best one or between the
    best two. If the sweep's rate hardly changes the loss, a lower one trains, too, and then rates
    around the better one or higher ones (`climb`) have what is left. The present rate trains, too,
    unless one of these is close to it. It and the lower one each train for a fourth of `updates`,
    which are not taken from the others. A Stop ends the race, and `lr` stays the suggestion. level:
    that of the training losses at the start; groups: the only ones whose rates change.
    """
    length = updates // CANDIDATES
    set_lr, present = stretch.multiplier(opt, groups), stretch.present_rate(opt, groups)
    held_out, why = stretch.starting_loss(session, length)
    if why:
        return _no_race(why)
    by_val = held_out is not None
    if held_out is None:
        with scratch(session):
            held_out = stretch.train(session, opt, [], set_lr, by_val=False)
    if not math.isfinite(held_out):
        return _no_race("the held-out loss is not finite at the start")
    start = Start(held_out, level)

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
        first, further = trained(lr, length), 1
        if start.has_moved_to(first.loss):
            trials = [first, trained(lr / SPACING, length), trained(lr * SPACING, length)]
        else:
            trials, further = [first, trained(lr / STEP, length)], CANDIDATES - 1
            if present is not None and present > CLOSE * lr:
                trials.append(trained(present, length))
            if not min(t.loss for t in trials) < first.loss - CLEARLY * start.size:
                return climb(trials, start, updates - length, schedule, trained)
        for _ in range(further):
            trials.append(trained(stretch.next_value({t.lr: t.loss for t in trials}), length))
        rival = None
        if present is not None and all(_ratio(present, t.lr) >= CLOSE for t in trials):
            rival = trained(present, length)
    except _Stopped:
        return RaceOutcome(
            Suggestion(NAME, None, None, "The race was stopped, and the sweep's rate stays.")
        )
    suggestion = conclusion(lr, trials, start, schedule, rival)
    losses = _finite([*trials, *([rival] if rival else [])])
    lowest = min(losses.values(), default=None)
    doubt = "" if lowest is None or start.has_fallen_to(lowest) else _guess(start.loss, lowest)
    return RaceOutcome(suggestion, losses.get(suggestion.lr, lowest), doubt)


def _no_race(why: str) -> RaceOutcome:
    """No suggestion, so that the sweep's stays, and why there was no race."""
    return RaceOutcome(
        Suggestion(NAME, None, None, f"There was no race: {why}."),
        doubt=f"There was no race: {why}. The suggestion is the sweep's.",
    )


def _finite(trials: Sequence[RaceTrial]) -> dict[float | None, float]:
    """The losses that are finite, by their rates."""
    return {t.lr: t.loss for t in trials if math.isfinite(t.loss)}


def _ratio(rate: float, other: float) -> float:
    return max(rate / other, other / rate)


def climb(
    trials: list[RaceTrial], start: Start, left: int, schedule: str, trained: Stretch
) -> RaceOutcome:
    """Race higher rates than the sweep's, the first of `trials`, which does not change the loss,
    with `left` updates.

    A model leaves a plateau, such as the one around a saddle, after a certain rate x updates. So
    the rate is multiplied by `STEP` until it breaks the training, which takes few updates. Then a
    rate between the highest that did not break it and the lowest that did trains for all updates
    that are left, in which the loss may change.
    """
    first = trials[0]
    length, risen = first.updates, first.loss + CLEARLY * start.size
    low, high = max(t.lr for t in trials if t.loss < risen), math.inf
    while left >= stretch.FEWEST:
        rate, updates = (
            (low * STEP, min(length, left)) if high == math.inf else (math.sqrt(low * high), left)
        )
        trial = trained(rate, updates, Watch(start.level))
        trials.append(trial)
        left -= trial.updates
        if start.has_fallen_to(trial.loss):
            break
        if trial.loss < risen:
            low = rate
        else:
            high = rate
    better = [
        t
        for t in trials[1:]
        if t.loss < first.loss and _progress(t, start) > _progress(first, start)
    ]
    best = min(better, key=lambda t: t.loss, default=first)
    lowest = min(t.loss for t in trials)
    listed = _losses_in_words(trials, start.loss)
    if not start.has_fallen_to(lowest):
        which = "The sweep's rate stays" if best is first else "It is lowest at this one"
        why = f"no rate moves the loss. {which}. {listed}"
        return RaceOutcome(
            Suggestion(NAME, best.lr, None, why),
            None if best is first else best.loss,
            _guess(start.loss, lowest),
        )
    if best is first:
        why = f"no higher rate lowers the loss faster, so the sweep's rate stays. {listed}"
        return RaceOutcome(Suggestion(NAME, first.lr, None, why))
    # the loss changes in a stretch of the usual length, so other stretches of that length can be
    # compared with it
    if high == math.inf:
        while left >= length:
            trials.append(trained(stretch.next_value({t.lr: t.loss for t in trials}), length))
            left -= length
        suggestion, losses = conclusion(first.lr, trials, start, schedule), _finite(trials)
        return RaceOutcome(suggestion, losses.get(suggestion.lr, min(losses.values())))
    why = (
        f"the sweep's rate does not move the loss, and a higher one does. {listed}. A whole run"
        f" needs less than a part of one: {WHOLE:g} of that rate"
    )
    return RaceOutcome(Suggestion(NAME, max(low, WHOLE * best.lr), None, why), best.loss)


def _guess(start: float, lowest: float) -> str:
    """The doubt about a rate, if no rate changes the loss clearly."""
    return (
        f"This rate is a guess. In the race the held-out loss only went from {start:.3g} to"
        f" {lowest:.3g}. Train until it falls, then search again from there:"
        ' find_lr(start="continue", race=True).'
    )


def _progress(trial: RaceTrial, start: Start) -> float:
    """How much each update lowers the loss on average; the lengths of the stretches differ."""
    return (start.loss - trial.loss) / trial.updates


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


def conclusion(
    lr: float,
    trials: Sequence[RaceTrial],
    start: Start,
    schedule: str,
    present: RaceTrial | None = None,
) -> Suggestion:
    """The geometric mean of the rates, weighted by how low their losses are; for a run at a
    constant rate, times `CONSTANT`.

    `lr`, the sweep's suggestion, is kept if the mean is close to it, or if no rate on that side is
    clearly better. Only the factor for a constant rate needs no such evidence. A rate above `lr` is
    at least a factor `SPACING` below every rate that breaks the training, since rates near that one
    break a whole run, too. `present`, the rate that the run has, is kept if no other has a lower
    loss.
    """
    known = {t.lr: t.loss for t in trials if math.isfinite(t.loss)}
    listed = ", ".join(
        f"{units.rate(t.lr, 2)}: {t.loss:.3g}"
        for t in sorted((*trials, *([present] if present else [])), key=lambda t: t.lr)
    )
    why = f"held-out loss after {trials[0].updates} updates at each rate: {listed}"
    if present is not None and present.loss < min(known.values(), default=math.inf):
        lr = present.lr
        return Suggestion(NAME, lr, None, f"{why}. No rate is better than the present one")
    if not known:
        return Suggestion(
            NAME,
            lr,
            None,
            "no rate ends with a finite held-out loss. The sweep's rate stays, and may be too high",
        )
    excess = stretch.excess(known, start.loss, start.size, LEARNED)
    best = min(known, key=known.__getitem__)
    weights = {rate: loss ** (-1 / SOFTNESS) for rate, loss in excess.items()}
    mean = math.exp(
        sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values())
    )
    are_equal = max(excess.values()) < 1 + CLEARLY
    if are_equal:
        why += f". Beside the loss at the start, {start.loss:.3g}, these losses count as equal"
    constant = schedule in WITHOUT_LENGTH
    if constant:
        mean *= CONSTANT
        why += (
            f". A whole run at a constant rate needs less than these few updates: {CONSTANT:g} of"
            " the best rate"
        )
    if _ratio(mean, lr) < CLOSE:
        if are_equal:
            kept = f"So the sweep's rate, {units.rate(lr, 2)}, stays"
        elif excess.get(lr, math.inf) < 1 + CLEARLY:
            kept = f"These losses confirm {units.rate(lr, 2)}"
        else:
            kept = (
                f"The rate that follows from all of these losses is {units.rate(mean, 2)}. The"
                f" sweep's rate, {units.rate(lr, 2)}, is close to it and stays"
            )
        return Suggestion(NAME, lr, None, f"{why}. {kept}")
    side = "above" if mean > lr else "below"
    lowest_on_side = min(
        (loss for rate, loss in excess.items() if rate != lr and (rate > lr) == (mean > lr)),
        default=math.inf,
    )
    if (mean > lr or not constant) and excess.get(lr, math.inf) < (1 + CLEARLY) * lowest_on_side:
        return Suggestion(
            NAME, lr, None, f"{why}. No rate {side} {units.rate(lr, 2)} is clearly better"
        )
    # a rate below the best one that does not change the loss is just slow
    highest = max(lr, best)
    broken = min(
        (t.lr for t in trials if t.lr > highest and not t.loss < (start.loss + known[best]) / 2),
        default=math.inf,
    )
    if mean > lr and broken / SPACING < mean:
        mean = broken / SPACING
        if mean < CLOSE * lr:
            return Suggestion(
                NAME,
                lr,
                None,
                f"{why}. A higher rate is too near {units.rate(broken, 2)}, which"
                " breaks the training",
            )
    return Suggestion(NAME, mean, None, why)
