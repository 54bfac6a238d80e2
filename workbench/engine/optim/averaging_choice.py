"""Chooses the average of the weights that a session keeps."""

from __future__ import annotations

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.techniques.averaging import Average, has_batch_norm, swa_first_epoch


def average_of(task: Task, settings: Settings) -> Average | None:
    """The average that the settings ask for, or None. TaskError: this task's weights cannot be averaged."""
    kind = settings.weight_averaging
    if kind is None:
        return None
    if task.manual and has_batch_norm([task.model]):
        raise TaskError(
            "weight_averaging with manual optimisation cannot refresh the statistics of the model's batch normalisation: "
            "take another normalisation, or average in the task."
        )
    if task.train is not None and task.train.one_shot and has_batch_norm([task.model]):
        raise TaskError(
            "weight_averaging reads the training data once more, for the statistics of the model's batch normalisation, "
            "and this data can be read only once: give a Dataset, a DataLoader, or wb.batches(list)."
        )
    if kind == "swa":
        swa_first_epoch(settings)  # a fraction needs max_epochs: raise that before training
    return Average(kind, settings.ema_decay, task.averaging.avg_fn)
