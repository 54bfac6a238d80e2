"""Reads the arguments and results of `validate`, `test` and `predict`."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from workbench.events import Validated
from workbench.launch.job import Job
from workbench.task.data.loader_parts import Collate, Parts
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.lightning.overrides import has_loader, spec_of


def metrics_of(job: Job[dict[str, float]]) -> dict[str, float]:
    """The metrics that an Evaluate emitted."""
    return next((dict(e.metrics) for e in reversed(job.events) if isinstance(e, Validated)), {})


def spec_to_predict(data: Any, collate_fn: Collate | None) -> DataSpec:
    """The spec of the data for a prediction: whatever the bench takes as data, or a single array of inputs."""
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
    # A loader makes its own batches; the bench's setting is for samples.
    return DataSpec.of("data", data, None if isinstance(data, DataLoader) else collate_fn)
