"""Leaves the samples of the first batches out of all later ones, so that these can judge a training
of any length.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler


class WithoutFirst:
    """Yields the batches of indices of a batch sampler. After the first `count` ones, none has an
    index of these, in this pass and in all later ones.

    The batches of torch's BatchSampler are filled up, except for the last one of a pass. Those of
    the user's own batch sampler become smaller, since it decides what a batch holds. A number in
    place of a list of indices is a ready batch.
    """

    def __init__(self, batches: Iterable[Any], count: int) -> None:
        self.batches, self._count = batches, count
        self._held: set[Hashable] | None = None

    def __getattr__(self, name: str) -> Any:
        """An attribute of the batch sampler, such as `sampler` and `set_epoch`."""
        if name == "batches":  # a copy is being made, and has no attributes yet
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.batches)
        if self._held is None:
            first = list(itertools.islice(batches, self._count))
            self._held = {_key(index) for batch in first for index in _indices(batch)}
            yield from first
        yield from self._others(batches, self._held)

    def _others(self, batches: Iterator[Any], held: set[Hashable]) -> Iterator[Any]:
        if type(self.batches) is BatchSampler:
            size = self.batches.batch_size
            left = (index for batch in batches for index in batch if _key(index) not in held)
            while batch := list(itertools.islice(left, size)):
                if len(batch) == size or not self.batches.drop_last:
                    yield batch
            return
        for batch in batches:
            if not isinstance(batch, (list, tuple)):
                if _key(batch) not in held:
                    yield batch
            elif indices := [index for index in batch if _key(index) not in held]:
                yield indices


def _indices(batch: Any) -> Sequence[Any]:
    return batch if isinstance(batch, (list, tuple)) else [batch]


def _key(index: Any) -> Hashable:
    """An index as a value that is equal for equal indices; tensors are not."""
    return index.__index__() if hasattr(index, "__index__") else repr(index)
