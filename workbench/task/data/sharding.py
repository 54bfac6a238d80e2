"""Shards the batches of a data set over the ranks of one job: rank r gets every n-th batch.

All ranks read the same order in rounds of one batch for each rank. So the ranks need no
communication for the data, and after the same number of rounds all have the same position. A stream
of which each rank reads its own share (`task/data/rank_stream.py`) is a round of one rank.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from workbench.task.batch import checksum_of, copied, leaves
from workbench.task.data.counted_loader import Collated, CountedLoader, CountedPass
from workbench.task.data.datasets import KeyedBatches
from workbench.task.data.samplers import ShuffledSampler
from workbench.task.errors import TaskError
from workbench.task.rng import State, generator_state, process_state, set_process_state

NO_BATCH: Any = object()
COMPARED = 4
"""How many of the first batches that a rank reads of a stream get a checksum."""


@dataclass(frozen=True)
class RankShard:
    """The batches of a loader that this rank reads: of `world` ranks each takes every world-th,
    beginning with the `rank`-th.
    """

    rank: int = 0
    world: int = 1
    whole: bool = False
    """Whether a last round with fewer batches than ranks is dropped, as one process drops a
    short batch.
    """

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.world > 1

    def own(self, batches: Iterator[Any]) -> tuple[Any, bool]:
        """Read the next round; return this rank's batch of it, or NO_BATCH, and whether the
        round was complete.
        """
        own_batch, dealt = NO_BATCH, 0
        for batch in itertools.islice(batches, self.world):
            own_batch = batch if dealt == self.rank else own_batch
            dealt += 1
        complete = dealt == self.world
        return own_batch if complete or not self.whole else NO_BATCH, complete

    def rounds(self, batches: int) -> int:
        """Return how many rounds `batches` batches make."""
        return batches // self.world if self.whole else -(-batches // self.world)

    def dealt(self, rounds: int) -> int:
        """Return how many batches all ranks read for `rounds` rounds of this rank."""
        return 0 if not rounds else (rounds - 1) * self.world + self.rank + 1


class CommonRng:
    """Random states that are equal on all ranks, for samplers and data sets that draw from the
    process's generators.

    The process's own states differ from rank to rank.
    """

    def __init__(self, seed: int) -> None:
        generators = {
            "python": random.Random(seed),
            "numpy": np.random.RandomState(seed % 2**32),
            "torch": torch.Generator().manual_seed(seed),
        }
        self.state: State = {
            name: generator_state(generator) for name, generator in generators.items()
        }

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Context manager in which the process draws from these states."""
        before = process_state()
        set_process_state(self.state)
        try:
            yield
        finally:
            self.state = process_state()
            set_process_state(before)

    @contextlib.contextmanager
    def with_state(self, state: State) -> Iterator[None]:
        """Context manager in which the states are those of `state`."""
        before, self.state = self.state, state
        try:
            yield
        finally:
            self.state = before


_DRAWING = (ShuffledSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def common_rng_for(batches: Any, share: RankShard, seed: int) -> CommonRng | None:
    """Return common random states for a batch sampler that may draw from the process's
    generators; None: it does not.
    """
    sampler = _inside(batches)
    known = type(sampler) is SequentialSampler or (
        type(sampler) in _DRAWING and sampler.generator is not None
    )
    return CommonRng(seed) if share.several and not known else None


def has_known_length(batches: Any) -> bool:
    """Whether a batch sampler's length is exact; that of a user's sampler may be an estimate."""
    return type(_inside(batches)) in (SequentialSampler, *_DRAWING)


def _inside(batches: Any) -> Any:
    """The sampler of samples, if torch's own BatchSampler makes batches of them; else the batch
    sampler.
    """
    if isinstance(batches, KeyedBatches):
        batches = batches.batches
    return batches.sampler if type(batches) is BatchSampler else batches


def refuse_sharded(name: str, *samplers: Any) -> None:
    """Raise TaskError for a sampler that shards the data itself: most of the data would be left
    out.
    """
    for sampler in samplers:
        if isinstance(sampler, DistributedSampler):
            raise TaskError(
                f"the loader of {name} has a {type(sampler).__name__}: give the loader without it;"
                " the workbench shards the batches."
            )
        refuse_sharded(
            name,
            *(
                inner
                for inner in getattr(sampler, "__dict__", {}).values()
                if isinstance(inner, Sampler)
            ),
        )


class SharedLoader(CountedLoader):
    """A loader of data without indices: each rank reads all batches and keeps its own, or the data
    set yields the share of this rank alone.
    """

    def __init__(
        self, dataset: Any, share: RankShard, seed: int,
        note_first: Callable[[tuple[int, ...]], None], **options: Any,
    ) -> None:  # fmt: skip
        """share: that of one rank alone where the data set yields this rank's share. note_first:
        called in each pass with checksums of the first batches that this rank reads.
        """
        super().__init__(dataset, **options)
        self.share, self.note_first = share, note_first
        self.common_rng = CommonRng(seed) if self.num_workers == 0 else None
        """None with loader workers, whose seeds are equal on all ranks."""

    def __len__(self) -> int:
        return self.share.rounds(super().__len__())

    def __iter__(self) -> CountedPass:  # type: ignore[override]
        if self.common_rng is not None and not self.share.several:
            # The shares may have drawn unequal amounts of numbers. All ranks begin a pass with the
            # same ones, as loader workers do: a stream may draw the order that it divides by rank.
            seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.common_rng.state = CommonRng(int(seed)).state
        with self.common_rng.here() if self.common_rng is not None else contextlib.nullcontext():
            return CountedPass(self, ShardBatches(DataLoader.__iter__(self), self))


class ShardBatches:
    """One pass over a `SharedLoader`."""

    def __init__(self, batches: Any, loader: SharedLoader) -> None:
        self._batches, self._loader = batches, loader
        self._share, self._dealing = loader.share, loader.common_rng
        self._number = 0
        """How many batches were read."""
        self._first: tuple[int, ...] = ()
        """The checksums of the first of them."""
        self._over = False

    def __iter__(self) -> ShardBatches:
        return self

    def __next__(self) -> Any:
        batch = NO_BATCH
        if not self._over:
            with self._dealing.here() if self._dealing is not None else contextlib.nullcontext():
                batch, whole = self._share.own(map(self._read, self._batches))
            self._over = not whole
            self._loader.note_first(self._first)
        if batch is NO_BATCH:
            raise StopIteration
        return batch

    def _read(self, item: Any) -> Any:
        """Take note of the next batch of any rank; returns it, or a copy where it is kept."""
        number, self._number = self._number, self._number + 1
        if number < COMPARED:
            batch = item.batch if type(item) is Collated else item
            crc = checksum_of([tensor for _, tensor in leaves(batch)] or batch)
            self._first = (*self._first, crc)
        is_kept = (
            self._share.several
            and number % self._share.world == self._share.rank
            and self._loader.reuses_memory
        )
        return copied(item) if is_kept else item

    @property
    def ended(self) -> bool:
        """Whether the data have ended."""
        return self._over or has_ended(self._batches)

    def _shutdown_workers(self) -> None:
        """Shut down the workers, as the same method of a loader's iterator."""
        if hasattr(self._batches, "_shutdown_workers"):
            self._batches._shutdown_workers()


def has_ended(batches: Any) -> bool:
    """Whether the data of a pass have ended, also before the loader raises StopIteration."""
    if isinstance(batches, CountedPass):
        batches = batches.inner
    if isinstance(batches, ShardBatches):
        return batches.ended
    return bool(getattr(getattr(batches, "_dataset_fetcher", None), "ended", False))
