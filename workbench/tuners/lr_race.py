"""Races learning rates around a suggestion: each trains for a short stretch from the same state, held-out batches judge.

A sweep sees each rate for one update. The race sees a few of them for some 75 updates each, with the run's schedule made
as short as the stretch, so it notices what shows only later: noise at rates that are too high, slow progress at rates that
are too low. Batches that no stretch trains on judge all of them alike. The result lies between the rates, nearer to the
better ones: single stretches are too noisy for the best one alone to decide.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence

import torch

from workbench.commands import Inbox, Stop
from workbench.engine import backward, rng
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.events import Emit, RaceTrial, Suggestion
from workbench.instruments.finite import NonFiniteError
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.techniques.schedules import built_in
from workbench.tuners.trial_batches import cycled_windows

NAME = "race"
CANDIDATES = 4
SPACING = 3.0
"""The ratio of neighbouring candidates."""
FEWEST = 50
"""Updates that a stretch needs: a shorter one says less than the sweep."""
HELD_OUT = 8
"""Windows of batches that judge, and that no stretch trains on."""
SOFTNESS = 0.4
"""A candidate whose loss is higher by this share counts 1/e as much as the best one."""


def check(updates: int) -> None:
    """Raise SettingsError for a number of updates that is too small for a race."""
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < CANDIDATES * FEWEST:
        raise SettingsError(
            f"race_updates={updates!r}: {CANDIDATES} learning rates train for at least {FEWEST} updates each; 300 is usual."
        )


def refuse(session: Session) -> None:
    """Raise TaskError for a task that cannot be judged without a step."""
    if session.task.manual:
        raise TaskError("race=True: the module steps its optimizers itself, so batches cannot judge without training: leave it out.")
    if session.tbptt is not None:
        raise TaskError("race=True does not work with truncated_bptt_steps: leave one of them out.")


def race(
    session: Session,
    opt: OptimizerHandle,
    lr: float,
    updates: int,
    schedule: str,
    set_lr: Callable[[float], None],
    emit: Emit,
    inbox: Inbox,
) -> Suggestion:
    """Race rates around `lr` with `updates` updates in all; the session is as before afterwards.

    Three rates, `SPACING` apart, then a fourth beyond the best one, or between the best two. A Stop ends the race, and
    `lr` stays the suggestion.
    """
    length = updates // CANDIDATES
    factors = _shape(session.settings, schedule, length)
    trials: list[RaceTrial] = []
    rates = [lr, lr / SPACING, lr * SPACING]
    while rates:
        rate = rates.pop(0)
        if inbox and inbox.has(Stop):
            return Suggestion(NAME, lr, None, "the race was stopped: the sweep's rate")
        with scratch(session):
            loss = _stretch(session, opt, [rate * factor for factor in factors], set_lr)
        trials.append(RaceTrial(rate, length, session.ranks.broadcast_object(loss)))
        emit(trials[-1])
        if len(trials) == CANDIDATES - 1:
            rates.append(next_rate({t.lr: t.loss for t in trials}))
    return conclusion(lr, trials)


def next_rate(losses: dict[float, float]) -> float:
    """The rate to try after these: one beyond the best where it lies at an end, else between it and its better neighbour."""
    rates = sorted(losses)
    best = rates.index(min(rates, key=losses.__getitem__))
    if best == 0:
        return rates[0] ** 2 / rates[1]
    if best == len(rates) - 1:
        return rates[-1] ** 2 / rates[-2]
    neighbour = min(rates[best - 1], rates[best + 1], key=losses.__getitem__)
    return math.sqrt(rates[best] * neighbour)


def conclusion(lr: float, trials: Sequence[RaceTrial]) -> Suggestion:
    """The mean of the rates in decades, weighted by how low their losses are; `lr` where nothing tells them apart."""
    losses = {t.lr: t.loss for t in trials if math.isfinite(t.loss) and t.loss > 0}
    if len(losses) < 2:
        return Suggestion(NAME, lr, None, "fewer than two rates of the race have a loss to compare: the sweep's rate")
    lowest = min(losses.values())
    weights = {rate: math.exp(-math.log(loss / lowest) / SOFTNESS) for rate, loss in losses.items()}
    total = sum(weights.values())
    centre = math.exp(sum(weight * math.log(rate) for rate, weight in weights.items()) / total)
    best = min(losses, key=losses.__getitem__)
    told = ", ".join(f"{rate:.2g}: {losses[rate]:.3g}" for rate in sorted(losses))
    return Suggestion(NAME, centre, None, f"held-out loss after {trials[0].updates} updates at each rate ({told}); lowest at {best:.2g}")


def _shape(settings: Settings, schedule: str, length: int) -> list[float]:
    """The share of its rate that each update of a stretch has: the run's schedule in so many updates."""
    if schedule == "constant":
        return [1.0] * length
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    made = built_in(optimizer, settings.replace(lr_schedule=schedule, warmup=0), length)
    assert made is not None
    factors = []
    for _ in range(length):
        factors.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        made.step()
    return factors


def _stretch(session: Session, opt: OptimizerHandle, rates: Sequence[float], set_lr: Callable[[float], None]) -> float:
    """The mean loss of the held-out windows after an update at each of these rates; inf: it was not finite."""
    windows = cycled_windows(session.task, session.data.settings, epoch=session.state.epoch, in_step=session.parallel.rounds)
    with contextlib.closing(windows) as feed:
        held = list(itertools.islice(feed, HELD_OUT))
        session.train_mode()
        try:
            for rate, window in zip(rates, feed, strict=False):
                set_lr(rate)
                rng.yield_lock()
                train_step(session, window)
            session.task.model.eval()
            with torch.no_grad():
                return _mean([float(backward.losses(session, opt, window)) / len(window) for window in held])
        except NonFiniteError:
            return math.inf


def _mean(losses: Sequence[float]) -> float:
    found = sum(losses) / len(losses)
    return found if math.isfinite(found) else math.inf
