"""Manual optimization: passes what a module with `automatic_optimization = False` calls on to the engine's handle.

The engine clips, measures and accumulates: `opt.step()` in the middle of a window does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from workbench.task.errors import TaskError
from workbench.task.lightning.logging.log import Shared
from workbench.task.lightning.proxies import StepsAsAsked, StepsByHandle
from workbench.task.lightning.trainer import Trainer
from workbench.task.protocol import Handle, Optimization


class Manual(Shared):
    """The methods that a module gets while a job runs; `begin` gives them their handle."""

    def __init__(self, name: str, trainer: Trainer) -> None:
        self._name = name
        self._trainer = trainer
        self._handle: Handle | None = None
        self._optimizers: list[StepsByHandle] = []
        self._schedulers: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None, "_optimizers": [], "_schedulers": []}

    def begin(self, made: Sequence[Optimization], handle: Handle, *, accumulates: bool) -> None:
        """A session with these optimizers begins."""
        self._handle = handle
        self._optimizers = [StepsByHandle(one.optimizer, index, handle) for index, one in enumerate(made)]
        found = [schedule.scheduler for one in made for schedule in one.schedules]
        self._schedulers = [StepsAsAsked(one, handle, behind=accumulates) for one in found]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, other sessions may begin; afterwards the optimizers from before are restored."""
        before = dict(vars(self))
        self._handle, self._optimizers, self._schedulers = None, [], []
        try:
            yield
        finally:
            vars(self).update(before)

    @property
    def members(self) -> dict[str, Callable[..., Any]]:
        """The methods, by Lightning's names."""
        return {
            "optimizers": self.optimizers,
            "lr_schedulers": self.lr_schedulers,
            "manual_backward": self.manual_backward,
            "toggle_optimizer": self.toggle_optimizer,
            "untoggle_optimizer": self.untoggle_optimizer,
            "toggled_optimizer": self.toggled_optimizer,
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
        """Run the backward of the loss."""
        if gradient is not None:
            options["gradient"] = gradient
        self._there().backward(loss, **options)

    def toggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """From here on only this optimizer's parameters require gradients."""
        self._there().toggle(self._index(optimizer))

    def untoggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Undo `toggle_optimizer`."""
        self._there().untoggle(self._index(optimizer))

    @contextlib.contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """Inside, only this optimizer's parameters require gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of an optimizer so at its next step."""
        value, algorithm = self._trainer.limits(gradient_clip_val, gradient_clip_algorithm)
        handle, index = self._there(), self._index(optimizer)
        if value > 0:
            handle.clip(index, value, algorithm)

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
