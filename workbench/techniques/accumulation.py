"""Gradient accumulation: several batches make one update, each weighing what it holds.

The last, shorter window of an epoch is divided by its true length, and an uneven batch weighs as its samples,
so K batches of N give the update of one batch of K·N (to float tolerance).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Batch = TypeVar("Batch")


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """The batches in windows of `size`, the last one as long as what is left."""
    iterator = iter(batches)
    if size == 1:
        yield from ([batch] for batch in iterator)
        return
    while window := list(itertools.islice(iterator, size)):
        yield window


def shares(weights: Sequence[float]) -> list[float]:
    """Each batch's share of its window; they add up to 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def updates_in(batches: int, size: int) -> int:
    """Updates in an epoch of so many batches."""
    return -(-batches // size)
