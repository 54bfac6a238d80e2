"""Training batches for a search: from a loader of its own, cycled, so that the fit's order is not moved."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from workbench.settings import Settings
from workbench.task.protocol import Task, TaskError


class NoBatch(TaskError):
    """The training data gave no batch at all at this batch size."""


def cycled_windows(task: Task, settings: Settings, *, across_epochs: bool = False) -> Generator[list[Any]]:
    """Windows of `settings.accumulate_grad_batches` training batches, without end; close it to end its workers.

    An epoch's last window may be shorter, unless windows go on `across_epochs`.
    """
    spec = task.train
    if spec is None:
        raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
    if spec.one_shot:
        raise TaskError(
            "train can be read only once (it is an iterator), and a search would use it up: "
            "give a Dataset, a DataLoader, or a list of batches."
        )
    loader = spec.loader(settings, train=True)
    window: list[Any] = []
    while True:
        count = 0
        for batch in loader:
            count += 1
            window.append(batch)
            if len(window) == settings.accumulate_grad_batches:
                yield window
                window = []
        if not count:
            raise NoBatch("the training data gave no batch: it is empty, or drop_last left out the only one.")
        if window and not across_epochs:
            yield window
            window = []
