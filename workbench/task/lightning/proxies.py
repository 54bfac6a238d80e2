"""Wraps optimizers and schedulers for a module: `step` calls the engine, every other attribute
is the original's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from workbench.task.errors import TaskError
from workbench.task.protocol import Handle


class Proxy:
    """Has every attribute of another object; isinstance treats it as that object. Subclasses
    replace some methods.
    """

    def __init__(self, viewed: Any) -> None:
        self._viewed = viewed

    @property  # type: ignore[misc]  # modules ask isinstance(opt, Optimizer)
    def __class__(self) -> type:
        return type(self._viewed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_viewed":
            raise AttributeError(name)
        return getattr(self._viewed, name)

    def __repr__(self) -> str:
        return repr(self._viewed)


class ManualOptimizer(Proxy):
    """An optimizer of a module with manual optimization."""

    def __init__(self, optimizer: Optimizer, index: int, handle: Handle) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self._index = index
        self._handle = handle

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Call `closure` (which computes the gradients) if there is one, then step; return the
        closure's result.

        options: further arguments of the optimizer's step.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._handle.step(self._index, **options)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of this optimizer's parameters, or set them to zero; those kept
        from earlier batches of the window stay.
        """
        self._handle.zero_grad(self._index, set_to_none)

    def toggle(self) -> None:
        """Let only this optimizer's parameters require gradients from now on."""
        self._handle.toggle(self._index)

    def untoggle(self) -> None:
        """Undo `toggle`."""
        self._handle.untoggle(self._index)

    @contextlib.contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Context manager in which only this optimizer's parameters require gradients."""
        self.toggle()
        try:
            yield
        finally:
            self.untoggle()


class HookOptimizer(Proxy):
    """The optimizer that the module's `optimizer_step` hook gets; each call of `step` lets the
    engine step.

    closure: evaluates the batch; it runs within the step, or before it where the module calls it
    itself.
    """

    def __init__(
        self, optimizer: Optimizer, closure: Callable[[], Any], take: Callable[..., Any], where: str
    ) -> None:
        super().__init__(optimizer)
        self.optimizer = optimizer
        self._closure, self._take, self._where = closure, take, where
        self._evaluated = False
        self._loss: Any = None

    def evaluate(self) -> Any:
        """Evaluate the batch; the module gets this method as its closure."""
        with torch.enable_grad():
            self._loss = self._closure()
        self._evaluated = True
        return self._loss

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Call `closure` if there is one, then step; return its result. options: further
        arguments of the step.
        """
        returned: Any = None

        def evaluate() -> Any:
            nonlocal returned
            if closure is not None:
                with torch.enable_grad():
                    returned = closure()
            return self._loss  # whatever a closure around ours returns

        self._take(evaluate, **options)
        return returned

    def check(self) -> None:
        """Raise TaskError after the hook if it did not evaluate the batch."""
        if not self._evaluated:
            raise TaskError(
                f"{self._where} never called its optimizer_closure, which runs training_step and"
                " backward: pass it on, optimizer.step(closure=optimizer_closure), or call it"
                " where no step is to be taken."
            )


class ManualScheduler(Proxy):
    """A scheduler of a module with manual optimization, which steps it itself.

    accumulates: the module calls step at each batch, and the scheduler steps only after the
    optimizer, at the window's last batch. In a search the scheduler does not step.
    """

    def __init__(self, scheduler: Any, handle: Handle, *, accumulates: bool) -> None:
        super().__init__(scheduler)
        self.scheduler = scheduler
        self._handle = handle
        self._accumulates = accumulates
        self._due = False
        if accumulates:
            scheduler.optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._due = True

    def step(self, *arguments: Any, **options: Any) -> None:
        """Step, if the optimizer has stepped."""
        due, self._due = self._due or not self._accumulates, False
        if due and getattr(self._handle, "scheduling", True):
            self.scheduler.step(*arguments, **options)
