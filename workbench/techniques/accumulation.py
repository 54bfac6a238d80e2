"""Accumulates gradients over several batches, each weighted by its samples, before one update.

The last, shorter window of an epoch is divided by its true length, and an uneven batch counts by
its samples, so K batches of N give the update of one batch of K·N (to float tolerance). K may
change from epoch to epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Batch = TypeVar("Batch")


def size_at(setting: int | Mapping[int, int], epoch: int) -> int:
    """Return how many batches make one update in this epoch: {0: 8, 4: 2} means 8 up to epoch 3
    and 2 from epoch 4.
    """
    if isinstance(setting, int):
        return setting
    begun = [start for start in setting if start <= epoch]
    return setting[max(begun)] if begun else 1


def with_size_from(setting: int | Mapping[int, int], epoch: int, size: int) -> int | dict[int, int]:
    """Return the setting after a live change to `size` in this epoch, which applies to the end of
    the run.

    With {epoch: size} the size applies until the next key, as in Lightning's
    GradientAccumulationScheduler.
    """
    return size if isinstance(setting, int) else {**setting, epoch: size}


class Window(list[Batch]):
    """The batches of one update, as `windows` makes them. `samples`: how many samples each has;
    `indices`: their indices in the data set; None where that is not known.
    """

    __slots__ = ("indices", "samples")
    samples: Sequence[int | None]
    indices: Sequence[Any]


def _unknown() -> None:
    """The number of samples, or their indices, where they are not known."""


def _same(batch: Batch) -> Batch:
    return batch


def windows(
    batches: Iterable[Batch], size: int, samples: Callable[[], int | None] = _unknown,
    keep: Callable[[Batch], Batch] = _same, indices: Callable[[], Any] = _unknown,
) -> Iterator[Window[Batch]]:  # fmt: skip
    """Yield the batches in windows of `size`; the last window may be shorter.

    samples, indices: return the number of samples of the latest batch, and their indices, or None
    where they are not known.
    keep: returns what is kept of a batch while the others of its window are read. The whole window
    is read before its first batch is used, whose share depends on all.
    """
    iterator = iter(batches)
    if size == 1:
        for batch in iterator:
            single = Window((batch,))
            single.samples, single.indices = (samples(),), (indices(),)
            yield single
        return
    while True:
        window: Window[Batch] = Window()
        counts: list[int | None] = []
        drawn: list[Any] = []
        window.samples, window.indices = counts, drawn
        for batch in itertools.islice(iterator, size):
            window.append(keep(batch) if len(counts) < size - 1 else batch)
            counts.append(samples())
            drawn.append(indices())
        if not window:
            return
        yield window


def samples_at(window: Sequence[object], number: int) -> int | None:
    """Return how many samples one batch of a window has; None where it is not known."""
    counts = window.samples if isinstance(window, Window) else ()
    return counts[number] if counts else None


def normalized_weights(weights: Sequence[float]) -> list[float]:
    """Return each batch's share of its window; the shares add up to 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def updates_in(batches: int, size: int) -> int:
    """Return the number of updates in an epoch of `batches` batches."""
    return -(-batches // size)


def updates_of_run(batches: int, setting: int | Mapping[int, int], epochs: int) -> int:
    """Return the number of updates in `epochs` epochs of `batches` batches each."""
    changes = [] if isinstance(setting, int) else [epoch for epoch in setting if 0 < epoch < epochs]
    bounds = [0, *sorted(changes), epochs]
    return sum(
        (end - start) * updates_in(batches, size_at(setting, start))
        for start, end in itertools.pairwise(bounds)
    )
