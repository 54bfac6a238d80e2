"""Makes the built-in learning-rate schedules: a warm-up, then one of the shapes.

All of them step once per update. Sources: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent
with Warm Restarts" (2017) for the cosine, once and with restarts; Smith and Topin,
"Super-Convergence" (2018) for one cycle; Hu et al., "MiniCPM" (2024) for warm-up, stable and decay;
Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations" (2024)
for its fall by 1 - sqrt; Vaswani et al., "Attention Is All You Need" (2017) for the inverse square
root.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.optim.part_optimizers import PartOptimizers

WITHOUT_LENGTH = ("constant", "inverse_sqrt")
"""The shapes that do not depend on the length of the run."""
UPDATES_OF_SQRT = 10_000
"""The updates after which "inverse_sqrt" without a warm-up is at 0.7."""
_SHAPES = {
    "wsd": ("decay_fraction", "decay_shape"),
    "polynomial": ("lr_power",),
    "cosine_restarts": ("restarts",),
}
"""The settings that only one shape has."""


@dataclass(frozen=True)
class Multiplier:
    """Computes the factor of the base rate at each update; an object, so that a LambdaLR's
    state_dict contains it.
    """

    shape: str
    warmup: int
    updates: int
    """Updates of the whole run; not used by the shapes in `WITHOUT_LENGTH`."""
    min_lr_ratio: float = 0.0
    decay_fraction: float = 0.2
    decay_shape: str = "1-sqrt"
    lr_power: float = 2.0
    restarts: int = 3

    def __call__(self, update: int) -> float:
        """Return the factor of one update, counted from 0. After the last update the factor does
        not change, but for "inverse_sqrt".
        """
        if update < self.warmup:
            return (update + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        if self.shape == "inverse_sqrt":  # half of the rate after four warm-ups
            scale = self.warmup or UPDATES_OF_SQRT
            return max(self.min_lr_ratio, 1.0 / math.sqrt((update + scale - self.warmup) / scale))
        return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * self._falling(update)

    def _falling(self, update: int) -> float:
        """From 1 to 0 over the run."""
        done = min(1.0, (update - self.warmup) / (self.updates - self.warmup))
        if self.shape == "polynomial":
            return math.pow(1.0 - done, self.lr_power)
        if self.shape == "cosine_restarts" and done < 1.0:
            done = done * (self.restarts + 1) % 1.0
        falls = "linear" if self.shape == "linear" else "cosine"
        if self.shape == "wsd":
            begin = max(self.warmup, self.updates - round(self.decay_fraction * self.updates))
            done = min(1.0, max(0.0, (update - begin) / max(self.updates - begin, 1)))
            falls = self.decay_shape
        if falls == "linear":
            return 1.0 - done
        return (
            1.0 - math.sqrt(done) if falls == "1-sqrt" else 0.5 * (1.0 + math.cos(math.pi * done))
        )


class _Lambda(LambdaLR):
    """A parameter group that a hook adds follows it too, with its rate at that time as its base."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups[len(self.base_lrs) :]:
            group["initial_lr"] = group["lr"]
            # a state that was loaded may be loaded again
            self.base_lrs = [*self.base_lrs, group["lr"]]
            self.lr_lambdas = [*self.lr_lambdas, self.lr_lambdas[0]]
        return super().get_lr()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lr_lambdas = [self.lr_lambdas[0]] * len(state_dict["lr_lambdas"])
        super().load_state_dict(state_dict)


class _OneCycle(OneCycleLR):
    def get_lr(self) -> list[Any]:
        if len(self.optimizer.param_groups) > len(self.base_lrs):
            raise TaskError(
                "lr_schedule='one_cycle': a hook has added a parameter group to the optimizer, and"
                " one cycle has a rate for each group from its beginning. Take another schedule,"
                " such as lr_schedule='cosine', or give all groups in configure_optimizers."
            )
        return super().get_lr()


def has_schedule(settings: Settings) -> bool:
    """Whether the settings ask for a schedule."""
    return settings.lr_schedule != "constant" or bool(settings.warmup)


def options(settings: Settings) -> dict[str, Any]:
    """The settings that change the shape of the schedule, by name, where they have an effect."""
    names = _SHAPES.get(settings.lr_schedule, ())
    if settings.min_lr_ratio:
        names = (*names, "min_lr_ratio")
    return {name: getattr(settings, name) for name in names}


def needs_length(settings: Settings) -> bool:
    """Whether the schedule depends on the number of updates of the run."""
    return settings.lr_schedule not in WITHOUT_LENGTH or isinstance(settings.warmup, float)


def built_in(optimizer: Optimizer, settings: Settings, updates: int | None) -> LRScheduler | None:
    """Make the schedule of the settings for a run of `updates` updates (None: unknown); None: the
    rate is constant.

    Parameter groups keep their ratios: each group's own rate is the base of its schedule.
    """
    shape = settings.lr_schedule
    if updates == 0 or not has_schedule(settings):
        return None
    warmup = warmup_of(settings, updates)
    if shape in WITHOUT_LENGTH:
        return _lambda(optimizer, Multiplier(shape, warmup, 0, **options(settings)))
    if updates is None:
        raise _unknown(f"lr_schedule={shape!r}", "lr_schedule='constant'")
    falls = round(settings.decay_fraction * updates)
    overlap = shape == "wsd" and isinstance(settings.warmup, int) and warmup + falls > updates
    if overlap and not settings.fast_dev_run:  # shares are checked when they are set
        raise TaskError(
            f"warmup={warmup} and decay_fraction={settings.decay_fraction} ({falls} updates)"
            f" overlap in a run of {updates} updates: with lr_schedule='wsd' the rate rises, stays"
            " and falls. Make one smaller, or the run longer (max_epochs, max_steps)."
        )
    if shape == "one_cycle":
        return _one_cycle(optimizer, updates, warmup if settings.warmup else None)
    return _lambda(optimizer, Multiplier(shape, warmup, updates, **options(settings)))


def shape_of(settings: Settings, updates: int, points: int) -> list[float]:
    """The rate at this many updates, evenly spread over a run of `updates` updates, as shares of
    the largest; empty where the rate is constant. TaskError: the run is too short for the warm-up.
    """
    optimizer = SGD([torch.zeros(1)], lr=1.0)
    schedule = built_in(optimizer, settings, updates)
    if schedule is None:
        return []
    rates = [float(optimizer.param_groups[0]["lr"])]
    for point in range(1, points):
        fast_forward(schedule, round(point * (updates - 1) / (points - 1)))
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return [rate / max(rates) for rate in rates]


def is_built_in(schedule: object, settings: Settings) -> bool:
    """Whether `built_in` made this scheduler of a run with these settings."""
    if isinstance(schedule, LambdaLR):
        return isinstance(schedule.lr_lambdas[0], Multiplier)
    return isinstance(schedule, OneCycleLR) and settings.lr_schedule == "one_cycle"


def has_ended(schedule: object) -> bool:
    """Whether a built-in one cycle has ended. If the run gets longer than planned (a smaller
    batch size), the last rate is kept.
    """
    return isinstance(schedule, _OneCycle) and schedule.last_epoch >= schedule.total_steps - 1


def fast_forward(schedule: LRScheduler, update: int) -> None:
    """Set a new schedule to the rates after `update` updates, for a run that changes to it or
    resumes with it.
    """
    if isinstance(schedule, OneCycleLR):
        update = min(update, schedule.total_steps - 1)
    if not update:
        return
    schedule.last_epoch = update - 1
    # torch's count begins at 1, and at 1 it warns that the optimizer has not stepped
    schedule._step_count = update + 1
    schedule.step()
    schedule._step_count = update + 1


def warmup_of(settings: Settings, updates: int | None) -> int:
    """Return the warm-up in updates; it leaves at least one update of a run of `updates` updates
    (None: unknown).
    """
    asked = settings.warmup
    if updates == 0:
        return 0
    if updates is None:
        if isinstance(asked, float) and asked:
            raise _unknown(f"warmup={asked!r}", "a number of updates (warmup=100)")
        return int(asked)
    length = asked if isinstance(asked, int) else round(asked * updates)
    if length < updates:
        return length
    if settings.fast_dev_run:  # a dry run is short on purpose, and tries the schedule
        return updates - 1
    come_to = "" if isinstance(asked, int) else f" comes to {length} updates, which"
    raise TaskError(
        f"warmup={asked!r}{come_to} is not shorter than the run of {updates} updates: give fewer"
        " updates or a fraction of the run (warmup=0.1), or make the run longer (max_epochs,"
        " max_steps)."
    )


def _unknown(what: str, instead: str) -> TaskError:
    return TaskError(
        f"{what} needs the number of updates, which is not known for this run (training data"
        " without a length, truncated_bptt_steps, or max_time alone): give max_steps, or"
        f" {instead}."
    )


def _lambda(optimizer: Optimizer, multiplier: Multiplier) -> LambdaLR:
    # else an earlier scheduler's base would replace the group's rate
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return _Lambda(optimizer, multiplier)


def _one_cycle(optimizer: Optimizer, updates: int, warmup: int | None) -> OneCycleLR:
    if isinstance(optimizer, PartOptimizers) and not optimizer.cycles:
        raise TaskError(
            "lr_schedule='one_cycle' moves one momentum, and the parts of optimizer={…} have"
            " different ones: take another schedule, or optimizers of one kind."
        )
    rise = 0.3 if warmup is None else warmup / updates
    if warmup == 1:
        # The peak is the first update, and torch would divide by a rise of length 0. With a
        # slightly shorter rise the fall begins at the first update, with the peak.
        rise *= 1 - 1e-9
    return _OneCycle(
        optimizer,
        max_lr=[float(group["lr"]) for group in optimizer.param_groups],
        total_steps=updates,
        pct_start=rise,
        cycle_momentum=has_momentum(optimizer),
    )


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether one cycle moves a momentum too: only where every group has one."""
    if "betas" in optimizer.defaults:
        return True
    return "momentum" in optimizer.defaults and all(
        group["momentum"] for group in optimizer.param_groups
    )
