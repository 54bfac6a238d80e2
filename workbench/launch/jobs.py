"""The work of each job of a bench: what happens between its RunStarted and its RunEnded."""

from __future__ import annotations

import abc
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from workbench import __version__
from workbench.commands import Mailbox, Stop
from workbench.engine import loop
from workbench.engine.checkpoint import load_weights as load_weights
from workbench.engine.checkpoint import save_weights
from workbench.engine.session import Session, opened
from workbench.engine.validate import validate
from workbench.engine.weights import Mark, Weights
from workbench.events import Emit, Message, RunStarted, Status, Validated
from workbench.launch.protocol import Job
from workbench.launch.trials import trials
from workbench.runs.store import RunFolder, check_id, runs_folder
from workbench.settings import Settings
from workbench.task.protocol import Task, TaskError
from workbench.task.summary import ModelSummary
from workbench.tuners import batch_size, lr_finder, sweep
from workbench.tuners.batch_size import BatchSizeRequest
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
        self._id = ""
        self._folder: RunFolder | None = None
        self._trouble: Message | None = None

    def bind(self, id: str, folder: RunFolder | None, trouble: Message | None) -> None:
        """The run that this work belongs to, and what went wrong in making its folder."""
        self._id, self._folder, self._trouble = id, folder, trouble

    @abc.abstractmethod
    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        """Do it, and say how it ended."""

    def _begin(self, kind: str, session: Session, emit: Emit, updates: int | None, epochs: int | None) -> None:
        settings = self._settings.model_dump()
        emit(RunStarted(self._id, kind, settings, str(session.device), session.names, updates, epochs))
        if self._trouble is not None:
            emit(self._trouble)


class Fit(BenchWork):
    """Train from a start, and leave the trained weights in the model and in the run's folder."""

    def __init__(self, task: Task, settings: Settings, start: Start, where: str) -> None:
        super().__init__(task, settings)
        self._start = start
        self._where = where

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        early: list[Message] = []
        with self._start.placed(self._where, early.append):
            with opened(self._task, self._settings) as session:
                self._begin("fit", session, emit, session.updates, session.settings.epochs)
                for message in early:
                    emit(message)
                self._save("start", emit)
                try:
                    status = loop.fit(session, emit, inbox)
                finally:
                    self.updates = session.step
            self._save("last", emit)
        return status

    def _save(self, name: str, emit: Emit) -> None:
        if self._folder is None:
            return
        try:
            save_weights(self._task.model, self._folder.checkpoints / f"{name}.safetensors")
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
        self._request = request

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        batch_size.cap_of(self._task)
        with opened(self._task, self._settings) as session:
            self._begin("find_batch_size", session, emit, None, None)
        with trials(self._task, self._settings, self._request, inbox) as trial:
            found = batch_size.run(self._task, self._request, emit, inbox, trial)
        return "stopped" if found.ended == "stopped" else "finished"


class Evaluate(BenchWork):
    """Score held-out data with the weights as they are."""

    def __init__(self, task: Task, settings: Settings, stage: Literal["val", "test"]) -> None:
        super().__init__(task, settings)
        self._stage = stage

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        spec = self._task.val if self._stage == "val" else self._task.test
        if spec is None:
            raise TaskError(f"there is no {self._stage} data: give {self._stage}= when the bench is made.")
        with opened(self._task, self._settings) as session:
            self._begin("validate" if self._stage == "val" else "test", session, emit, None, None)
            metrics = validate(session, _until_stopped(spec.loader(self._settings), inbox), self._stage)
            if inbox.has(Stop):
                return "stopped"
            emit(Validated(0, 0, metrics))
        return "finished"


def _until_stopped(batches: Iterable[Any], inbox: Mailbox) -> Iterator[Any]:
    for batch in batches:
        if inbox.has(Stop):
            return
        yield batch


def metrics_of(job: Job[dict[str, float]]) -> dict[str, float]:
    """The metrics that an Evaluate told."""
    return next((dict(e.metrics) for e in reversed(job.events) if isinstance(e, Validated)), {})


def header(kind: str, settings: Settings, summary: ModelSummary) -> dict[str, Any]:
    """What `run.json` says of a job before it runs."""
    return {
        "kind": kind,
        "task": {
            "model": summary.name,
            "parameters": summary.parameters,
            "trainable": summary.trainable,
            "device": summary.device,
        },
        "settings": settings.model_dump(),
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "versions": {
            "workbench": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "accelerate": version("accelerate"),
            "numpy": version("numpy"),
        },
    }


def run_folder(root: Path, id: str) -> Path:
    """The folder of a run; FileNotFoundError names the runs there are."""
    path = runs_folder(root) / check_id(id)
    if not path.is_dir():
        there = ", ".join(sorted(p.name for p in path.parent.iterdir() if p.is_dir())) or "none"
        raise FileNotFoundError(f"there is no run {id!r} in {root}; there are: {there}.")
    return path


def checkpoint_of(run: Path, which: str) -> Path:
    """The file of the weights of the run in this folder; FileNotFoundError names what there is."""
    path = run / "checkpoints" / f"{check_id(which)}.safetensors"
    if not path.exists():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("[!.]*.safetensors"))) or "none"
        raise FileNotFoundError(f"run {run.name!r} has no {which!r} weights; it has: {there}.")
    return path
