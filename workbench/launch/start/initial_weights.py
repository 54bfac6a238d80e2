"""Puts the weights into the model from which a fit starts, and keeps a copy of the bench's first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.engine.checkpoint import lightning_file
from workbench.engine.checkpoint.files import load_weights
from workbench.engine.checkpoint.weights_copy import Fingerprint, WeightsCopy
from workbench.events import Message
from workbench.task.modules import in_training_mode
from workbench.task.protocol import Task


class InitialWeights:
    """The weights from which the fits of one bench start.

    They are those that the model had when the bench was made, or to which the user has changed them between two jobs.
    Attributes (a dropout's p) that the user has set since then keep their values; those that a job has added are removed.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        with in_training_mode(task.modules):
            self._fresh = WeightsCopy.of(task)
            self._left = Fingerprint.of(task)
        self._ends: dict[str, int] = {}
        """The checksums of the parameters at the end of each fit, by the fit's id."""

    @contextmanager
    def placed(self, where: Path | None, fresh: bool, emit: Callable[[Message], None], fit: str | None = None) -> Iterator[None]:
        """Context manager that gives the model its starting weights, in which the job runs.

        fresh: the weights of the bench's start; else those in the file `where`, or (None) those that the model has. fit: the id of
        the fit that starts from them.
        """
        try:
            with in_training_mode(self._task.modules):
                self._place(where, fresh, emit)
            yield
        finally:
            with in_training_mode(self._task.modules):
                self._left = Fingerprint.of(self._task)
            if fit is not None:
                self._ends[fit] = self._left.parameters

    def _place(self, where: Path | None, fresh: bool, emit: Callable[[Message], None]) -> None:
        now = Fingerprint.of(self._task)
        if now.parameters != self._left.parameters:
            self._fresh = WeightsCopy.of(self._task)
            emit(Message("The model's weights were changed since the last job; they are the new start."))
        else:
            self._fresh = self._fresh.with_changes(self._left, now)
            if fresh and now.buffers != self._left.buffers:
                # A forward in training mode changes a BatchNorm's statistics; the user did not mean to start from those.
                emit(Message("The model's buffers were changed since the last job, its parameters were not: the buffers were restored."))
        if fresh:
            self._fresh.put(self._task)
        elif where is not None:
            _load(self._task, where)

    def untouched_since(self, fit: str) -> bool:
        """Whether the model still has the parameters that this fit left."""
        return self._ends.get(fit) == Fingerprint.of(self._task).parameters

    def load(self, path: Path) -> None:
        """Load the weights in this file into the model; they are the new start."""
        with in_training_mode(self._task.modules):
            _load(self._task, path)
            self._fresh = WeightsCopy.of(self._task)
            self._left = Fingerprint.of(self._task)


def _load(task: Task, path: Path) -> None:
    if lightning_file.is_one(path):
        lightning_file.load_weights(task, path)
    else:
        load_weights(task.trained_modules, path)
