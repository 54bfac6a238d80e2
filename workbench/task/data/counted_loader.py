"""Defines loaders that count the samples of each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from workbench.task.device import default_device


class Collated(NamedTuple):
    """A batch of a stream with its number of samples, as it comes from the process that collated
    it.
    """

    batch: Any
    samples: int


class CountingCollate:
    """A collate function that counts its samples, for data whose samples have no indices."""

    def __init__(self, users: Callable[[list[Any]], Any]) -> None:
        self.users = users

    def __call__(self, samples: list[Any]) -> Collated:
        return Collated(self.users(samples), len(samples))


class CountedLoader(DataLoader[Any]):
    """A DataLoader; `samples`: how many samples its latest batch was made of, None if unknown
    (ready batches).
    """

    samples: int | None = None
    indices: Any = None
    """What its sampler gave for that batch: indices, or the number of a ready batch; None:
    unknown.
    """
    reuses_memory: bool = False
    """Whether reading a batch may overwrite the one before: what keeps that one needs a copy."""

    def __iter__(self) -> CountedPass:  # type: ignore[override]
        return CountedPass(self, super().__iter__())


class CountedPass:
    """One pass over a `CountedLoader`."""

    def __init__(self, loader: Any, batches: Iterator[Any]) -> None:
        self.inner = batches
        self._read: Callable[[], Any] | None = None
        """Reads a batch without the entry for a profiler, which takes longer than a small batch;
        None: `inner` does more than that.
        """
        if (
            type(batches) is _SingleProcessDataLoaderIter
            and batches._dataset_kind == _DatasetKind.Map
        ):
            self._read = batches._next_data
        self._device = default_device.in_users_code() if default_device.differs() else None
        """In which data sets and collate functions are called; None: torch's default device is
        the CPU.
        """
        if self._device is not None and type(batches) is _SingleProcessDataLoaderIter:
            batches._sampler_iter = _drawn_on_cpu(batches._sampler_iter)
        self._told = vars(loader)  # its own __setattr__ costs a look-up for each batch
        counters = (
            getattr(sampler, "drawn", None) for sampler in (loader.batch_sampler, loader.sampler)
        )
        self._drawn: deque[Any] = next((drawn for drawn in counters if drawn is not None), deque())

    def __iter__(self) -> CountedPass:
        return self

    def __next__(self) -> Any:
        if self._device is not None:
            with self._device:
                batch = next(self.inner)
        else:
            batch = (
                next(self.inner)
                if self._read is None or profiler._is_profiler_enabled
                else self._read()
            )
        if type(batch) is Collated:
            self._told["samples"] = batch.samples
            return batch.batch
        drawn = self._drawn.popleft() if self._drawn else None
        if type(drawn) is tuple and len(drawn) == 2 and isinstance(drawn[1], list):
            drawn = drawn[1]  # with the seed of `KeyedBatches`
        self._told["indices"] = drawn
        self._told["samples"] = len(drawn) if isinstance(drawn, (list, tuple)) else None
        return batch

    def _shutdown_workers(self) -> None:
        """Shut down the workers, as the same method of a loader's iterator."""
        if hasattr(self.inner, "_shutdown_workers"):
            self.inner._shutdown_workers()


def _drawn_on_cpu(indices: Iterator[Any]) -> Iterator[Any]:
    """The indices of a sampler, whose generator is of the CPU."""
    while True:
        with torch.device("cpu"):
            try:
                index = next(indices)
            except StopIteration:
                return
        yield index
