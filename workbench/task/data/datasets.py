"""Defines the data sets for arrays, ready batches, preloaded samples, and samples that draw
random numbers.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Columns(Dataset[Any]):
    """Arrays of equal length as a data set: sample i is row i of each, in the container that was
    given.

    Whole batches are indexed at once, which gives the same batches as stacking samples, much
    faster.
    """

    def __init__(
        self, columns: Sequence[Tensor] | Mapping[str, Tensor], converted: bool = False
    ) -> None:
        """converted: some arrays were given in a form that torch does not take (a frame,
        negative strides).
        """
        self.converted = converted
        self.columns = dict(columns) if isinstance(columns, Mapping) else tuple(columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of each column, by its name in torch."""
        return tuple(str(column.dtype).removeprefix("torch.") for column in self._values())

    def _values(self) -> Iterable[Tensor]:
        return self.columns.values() if isinstance(self.columns, dict) else self.columns

    def __len__(self) -> int:
        return len(next(iter(self._values())))

    def __getitem__(self, index: Any) -> Any:
        return self._map(lambda column: column[index])

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.as_tensor(indices, device="cpu")
        return self._map(lambda column: _rows(column, rows))

    def _map(self, take: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(self.columns, dict):
            return {name: take(column) for name, column in self.columns.items()}
        return tuple(take(column) for column in self.columns)


def _rows(column: Tensor, rows: Tensor) -> Tensor:
    """The rows, in memory one after another as torch's default collation stacks them: sums depend
    on it.

    In a loader worker they are gathered in shared memory, as that does too. Rows that are copied
    there later are freed by another thread than the one that made them, and the worker's memory
    would grow by all that it reads.
    """
    if (
        get_worker_info() is None
        or column.layout != torch.strided
        or column.device.type != "cpu"
        or column.requires_grad
    ):
        selected = column[rows]
        if column.layout != torch.strided or (selected.is_contiguous() and 1 not in selected.shape):
            return selected
        # A dimension of one row may have any stride, and convolutions look at it.
        return selected.clone(memory_format=torch.contiguous_format)
    shared = torch.empty(
        (len(rows), *column.shape[1:]), dtype=column.dtype, device="cpu"
    ).share_memory_()  # type: ignore[no-untyped-call]
    return torch.index_select(column, 0, rows, out=shared)


class Batches(IterableDataset[Any]):
    """Ready batches from any iterable. A script may contain this class."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.users = self._batches = batches
        self.one_shot = iter(batches) is batches

    # no Iterator, which a script would import for the annotation alone
    def __iter__(self) -> Any:
        worker = get_worker_info()
        if worker is None:
            return iter(self._batches)
        # each batch comes from one worker
        return itertools.islice(self._batches, worker.id, None, worker.num_workers)


def batches(ready: Iterable[Any]) -> Batches:
    """Ready batches for `train=`, `val=`, `test=` or `predict`: `train=wb.batches([(x1, y1), (x2,
    y2)])`.

    A plain list is a data set of samples. Each epoch reads the batches again in their order; an
    iterator can be read only once. Raises TypeError where `ready` cannot be iterated.
    """
    if isinstance(ready, (str, bytes, Mapping)) or not isinstance(ready, Iterable):
        raise TypeError(
            f"wb.batches({type(ready).__name__}): give a list of batches, or anything that can be"
            " iterated."
        )
    return Batches(ready)


def peek(ready: Batches, most: int) -> Any:
    """Of the first `most` batches, the first that is not None; a one-shot iterator loses none.
    None: there is none.
    """
    read: list[Any] = []
    for batch in itertools.islice(iter(ready._batches), most):
        read.append(batch)
        if batch is not None:
            break
    if ready.one_shot:
        ready._batches = itertools.chain(read, ready._batches)
    return read[-1] if read else None


class SeededBatches(Dataset[Any]):
    """In loader workers each batch draws from its own random numbers, whichever worker makes it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitems__(self, keyed: tuple[int, list[int]]) -> Any:
        seed, indices = keyed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[i] for i in indices]


class KeyedBatches(Sampler[tuple[int, list[int]]]):
    """The batches of a batch sampler, each with a seed from (seed, epoch, batch)."""

    def __init__(self, batches: Iterable[list[int]], seed: int) -> None:
        self.batches = batches
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        for number, indices in enumerate(self.batches):
            key = np.random.SeedSequence([self.seed, epoch, number]).generate_state(1)
            yield int(key[0]), indices


class StackedTensors(Columns):
    """Like Columns; default collation makes a list of a TensorDataset's tuples, so batches are
    lists here.
    """

    def __getitems__(self, indices: list[int]) -> Any:
        return list(super().__getitems__(indices))


class Preloaded(Dataset[Any]):
    """Samples that were read once, instead of the user's data set."""

    def __init__(self, users: Dataset[Any], samples: Any) -> None:
        self.users = users
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if not (isinstance(index, int) and 0 <= index < len(self._samples)):
            # a sampler of the user's own may give indices that only the data set understands
            return self.users[index]
        # A copy, as a new read would give.
        return (
            copy.deepcopy(self._samples[index])
            if isinstance(self._samples, Sequence)
            else self._samples[index]
        )


class Samples(Dataset[Any]):
    """Columns, one sample at a time."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index: int) -> Any:
        return self.columns[index]
