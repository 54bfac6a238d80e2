"""Orders a stage's samples from the longest to the shortest, so that a batch-size search tries the
worst case first.

Sentences, graphs and point clouds differ in length, and the memory of a batch depends on its
longest samples. A size that passed with typical batches may run out of memory within an epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from workbench.task import rng
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners.stages import data_of_stage
from workbench.values import shown

Length = Callable[[Any], Any]


def longest_first(task: Task, method: str, length: Length | None) -> Task:
    """A task whose data for `method` have the longest samples first: by `length(sample)`, or by the
    `lengths` of their sampler.

    Without either it returns the task itself. Raises TaskError if `length` is given and the samples
    cannot be sorted.
    """
    spec = data_of_stage(task, method)
    order = _order(spec, length)
    if order is None:
        return task
    sorted_task = copy.copy(task)
    specs = [name for name in ("train", "val", "test", "predict") if getattr(task, name) is spec]
    for name in specs:
        setattr(sorted_task, name, _in_order(spec, order))
    # each trial of a fit validates a batch of each set too
    if method == "fit" and task.val is not None and length is not None:
        sorted_task.val = task.val.with_sets([_longest(data, length) for data in task.val.sets])
    return sorted_task


def _longest(spec: DataSpec, length: Length) -> DataSpec:
    """The spec with its longest samples first; the spec itself if they cannot be sorted."""
    order = None if _why_not(spec) is not None else _order(spec, length)
    return spec if order is None else _in_order(spec, order)


def _in_order(spec: DataSpec, order: list[int]) -> DataSpec:
    """The spec with its samples in this order."""
    defaults = {**spec.parts.defaults, "shuffle": False}
    sorted_data = DataSpec(spec.name, replace(spec.parts, sampler=order, defaults=defaults))
    sorted_data.share = spec.share
    return sorted_data


def _order(spec: DataSpec, length: Length | None) -> list[int] | None:
    """The indices of the samples, longest first; None if their lengths are unknown."""
    if length is None:
        # such as that of transformers' LengthGroupedSampler
        known = getattr(spec.parts.sampler, "lengths", None)
        if not isinstance(known, list | tuple) or len(known) != spec.samples:
            return None
        lengths = [_number(value, spec.name, number) for number, value in enumerate(known)]
    else:
        why = _why_not(spec)
        if why is not None:
            raise TaskError(
                f"longest=: {spec.name} {why}: give a Dataset with a length, or leave longest out."
            )
        dataset: Any = spec.parts.dataset
        with rng.preserved():
            lengths = [_number(length(dataset[i]), spec.name, i) for i in range(spec.samples or 0)]
    order: list[int] = np.argsort(-np.asarray(lengths, np.float64), kind="stable").tolist()
    return order


def _why_not(spec: DataSpec) -> str | None:
    """Why the samples cannot be sorted; None: they can."""
    parts = spec.parts
    if isinstance(parts.dataset, IterableDataset) or spec.samples is None:
        return "has no samples that can be read by their number"
    return None if parts.own_batches is None else f"is not sorted, since {parts.own_batches}"


def _number(value: Any, name: str, sample: int) -> float:
    try:
        length = float(value)
    except (TypeError, ValueError):
        length = float("nan")
    if not np.isfinite(length):
        raise TaskError(
            f"longest= returned {shown(value)} for sample {sample} of {name}: it must return the"
            " sample's length, a number."
        )
    return length
