"""The built-in learning-rate schedules: a warm-up, then constant, linear, cosine, or one cycle.

All of them step once per update. Sources: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm
Restarts" (2017) for the cosine, here without restarts; Smith and Topin, "Super-Convergence" (2018) for one cycle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from workbench.settings import Settings
from workbench.task.errors import TaskError


@dataclass(frozen=True)
class Multiplier:
    """What the base rate is multiplied by at each update; an object, so that a LambdaLR's state keeps it."""

    shape: str
    warmup: int
    updates: int
    """Of the whole run; not looked at where the shape is "constant"."""

    def __call__(self, update: int) -> float:
        """The factor of one update, counted from 0. Behind the last update it stays where it has come to."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        done = min(1.0, (update - self.warmup) / (self.updates - self.warmup))
        return 1.0 - done if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


def wanted(settings: Settings) -> bool:
    """Whether the settings ask for a schedule at all."""
    return settings.lr_schedule != "constant" or bool(settings.warmup)


def built_in(optimizer: Optimizer, settings: Settings, updates: int | None) -> LRScheduler | None:
    """The schedule that the settings ask for, over a run of so many updates (None: unknown); None: the rate stays.

    Parameter groups keep their ratios: each group's own rate is what its schedule starts from or rises to.
    """
    shape = settings.lr_schedule
    if updates == 0 or not wanted(settings):
        return None
    warmup = _warmup(settings, updates)
    if shape == "constant":
        return _lambda(optimizer, Multiplier(shape, warmup, 0))
    if updates is None:
        raise _unknown(f"lr_schedule={shape!r}", "lr_schedule='constant'")
    if shape == "one_cycle":
        return _one_cycle(optimizer, updates, warmup if settings.warmup else None)
    return _lambda(optimizer, Multiplier(shape, warmup, updates))


def is_built_in(schedule: object, settings: Settings) -> bool:
    """Whether a scheduler of a run with these settings is one that `built_in` has made."""
    if isinstance(schedule, LambdaLR):
        return isinstance(schedule.lr_lambdas[0], Multiplier)
    return isinstance(schedule, OneCycleLR) and settings.lr_schedule == "one_cycle"


def move_to(schedule: LRScheduler, update: int) -> None:
    """The rates of a fresh schedule as they are behind so many updates, for a run that is not begun anew with it."""
    if isinstance(schedule, OneCycleLR):
        update = min(update, schedule.total_steps - 1)
    if not update:
        return
    schedule.last_epoch = update - 1
    schedule._step_count = update + 1  # torch's own count begins at 1; at 1 it would ask for a step of the optimizer
    schedule.step()
    schedule._step_count = update + 1


def _warmup(settings: Settings, updates: int | None) -> int:
    """The warm-up in updates, which leaves at least one update of the run behind it."""
    asked = settings.warmup
    if updates is None:
        if isinstance(asked, float) and asked:
            raise _unknown(f"warmup={asked!r}", "a number of updates (warmup=100)")
        return int(asked)
    length = asked if isinstance(asked, int) else round(asked * updates)
    if length < updates:
        return length
    if (
        settings.fast_dev_run
    ):  # a dry run is short on purpose, and should try the schedule rather than refuse it
        return updates - 1
    come_to = "" if isinstance(asked, int) else f" comes to {length} updates, which"
    raise TaskError(
        f"warmup={asked!r}{come_to} is not shorter than the run of {updates} updates: give fewer updates or a "
        "fraction of the run (warmup=0.1), or make the run longer (max_epochs, max_steps)."
    )


def _unknown(what: str, instead: str) -> TaskError:
    return TaskError(
        f"{what} needs the number of updates, which is not known for this run (training data without a length, or "
        f"max_time alone): give max_steps, or {instead}."
    )


def _lambda(optimizer: Optimizer, multiplier: Multiplier) -> LambdaLR:
    for group in optimizer.param_groups:  # an earlier scheduler's base would win over the group's rate
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, multiplier)


def _one_cycle(optimizer: Optimizer, updates: int, warmup: int | None) -> OneCycleLR:
    rise = 0.3 if warmup is None else warmup / updates
    if warmup == 1:
        # The peak is the first update, and torch divides by the length of the way there. A hair less, and it is
        # the fall that begins at the first update, with the peak.
        rise *= 1 - 1e-9
    return OneCycleLR(
        optimizer,
        max_lr=[float(group["lr"]) for group in optimizer.param_groups],
        total_steps=updates,
        pct_start=rise,
        cycle_momentum=_has_momentum(optimizer),
    )


def _has_momentum(optimizer: Optimizer) -> bool:
    """Whether there is a momentum that may be cycled: none is turned on in a group that has none."""
    if "betas" in optimizer.defaults:
        return True
    return "momentum" in optimizer.defaults and all(group["momentum"] for group in optimizer.param_groups)
