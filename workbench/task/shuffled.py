"""The order of shuffled samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import RandomSampler

_PIECE = 4096


class Shuffled(RandomSampler):
    """torch's RandomSampler to the last draw, but of its numbers only a piece at a time are objects of Python.

    Of a million samples they take 40 MB, in each process of a job.
    """

    def __iter__(self) -> Iterator[int]:
        count = len(self.data_source)
        for piece in torch.randperm(count, generator=self.generator).split(_PIECE):  # type: ignore[no-untyped-call]
            yield from piece.tolist()
        torch.randperm(count, generator=self.generator)  # RandomSampler draws once more, for nothing
