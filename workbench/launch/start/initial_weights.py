"""Puts the weights into the model from which a fit starts, and keeps a copy of the bench's first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.engine.checkpoint import lightning_file
from workbench.engine.checkpoint.files import load_weights
from workbench.engine.checkpoint.weights_copy import Fingerprint, WeightsCopy
from workbench.events import Message
from workbench.task.protocol import Task
from workbench.values import first_names


class InitialWeights:
    """The weights, and the state of the user's own objects, from which the fits of one bench start.

    They are those of the moment when the bench was made, or to which the user has changed them between two jobs: an attribute (a dropout's p)
    that the user has set since then keeps its value. What a job adds or changes is removed or restored.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._fresh = WeightsCopy.of(task)
        self._left = Fingerprint.of(task)
        self._ends: dict[str, int] = {}
        """The checksums of the parameters at the end of each fit, by the fit's id."""

    @contextmanager
    def placed(self, where: Path | None, fresh: bool, emit: Callable[[Message], None], fit: str | None = None) -> Iterator[None]:
        """Context manager that gives the model its starting weights, in which the job runs.

        fresh: the weights and the state of the bench's start; else the weights in the file `where`, or (None) those that the model has. fit:
        the id of the fit that starts from them.
        """
        self._place(where, fresh, emit)
        with self.noted():
            yield
        if fit is not None:
            self._ends[fit] = self._left.parameters

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Context manager of a job: what it changes is not taken for a change by the user."""
        begun = Fingerprint.of(self._task).state
        try:
            yield
        finally:
            self._left = Fingerprint.of(self._task)
            self._fresh = self._fresh.with_state(self._fresh.state.adopting(begun, self._left.state))

    def _place(self, where: Path | None, fresh: bool, emit: Callable[[Message], None]) -> None:
        self._take_changes(emit, fresh)
        if fresh:
            lost = self._fresh.put(self._task)
            if lost:
                text = f"the fit does not begin with the state that the bench was made with: {first_names(lost, 3)} cannot be restored."
                emit(Message(text, "warning"))
        elif where is not None:
            _load(self._task, where)

    def _take_changes(self, emit: Callable[[Message], None], fresh: bool) -> None:
        """Let fits start from what the user has changed since the last job."""
        now = Fingerprint.of(self._task)
        state, changed = self._fresh.state.with_changes(self._left.state, now.state)
        if now.parameters != self._left.parameters:
            self._fresh = WeightsCopy.of(self._task)
            emit(Message("The model's weights were changed since the last job; they are the new start."))
        elif fresh and now.buffers != self._left.buffers:
            # A forward in training mode changes a BatchNorm's statistics; the user did not mean to start from those.
            emit(Message("The model's buffers were changed since the last job, its parameters were not: the buffers were restored."))
        self._fresh = self._fresh.with_state(state)
        if fresh and changed:
            emit(Message(f"{first_names(changed, 3)}: changed since the last job; the fit starts from what is there now."))

    def untouched_since(self, fit: str) -> bool:
        """Whether the model still has the parameters that this fit left."""
        return self._ends.get(fit) == Fingerprint.of(self._task).parameters

    def load(self, path: Path) -> None:
        """Load the weights in this file into the model; they are the new start."""
        _load(self._task, path)
        self._fresh = WeightsCopy.of(self._task).with_state(self._fresh.state)
        self._left = Fingerprint.of(self._task)


def _load(task: Task, path: Path) -> None:
    if lightning_file.is_one(path):
        lightning_file.load_weights(task, path)
    else:
        load_weights(task.trained_modules, path)
