"""Shuffles samples as torch's RandomSampler does, with less memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

_PIECE = 4096


class ShuffledSampler(RandomSampler):
    """torch's RandomSampler to the last draw, but only a part of its indices are Python objects at a time.

    A million indices as objects take 40 MB, in each process of a job.
    """

    def __iter__(self) -> Iterator[int]:
        count = len(self.data_source)
        order = self._drawn(count)
        if count >> 31 == 0:
            order = _memory(count, torch.int32).copy_(order)
        for piece in order.split(_PIECE):  # type: ignore[no-untyped-call]
            yield from piece.tolist()
        del order
        self._drawn(count)  # RandomSampler draws once more, for nothing

    def _drawn(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, out=_memory(count, torch.int64))


def _memory(count: int, dtype: torch.dtype) -> Tensor:
    """A tensor in pages of its own: memory that malloc gets back, it keeps for the process."""
    return torch.frombuffer(mmap.mmap(-1, max(count, 1) * dtype.itemsize, access=mmap.ACCESS_COPY), dtype=dtype)[:count]
