"""Puts the weights into the model from which a fit starts, and keeps a copy of the bench's first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from workbench.engine.checkpoint import lightning_file
from workbench.engine.checkpoint.files import load_weights
from workbench.engine.checkpoint.weights_copy import Fingerprint, WeightsCopy
from workbench.events import Message
from workbench.task.modules import in_training_mode
from workbench.task.protocol import Task
from workbench.task.state.copies import StateCopy
from workbench.task.state.of_task import copy_state
from workbench.values import first_names


class InitialWeights:
    """The weights, and the state of the user's own objects, from which the fits of one bench start.

    They are those of the moment when the bench was made, or to which the user has changed them between two jobs: an attribute (a dropout's p)
    that the user has set since then keeps its value. What a job adds or changes is removed or restored.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        with in_training_mode(task.modules):
            self._fresh = WeightsCopy.of(task)
            self._left = Fingerprint.of(task)
        self._ends: dict[str, int] = {}
        """The checksums of the parameters at the end of each fit, by the fit's id."""
        self._changed: list[str] = []
        """What the user has changed since the last fresh start, other than in modules."""

    @contextmanager
    def placed(
        self, where: Path | None, fresh: bool, emit: Callable[[Message], None], fit: str | None = None, *, resumed: bool = False
    ) -> Iterator[None]:
        """Context manager that gives the model its starting weights, in which the job runs.

        fresh: the weights and the state of the bench's start; else the weights in the file `where`, or (None) those that the model has. fit:
        the id of the fit that starts from them. resumed: a checkpoint is restored next, which has what had changed since the start.
        """
        with in_training_mode(self._task.modules):
            self._place(where, fresh, emit)
            if resumed:
                self._fresh.state.put()
        try:
            with self._running():
                yield
        finally:
            if fit is not None:
                self._ends[fit] = self._left.parameters

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context manager of a job that evaluates the model: what it changes is not taken for a change by the user."""
        with in_training_mode(self._task.modules):
            self._take_state(copy_state(self._task, marks=True))
        parameters, buffers = self._left.parameters, self._left.buffers
        try:
            with self._running():
                yield
        finally:
            self._left = replace(self._left, parameters=parameters, buffers=buffers)

    @contextmanager
    def _running(self) -> Iterator[None]:
        with in_training_mode(self._task.modules):
            begun = copy_state(self._task, marks=True)
        try:
            yield
        finally:
            with in_training_mode(self._task.modules):
                self._left = Fingerprint.of(self._task)
            self._fresh = self._fresh.with_state(self._fresh.state.adopting(begun, self._left.state))

    def _place(self, where: Path | None, fresh: bool, emit: Callable[[Message], None]) -> None:
        self._take_changes(emit, fresh)
        if fresh:
            lost = self._fresh.put(self._task)
            if lost:
                text = f"the job does not begin with the state that the bench was made with: {first_names(lost, 3)} cannot be restored."
                emit(Message(text, "warning"))
        elif where is not None:
            _load(self._task, where)

    def _take_changes(self, emit: Callable[[Message], None], fresh: bool) -> None:
        """Let fits start from what the user has changed since the last job."""
        now = Fingerprint.of(self._task)
        if now.parameters != self._left.parameters:
            self._fresh = WeightsCopy.of(self._task).with_state(self._fresh.state)
            emit(Message("The model's weights were changed since the last job; they are the new start."))
        elif fresh and now.buffers != self._left.buffers:
            # A forward in training mode changes a BatchNorm's statistics; the user did not mean to start from those.
            emit(Message("The model's buffers were changed since the last job, its parameters were not: the buffers were restored."))
        self._take_state(now.state)
        if fresh and self._changed:
            changed, self._changed = first_names(self._changed, 3), []
            emit(Message(f"{changed}: changed by other code than the job's; the fit starts from its present state."))

    def _take_state(self, now: StateCopy) -> None:
        state, changed = self._fresh.state.with_changes(self._left.state, now)
        self._fresh = self._fresh.with_state(state)
        self._changed += [path for path in changed if path not in self._changed]

    def untouched_since(self, fit: str) -> bool:
        """Whether the model still has the parameters that this fit left."""
        return self._ends.get(fit) == Fingerprint.of(self._task).parameters

    def load(self, path: Path) -> None:
        """Load the weights in this file into the model; they are the new start."""
        with in_training_mode(self._task.modules):
            _load(self._task, path)
            self._fresh = WeightsCopy.of(self._task).with_state(self._fresh.state)
            self._left = Fingerprint.of(self._task)


def _load(task: Task, path: Path) -> None:
    if lightning_file.is_one(path):
        lightning_file.load_weights(task, path)
    else:
        load_weights(task.trained_modules, path)
