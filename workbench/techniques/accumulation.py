"""Gradient accumulation: several batches make one update, each weighted by its samples.

The last, shorter window of an epoch is divided by its true length, and an uneven batch is weighted by its samples, so K
batches of N give the update of one batch of K·N (to float tolerance). K may change from epoch to epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

Batch = TypeVar("Batch")


def size_at(setting: int | Mapping[int, int], epoch: int) -> int:
    """How many batches make one update in this epoch: {0: 8, 4: 2} holds 8 to epoch 3 and 2 from then on."""
    if isinstance(setting, int):
        return setting
    begun = [start for start in setting if start <= epoch]
    return setting[max(begun)] if begun else 1


def from_now_on(setting: int | Mapping[int, int], epoch: int, size: int) -> int | dict[int, int]:
    """The setting after a live change to `size` in this epoch: it holds to the end of the run.

    Of {epoch: size} the next key wins, as in Lightning's GradientAccumulationScheduler.
    """
    return size if isinstance(setting, int) else {**setting, epoch: size}


class Window(list[Batch]):
    """The batches of one update, as `windows` makes them; `samples`: how many samples each was made of, where that is known."""

    __slots__ = ("samples",)
    samples: Sequence[int | None]


def _unknown() -> None:
    """Nobody knows how many samples there were."""


def windows(batches: Iterable[Batch], size: int, samples: Callable[[], int | None] = _unknown) -> Iterator[Window[Batch]]:
    """The batches in windows of `size`, the last one as long as what is left. samples: of the latest batch, if it is known."""
    iterator = iter(batches)
    if size == 1:
        for batch in iterator:
            single = Window((batch,))
            single.samples = (samples(),)
            yield single
        return
    while True:
        window: Window[Batch] = Window()
        counts = window.samples = []
        for batch in itertools.islice(iterator, size):
            window.append(batch)
            counts.append(samples())
        if not window:
            return
        yield window


def samples_at(window: Sequence[object], number: int) -> int | None:
    """How many samples one batch of a window was made of; None if unknown."""
    counts = window.samples if isinstance(window, Window) else ()
    return counts[number] if counts else None


def shares(weights: Sequence[float]) -> list[float]:
    """Each batch's share of its window; they add up to 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def updates_in(batches: int, size: int) -> int:
    """Updates in an epoch of this many batches."""
    return -(-batches // size)


def updates_of_run(batches: int, setting: int | Mapping[int, int], epochs: int) -> int:
    """Updates in this many epochs of this many batches each."""
    changes = [] if isinstance(setting, int) else [epoch for epoch in setting if 0 < epoch < epochs]
    bounds = [0, *sorted(changes), epochs]
    return sum(
        (end - start) * updates_in(batches, size_at(setting, start))
        for start, end in itertools.pairwise(bounds)
    )
