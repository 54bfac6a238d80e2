"""One optimizer of a session: its parameters, its schedules, its base rate."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from workbench.task.moments import Moments
from workbench.task.protocol import Optimization, Schedule

if TYPE_CHECKING:
    from workbench.engine.shards import Shards


class Optimizing:
    """Wraps an `Optimization`: `parameters` are those of its groups that required a gradient when the session began.

    `places` are their numbers among the session's parameters; `whole`: they are all of them, in order. `late` are those
    that came later (unfrozen by a hook, or in a group that it added), and `trained` are both, in the order of `model`.
    """

    def __init__(
        self, index: int, made: Optimization, parameters: list[Tensor], model: nn.Module, shards: Shards | None = None
    ) -> None:
        """shards: where the parameters lie in them."""
        self._shards = shards
        if shards is not None:
            shards.take_over(made.optimizer)
        self.index = index
        self.optimizer = made.optimizer
        self.schedules: tuple[Schedule, ...] = made.schedules
        self.frequency = made.frequency
        self.made_lr = made.lr
        self.base_lr = _rate(made)
        self.needs_closure = _needs_closure(self.optimizer)
        number = {id(p): n for n, p in enumerate(parameters)}
        own = {
            number[id(p)] for group in self.optimizer.param_groups for p in group["params"] if id(p) in number
        }
        self.places = tuple(sorted(own))
        self.whole = len(self.places) == len(parameters)
        self.parameters = [parameters[n] for n in self.places]
        self.trained, self.late = self.parameters, list[Tensor]()
        self._model = model
        groups = self.optimizer.param_groups
        self._seen = {id(p): p for group in groups for p in group["params"] if p.requires_grad}
        self.taken = 0
        """Steps taken."""
        self.step_options: dict[str, Any] = {}
        """What the task's own call of this optimizer's step gave beside the closure."""
        self.extra: dict[str, Any] = {}
        """What `training_step` is told beside the batch: which optimizer it is, where there are several."""

    def look_again(self) -> None:
        """Find the model's parameters that have begun to train. One that is frozen later stays: it has no gradient."""
        groups = self.optimizer.param_groups
        new = [p for group in groups for p in group["params"] if p.requires_grad and id(p) not in self._seen]
        if not new:
            return
        self._seen |= {id(p): p for p in new}
        # In the model's order, whenever each came: the norm over them depends on it in its last bits, and a run that goes
        # on may find at once what came one by one.
        there, first = {id(p) for p in self.trained + new}, {id(p) for p in self.parameters}
        self.trained = [p for p in self._model.parameters() if id(p) in there]
        self.late = [p for p in self.trained if id(p) not in first]

    def gradients(self) -> list[Tensor]:
        """The gradients that are there, in the order of `trained`; of those in shards, this rank's pieces."""
        if self._shards is not None:
            return self._shards.pieces(self)
        return [p.grad for p in self.trained if p.grad is not None]

    def there(self) -> list[Tensor]:
        """Those of `trained` that have a gradient."""
        return [p for p in self.trained if p.grad is not None] if self._shards is None else self._shards.there(self)

    def zero_grad(self) -> None:
        """No gradient is there any more."""
        if self._shards is None:
            self.optimizer.zero_grad()
        else:
            self._shards.zero_grad(self)

    @property
    def lr(self) -> float:
        """The rate of the first parameter group as it is now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """A new base rate: schedules and the ratios of parameter groups multiply it."""
        old, self.base_lr = self.base_lr, lr

        def scaled(value: Any) -> Any:
            return lr if value == old else value * (lr / old)

        for group in self.optimizer.param_groups:
            for key in ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr"):
                if key in group:
                    group[key] = scaled(group[key])
        for schedule in self.schedules:
            for part in chain(schedule.scheduler):
                for name in ("base_lrs", "max_lrs", "min_lrs"):
                    if hasattr(part, name):
                        setattr(part, name, [scaled(value) for value in getattr(part, name)])
                if isinstance(getattr(part, "eta_min", None), float):
                    part.eta_min = scaled(part.eta_min)

    def step_schedules(self, interval: str, count: int, moments: Moments, batches: int = 0) -> None:
        """Those that follow updates ("step") or epochs ("epoch") take a step, `count` of which have been taken.

        batches: those of this epoch that are done with, for schedules that count them.
        """
        for schedule in self.schedules:
            counted = batches if schedule.by_batches and interval == "step" else count
            due = schedule.interval == interval and counted % schedule.frequency == 0
            if due and not isinstance(schedule.scheduler, ReduceLROnPlateau) and not _ended(schedule.scheduler):
                moments.step_schedule(schedule.scheduler, None, schedule.scheduler.step)


def shares(optimizers: Sequence[Optimizing], lr: float) -> tuple[tuple[tuple[str, float], ...], ...]:
    """Of each optimizer the name and the rate of its parameter groups, as a multiple of the setting `lr`; () of one at 0."""
    found = []
    for opt in optimizers:
        own = [float(group.get("initial_lr", group["lr"])) for group in opt.optimizer.param_groups]
        # A schedule may begin below the base rate; the groups' ratios hold all the same.
        known = own[0] > 0 and lr > 0
        ratios = [opt.base_lr / lr * (rate / own[0]) for rate in own] if known else []
        named = zip(opt.optimizer.param_groups, ratios, strict=False)
        found.append(tuple((str(group.get("name", "")), ratio) for group, ratio in named))
    return tuple(found)


def chain(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those inside it (SequentialLR, ChainedScheduler)."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from chain(part)


def _ended(scheduler: Any) -> bool:
    """Whether one cycle is over: where the run turns out longer than was known (a smaller batch size), its last rate stays."""
    return isinstance(scheduler, OneCycleLR) and scheduler.last_epoch >= scheduler.total_steps - 1


def _rate(made: Optimization) -> float:
    """The base rate that an optimizer was made at; a schedule's warm-up may have another one now."""
    first = made.optimizer.param_groups[0]
    return float(
        made.lr if made.lr is not None else first.get("max_lr", first.get("initial_lr", first["lr"]))
    )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step evaluates the loss itself, again and again (LBFGS)."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
