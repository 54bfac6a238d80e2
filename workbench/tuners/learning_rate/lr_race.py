"""Races learning rates around a suggestion: each trains for a short stretch from the same state, held-out batches judge.

A sweep sees each rate for one update. The race sees four of them for some 75 updates each, so it notices what shows only later: noise at
rates that are too high, slow progress at rates that are too low. Batches that no stretch trains on judge all of them alike.

A stretch is short, so it favours high rates: they come further in few updates. A high rate has a cost, too: the loss is noisy at the end. A
rate that stays what it is shows this cost, and one that falls to 0 hides it. So a stretch keeps its rate, whatever the run's schedule: for a
run whose rate falls, the noise makes up for the short time. Only in the last fifth the rate falls to 0, so that chance decides less of the
loss at the end (Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024, has runs of that shape). A
run at a constant rate ends in noise as well, and has more updates in which lower rates catch up: it gets half of what is best in a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
"""The ratio of neighbouring candidates. What a sweep suggests is often three times off, seldom ten."""
SOFTNESS = 0.1
"""A rate whose loss is higher by about this share counts 1/e as much as the best one."""
CONSTANT = 0.5
"""What a run at a constant rate bears, of the rate that is best in a stretch."""
LEARNED = 0.05
"""The share of the loss at the start below which losses are alike: the task is nearly learned then, and noise decides which is lower."""
CLOSE = 1.75
"""Less than so many times apart, two rates are alike: a stretch tells no better."""
CLEARLY = 0.05
"""Another rate is suggested only where the loss at the sweep's is higher by this share than at one on its side."""
MOVED = 0.15
"""Where no rate lowers the loss at the start by this share, the stretches say nothing, and the sweep's rate stays."""


def race(
    session: Session,
    opt: OptimizerHandle,
    lr: float,
    updates: int,
    schedule: str,
    set_lr: Callable[[float], None],
    emit: Emit,
    inbox: Inbox,
) -> tuple[Suggestion, float | None]:
    """Race rates around `lr`, the sweep's, with `updates` updates in all; the session is as before afterwards.

    Three rates, `SPACING` apart, then a fourth beyond the best one, or between the best two. A Stop ends the race, and
    `lr` stays the suggestion. Returns the suggestion, and the lowest loss where losses decided it.
    """
    length = updates // CANDIDATES
    start, why = stretch.starting_loss(session, length)
    if why:
        return Suggestion(NAME, lr, None, f"There was no race: {why}. The sweep's rate stays"), None
    by_val = start is not None
    if start is None:
        with scratch(session):
            start = stretch.train(session, opt, [], set_lr, by_val=False)
    if not math.isfinite(start):
        return Suggestion(NAME, lr, None, "There was no race: the held-out loss is not finite at the start. The sweep's rate stays"), None
    factors = _shape(length)
    trials: list[RaceTrial] = []
    rates = [lr, lr / SPACING, lr * SPACING]
    while rates:
        rate = rates.pop(0)
        if inbox and inbox.has(Stop):
            return Suggestion(NAME, lr, None, "The race was stopped: the sweep's rate stays"), None
        with scratch(session):
            loss = stretch.train(session, opt, [rate * factor for factor in factors], set_lr, by_val=by_val)
        trials.append(RaceTrial(rate, length, loss))
        emit(trials[-1])
        if len(trials) == CANDIDATES - 1:
            rates.append(stretch.next_value({t.lr: t.loss for t in trials}))
    losses = [t.loss for t in trials if math.isfinite(t.loss)]
    if losses and start - min(losses) < MOVED * abs(start):
        return Suggestion(NAME, lr, None, f"the lowest held-out loss, {min(losses):.3g}, is hardly below {start:.3g}, that of the start: the sweep's rate"), None
    return conclusion(lr, trials, start, schedule), min(losses, default=None)


def _shape(length: int) -> list[float]:
    """The share of its rate that each update of a stretch has: all of it, and in the last fifth a cosine to 0."""
    falling = length // 5
    return [1.0] * (length - falling) + [0.5 * (1 + math.cos(math.pi * update / falling)) for update in range(falling)]


def conclusion(lr: float, trials: Sequence[RaceTrial], start: float, schedule: str) -> Suggestion:
    """The mean of the rates in decades, weighted by how low their losses are, for a run at a constant rate times `CONSTANT`.

    `lr`, the sweep's, stays where that is close to it, and where no rate on that side is clearly better. Only that a run at a constant
    rate bears less needs no such evidence. A rate above is at least `SPACING` times below every one that breaks the training: in a whole run
    what is near breaks, too. start: the loss before the race.
    """
    known = {t.lr: t.loss for t in trials if math.isfinite(t.loss)}
    if not known:
        return Suggestion(NAME, lr, None, "the held-out loss is not finite after any of the stretches: the sweep's rate stays, and may be too high")
    if min(known.values()) < 0 or start <= 0:
        return Suggestion(NAME, lr, None, "losses are compared by their ratios, and one of them is negative: the sweep's rate")
    losses = {rate: loss + LEARNED * start for rate, loss in known.items()}
    lowest, length = min(losses.values()), trials[0].updates
    weights = {rate: (lowest / loss) ** (1 / SOFTNESS) for rate, loss in losses.items()}
    found = math.exp(sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values()))
    told = ", ".join(f"{units.rate(t.lr, 2)}: {t.loss:.3g}" for t in sorted(trials, key=lambda t: t.lr))
    why = f"held-out loss after {length} updates at each rate: {told}"
    constant = schedule == "constant"
    if constant:
        found *= CONSTANT
        why += f". A whole run at a constant rate bears {CONSTANT:g} of what is best in so few updates"
    if max(found / lr, lr / found) < CLOSE:
        return Suggestion(NAME, lr, None, f"{why}. That confirms {units.rate(lr, 2)}")
    side = "above" if found > lr else "below"
    there = min((loss for rate, loss in losses.items() if rate != lr and (rate > lr) == (found > lr)), default=math.inf)
    if (found > lr or not constant) and losses.get(lr, math.inf) < (1 + CLEARLY) * there:
        return Suggestion(NAME, lr, None, f"{why}. No rate {side} {units.rate(lr, 2)} is clearly better")
    broken = min((t.lr for t in trials if t.lr > lr and not t.loss < (start + min(known.values())) / 2), default=math.inf)
    if found > lr and broken / SPACING < found:
        found = broken / SPACING
        if found < CLOSE * lr:
            return Suggestion(NAME, lr, None, f"{why}. {units.rate(broken, 2)} is near, which breaks the training")
    return Suggestion(NAME, found, None, why)
