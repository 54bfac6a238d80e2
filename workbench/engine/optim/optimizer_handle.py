"""Wraps one optimizer of a session: its parameters, schedules and base rate."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.instruments.grad_norm import Norms, total_norm
from workbench.task.errors import TaskError
from workbench.task.hooks import Hooks
from workbench.task.optim.closures import closure_use
from workbench.task.optim.optimizer_factory import base_rate, group_rates, leading_group
from workbench.task.protocol import Optimization, Schedule, Task
from workbench.techniques import clipping
from workbench.techniques.schedules import has_ended
from workbench.units import rate as rate_of

RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The entries of a parameter group that hold learning rates."""
_AROUND_STEP = Optimizer.profile_hook_step(id).__code__
"""The code of the function that torch puts around the step of each optimizer."""


class OptimizerHandle:
    """Wraps an `Optimization`. `parameters` are those of its groups that required a gradient when
    the session began.

    `places` are their numbers among the session's parameters; `whole`: they are all of these, in
    order. `late` are parameters that began to train later (a hook unfroze them, or added a group).
    `trained` are both, in the order of the task's modules.
    """

    def __init__(
        self,
        index: int,
        made: Optimization,
        parameters: list[Tensor],
        task: Task,
        weights: WholeWeights,
        warmup: int = 0,
    ) -> None:
        self.weights = weights
        weights.take_over(made.optimizer)
        self.index = index
        self.optimizer = made.optimizer
        self.schedules: tuple[Schedule, ...] = made.schedules
        self.frequency = made.frequency
        self.made_lr = made.lr
        self.base_lr = made.lr if made.lr is not None else base_rate(made.optimizer, "the task")
        self.leading = leading_group(group_rates(made.optimizer))
        """The index of the parameter group whose rate is `lr`: the first whose rate is not 0."""
        self.closure_use = closure_use(self.optimizer)
        self.needs_closure = self.closure_use != "never"
        self._own_zero_grad = (
            getattr(self.optimizer.zero_grad, "__func__", None) is not Optimizer.zero_grad
        )
        number = {id(p): n for n, p in enumerate(parameters)}
        numbers = {
            number[id(p)]
            for group in self.optimizer.param_groups
            for p in group["params"]
            if id(p) in number
        }
        self.places = tuple(sorted(numbers))
        self.whole = len(self.places) == len(parameters)
        self.parameters = [parameters[n] for n in self.places]
        self.trained, self.late = self.parameters, list[Tensor]()
        self.task = task
        groups = self.optimizer.param_groups
        self._seen = {id(p): p for group in groups for p in group["params"] if p.requires_grad}
        self.made_groups = len(groups)
        """The parameter groups with which the task made it; hooks may add others."""
        self.continued = False
        """Whether its state is a checkpoint's."""
        self.grown = False
        """Whether it has parameters that the checkpoint's did not have."""
        self.steps = 0
        """The updates in which it has stepped."""
        self.warmup = warmup
        """The length in updates of a warm-up beside the task's own schedules; a built-in schedule
        has its own.
        """
        self.rate: float | Tensor = self.base_lr
        """The rate of its latest step; in an update in which it has not stepped, the rate at the
        update's beginning.
        """
        self._expected: float | None = None
        """The rate that it has unless the user's code sets another; None: the base rate."""
        self._takes_share = False
        """Whether its groups have their shares of the rates now."""
        self.held: list[Any] | None = None
        """The rates of its parameter groups that a search has set; None: no search sets them."""
        self.before_step: Callable[[], None] | None = None
        """A search's look at the gradients, which is called before each step; None: there is none.
        A hook of torch would cost more than the step of a small model.
        """
        self.rate_set_by_code = False
        """Whether the user's code has set its rate: between updates, or in a schedule of its own
        that does not begin with the base rate.
        """
        self.rate_reported = False
        """Whether the message was emitted that the code sets it."""
        self.step_options: dict[str, Any] = {}
        """The further arguments of the task's own call of this optimizer's step."""
        self.extra: dict[str, Any] = {}
        """Further arguments of `training_step`: the optimizer's number, where there are several."""
        self.column = 0
        """The column of its measurements in the meter's rows; where there are several
        optimizers, 0 is for all of them.
        """

    def add_new_parameters(self) -> None:
        """Find the parameters of its groups that have begun to train. One that is frozen later
        stays in `trained`, without a gradient.
        """
        groups = self.optimizer.param_groups
        new = [
            p
            for group in groups
            for p in group["params"]
            if p.requires_grad and id(p) not in self._seen
        ]
        if not new:
            return
        self._seen |= {id(p): p for p in new}
        # Always in the model's order: the norm depends on the order in its last bits, and a resumed
        # run may find at once parameters that came one by one.
        trained, first = {id(p) for p in self.trained + new}, {id(p) for p in self.parameters}
        self.trained = [p for p in self.task.trained_parameters().values() if id(p) in trained]
        self.late = [p for p in self.trained if id(p) not in first]

    def names(self) -> list[list[str]]:
        """The names of the parameters of each group; "": a parameter that is not the task's."""
        names = {id(parameter): name for name, parameter in self.task.trained_parameters().items()}
        return [
            [names.get(id(parameter), "") for parameter in group["params"]]
            for group in self.optimizer.param_groups
        ]

    def gradients(self) -> list[Tensor]:
        """The gradients that exist, in the order of `trained`; for sharded ones, this rank's
        pieces.
        """
        return self.weights.gradients_of(self.trained)

    def layer_norms(self, gradients: Sequence[Tensor], p: float) -> Norms:
        """The p-norm of each of its gradients; for a sharded one, that of the whole gradient."""
        return self.weights.layer_norms(self.trained, gradients, p)

    def total_norm(self, gradients: Sequence[Tensor], p: float) -> Tensor:
        """The p-norm of all its gradients as one vector; a scalar."""
        return total_norm(self.layer_norms(gradients, p), p)

    def clip(self, clip_val: float, algorithm: str) -> None:
        """Clip its gradients in place, by "norm" or by "value", for a task that decides itself
        when to clip.
        """
        gradients = self.gradients()
        if algorithm == "value" and gradients:
            clipping.clip_value(gradients, clip_val)
        elif gradients:
            clipping.clip_norm(gradients, self.total_norm(gradients, 2.0), clip_val)

    def with_gradient(self) -> list[Tensor]:
        """The parameters of `trained` that have a gradient."""
        return [p for p in self.trained if p.grad is not None]

    def step(self, **options: Any) -> None:
        """Let the optimizer step with the gradients that exist. options: further arguments of its
        `step`.

        torch wraps each optimizer's step in a function for the profiler and the step's hooks. It
        takes longer than the step of a small model, so it is left out where no profiler records and
        no hook is registered.
        """
        step: Any = self.optimizer.step
        if getattr(step, "__code__", None) is _AROUND_STEP and not _watched(step.__self__):
            step.__wrapped__(step.__self__, **options)
        else:
            step(**options)

    @property
    def share(self) -> float:
        """The share of its rate with which the next step is taken: below 1 in the warm-up beside
        the task's own schedules.
        """
        return (self.steps + 1) / self.warmup if self.steps < self.warmup else 1.0

    @contextlib.contextmanager
    def warming_up(self) -> Iterator[None]:
        """Context manager in which its groups have their shares of the rates. Afterwards they have
        the rates themselves, which the schedules and the user's code read and change.
        """
        share, groups = self.share, self.optimizer.param_groups
        rates = [_copied(group["lr"]) for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            put_lr(group, rate * share)
        self._expected, self._takes_share = groups[self.leading]["lr"], True
        try:
            yield
        finally:
            self._takes_share = False
            for group, rate in zip(groups, rates, strict=True):
                if group["lr"] == rate * share:  # else the step has set another one
                    put_lr(group, rate)
            self._expected = groups[self.leading]["lr"]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        if self._own_zero_grad:
            self.optimizer.zero_grad()
            return
        # As torch's zero_grad, without its calls for the profiler and the compiler, which take as
        # long as a small layer.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def lr(self) -> float:
        """The present rate of the leading parameter group."""
        return float(self.optimizer.param_groups[self.leading]["lr"])

    def schedules_keep_base(self) -> bool:
        """Whether the base rate is among the rates that its schedules begin with: it is not in a
        OneCycleLR with a `max_lr` of its own.
        """
        group = self.optimizer.param_groups[self.leading]
        rates = [group[key] for key in RATES if key in group]
        return not self.schedules or any(math.isclose(float(rate), self.base_lr) for rate in rates)

    def watch_rate(self) -> None:
        """Note the present rate of the leading group, at the beginning of an update and after a
        step, without waiting for a device.
        """
        rate = self.optimizer.param_groups[self.leading]["lr"]
        if isinstance(rate, Tensor):
            # it may change in place
            rate = float(rate) if rate.device.type == "cpu" else rate.detach().clone()
        else:
            if rate != self._expected and not self.rate_set_by_code:
                self.rate_set_by_code = self._is_set_by_code(rate)
            self._expected = rate
        whole = self._takes_share or self.steps >= self.warmup
        self.rate = rate if whole else rate * self.share

    def _is_set_by_code(self, rate: float) -> bool:
        if self._expected is None and (self.continued or rate == self.base_lr):
            return False
        parts = [
            scheduler for schedule in self.schedules for scheduler in chain(schedule.scheduler)
        ]
        return not any(rate in getattr(scheduler, "_last_lr", (rate,)) for scheduler in parts)

    def hold_lrs(self) -> None:
        """Let a search's steps have the present rates, whatever the user's code sets."""
        self.held = [_copied(group["lr"]) for group in self.optimizer.param_groups]
        self._expected = self.held[self.leading]

    def release_lrs(self) -> None:
        """End what `hold_lrs` began."""
        self.held = self._expected = None

    def put_held_lrs(self) -> None:
        """Set the rates that a search has set once more, before a step; groups that came later
        keep theirs.
        """
        for group, lr in zip(self.optimizer.param_groups, self.held or (), strict=False):
            if group["lr"] != lr:
                self.rate_set_by_code = True
                put_lr(group, lr)

    def check_held_lrs(self) -> None:
        """Raise TaskError, after a step, where the step itself has set another rate than the
        search.
        """
        for group, lr in zip(self.optimizer.param_groups, self.held or (), strict=False):
            if group["lr"] != lr:
                kind = type(self.optimizer).__name__
                raise TaskError(
                    f"{kind}.step() sets the learning rate itself (to"
                    f" {rate_of(float(group['lr']))}, where this search had set"
                    f" {rate_of(float(lr))}), so no search can try other rates: let step() use the"
                    " rates of its param_groups, and give the schedule as scheduler=; or leave"
                    " this search out."
                )

    def set_lr(self, lr: float) -> None:
        """Set a new base rate; schedules and the ratios of parameter groups multiply it. A group at
        0 stays at 0.

        Raises TaskError where all groups are at 0 and follow a schedule, which no factor can raise
        from 0.
        """
        if not self.base_lr and lr and self.schedules:
            raise TaskError(
                f"lr={rate_of(lr)}: the optimizer is made at a rate of 0 and follows a schedule,"
                " which cannot be raised from 0: make it at another rate."
            )
        old, self.base_lr = self.base_lr, lr
        self.rate_set_by_code = self.rate_reported = False

        def scaled(value: Any) -> Any:
            return lr if value == old else value * (lr / old)

        for group in self.optimizer.param_groups:
            for key in RATES:
                if key == "lr":
                    put_lr(group, scaled(group[key]))
                elif key in group:
                    group[key] = scaled(group[key])
        now = self.optimizer.param_groups[self.leading]["lr"]
        self._expected = None if isinstance(now, Tensor) else now
        for schedule in self.schedules:
            for scheduler in chain(schedule.scheduler):
                for name in ("base_lrs", "max_lrs", "min_lrs"):
                    if hasattr(scheduler, name):
                        rates = [scaled(value) for value in getattr(scheduler, name)]
                        setattr(scheduler, name, rates)
                if isinstance(getattr(scheduler, "eta_min", None), float):
                    scheduler.eta_min = scaled(scheduler.eta_min)

    def step_schedules(self, interval: str, count: int, hooks: Hooks, batches: int = 0) -> None:
        """Step the schedules that follow updates ("step") or epochs ("epoch"), of which `count`
        have been taken.

        batches: the finished batches of this epoch, for schedules that count them.
        """
        for schedule in self.schedules:
            counted = batches if schedule.by_batches and interval == "step" else count
            due = schedule.interval == interval and counted % schedule.frequency == 0
            if (
                due
                and not isinstance(schedule.scheduler, ReduceLROnPlateau)
                and not has_ended(schedule.scheduler)
            ):
                try:
                    hooks.step_schedule(schedule.scheduler, None, schedule.scheduler.step)
                except ValueError as error:
                    error.add_note(
                        f"{type(schedule.scheduler).__name__} was made for the updates that were"
                        " planned when the run began, and the run goes on beyond them: let len of"
                        " the training data say how many there are, or give a schedule without an"
                        " end."
                    )
                    raise
                self._expected = self.optimizer.param_groups[self.leading]["lr"]


def put_lr(group: dict[str, Any], lr: Any) -> None:
    """Set the rate of a parameter group; a tensor stays the same one, since compiled steps and
    the user's code may refer to it.
    """
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _copied(lr: Any) -> Any:
    return lr.detach().clone() if isinstance(lr, Tensor) else lr


def _watched(optimizer: Optimizer) -> bool:
    """Whether a profiler records, or a hook is registered for the steps of this optimizer or of
    all.
    """
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    of_all = (
        torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks
    )
    return bool(profiler._is_profiler_enabled or hooks or of_all)


def shares(
    optimizers: Sequence[OptimizerHandle], lr: float
) -> tuple[tuple[tuple[str, float], ...], ...]:
    """For each optimizer the names of its parameter groups, each with its rate as a multiple of the
    setting `lr`; () for an optimizer at 0.
    """
    by_optimizer = []
    for opt in optimizers:
        rates = [
            float(group.get("initial_lr", group["lr"])) for group in opt.optimizer.param_groups
        ]
        # A schedule may begin below the base rate; the groups' ratios are the same.
        first = rates[opt.leading]
        ratios = (
            [opt.base_lr / lr * (rate / first) for rate in rates] if first > 0 and lr > 0 else []
        )
        named = zip(opt.optimizer.param_groups, ratios, strict=False)
        by_optimizer.append(tuple((str(group.get("name", "")), ratio) for group, ratio in named))
    return tuple(by_optimizer)


def chain(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and the schedulers inside it (SequentialLR, ChainedScheduler)."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from chain(inner)
