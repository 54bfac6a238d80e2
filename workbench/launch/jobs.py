"""The work of the jobs of a bench that train or search: what happens between RunStarted and RunEnded."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.commands import Mailbox
from workbench.engine import loop
from workbench.engine.checkpoint import load_weights as load_weights
from workbench.engine.checkpoint import save_weights
from workbench.engine.session import Session, opened
from workbench.engine.weights import Mark, Weights
from workbench.events import Emit, Message, RunStarted, Status
from workbench.launch import milestones
from workbench.launch.folders import Place, checkpoint_of, run_folder
from workbench.launch.trials import trials
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners import batch_size, lr_finder, sweep
from workbench.tuners.batch_size import BatchSizeRequest
from workbench.tuners.effective import effective_batch
from workbench.tuners.lr_finder import LRRequest


class Start:
    """The weights that fits of one bench start from.

    They are those that the model had when the bench was made, until the user changes them between two jobs.
    Attributes (a dropout's p, say) that the user set since hold as they are.
    """

    def __init__(self, task: Task, root: Path) -> None:
        self._task = task
        self._root = root
        self._fresh = Weights.of(task)
        self._left = Mark.of(task)

    @contextmanager
    def placed(self, start: str, emit: Callable[[Message], None]) -> Iterator[None]:
        """Inside, the model has the weights of `start`; behind it, those that the job made it have."""
        try:
            self._place(start, emit)
            yield
        finally:
            self._left = Mark.of(self._task)

    def _place(self, start: str, emit: Callable[[Message], None]) -> None:
        now = Mark.of(self._task)
        if now.parameters != self._left.parameters:
            self._fresh = Weights.of(self._task)
            emit(Message("The model's weights were changed since the last job; they are the new start."))
        else:
            self._fresh = self._fresh.with_attributes(now.set_since(self._left))
            if start == "fresh" and now.buffers != self._left.buffers:
                # A forward in training mode moves a BatchNorm's statistics: that asks for no other start.
                emit(Message("The model's buffers were changed since the last job, its parameters not: put back."))
        if start == "fresh":
            self._fresh.put(self._task)
        elif start != "continue":
            before = Weights.of(self._task)
            try:
                load_weights(self._task.model, checkpoint_of(run_folder(self._root, start), "last"))
            except BaseException:
                before.put(self._task)  # what fits is copied before the rest is found not to
                raise


class BenchWork(abc.ABC):
    """Work that knows its run: called by the launcher with where events go and commands come from."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self.updates = 0
        self._place = Place("")

    def bind(self, place: Place) -> None:
        """The run that this work belongs to."""
        self._place = place

    @abc.abstractmethod
    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        """Do it, and say how it ended."""

    def _begin(self, kind: str, session: Session, emit: Emit, updates: int | None, epochs: int | None) -> None:
        settings = self._settings.model_dump()
        emit(RunStarted(self._place.id, kind, settings, str(session.device), session.names, updates, epochs))
        if self._place.trouble is not None:
            emit(self._place.trouble)


class Fit(BenchWork):
    """Train from a start, and leave the trained weights in the model and in the run's folder."""

    def __init__(self, task: Task, settings: Settings, start: Start, where: str) -> None:
        super().__init__(task, settings)
        milestones.check(settings)
        self._start = start
        self._where = where

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        early: list[Message] = []
        with self._start.placed(self._where, early.append):
            with opened(self._task, self._settings) as session:
                self._begin("fit", session, emit, session.updates, session.settings.epochs)
                for message in early:
                    emit(message)
                at_epoch = milestones.milestones(session)
                self._save("start", emit)
                try:
                    status = loop.fit(session, emit, inbox, at_epoch)
                finally:
                    self.updates = session.step
            self._save("last", emit)
        return status

    def _save(self, name: str, emit: Emit) -> None:
        if self._place.folder is None:
            return
        try:
            save_weights(self._task.model, self._place.folder.checkpoints / f"{name}.safetensors")
        except OSError as error:
            emit(Message(f"the {name} weights could not be saved ({error}); the run goes on.", "warning"))


class FindLR(BenchWork):
    """Sweep the learning rate from a start; the model has afterwards what it had before."""

    def __init__(self, task: Task, settings: Settings, start: Start, where: str, request: LRRequest) -> None:
        super().__init__(task, settings)
        self._start = start
        self._where = where
        self._request = request

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        early: list[Message] = []
        with self._borrowed(early), opened(self._task, self._settings) as session:
            self._begin("find_lr", session, emit, self._request.num_training, None)
            for message in early:
                emit(message)
            end = lr_finder.run(session, self._request, emit, inbox)
        return "stopped" if end.ended == sweep.STOPPED else "finished"

    @contextmanager
    def _borrowed(self, early: list[Message]) -> Iterator[None]:
        before = Weights.of(self._task, tensors=True)
        with self._start.placed(self._where, early.append):
            try:
                yield
            finally:
                before.put(self._task)


class FindBatchSize(BenchWork):
    """Try batch sizes; the model is only read."""

    def __init__(self, task: Task, settings: Settings, request: BatchSizeRequest) -> None:
        super().__init__(task, settings)
        if request.keep_effective:
            effective_batch(settings)  # refuses what it cannot keep
        self._request = request

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        batch_size.cap_of(self._task, self._request.method)
        with opened(self._task, self._settings) as session:
            self._begin("find_batch_size", session, emit, None, None)
        with trials(self._task, self._settings, self._request, inbox) as trial:
            found = batch_size.run(self._task, self._settings, self._request, emit, inbox, trial)
        return "stopped" if found.ended == "stopped" else "finished"
