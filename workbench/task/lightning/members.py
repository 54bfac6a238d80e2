"""Gives a module Lightning's methods and attributes while a job runs, also those for manual
optimization.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from workbench.task.errors import TaskError
from workbench.task.lightning.hooks import LightningHooks
from workbench.task.lightning.logging.log import Shared
from workbench.task.lightning.overrides import own_method, with_attributes
from workbench.task.lightning.proxies import ManualOptimizer, ManualScheduler
from workbench.task.lightning.trainer import Trainer
from workbench.task.protocol import Handle, Optimization
from workbench.task.ranks import all_gather


class Manual(Shared):
    """Lightning's methods for manual optimization, which a module gets while a job runs; `begin`
    sets their handle.
    """

    def __init__(self, name: str, trainer: Trainer) -> None:
        self._name = name
        self._trainer = trainer
        self._handle: Handle | None = None
        self._optimizers: list[ManualOptimizer] = []
        self._schedulers: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None, "_optimizers": [], "_schedulers": []}

    def begin(self, made: Sequence[Optimization], handle: Handle, *, accumulates: bool) -> None:
        """Set the optimizers and the handle of a session that begins."""
        self._handle = handle
        self._optimizers = [
            ManualOptimizer(optimization.optimizer, index, handle)
            for index, optimization in enumerate(made)
        ]
        schedulers = [
            schedule.scheduler for optimization in made for schedule in optimization.schedules
        ]
        self._schedulers = [
            ManualScheduler(scheduler, handle, accumulates=accumulates) for scheduler in schedulers
        ]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Context manager in which other sessions may begin; afterwards the optimizers from
        before are restored.
        """
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
        """The scheduler, a list of several, or None; the module steps them."""
        self._there()
        return (
            self._schedulers[0] if len(self._schedulers) == 1 else list(self._schedulers)
        ) or None

    def manual_backward(self, loss: Tensor, gradient: Tensor | None = None, **options: Any) -> None:
        """Run the backward of the loss."""
        if gradient is not None:
            options["gradient"] = gradient
        self._there().backward(loss, **options)

    def toggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Let only this optimizer's parameters require gradients from now on."""
        self._there().toggle(self._index(optimizer))

    def untoggle_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Undo `toggle_optimizer`."""
        self._there().untoggle(self._index(optimizer))

    @contextlib.contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """Context manager in which only this optimizer's parameters require gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer at its next step."""
        value, algorithm = self._trainer.limits(gradient_clip_val, gradient_clip_algorithm)
        handle, index = self._there(), self._index(optimizer)
        if value > 0:
            handle.clip(index, value, algorithm)

    def _there(self) -> Handle:
        if self._handle is None:
            raise TaskError(f"{self._name}: the optimizers exist only while a batch is trained.")
        return self._handle

    def _index(self, optimizer: Any) -> int:
        if isinstance(optimizer, int):
            return optimizer
        for index, manual in enumerate(self._optimizers):
            if optimizer is manual or optimizer is manual.optimizer:
                return index
        raise TaskError(
            f"{self._name}: {type(optimizer).__name__} is not an optimizer of this run."
        )


class LightningMembers(Shared):
    """Lightning's methods and attributes for one module. manual: its methods for manual
    optimization, if it uses them.
    """

    def __init__(self, module: Any, hooks: LightningHooks, manual: Manual | None) -> None:
        self._module = module
        self._name = type(module).__name__
        self._hooks = hooks
        self._trainer = hooks.preparation.trainer
        self._manual = manual

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Context manager in which the module has them; its own attributes of these names are
        restored afterwards.
        """
        mine, log = vars(self._module), self._hooks.preparation.log
        hearing: dict[str, Any] = {"log": log.log, "log_dict": log.log_dict}
        # The module may have another attribute of that name, such as a list.
        members = {n: hear for n, hear in hearing.items() if callable(mine.get(n, hear))}
        members |= {n: do for n, do in self._methods().items() if not self._has(n)}
        standing = {
            n: value for n, value in self._attributes().items() if not hasattr(self._module, n)
        }
        with (
            with_attributes(self._module, {**members, **standing}),
            self._trainer.mirrored(mine, standing),
            self._hooks.preparation.callbacks.attached(log),
        ):
            yield

    def _has(self, name: str) -> bool:
        """Whether the module itself has an attribute with this one of Lightning's names."""
        return name in vars(self._module) or own_method(self._module, name) is not None

    def _methods(self) -> dict[str, Callable[..., Any]]:
        common = {"all_gather": self.all_gather}
        if self._manual is not None:
            return {**common, **self._manual.members}
        return {
            **common, "optimizers": self.optimizers, "lr_schedulers": self.lr_schedulers,
            "clip_gradients": self.clip_gradients,
        }  # fmt: skip

    def _attributes(self) -> dict[str, Any]:
        """Return the values that a LightningModule has as properties."""
        return {
            "logger": self._trainer.logger,
            "loggers": self._trainer.loggers,
            "print": self._trainer.print,
            "global_rank": self._trainer.global_rank,
            "local_rank": self._trainer.local_rank,
            **self._trainer.module_properties(),
        }

    # -- the methods, where the engine steps the optimizers

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or a list where there are several."""
        optimizers = self._trainer.optimizers
        if not optimizers:
            raise TaskError(
                f"{self._name}: the optimizers exist while a job runs, after configure_optimizers."
            )
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """The scheduler, a list of several, or None."""
        schedulers = [schedule.scheduler for schedule in self._trainer.lr_scheduler_configs]
        return (schedulers[0] if len(schedulers) == 1 else schedulers) or None

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer now."""
        value, algorithm = self._trainer.limits(gradient_clip_val, gradient_clip_algorithm)
        optimizers = self._trainer.optimizers
        index = next(
            (
                n
                for n, candidate in enumerate(optimizers)
                if candidate is getattr(optimizer, "optimizer", optimizer)
            ),
            None,
        )
        if index is None:
            raise TaskError(
                f"{self._name}.clip_gradients: {type(optimizer).__name__} is not an optimizer of"
                " this run."
            )
        if self._hooks.clipper is None:
            raise TaskError(
                f"{self._name}.clip_gradients: gradients exist only while a batch is trained."
            )
        if value > 0:
            self._hooks.clipper(index, value, algorithm)

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The data of all processes, each tensor with one more dimension in front; with a single
        process, the data unchanged.

        All ranks must call it equally often, with tensors of the same shapes, also for the last
        batches, which some ranks may lack.
        """
        return all_gather(data, self._trainer.progress.device, graph=sync_grads)
