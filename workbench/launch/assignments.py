"""Defines the assignments: the work of a job, which is the same in a thread, in a pool and in
launched processes.

An assignment holds the task, the settings and plain data. Every rank of the job calls it once, and
then has the trained modules.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from workbench.commands import Inbox, Scheduled, Stop
from workbench.engine import loop
from workbench.engine.checkpoint import lightning_file
from workbench.engine.checkpoint.files import restoring
from workbench.engine.checkpoint.fit_state import first_steps, restore
from workbench.engine.checkpoint.manager import CheckpointManager
from workbench.engine.data.common_stream import in_step
from workbench.engine.data.first_batches import first_batches
from workbench.engine.data.loaders import with_sample_counts
from workbench.engine.optim.optimizer_handle import shares
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.validation.predict import predict
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.engine.validation.validate import validate
from workbench.engine.validation.watch import Watch, Watcher
from workbench.events import Emit, RunStarted, Status, Validated
from workbench.instruments.memory import total_memory
from workbench.launch.job import EventSink
from workbench.launch.search import scheduled_searches
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.data.loader_parts import length_of
from workbench.task.data.spec import DataSpec, set_epoch
from workbench.task.errors import TaskError
from workbench.task.hooks import telling_failure
from workbench.task.modules import kept_weights
from workbench.task.protocol import Phase, Task
from workbench.task.state.of_task import copy_all
from workbench.task.supervised import Supervised
from workbench.techniques import limits
from workbench.tuners.learning_rate import lr_finder, sweep
from workbench.tuners.learning_rate.lr_finder import LRRequest
from workbench.tuners.plan import SettingsRequest
from workbench.tuners.plan_search import PlanRequest, PlanSearch
from workbench.tuners.profiling import measure
from workbench.tuners.profiling.profile import ProfileRequest
from workbench.tuners.stages import data_of_stage
from workbench.tuners.study.halt import halt, halt_at


@dataclass(frozen=True)
class Done:
    """How an assignment ended, and its result besides events and weights (predictions)."""

    status: Status
    value: Any = None


class Assignment(abc.ABC):
    """Work for one process, or for each of several ranks."""

    kind: ClassVar[str]
    phase: Phase = "fit"
    trains: ClassVar[bool] = False
    """Whether the trained modules are copied back, whichever process changed them."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self.task, self.settings = task, settings
        self.id = ""
        """The run's id."""
        self.updates = 0
        """How many updates it has taken, also where an error ended it."""
        self.random: rng.State | None = None
        """The states of the process's generators with which a worker begins, where this process
        would have done the job; None: the worker's own.
        """
        self.folder: Path | None = None
        """The run's folder: for checkpoints, and for data where memory is too small for one
        copy.
        """

    @abc.abstractmethod
    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        """Run it. The first event is RunStarted; only rank 0's events are used."""

    def data(self) -> tuple[DataSpec | None, ...]:
        """The data that it reads; `preload` reads them into memory before it runs."""
        return (self.task.train,)

    def updates_now(self) -> int:
        """How many updates it has taken by now; any thread may call it."""
        return self.updates

    def names(self) -> dict[str, Any]:
        """Its parts by the names that the user knows, for an error about a part that cannot be
        pickled.
        """
        attributes = {name.lstrip("_"): attribute for name, attribute in vars(self.task).items()}
        for name, attribute in attributes.items():
            if isinstance(attribute, DataSpec) and not attribute.made_by_object:
                attributes[name] = (
                    {spec.key: spec.parts for spec in attribute.sets}
                    if attribute.several
                    else attribute.parts
                )
        return {**attributes, "the job": self}

    def _started(
        self,
        session: Session,
        updates: int | None,
        epochs: int | None,
        request: Mapping[str, Any] | None = None,
    ) -> RunStarted:
        """request: the arguments of a search."""
        unused = {"batch_size"} if self.trains and not self.task.uses_batch_size else None
        settings, ranks = self.settings.model_dump(exclude=unused), session.ranks.world
        return RunStarted(
            self.id,
            self.kind,
            settings,
            session.device_name,
            tuple(session.parameters),
            updates,
            epochs,
            ranks,
            total_memory(session.device),
            request=dict(request or {}),
            groups=shares(session.optimizers, session.settings.lr),
            supervised=isinstance(self.task, Supervised),
            resumed_at=session.state.step,
        )


class FitAssignment(Assignment):
    """A fit, from the weights that the model has, or from a checkpoint."""

    kind = "fit"
    trains = True

    def __init__(
        self,
        task: Task,
        settings: Settings,
        past: Mapping[str, Any] | None = None,
        point: Path | None = None,
        *,
        keeps_lr: bool = False,
    ) -> None:
        """past, point: for a resumed fit, the part of the checkpoint's state on which its length
        depends, and the checkpoint's path: a directory of a run, or a file of Lightning. keeps_lr:
        optimizers keep the rate of that file.
        """
        super().__init__(task, settings)
        self._past, self.point, self._keeps_lr = past, point, keeps_lr
        self._session: Session | None = None
        self.scheduled: Sequence[Scheduled] = ()
        """Of a run that repeats another: the other's commands."""
        self.halt: float | None = None
        """The share of its updates at which it halts (`tuners.study.halt`); None: it does not."""
        self.watched: Sequence[Watcher] = ()
        """The functions of `bench.watch`."""
        self.asked: Collection[str] = ()
        """The names of the settings that this fit alone was given."""

    def data(self) -> tuple[DataSpec | None, ...]:
        return self.task.train, self.task.val

    def updates_now(self) -> int:
        return self.updates if self._session is None else self._session.state.step

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings, past=self._past) as session:
            self._session, validation = session, ValidationSchedule(session)
            if self.point is not None:
                self._restore(session, validation, self.point)
            if self.watched and session.ranks.first:
                validation.watch = Watch(self.watched, self.folder)
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, session.updates, session.settings.epochs))
            at_epoch = scheduled_searches.searches_by_epoch(session)
            checkpoints = None
            if self.folder is not None:
                checkpoints = CheckpointManager(
                    session, validation, self.folder / "checkpoints", emit, emit.settle
                )
                if session.weights.sharded and (
                    self.point is None or lightning_file.is_one(self.point)
                ):
                    checkpoints.save_start()
            try:
                with (
                    nullcontext()
                    if self.point is None
                    else first_steps(session.optimizers, self.point)
                ):
                    scheduled = [*self.scheduled]
                    if self.halt is not None and session.updates is not None:
                        scheduled += halt(halt_at(self.halt, session.updates))
                    status = loop.fit(
                        session,
                        emit,
                        inbox,
                        at_epoch,
                        validation,
                        checkpoints,
                        scheduled,
                        self.asked,
                    )
                    return Done(status)
            finally:
                if checkpoints is not None:
                    checkpoints.close()
                self.updates = session.state.step
                self._session = None

    def _restore(self, session: Session, validation: ValidationSchedule, point: Path) -> None:
        if lightning_file.is_one(point):
            with _as_it_was(self.task), restoring(point):
                lightning_file.restore(session, point, keeps_lr=self._keeps_lr)
            self.settings = session.settings
            return
        state = session.weights.read_state(point)
        with _as_it_was(self.task), restoring(point):
            restore(session, validation, state)


class FindLRAssignment(Assignment):
    """A sweep of learning rates; afterwards the model is as before."""

    kind = "find_lr"

    def __init__(self, task: Task, settings: Settings, request: LRRequest) -> None:
        super().__init__(task, settings)
        self._request = request

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings) as session:
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, self._request.updates, None, vars(self._request)))
            end = lr_finder.run(session, self._request, emit, inbox)
        return Done("stopped" if end.ended == sweep.STOPPED else "finished")


class FindSettingsAssignment(Assignment):
    """A search for workers, a precision, a clip value, a weight decay or a recipe; afterwards the
    model is as before.
    """

    def __init__(self, task: Task, settings: Settings, kind: str, request: SettingsRequest) -> None:
        super().__init__(task, settings)
        self.kind = kind  # type: ignore[misc]
        self._request = request

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings) as session:
            ranks = session.ranks
            emit(self._started(session, None, None, vars(self._request)))
        # The search opens sessions of its own, so ranks agree here whether a Stop has come to rank
        # 0.
        end = self._request.run(self.task, self.settings, emit, lambda: ranks.any(inbox.has(Stop)))
        emit(end)
        return Done("stopped" if end.ended == "stopped" else "finished")


class TuneAssignment(Assignment):
    """The part of a tuning that trains: a rate, a batch size and a clip value, and a comparison of
    all with the present settings; afterwards the model is as before.
    """

    kind = "tune"

    def __init__(self, task: Task, settings: Settings, request: PlanRequest) -> None:
        super().__init__(task, settings)
        self._request = request

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings) as session:
            emit(self._started(session, None, None))
        ended = PlanSearch(self.task, self.settings, self._request, emit, inbox).run()
        return Done("finished" if ended else "stopped")


class ProfileAssignment(Assignment):
    """A profile of updates; afterwards the model is as before."""

    kind = "profile"

    def __init__(self, task: Task, settings: Settings, request: ProfileRequest) -> None:
        super().__init__(task, settings)
        self._request = request

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings) as session:
            emit(self._started(session, None, None, vars(self._request)))
            end = measure.run(session, self._request.updates, inbox, self.folder)
        emit(end)
        return Done("stopped" if end.ended == "stopped" else "finished")


class EvaluateAssignment(Assignment):
    """The metrics of held-out data."""

    def __init__(self, task: Task, settings: Settings, stage: Literal["val", "test"]) -> None:
        super().__init__(task, settings)
        self._stage = stage
        self.kind = self.phase = "validate" if stage == "val" else "test"  # type: ignore[misc]

    def data(self) -> tuple[DataSpec, ...]:
        return (data_of_stage(self.task, self.phase),)

    def __call__(self, emit: Emit, inbox: Inbox) -> Done:
        (spec,) = self.data()
        with _evaluating(self.task, self.settings, self.phase) as session:
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, None, None))
            sets = (
                (dataset, _batches(session, dataset, self._stage, inbox)) for dataset in spec.sets
            )
            metrics = validate(session, sets, self._stage, cut=lambda: inbox.has(Stop))
            if inbox.has(Stop):
                return Done("stopped")
            emit(Validated(0, 0, metrics))
        return Done("finished")


class PredictAssignment(Assignment):
    """The model's output for each batch; `Done.value` is the list of them, in the order of the
    data.
    """

    kind = phase = "predict"

    def __init__(self, task: Task, settings: Settings, spec: DataSpec | None) -> None:
        super().__init__(task, settings)
        self._spec = spec

    def data(self) -> tuple[DataSpec, ...]:
        return (self._spec or data_of_stage(self.task, self.phase),)

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        (spec,) = self.data()
        with _evaluating(self.task, self.settings, self.phase) as session:
            if spec.several:
                raise TaskError(
                    f"{spec.name} has {len(spec.sets)} sets, and one is predicted at a time: give"
                    " bench.predict(data)."
                )
            spec.share = session.ranks.share
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, None, None))
            numbered = predict(session, _batches(session, spec, "predict", inbox))
            outputs = _in_batch_order(session.ranks.all_gather_object(numbered))
        return Done("stopped" if inbox.has(Stop) else "finished", outputs)


@contextmanager
def _evaluating(task: Task, settings: Settings, phase: Phase) -> Iterator[Session]:
    """Context manager with the session of a job that leaves the weights as they are."""
    with (
        kept_weights(task.modules),
        open_session(task, settings, phase) as session,
        telling_failure(session.hooks),
    ):
        yield session


def _batches(session: Session, spec: DataSpec, stage: str, inbox: Inbox) -> Iterator[Any]:
    """The batches of a stage, limited by its setting, until a Stop arrives."""
    name = f"limit_{stage}_batches"
    loader = spec.loader(session.settings)
    set_epoch(loader, session.state.epoch)
    count = limits.limited_batches(length_of(loader), getattr(session.settings, name), name)
    batches = with_sample_counts(session.task, loader, first_batches(loader, count))
    return in_step(session.ranks, spec, batches, lambda: inbox.has(Stop))


def _in_batch_order(parts: list[list[tuple[int, Any]]]) -> list[Any]:
    """The outputs of the ranks, in the order of the batches."""
    numbered = [
        (round, rank, output)
        for rank, rank_outputs in enumerate(parts)
        for round, output in rank_outputs
    ]
    return [output for *_, output in sorted(numbered, key=lambda entry: entry[:2])]


@contextmanager
def _as_it_was(task: Task) -> Iterator[None]:
    """Context manager in which a checkpoint replaces all of the model's state; an error restores
    the state from before.
    """
    before = copy_all(task)
    try:
        yield
    except BaseException:
        before.put()
        raise
