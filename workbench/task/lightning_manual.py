"""Manual optimisation: what a module with `automatic_optimization = False` calls, passed on to the engine's handle.

Clipping, norms, precision and accumulation stay the engine's: `opt.step()` in the middle of a window does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.task.protocol import Handle, Optimization, TaskError


class StepsByHandle:
    """An optimizer as the module sees it: it steps through the handle, and is the optimizer in all else."""

    def __init__(self, optimizer: Optimizer, index: int, handle: Handle) -> None:
        self.optimizer = optimizer
        self._index = index
        self._handle = handle

    @property  # type: ignore[misc]  # modules ask isinstance(opt, Optimizer)
    def __class__(self) -> type:
        return type(self.optimizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return repr(self.optimizer)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, behind `closure` (which gives the gradients) if there is one; returns what it returned."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._handle.step(self._index)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of this optimizer's parameters, unless they are still being added up."""
        self._handle.zero_grad(self._index)

    def toggle(self) -> None:
        """From here on only this optimizer's parameters require gradients."""
        self._handle.toggle(self._index)

    def untoggle(self) -> None:
        """What `toggle` changed is as it was."""
        self._handle.untoggle(self._index)

    @contextlib.contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Inside, only this optimizer's parameters require gradients."""
        self.toggle()
        try:
            yield
        finally:
            self.untoggle()


class StepsAsAsked:
    """A scheduler as the module sees it, which steps it itself; it is the scheduler in all but that.

    behind: the module accumulates, and asks for a step at each batch; only at a window's last one has the optimizer
    taken its own, and the scheduler follows. While rates are being searched for, none of its steps is taken.
    """

    def __init__(self, scheduler: Any, handle: Handle, *, behind: bool) -> None:
        self.scheduler = scheduler
        self._handle = handle
        self._behind = behind
        self._due = False
        if behind:
            scheduler.optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._due = True

    @property  # type: ignore[misc]  # modules ask isinstance(scheduler, ReduceLROnPlateau)
    def __class__(self) -> type:
        return type(self.scheduler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def __repr__(self) -> str:
        return repr(self.scheduler)

    def step(self, *arguments: Any, **options: Any) -> None:
        """Step, if it is time to."""
        due, self._due = self._due or not self._behind, False
        if due and getattr(self._handle, "scheduling", True):
            self.scheduler.step(*arguments, **options)


class Manual:
    """The methods that a module gets while a job runs; `begin` gives them their handle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: Handle | None = None
        self._optimizers: list[StepsByHandle] = []
        self._schedulers: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None, "_optimizers": [], "_schedulers": []}

    def begin(self, made: Sequence[Optimization], handle: Handle, *, accumulates: bool) -> None:
        """A session begins, with these optimizers."""
        self._handle = handle
        self._optimizers = [StepsByHandle(one.optimizer, index, handle) for index, one in enumerate(made)]
        found = [schedule.scheduler for one in made for schedule in one.schedules]
        self._schedulers = [StepsAsAsked(one, handle, behind=accumulates) for one in found]

    def end(self) -> None:
        """The session is over: its optimizers are let go."""
        self._handle, self._optimizers, self._schedulers = None, [], []

    @property
    def members(self) -> dict[str, Callable[..., Any]]:
        """The methods, by the names that Lightning gives them."""
        return {
            "optimizers": self.optimizers,
            "lr_schedulers": self.lr_schedulers,
            "manual_backward": self.manual_backward,
            "toggle_optimizer": self.toggle_optimizer,
            "untoggle_optimizer": self.untoggle_optimizer,
            "clip_gradients": self.clip_gradients,
        }

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or a list where there are several."""
        self._there()
        return self._optimizers[0] if len(self._optimizers) == 1 else list(self._optimizers)

    def lr_schedulers(self) -> Any:
        """The scheduler, a list where there are several, None where there is none; the module steps them."""
        self._there()
        return (self._schedulers[0] if len(self._schedulers) == 1 else list(self._schedulers)) or None

    def manual_backward(self, loss: Tensor, gradient: Tensor | None = None, **options: Any) -> None:
        """Gradients of the loss."""
        if gradient is not None:
            options["gradient"] = gradient
        self._there().backward(loss, **options)

    def toggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """From here on only this optimizer's parameters require gradients."""
        self._there().toggle(self._index(optimizer))

    def untoggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """What `toggle_optimizer` changed is as it was."""
        self._there().untoggle(self._index(optimizer))

    def clip_gradients(self, *_: Any, **__: Any) -> None:
        """Refused: the setting clips at each step."""
        raise TaskError(
            f"{self._name} calls self.clip_gradients: leave it out and set gradient_clip_val (and "
            "gradient_clip_algorithm) instead, which clip at each opt.step()."
        )

    def _there(self) -> Handle:
        if self._handle is None:
            raise TaskError(f"{self._name}: the optimizers are there while a batch is trained, and not before.")
        return self._handle

    def _index(self, optimizer: Any) -> int:
        if isinstance(optimizer, int):
            return optimizer
        for index, one in enumerate(self._optimizers):
            if optimizer is one or optimizer is one.optimizer:
                return index
        raise TaskError(f"{self._name}: {type(optimizer).__name__} is none of the optimizers of this run.")
