"""Yields training batches for a search, endlessly, from a loader of its own, so that the fit's
order does not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from workbench.engine.data.first_batches import first_batches
from workbench.settings import Settings
from workbench.task.batch import copied
from workbench.task.data.datasets import KeyedBatches
from workbench.task.data.held_out import WithoutFirst
from workbench.task.data.loader_parts import length_of
from workbench.task.data.spec import Loader, resumable_sampler_of, set_epoch
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.techniques import limits
from workbench.techniques.accumulation import size_at, windows
from workbench.techniques.tbptt import pieces
from workbench.tuners.stages import data_of_stage

Window = Sequence[Any]
InStep = Callable[[Iterable[Window]], Iterable[Window]]


class NoBatch(TaskError):
    """The training data has no batch of this size."""


def cycled_windows(
    task: Task,
    settings: Settings,
    *,
    epoch: int = 0,
    across_epochs: bool = False,
    in_step: InStep = iter,
    held_out: int = 0,
) -> Generator[Window]:
    """Yield windows of `accumulate_grad_batches` (as in `epoch`) batches, endlessly; close the
    generator to end its workers.

    An epoch's last window may be shorter, unless windows continue `across_epochs`. With truncated
    BPTT windows have pieces of
    batches. in_step: on several ranks, synchronizes the windows of one pass with the other ranks,
    since a rank may reach the end of its share before the others. held_out: no later window, of any
    pass, has a sample of so many first windows, where the data are read by indices.
    """
    spec = data_of_stage(task, "fit")
    if spec.one_shot:
        raise TaskError(
            "train can be read only once (it is an iterator), and a search would use it up: "
            "give a Dataset, a DataLoader, or wb.batches(list)."
        )
    loader = spec.loader(settings, train=True)
    epochs = itertools.count(epoch)

    def batches() -> Iterator[Any]:
        set_epoch(loader, next(epochs))  # each pass is another epoch, as in a fit
        read = _epoch(loader, task, settings)
        return map(copied, read) if loader.reuses_memory else read  # a search may keep windows

    def samples() -> int | None:
        return loader.samples

    size = size_at(settings.accumulate_grad_batches, epoch)
    if held_out:
        _leave_out(loader, held_out * size * spec.share.world)
    try:
        if across_epochs:
            yield from in_step(windows(_cycled(batches), size, samples))
        else:
            yield from _cycled(lambda: in_step(windows(batches(), size, samples)))
    finally:
        set_epoch(loader, epoch)


def by_indices(task: Task, settings: Settings) -> bool:
    """Whether the training data are read by indices, so that samples can be left out."""
    loader = data_of_stage(task, "fit").loader(settings, train=True)
    return resumable_sampler_of(loader) is not None


def _leave_out(loader: Loader, batches: int) -> None:
    """Let a loader leave out the samples of its first batches after these."""
    sampler = resumable_sampler_of(loader)
    if sampler is None:
        return
    if isinstance(sampler.batches, KeyedBatches):
        sampler.batches.batches = WithoutFirst(sampler.batches.batches, batches)
    else:
        sampler.batches = WithoutFirst(sampler.batches, batches)


def _cycled(one_pass: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """One pass after another."""
    while True:
        nothing = True
        for item in one_pass():
            nothing = False
            yield item
        if nothing:
            raise NoBatch(
                "the training data gave no batch: it is empty, or drop_last left out the only one."
            )


def _epoch(loader: Loader, task: Task, settings: Settings) -> Iterator[Any]:
    """One pass over the batches that a fit would take."""
    most = limits.limited_batches(
        length_of(loader), settings.limit_train_batches, "limit_train_batches"
    )
    batches = first_batches(loader, most)
    if settings.truncated_bptt_steps is None:
        return batches
    return pieces(batches, settings.truncated_bptt_steps, settings.tbptt_time_dim, task.split)
