"""Chooses the data of a stage: for a batch-size search, `validate`, `test` and `predict`."""

from __future__ import annotations

from workbench.settings import SettingsError
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.protocol import Task

METHODS = ("fit", "validate", "test", "predict")
"""The stages, by the names of the calls that run them."""


def data_of_stage(task: Task, method: str) -> DataSpec:
    """The data that a stage reads; raises TaskError with the remedy if there is none."""
    if method == "fit":
        if task.train is None:
            raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
        return task.train
    if method == "predict":
        data = task.predict or task.test
        if data is None:
            raise TaskError(
                "there is no data to predict: give bench.predict(data), or test= when the bench is"
                " made."
            )
        return data
    name = {"validate": "val", "test": "test"}.get(method)
    if name is None:
        raise SettingsError(f"method={method!r}: give one of {', '.join(map(repr, METHODS))}.")
    spec = task.val if name == "val" else task.test
    if spec is None:
        raise TaskError(f"there is no {name} data: give {name}= when the bench is made.")
    return spec
