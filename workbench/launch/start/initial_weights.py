"""Puts the weights into the model from which a fit starts, and keeps a copy of the bench's first
ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torch import nn

from workbench.engine.checkpoint import lightning_file
from workbench.engine.checkpoint.files import load_weights
from workbench.events import Message
from workbench.task.modules import in_training_mode, set_by_modes
from workbench.task.protocol import Task
from workbench.task.state.contents import checksum_of_tensors
from workbench.task.state.of_task import copy_state, copy_weights
from workbench.values import first_names


class InitialWeights:
    """The weights, and the state of the user's own objects, from which the fits of one bench start.

    They are those of the moment when the bench was made, or to which the user has changed them
    between two jobs: an attribute (a dropout's p) that the user has set since then keeps its value.
    What a job adds or changes is removed or restored.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        with in_training_mode(task.modules):
            self._weights = copy_weights(task)
            self._state = copy_state(task)
            self._left = copy_state(task, marks=True)
            self._sums = _Checksums.of(task)
        self._are_loaded = False
        """Whether fits start from other weights than those that the task was made with."""
        self._ends: dict[str, int] = {}
        """The checksums of the parameters at the end of each fit, by the fit's id."""
        self._changed: list[str] = []
        """What the user has changed since the last fresh start, other than in modules."""

    @contextmanager
    def placed(
        self,
        where: Path | None,
        fresh: bool,
        emit: Callable[[Message], None],
        fit: str | None = None,
        *,
        resumed: bool = False,
    ) -> Iterator[None]:
        """Context manager that gives the model its starting weights, in which the job runs.

        fresh: the weights and the state of the bench's start; else the weights in the file `where`,
        or (None) those that the model has. fit: the id of the fit that starts from them. resumed: a
        checkpoint is restored next, which has what had changed since the start.
        """
        with in_training_mode(self._task.modules):
            self._place(where, fresh, emit)
            if resumed:
                self._state.put()
        try:
            with self._running(restored=fresh or resumed):
                yield
        finally:
            if fit is not None:
                self._ends[fit] = self._sums.parameters

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context manager of a job that evaluates the model: what it changes is not taken for a
        change by the user.
        """
        with in_training_mode(self._task.modules):
            self._take_state()
        sums = self._sums
        try:
            with self._running(restored=False):
                yield
        finally:
            self._sums = sums

    @contextmanager
    def _running(self, *, restored: bool) -> Iterator[None]:
        """Context manager of a job. restored: the objects hold what fits start from."""
        with in_training_mode(self._task.modules):
            self._left = begun = copy_state(self._task, marks=True)
        if restored:
            self._state = self._state.reached_in(begun)
        try:
            yield
        finally:
            with in_training_mode(self._task.modules):
                self._left = copy_state(self._task, marks=True)
                self._sums = _Checksums.of(self._task)
            self._state = self._state.adopting(begun, self._left)

    def _place(self, where: Path | None, fresh: bool, emit: Callable[[Message], None]) -> None:
        self._take_changes(emit, fresh)
        if fresh:
            lost = self._weights.put() + self._state.put()
            if lost:
                text = (
                    "the job does not begin with the state that the bench was made with:"
                    f" {first_names(lost, 3)} cannot be restored."
                )
                emit(Message(text, "warning"))
        elif where is not None:
            _load(self._task, where)

    def _take_changes(self, emit: Callable[[Message], None], fresh: bool) -> None:
        """Let fits start from what the user has changed since the last job."""
        now = _Checksums.of(self._task)
        if now.parameters != self._sums.parameters:
            self._are_loaded = True
            self._weights = copy_weights(self._task)
            emit(
                Message(
                    "The model's weights were changed since the last job; they are the new start."
                )
            )
        elif fresh and now.buffers != self._sums.buffers:
            # A forward in training mode changes a BatchNorm's statistics; the user did not mean to
            # start from those.
            emit(
                Message(
                    "The model's buffers were changed since the last job, its parameters were not:"
                    " the buffers were restored."
                )
            )
        self._take_state()
        if fresh and self._changed:
            changed, self._changed = first_names(self._changed, 3), []
            emit(
                Message(
                    f"{changed}: changed by other code than the job's; the fit starts from its"
                    " present state."
                )
            )

    def _take_state(self) -> None:
        now = copy_state(self._task, marks=True)
        self._state, changed = self._state.with_changes(self._left, now)
        self._changed += [path for path in changed if path not in self._changed]

    @property
    def are_changed(self) -> bool:
        """Whether the user has changed or loaded weights since the last job."""
        return self._are_loaded or _Checksums.of(self._task).parameters != self._sums.parameters

    def restore(self) -> None:
        """Put the user's objects back into the state from which fits start; the model keeps its
        weights.
        """
        with in_training_mode(self._task.modules):
            self._take_state()
            self._state.put()

    def untouched_since(self, fit: str) -> bool:
        """Whether the model still has the parameters that this fit left."""
        return self._ends.get(fit) == _Checksums.of(self._task).parameters

    def load(self, path: Path) -> None:
        """Load the weights in this file into the model; they are the new start."""
        with in_training_mode(self._task.modules):
            _load(self._task, path)
            self._are_loaded = True
            self._weights = copy_weights(self._task)
            self._left = copy_state(self._task, marks=True)
            self._sums = _Checksums.of(self._task)


class _Checksums(NamedTuple):
    """Checksums of a task's weights, which show whether they have changed."""

    parameters: int
    buffers: int

    @classmethod
    def of(cls, task: Task) -> _Checksums:
        """Those of the present weights."""
        merged = {id(p) for p in set_by_modes(task.modules)}  # model.eval() changes no weights
        weights = [p for module in task.modules for p in nn.Module.parameters(module)]
        parameters = [p for p in weights if id(p) not in merged]
        buffers = [b for module in task.modules for b in module.buffers()]
        # After a buffer has got another shape, a fit starts from the new weights: the user has
        # changed the model.
        shapes = zlib.crc32(repr([b.shape for b in buffers]).encode())
        return cls(checksum_of_tensors(parameters, shapes), checksum_of_tensors(buffers))


def _load(task: Task, path: Path) -> None:
    if lightning_file.is_one(path):
        lightning_file.load_weights(task, path)
    else:
        load_weights(task.trained_modules, path)
