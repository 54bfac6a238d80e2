"""Defines loaders that count the samples of each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.autograd import profiler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter


class Collated(NamedTuple):
    """A batch of a stream with its number of samples, as it comes from the process that collated it."""

    batch: Any
    samples: int


class CountingCollate:
    """A collate function that counts its samples, for data whose samples have no indices."""

    def __init__(self, users: Callable[[list[Any]], Any]) -> None:
        self.users = users

    def __call__(self, samples: list[Any]) -> Collated:
        return Collated(self.users(samples), len(samples))


class CountedLoader(DataLoader[Any]):
    """A DataLoader; `samples`: how many samples its latest batch was made of, None if unknown (ready batches)."""

    samples: int | None = None
    reuses_memory: bool = False
    """Whether reading a batch may overwrite the one before: what keeps that one needs a copy."""

    def __iter__(self) -> CountedPass:  # type: ignore[override]
        return CountedPass(self, super().__iter__())


class CountedPass:
    """One pass over a `CountedLoader`."""

    def __init__(self, loader: Any, batches: Iterator[Any]) -> None:
        self.inner = batches
        self._read: Callable[[], Any] | None = None
        """Reads a batch without the entry for a profiler, which takes longer than a small batch; None: `inner` does more than that."""
        if type(batches) is _SingleProcessDataLoaderIter and batches._dataset_kind == _DatasetKind.Map:
            self._read = batches._next_data
        self._told = vars(loader)  # its own __setattr__ costs a look-up for each batch
        found = (getattr(sampler, "drawn", None) for sampler in (loader.batch_sampler, loader.sampler))
        self._drawn: deque[int | None] = next((drawn for drawn in found if drawn is not None), deque())

    def __iter__(self) -> CountedPass:
        return self

    def __next__(self) -> Any:
        batch = next(self.inner) if self._read is None or profiler._is_profiler_enabled else self._read()
        if type(batch) is Collated:
            self._told["samples"] = batch.samples
            return batch.batch
        self._told["samples"] = self._drawn.popleft() if self._drawn else None
        return batch

    def _shutdown_workers(self) -> None:
        """Shut down the workers, as the same method of a loader's iterator."""
        if hasattr(self.inner, "_shutdown_workers"):
            self.inner._shutdown_workers()
