"""Shuffles samples as torch's RandomSampler does, with less memory, and finds out which samplers
shuffle.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_PIECE = 4096


class ShuffledSampler(RandomSampler):
    """Gives the order of torch's RandomSampler, with only a part of the indices as Python objects
    at a time.

    A million indices as Python objects take 40 MB, in each process of a job.
    """

    def __iter__(self) -> Iterator[int]:
        count = len(self.data_source)
        order = self._drawn(count)
        if count >> 31 == 0:
            order = _memory(count, torch.int32).copy_(order)
        for piece in order.split(_PIECE):  # type: ignore[no-untyped-call]
            yield from piece.tolist()
        del order
        self._drawn(count)  # RandomSampler draws a second, unused permutation

    def _drawn(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, out=_memory(count, torch.int64))


def _memory(count: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor in its own memory map, which is returned to the system; malloc would keep
    it for the process.
    """
    return torch.frombuffer(
        mmap.mmap(-1, max(count, 1) * dtype.itemsize, access=mmap.ACCESS_COPY), dtype=dtype
    )[:count]


_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 6
"""How many nested samplers are checked."""


def is_shuffling(sampler: Any, depth: int = _DEPTH) -> bool:
    """Whether a sampler, or one inside it, is made to give another order in each pass."""
    if sampler is None or not depth:
        return False
    if isinstance(sampler, _RANDOM):
        return True
    if getattr(sampler, "shuffle", None) is False:
        return False
    if getattr(sampler, "shuffle", None) is True or callable(getattr(sampler, "set_epoch", None)):
        return True
    if any(isinstance(value, _GENERATORS) for value in getattr(sampler, "__dict__", {}).values()):
        return True
    inside = (
        getattr(sampler, name, None)
        for name in ("batches", "batch_sampler", "sampler", "source", "base_sampler")
    )
    return any(is_shuffling(inner, depth - 1) for inner in inside)


def draws_alone(order: Any, generator: torch.Generator) -> bool:
    """Whether this is an order of torch's that draws from this generator, or draws nothing."""
    if type(order) is BatchSampler:
        return draws_alone(order.sampler, generator)
    return type(order) is SequentialSampler or (
        type(order) in (*_RANDOM, ShuffledSampler) and order.generator is generator
    )


def number_of_samples(loader: Any) -> int:
    """How many samples a loader's data set has; 0 if it has no length."""
    try:
        return len(loader.dataset)
    except TypeError:
        return 0
