"""Races learning rates around a suggestion: each trains for a short stretch from the same state, held-out batches judge.

A sweep sees each rate for one update. The race sees a few of them for some 75 updates each, with the run's schedule made
as short as the stretch, so it notices what shows only later: noise at rates that are too high, slow progress at rates that
are too low. Batches that no stretch trains on judge all of them alike. The sweep's rate stays unless others are clearly better.
Then the result lies between the rates, nearer to the better ones: single stretches are too noisy for the best one alone to decide.
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
SPACING = 2.5
"""The ratio of neighbouring candidates."""
SOFTNESS = 0.1
"""A rate whose loss is higher by about this share counts 1/e as much as the best one."""
HIGHER, LOWER = 0.2, 0.1
"""A rate above the sweep's is suggested only where the loss at the sweep's is higher by about this share than at one above, and the
same for a rate below. A short stretch favours high rates, and too high a rate costs more than one that is too low.
"""
LEARNED = 2 / 3
"""A rate above is suggested only where some rate lowers the loss at the start by this share: who is ahead in the first part of a
training says little of its end.
"""
MOVED = 0.15
"""Where no rate lowers it even by this share, the stretches say nothing, and the sweep's rate stays."""
MARGIN = SPACING**2
"""A rate above is so many times below every one that breaks the training: in a whole run what is near breaks, too."""


def race(
    session: Session,
    opt: OptimizerHandle,
    lr: float,
    updates: int,
    schedule: str,
    adaptive: bool,
    set_lr: Callable[[float], None],
    emit: Emit,
    inbox: Inbox,
) -> tuple[Suggestion, float | None]:
    """Race rates around `lr`, the sweep's, with `updates` updates in all; the session is as before afterwards.

    Three rates, `SPACING` apart, then a fourth beyond the best one, or between the best two. A Stop ends the race, and
    `lr` stays the suggestion. adaptive: whether the optimizer scales gradients per parameter. Returns the suggestion, and the
    lowest loss where losses decided it.
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
    factors = stretch.shape(session.settings, schedule, length)
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
    planned = session.data.updates()  # None: without end
    noisy = schedule == "constant" or adaptive
    longer = max(1.0, math.inf if planned is None else planned / length) if noisy else 1.0
    return conclusion(lr, trials, start, longer), min(losses, default=None)


def conclusion(lr: float, trials: Sequence[RaceTrial], start: float, longer: float = 1.0) -> Suggestion:
    """The mean of the rates in decades, weighted by how low their losses are; `lr`, the sweep's, where nothing speaks clearly for others.

    start: the loss before the race; losses that differ by a few hundredths of it are alike, since the task is nearly learned then.
    longer: how many times as long as a stretch the run is, where it ends in noise that grows with the rate: where the rate stays, or the
    optimizer's steps do not shrink with the gradient. What a higher rate reaches in a stretch, a lower one reaches in so much longer a
    run, with less noise at its end; so a rate above is lowered by this factor.
    """
    losses = {t.lr: t.loss + stretch.LEARNED * start for t in trials if math.isfinite(t.loss) and t.loss > 0}
    if not losses:
        return Suggestion(NAME, lr, None, "no rate of the race has a loss above 0 to compare: the sweep's rate")
    lowest, length = min(losses.values()), trials[0].updates
    weights = {rate: (lowest / loss) ** (1 / SOFTNESS) for rate, loss in losses.items()}
    centre = math.exp(sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values()))
    told = ", ".join(f"{units.rate(t.lr, 2)}: {t.loss:.3g}" for t in sorted(trials, key=lambda t: t.lr))
    why = f"held-out loss after {length} updates at each rate: {told}"
    side, least = ("above", HIGHER) if centre > lr else ("below", LOWER)
    there = min((loss for rate, loss in losses.items() if (rate > lr) == (centre > lr) and rate != lr), default=math.inf)
    if losses.get(lr, math.inf) < there * (1 + least):
        return Suggestion(NAME, lr, None, f"{why}. No rate {side} {units.rate(lr, 2)} is clearly better")
    if centre < lr:
        return Suggestion(NAME, centre, None, why)
    if lowest > (1 + stretch.LEARNED - LEARNED) * start:
        return Suggestion(NAME, lr, None, f"{why}. Rates above {units.rate(lr, 2)} are ahead, but too little is learned by then")
    centre /= longer
    broken = [t.lr for t in trials if t.lr > lr and not t.loss < (start + lowest) / 2]
    higher = min(centre, min(broken, default=math.inf) / MARGIN)
    if higher <= 1.01 * lr:
        whole = "the whole run makes up for that" if centre <= 1.01 * lr else f"{units.rate(min(broken), 2)} is near, which breaks the training"
        return Suggestion(NAME, lr, None, f"{why}. Rates above {units.rate(lr, 2)} are ahead, but {whole}")
    return Suggestion(NAME, higher, None, why)
