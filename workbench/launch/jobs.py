"""The work of the jobs of a bench that train or search: what happens between RunStarted and RunEnded."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.commands import Mailbox
from workbench.engine import length, loop
from workbench.engine.checkpoint import peek, save_weights
from workbench.engine.checks import Checks
from workbench.engine.keeper import Keeper
from workbench.engine.resume import restore
from workbench.engine.session import Session, opened
from workbench.engine.weights import Weights
from workbench.events import Emit, Message, RunStarted, Status
from workbench.launch import milestones
from workbench.launch.folders import Place
from workbench.launch.origin import Origin, Wanted
from workbench.launch.protocol import Outlet
from workbench.launch.resuming import GoingOn, Story
from workbench.launch.start import Start
from workbench.launch.trials import trials
from workbench.runs.past import take_over
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners import batch_size, lr_finder, sweep
from workbench.tuners.batch_size import BatchSizeRequest
from workbench.tuners.effective import effective_batch
from workbench.tuners.lr_finder import LRRequest


class BenchWork(abc.ABC):
    """Work that knows its run: called by the launcher with where events go and commands come from."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task = task
        self.settings = settings
        self.updates = 0
        self._place = Place("")

    def bind(self, place: Place) -> None:
        """The run that this work belongs to."""
        self._place = place

    @abc.abstractmethod
    def __call__(self, emit: Outlet, inbox: Mailbox) -> Status:
        """Do it, and say how it ended."""

    def _begin(
        self, kind: str, session: Session, emit: Emit, updates: int | None, epochs: int | None, story: Story | None = None
    ) -> None:
        settings, told = (self.settings.model_dump(), []) if story is None else story
        emit(RunStarted(self._place.id, kind, settings, str(session.device), session.names, updates, epochs))
        for event in told:
            emit(event)
        if self._place.trouble is not None:
            emit(self._place.trouble)


_PAST = 60.0
"""Seconds that a fit which goes on waits at most until its past is written."""


class Fit(BenchWork):
    """Train from a start, and leave the trained weights in the model and in the run's folder."""

    def __init__(self, task: Task, settings: Settings, start: Start, origin: Origin) -> None:
        super().__init__(task, settings)
        milestones.check(settings)
        self._start = start
        self._origin = origin

    def __call__(self, emit: Outlet, inbox: Mailbox) -> Status:
        on = self._origin.look(self._start.untouched_since)
        self.settings = self._origin.asked if on is None else on.settings
        milestones.check(self.settings)
        early: list[Message] = [] if self._origin.note is None else [self._origin.note]
        past = None if on is None else peek(on.point.path, *length.NAMES)
        with (
            self._start.placed(None, self._origin.fresh, early.append, fit=self._place.id),
            opened(self._task, self.settings, past=past) as session,
        ):
            checks = Checks(session)
            if on is not None:
                with self._start.replaced():
                    restore(session, checks, on.state())
            story = None if on is None else on.story()
            self._begin("fit", session, emit, session.updates, session.settings.epochs, story)
            del story  # all of its past need not be held any longer
            if on is not None:
                emit.settle(_PAST)  # before its checkpoints are here: none may be ahead of the record
            for message in early:
                emit(message)
            at_epoch = milestones.milestones(session)
            keeper = self._keeper(session, checks, on, emit)
            try:
                return loop.fit(session, emit, inbox, at_epoch, checks=checks, keeper=keeper)
            finally:
                self.updates = session.step

    def _keeper(self, session: Session, checks: Checks, on: GoingOn | None, emit: Outlet) -> Keeper | None:
        """What keeps checkpoints in the run's folder, which has the starting weights then; None: there is no folder."""
        if self._place.folder is None:
            return None
        try:
            kept = self._place.folder.checkpoints
            if on is None:
                save_weights(self._task.model, kept / "start.safetensors")
            else:
                take_over(on.folder, kept, on.point)
        except OSError as error:
            emit(Message(f"what the run starts from could not be saved ({error}); the run goes on.", "warning"))
        return Keeper(session, checks, self._place.folder.path / "checkpoints", emit, emit.settle)


class FindLR(BenchWork):
    """Sweep the learning rate from a start; the model has afterwards what it had before."""

    def __init__(
        self, task: Task, settings: Settings, start: Start, wanted: Wanted, root: Path, request: LRRequest
    ) -> None:
        super().__init__(task, settings)
        self._start = start
        self._wanted = wanted
        self._root = root
        self._request = request

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        early: list[Message] = []
        with self._borrowed(early), opened(self._task, self.settings) as session:
            self._begin("find_lr", session, emit, self._request.num_training, None)
            for message in early:
                emit(message)
            end = lr_finder.run(session, self._request, emit, inbox)
        return "stopped" if end.ended == sweep.STOPPED else "finished"

    @contextmanager
    def _borrowed(self, early: list[Message]) -> Iterator[None]:
        before = Weights.of(self._task, tensors=True)
        with self._start.placed(self._wanted.weights(self._root), self._wanted.text == "fresh", early.append):
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
        with opened(self._task, self.settings) as session:
            self._begin("find_batch_size", session, emit, None, None)
        with trials(self._task, self.settings, self._request, inbox) as trial:
            found = batch_size.run(self._task, self.settings, self._request, emit, inbox, trial)
        return "stopped" if found.ended == "stopped" else "finished"
