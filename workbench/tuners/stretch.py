"""Trains for a short stretch and computes the loss on held-out batches, by which values of a
setting are compared.

All stretches start from the same state and read the same batches. The held-out batches are the same
for all, and no stretch trains on them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from workbench.engine.backward import WindowForward
from workbench.engine.optim.optimizer_handle import OptimizerHandle, chain, put_lr
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.engine.validation.validate import validate
from workbench.instruments.finite import NonFiniteError
from workbench.settings import Settings, SettingsError
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.optim.optimizer_factory import leading_group
from workbench.task.protocol import Task
from workbench.techniques.schedules import Multiplier, built_in
from workbench.tuners.trial_batches import by_indices, cycled_windows
from workbench.values import shown

HELD_OUT = 16
"""The number of held-out batches: the first ones of the validation data, or, without a val_loss,
training batches on whose samples no stretch trains. In a short epoch these are fewer (`held_out`).
"""
_SHARE = 4
"""At most one in so many training batches is held out."""
FEWEST = 50
"""The fewest updates of a stretch; a shorter one gives no useful result."""
FURTHEST = 10.0
"""The largest ratio of the next value to those tried."""
MOVED = 0.15
"""If no value lowers the loss at the start by this share, stretches may only compare noise."""
LEARNED = 0.02
"""Losses below this share of the loss at the start are hard to compare."""


def check(name: str, updates: object, candidates: int, usual: int) -> None:
    """Raise SettingsError for a number of updates, the argument `name`, that is too small for
    this many `candidates`.
    """
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < candidates * FEWEST:
        raise SettingsError(
            f"{name}={shown(updates)}: give a whole number of at least {candidates * FEWEST},"
            f" {FEWEST} updates for each of {candidates} values; {usual} is usual."
        )


def refuse(task: Task, settings: Settings, what: str) -> None:
    """Raise TaskError for a task whose held-out loss cannot be computed without a step; `what`:
    the call or argument, for the error.
    """
    if task.manual:
        raise TaskError(
            f"{what}: the module steps its optimizers itself, so no held-out batch can be judged"
            " without training: compare fits."
        )
    if settings.truncated_bptt_steps is not None:
        raise TaskError(f"{what} does not work with truncated_bptt_steps: leave one of them out.")


def excess(
    losses: dict[float, float], start: float, size: float, learned: float
) -> dict[float, float]:
    """How many times the lowest loss each one is; the lowest loss counts as 1.

    A ratio says little of a loss that stays above a high floor, and nothing of one below 0. So
    where the loss has fallen by less than what is left of it, the differences are shares of that
    fall. A small fall counts as `MOVED` of `size`, and `learned` of the start is added to losses
    above 0, since noise decides below them. start: the loss before the stretches; size: that of a
    loss, which is `start` for losses above 0.
    """
    lowest = min(losses.values())
    unit = max(start - lowest, MOVED * size)
    if min(lowest, start) > 0:
        unit = min(unit, lowest + learned * start)
    return {value: 1 + (loss - lowest) / unit for value, loss in losses.items()}


def starting_loss(session: Session, length: int) -> tuple[float | None, str]:
    """The val_loss before any stretch of this length, and a reason. None and "": training batches
    are used instead. None and a reason: neither is possible.
    """
    with scratch(session):
        start = _val_loss(session)
    if math.isfinite(start):
        return start, ""
    if session.data.updates_in(session.state.epoch) == 1:
        return None, "an epoch has one update, and there is no val_loss to judge by (give val=)"
    if length > longest(session):
        return (
            None,
            (
                f"an epoch has fewer than {HELD_OUT + length} updates, its samples cannot be left"
                " out by their indices, and there is no val_loss to judge by (give val=)"
            ),
        )
    return None, ""


def longest(session: Session) -> float:
    """The most updates that a stretch can have where training batches judge it: samples of a stream
    cannot be left out, so it ends within an epoch.
    """
    in_epoch = session.data.updates_in(session.state.epoch)
    if in_epoch is None or by_indices(session.task, session.data.settings):
        return math.inf
    return in_epoch - HELD_OUT


def held_out(session: Session) -> int:
    """How many windows of the training data judge where there is no val_loss: `HELD_OUT`, or a
    smaller power of 2 that is at most a fourth of an epoch.
    """
    in_epoch = session.data.updates_in(session.state.epoch)
    if in_epoch is None:
        return HELD_OUT
    return min(HELD_OUT, 1 << (max(1, in_epoch // _SHARE).bit_length() - 1))


def schedule_of(settings: Settings, opt: OptimizerHandle) -> str:
    """The `lr_schedule` of the next fit; for the user's own OneCycleLR or CosineAnnealingLR, the
    name of the matching one.
    """
    if _follows(opt, OneCycleLR):
        return "one_cycle"
    return "cosine" if _follows(opt, CosineAnnealingLR) else settings.lr_schedule


def _follows(opt: OptimizerHandle, kind: type[LRScheduler]) -> bool:
    """Whether a scheduler of this kind sets the optimizer's rate."""
    return any(
        isinstance(scheduler, kind)
        for schedule in opt.schedules
        for scheduler in chain(schedule.scheduler)
    )


def shape(
    settings: Settings,
    schedule: str,
    length: int,
    warmup: float = 0.0,
    planned: int | None = None,
) -> list[float]:
    """The factor of the rate at each update of a stretch: the run's schedule of `planned` updates,
    compressed to `length` updates, of which this share are its warm-up.
    """
    if schedule == "inverse_sqrt" and not warmup:  # it falls with updates, and not with the run
        factor = Multiplier(schedule, 0, 0, settings.min_lr_ratio)
        return [factor(n * (planned or length) // length) for n in range(length)]
    if schedule == "constant" and not warmup:
        return [1.0] * length
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = built_in(optimizer, settings.replace(lr_schedule=schedule, warmup=warmup), length)
    assert scheduler is not None
    factors = []
    for _ in range(length):
        factors.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return factors


def multiplier(opt: OptimizerHandle, only: Sequence[int] | None = None) -> Callable[[float], None]:
    """Return a function that sets the rate of the first group that is not at 0; the others keep
    their ratio to it, and those at 0 stay at 0.

    only: the groups that follow, which the first of them that is not at 0 leads; the others keep
    their rates. The optimizer steps at these rates even where the user's code sets others.
    """
    optimizer, base = opt.optimizer, _base_rates(opt)
    numbers = range(len(base)) if only is None else only
    first = _first_rate(base, numbers)

    def set_lr(lr: float) -> None:
        for number, (group, base_lr) in enumerate(zip(optimizer.param_groups, base, strict=True)):
            if number not in numbers:
                put_lr(group, base_lr)
            elif base_lr == first:
                put_lr(group, lr)
            else:
                put_lr(group, lr * (base_lr / first))
        opt.hold_lrs()

    return set_lr


def present_rate(opt: OptimizerHandle, only: Sequence[int] | None = None) -> float | None:
    """The rate that the run has without a search, of the group that `multiplier` sets. None: it is
    0, or a OneCycleLR raises it from there to another one.
    """
    if _follows(opt, OneCycleLR):
        return None
    base = _base_rates(opt)
    return _first_rate(base, range(len(base)) if only is None else only) or None


def _first_rate(base: Sequence[float], numbers: Sequence[int]) -> float:
    """The first of these groups' rates that is not 0."""
    rates = [base[number] for number in numbers]
    return rates[leading_group(rates)]


def _base_rates(opt: OptimizerHandle) -> list[float]:
    """The rate of each group; a warm-up may have set all to 0 for now."""
    return [float(group.get("initial_lr", group["lr"])) for group in opt.optimizer.param_groups]


def loss_after(
    task: Task,
    settings: Settings,
    length: int,
    *,
    by_val: bool,
    broken: Callable[[float], bool] | None = None,
    held: int | None = None,
    warmup: float = 0.0,
) -> float:
    """The held-out loss after a stretch at the run's own rates, with its schedule compressed to
    `length` updates; the same on all ranks. The task is restored. broken, held: see `train`.
    warmup: the share of the stretch in which the rate rises first.
    """
    chosen = settings.replace(weight_averaging=None)
    with open_session(task, chosen) as session, scratch(session):
        setters = [(multiplier(opt), opt.base_lr) for opt in session.optimizers]

        def set_share(share: float) -> None:
            for set_lr, rate in setters:
                set_lr(rate * share)

        first = session.optimizers[0]
        shares = shape(
            chosen, schedule_of(session.settings, first), length, warmup, session.updates
        )
        loss = train(session, first, shares, set_share, by_val=by_val, broken=broken, held=held)
        return float(session.ranks.broadcast_object(loss))


def train(
    session: Session,
    opt: OptimizerHandle,
    rates: Sequence[float],
    set_lr: Callable[[float], None],
    *,
    by_val: bool,
    broken: Callable[[float], bool] | None = None,
    held: int | None = None,
) -> float:
    """Take an update at each of these rates, and return the held-out loss; inf: it is not finite.
    The caller restores the session. Raises `NonFiniteError` only where the data holds such values.

    broken: called with the training loss of each update; if it returns True, the stretch ends with
    inf. held: the number of held-out batches; None: `HELD_OUT` of validation data, `held_out` of
    training data.
    """
    judges = held_out(session) if held is None else held
    windows = cycled_windows(
        session.task,
        session.data.settings,
        epoch=session.state.epoch,
        in_step=session.parallel.rounds,
        held_out=0 if by_val else judges,
    )
    with contextlib.closing(windows) as feed:
        kept = [] if by_val else list(itertools.islice(feed, judges))
        session.train_mode()
        for other in session.optimizers:
            other.hold_lrs()
        try:
            for rate, window in zip(rates, feed, strict=False):
                set_lr(rate)
                rng.yield_lock()
                loss = train_step(session, window)
                if broken is not None:
                    ends = loss is not None and broken(
                        float(session.state.losses.get(opt.index, loss))
                    )
                    if session.ranks.broadcast_object(ends):
                        return math.inf
        except NonFiniteError as error:
            if error.of_batch:
                raise
            return math.inf
        return _val_loss(session, held or HELD_OUT) if by_val else _loss_of(session, opt, kept)


def next_value(losses: dict[float, float]) -> float:
    """The next value to try: beyond the best one if that is the smallest or the largest, by its
    ratio to the one beside it or by ten if that is less, else between it and its better neighbour.
    """
    values = sorted(losses)
    best = values.index(min(values, key=losses.__getitem__))
    if best == 0:
        return values[0] / min(values[1] / values[0], FURTHEST)
    if best == len(values) - 1:
        return values[-1] * min(values[-1] / values[-2], FURTHEST)
    neighbour = min(values[best - 1], values[best + 1], key=losses.__getitem__)
    return math.sqrt(values[best] * neighbour)


def _val_loss(session: Session, batches: int = HELD_OUT) -> float:
    """The val_loss of the first validation batches, for several sets the mean; inf: it is not
    finite, or the task reports none.
    """
    if not session.data.validates:
        return math.inf
    metrics = validate(session, session.data.first_val(batches), trial=True, aside=True)
    losses = (
        [metrics["val_loss"]]
        if "val_loss" in metrics
        else [loss for name, loss in metrics.items() if name.startswith("val_loss/")]
    )
    return sum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.inf


def _loss_of(session: Session, opt: OptimizerHandle, windows: Sequence[Sequence[object]]) -> float:
    """The mean loss of training batches, as in an evaluation; batches that the task leaves out
    do not count.
    """
    session.task.model.eval()
    results = []
    with torch.no_grad():
        for window in windows:
            forward = WindowForward(session, opt, window)
            results += [forward.run(number) for number in range(len(window))]
    session.weights.reshard()
    losses_of_rank = [float(result.loss) for result in results if result is not None]
    losses = [
        loss for of_rank in session.ranks.all_gather_object(losses_of_rank) for loss in of_rank
    ]
    mean = sum(losses) / len(losses) if losses else math.inf
    return mean if math.isfinite(mean) else math.inf
