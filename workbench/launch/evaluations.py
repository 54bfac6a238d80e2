"""The jobs that train nothing: scores and predictions of data, with the model's weights as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from workbench.commands import Mailbox, Stop
from workbench.engine.feeds import first
from workbench.engine.predict import predict
from workbench.engine.session import Session, opened
from workbench.engine.validate import validate
from workbench.events import Emit, Status, Validated
from workbench.launch.jobs import BenchWork
from workbench.launch.protocol import Job
from workbench.settings import Settings
from workbench.task.data import Collate, DataSpec, Parts, batches_in
from workbench.task.lightning_hooks import has_loader, spec_of
from workbench.task.protocol import Task, TaskError
from workbench.techniques import limits
from workbench.tuners.stages import data_of


class Evaluate(BenchWork):
    """Score held-out data."""

    def __init__(self, task: Task, settings: Settings, stage: Literal["val", "test"]) -> None:
        super().__init__(task, settings)
        self._stage = stage

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        method: Literal["validate", "test"] = "validate" if self._stage == "val" else "test"
        spec = data_of(self._task, method)
        with opened(self._task, self.settings, method) as session:
            self._begin(method, session, emit, None, None)
            metrics = validate(session, _batches(session, spec, self._stage, inbox), self._stage)
            if inbox.has(Stop):
                return "stopped"
            emit(Validated(0, 0, metrics))
        return "finished"


class Predict(BenchWork):
    """The model's output for each batch of the data that was given, or else of the task's own."""

    def __init__(self, task: Task, settings: Settings, spec: DataSpec | None) -> None:
        super().__init__(task, settings)
        self._spec = spec
        self.outputs: list[Any] = []

    def __call__(self, emit: Emit, inbox: Mailbox) -> Status:
        spec = self._spec or data_of(self._task, "predict")
        with opened(self._task, self.settings, "predict") as session:
            self._begin("predict", session, emit, None, None)
            self.outputs = predict(session, _batches(session, spec, "predict", inbox))
        return "stopped" if inbox.has(Stop) else "finished"


def _batches(session: Session, spec: DataSpec, stage: str, inbox: Mailbox) -> Iterator[Any]:
    """The batches of a stage, as many as its limit lets through, until a Stop arrives."""
    name = f"limit_{stage}_batches"
    loader = spec.loader(session.settings)
    count = limits.count(batches_in(loader), getattr(session.settings, name), name)
    return _until_stopped(first(loader, count), inbox)


def _until_stopped(batches: Iterable[Any], inbox: Mailbox) -> Iterator[Any]:
    for batch in batches:
        if inbox.has(Stop):
            return
        yield batch


def metrics_of(job: Job[dict[str, float]]) -> dict[str, float]:
    """The metrics that an Evaluate told."""
    return next((dict(e.metrics) for e in reversed(job.events) if isinstance(e, Validated)), {})


def spec_to_predict(data: Any, collate_fn: Collate | None) -> DataSpec:
    """The spec of data given for a prediction: whatever the bench takes as data, or one array of inputs alone."""
    if has_loader(data, "predict_dataloader"):
        found = spec_of("predict", data)
        assert found is not None
        return found
    if isinstance(data, (Tensor, np.ndarray)):
        if data.ndim == 0:
            raise TaskError("data holds a single number; an array needs a first dimension of samples.")
        if not len(data):
            raise TaskError("data is empty: it has 0 samples, and at least one is needed.")
        return DataSpec("data", Parts(data))  # type: ignore[arg-type]  # its rows are the samples
    # A loader has its own way to make batches; the bench's is for samples.
    return DataSpec.of("data", data, None if isinstance(data, DataLoader) else collate_fn)
