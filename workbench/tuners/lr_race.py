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
from workbench.engine import rng
from workbench.engine.backward import WindowForward
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.engine.validation.validate import validate
from workbench.events import Emit, RaceTrial, Suggestion
from workbench.instruments.finite import NonFiniteError
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.techniques.schedules import built_in
from workbench.tuners.trial_batches import cycled_windows

NAME = "race"
CANDIDATES = 4
SPACING = 2.5
"""The ratio of neighbouring candidates."""
FEWEST = 50
"""Updates that a stretch needs: a shorter one says less than the sweep."""
HELD_OUT = 16
"""Batches that judge: the first of the validation data, or, where they have no val_loss, training batches that are left out."""
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
LEARNED = 0.02
"""The share of the loss at the start below which a loss says little."""
LONGER = 0.1
"""A run longer than a stretch needs a lower rate: by its length, in stretches, to the power of this. Bjorck et al. 2024
("Scaling optimal LR across token horizons") measured about 0.3 for language models.
"""


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
) -> tuple[Suggestion, bool]:
    """Race rates around `lr`, the sweep's, with `updates` updates in all; the session is as before afterwards.

    Three rates, `SPACING` apart, then a fourth beyond the best one, or between the best two. A Stop ends the race, and
    `lr` stays the suggestion. Returns the suggestion, and whether losses decided it.
    """
    length = updates // CANDIDATES
    with scratch(session):
        start = _val_loss(session)
    by_val = math.isfinite(start)
    in_epoch = session.data.updates_in(session.state.epoch)
    if not by_val and in_epoch is not None and in_epoch < HELD_OUT + length:
        why = f"no race: an epoch has fewer than {HELD_OUT + length} updates, and there is no val_loss to judge by (give val=)"
        return Suggestion(NAME, lr, None, f"{why}. The sweep's rate"), False
    factors = _shape(session.settings, schedule, length)
    trials: list[RaceTrial] = []
    middle = lr / LOWER if schedule in ("linear", "cosine") else lr
    rates = [middle, middle / SPACING, middle * SPACING]
    while rates:
        rate = rates.pop(0)
        if inbox and inbox.has(Stop):
            return Suggestion(NAME, lr, None, "the race was stopped: the sweep's rate"), False
        with scratch(session):
            loss = _stretch(session, opt, [rate * factor for factor in factors], set_lr, by_val=by_val)
        trials.append(RaceTrial(rate, length, loss))
        emit(trials[-1])
        if len(trials) == CANDIDATES - 1:
            rates.append(next_rate({t.lr: t.loss for t in trials}))
    decided = sum(math.isfinite(t.loss) for t in trials) > 1
    return conclusion(middle, trials, session.data.updates(), start if by_val else 0.0), decided


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


def conclusion(lr: float, trials: Sequence[RaceTrial], planned: int | None = None, start: float = 0.0) -> Suggestion:
    """The mean of the rates in decades, weighted by how low their losses are, for a run of `planned` updates.

    `lr`, which is the first of the rates, stays where nothing speaks clearly for another. start: the loss
    before the race; losses that differ by a few hundredths of it are alike, since the task is nearly learned then.
    """
    losses = {t.lr: t.loss + LEARNED * start for t in trials if math.isfinite(t.loss) and t.loss > 0}
    if len(losses) < 2:
        return Suggestion(NAME, lr, None, "fewer than two rates of the race have a loss to compare: the first of them")
    lowest, length = min(losses.values()), trials[0].updates
    weights = {rate: (lowest / loss) ** (1 / SOFTNESS) for rate, loss in losses.items()}
    centre = math.exp(sum(weight * math.log(rate) for rate, weight in weights.items()) / sum(weights.values()))
    centre /= min(2.0, max(1.0, (planned or length) / length) ** LONGER)
    told = ", ".join(f"{t.lr:.2g}: {t.loss:.3g}" for t in sorted(trials, key=lambda t: t.lr))
    why = f"held-out loss after {length} updates at each rate: {told}"
    if centre > lr and losses.get(lr, math.inf) < lowest * (1 + CLEARLY):
        return Suggestion(NAME, lr, None, f"{why}. No rate above {lr:.2g} is clearly better")
    return Suggestion(NAME, centre, None, why)


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


def _stretch(
    session: Session, opt: OptimizerHandle, rates: Sequence[float], set_lr: Callable[[float], None], *, by_val: bool
) -> float:
    """The held-out loss after an update at each of these rates; inf: it is not finite."""
    windows = cycled_windows(session.task, session.data.settings, epoch=session.state.epoch, in_step=session.parallel.rounds)
    with contextlib.closing(windows) as feed:
        held = [] if by_val else list(itertools.islice(feed, HELD_OUT))
        session.train_mode()
        try:
            for rate, window in zip(rates, feed, strict=False):
                set_lr(rate)
                rng.yield_lock()
                train_step(session, window)
        except NonFiniteError:
            return math.inf
        return _val_loss(session) if by_val else _loss_of(session, opt, held)


def _val_loss(session: Session) -> float:
    """The val_loss of the first validation batches; inf: there is none, or it is not finite."""
    batches = session.data.first_val(HELD_OUT)
    found = validate(session, batches, trial=True, aside=True).get("val_loss", math.inf) if session.data.validates else math.inf
    return found if math.isfinite(found) else math.inf


def _loss_of(session: Session, opt: OptimizerHandle, windows: Sequence[Sequence[object]]) -> float:
    """The mean loss of training batches, as in an evaluation; batches that the task leaves out do not count."""
    session.task.model.eval()
    results = []
    with torch.no_grad():
        for window in windows:
            forward = WindowForward(session, opt, window)
            results += [forward.run(number) for number in range(len(window))]
    session.weights.reshard()
    own = [float(result.loss) for result in results if result is not None]
    losses = [loss for of_rank in session.ranks.all_gather_object(own) for loss in of_rank]
    found = sum(losses) / len(losses) if losses else math.inf
    return found if math.isfinite(found) else math.inf
