"""Training batches for a search: from a loader of its own, cycled, so that the fit's order is not moved."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from workbench.settings import Settings
from workbench.task.protocol import Task, TaskError
from workbench.techniques.accumulation import windows


def cycled_windows(task: Task, settings: Settings) -> Generator[list[Any]]:
    """Windows of `settings.accumulate_grad_batches` training batches, without end; close it to end its workers."""
    spec = task.train
    if spec is None:
        raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
    if spec.one_shot:
        raise TaskError(
            "train can be read only once (it is an iterator), and a search would use it up: "
            "give a Dataset, a DataLoader, or a list of batches."
        )
    loader = spec.loader(settings, train=True)
    while True:
        count = 0
        for window in windows(loader, settings.accumulate_grad_batches):
            count += 1
            yield window
        if not count:
            raise TaskError("the training data gave no batch: it is empty, or drop_last left out the only one.")
