"""Races learning rates around a suggestion: each trains for a short stretch from the same state, held-out batches judge.

A sweep sees each rate for one update. The race sees a few of them for some 75 updates each, with the run's schedule made
as short as the stretch, so it notices what shows only later: noise at rates that are too high, slow progress at rates that
are too low. Batches that no stretch trains on judge all of them alike. The result lies between the rates, nearer to the
better ones: single stretches are too noisy for the best one alone to decide.
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
SOFTNESS = 0.2
"""A rate whose loss is higher by about this share counts 1/e as much as the best one."""
CLEARLY = 0.2
"""A rate above the first is suggested only where the loss at the first is higher by about this share than the lowest:
too high a rate costs more than one that is too low.
"""
LOWER = 1.78
"""For a schedule that begins at its highest rate the race begins below the sweep's rate by this factor: its stretches are
too short to show what a rate that is too high costs there. A sweep's rate for a constant schedule is as much lower.
"""
MOVED = 0.15
"""Where no rate lowers the loss at the start by this share, the stretches say nothing, and the sweep's rate stays."""
LONGER = 0.1
"""A run longer than a stretch needs a lower rate: by its length, in stretches, to the power of this. Bjorck et al. 2024
("Scaling optimal LR across token horizons") measured about 0.3 for language models.
"""


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
        return Suggestion(NAME, lr, None, f"no race: {why}. The sweep's rate"), None
    factors = stretch.shape(session.settings, schedule, length)
    trials: list[RaceTrial] = []
    middle = lr / LOWER if schedule in ("linear", "cosine") else lr
    rates = [middle, middle / SPACING, middle * SPACING]
    while rates:
        rate = rates.pop(0)
        if inbox and inbox.has(Stop):
            return Suggestion(NAME, lr, None, "the race was stopped: the sweep's rate"), None
        with scratch(session):
            loss = stretch.train(session, opt, [rate * factor for factor in factors], set_lr, by_val=start is not None)
        trials.append(RaceTrial(rate, length, loss))
        emit(trials[-1])
        if len(trials) == CANDIDATES - 1:
            rates.append(stretch.next_value({t.lr: t.loss for t in trials}))
    losses = [t.loss for t in trials if math.isfinite(t.loss)]
    if start is not None and losses and start - min(losses) < MOVED * abs(start):
        return Suggestion(NAME, lr, None, f"the lowest held-out loss, {min(losses):.3g}, is hardly below {start:.3g}, that of the start: the sweep's rate"), None
    return conclusion(middle, trials, session.data.updates(), start or 0.0), min(losses) if len(losses) > 1 else None


def conclusion(lr: float, trials: Sequence[RaceTrial], planned: int | None = None, start: float = 0.0) -> Suggestion:
    """The mean of the rates in decades, weighted by how low their losses are, for a run of `planned` updates.

    `lr`, which is the first of the rates, stays where nothing speaks clearly for another. start: the loss
    before the race; losses that differ by a few hundredths of it are alike, since the task is nearly learned then.
    """
    losses = {t.lr: t.loss + stretch.LEARNED * start for t in trials if math.isfinite(t.loss) and t.loss > 0}
    if len(losses) < 2:
        return Suggestion(NAME, lr, None, "fewer than two rates of the race have a loss to compare: the first of them")
    lowest, length = min(losses.values()), trials[0].updates
    weights = {rate: (lowest / loss) ** (1 / SOFTNESS) for rate, loss in losses.items()}
    centre = math.exp(sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values()))
    centre /= min(2.0, max(1.0, (planned or length) / length) ** LONGER)
    told = ", ".join(f"{units.rate(t.lr, 2)}: {t.loss:.3g}" for t in sorted(trials, key=lambda t: t.lr))
    why = f"held-out loss after {length} updates at each rate: {told}"
    if centre > lr and losses.get(lr, math.inf) < lowest * (1 + CLEARLY):
        return Suggestion(NAME, lr, None, f"{why}. No rate above {units.rate(lr, 2)} is clearly better")
    return Suggestion(NAME, centre, None, why)
