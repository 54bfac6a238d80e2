"""A batch sampler that can be resumed: it repeats its indices without loading the samples."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from workbench.task.data.datasets import KeyedBatches
from workbench.task.data.rng_state import NO_STATE, DataRngState
from workbench.task.data.samplers import draws_alone
from workbench.task.data.sharding import NO_BATCH, CommonRng, RankShard
from workbench.task.errors import TaskError
from workbench.task.rng import State, process_state, restored_process_state

_ALONE = RankShard()
_TOGETHER = 1024
"""The number of ready batches whose checksum is computed together; a long pass keeps no more of
their numbers.
"""


@dataclass
class _Pass:
    """The states at the beginning of a pass, which determine its order, and its progress."""

    begun: State
    count: int = 0
    """How many batches were handed out (to workers, ahead of the training)."""
    crc: int = 0
    """A checksum of them, without those in `numbers`."""
    numbers: list[int] = field(default_factory=list)
    """The latest of them, where they are numbers of ready batches."""
    ended: bool = False

    def checksum(self) -> int:
        """A checksum of all of them."""
        for number in self.numbers:
            self.crc = _checksum(number, self.crc)
        self.numbers.clear()
        return self.crc


class ResumableBatchSampler(Sampler[Any]):
    """A batch sampler that records the states at the beginning of its latest pass, so that the pass
    can be resumed.

    `generator`: the loader's. A loader also draws from it for the seeds of its workers, between
    asking for the pass and taking its first batch, so its state is recorded at that first batch. On
    several ranks each rank reads all batches and yields those of its `share`. `common_rng`: random
    states that are equal on all ranks, for an order that draws from the process's generators.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        generator: torch.Generator,
        share: RankShard = _ALONE,
        common_rng: CommonRng | None = None,
    ) -> None:
        self.batches, self.generator = batches, generator
        self.share, self.common_rng = share, common_rng
        self.passes = 0
        self.start: Tensor | None = None
        """The generator's state for the first batch of the next pass."""
        self.before_each: Callable[[], None] | None = None
        """Called when a batch was drawn, before it is yielded."""
        self.drawn: deque[Any] = deque()
        """What was yielded and has not come from the loader yet: the indices of a batch, or the
        number of a ready one.
        """
        self._pass: _Pass | None = None
        self._state: DataRngState | None = None
        self._left: Iterator[Any] | None = None
        """The rest of a resumed pass."""

    def __len__(self) -> int:
        return self.share.rounds(len(self.batches))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice for its first pass, and begins one of them.
        if self._left is not None:
            return self._rest()
        if self._draws_alone():
            # reading the process's random states would cost as much as an update
            states = {"sampler": NO_STATE}
        else:
            process = process_state() if self.common_rng is None else self.common_rng.state
            states = {"process": process, "sampler": self.rng_state().state()}
        self._pass = _Pass({**states, "passes": self.passes})
        with self._drawing():
            return self._begin(self._pass, iter(self.batches))

    def _draws_alone(self) -> bool:
        """Whether the order is independent of the process's random numbers."""
        return self.common_rng is None and draws_alone(self._users, self.generator)

    def _drawing(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the user's sampler may draw."""
        return contextlib.nullcontext() if self.common_rng is None else self.common_rng.here()

    def _drawing_as(self, process: State) -> contextlib.AbstractContextManager[None]:
        """Context manager in which it draws from the random states in `process`."""
        if self.common_rng is None:
            return restored_process_state(process)
        self.common_rng.state = process
        return self.common_rng.here()

    def _begin(self, current: _Pass, batches: Iterator[Any]) -> Iterator[Any]:
        self._take_start()
        self.passes += 1
        current.begun["generator"] = self.generator.get_state()
        yield from self._handed_out(self._own(_counted(current, batches)))

    def _rest(self) -> Iterator[Any]:
        self._take_start()
        assert self._left is not None
        left, self._left = self._left, None
        yield from self._handed_out(left)

    def _own(self, batches: Iterator[Any]) -> Iterator[Any]:
        return self._of_rounds(batches) if self.share.several else batches

    def _of_rounds(self, batches: Iterator[Any]) -> Iterator[Any]:
        whole = True
        while whole:
            with self._drawing():
                batch, whole = self.share.own(batches)
            if batch is not NO_BATCH:
                yield batch

    def _handed_out(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.drawn.clear()
        for batch in batches:
            self.drawn.append(batch)
            if self.before_each is not None:
                self.before_each()
            yield batch

    def leave(self) -> None:
        """End the pass, also if its rest was not read."""
        self._take_start()
        self._left = None

    def _take_start(self) -> None:
        if self.start is not None:
            self.generator.set_state(self.start)
            self.start = None

    def rng_state(self) -> DataRngState:
        """The state of the user's sampler (without the numbers of `KeyedBatches`)."""
        self._state = DataRngState(
            batch_sampler=self._users, beside=self.generator, earlier=self._state
        )
        return self._state

    @property
    def _users(self) -> Iterable[Any]:
        """The user's sampler."""
        return self.batches.batches if isinstance(self.batches, KeyedBatches) else self.batches

    def set_passes(self, passes: int) -> None:
        """Set how many passes have ended."""
        self.passes = passes
        if isinstance(self.batches, KeyedBatches):
            self.batches.epoch = passes

    @property
    def order_read(self) -> tuple[int, int] | None:
        """How many batches the latest pass has read, and a checksum of them; None: there was no
        pass.
        """
        if self._pass is None:
            return None
        return self._pass.count, self._pass.checksum()

    def position(self) -> State:
        """Return the states at the beginning of the latest pass, and its progress."""
        assert self._pass is not None
        assert self.order_read is not None
        handed, crc = self.order_read
        begun = self._pass.begun
        # of an order that does not depend on it: any will do
        process = begun["process"] if "process" in begun else process_state()
        return {
            **begun,
            "process": process,
            "handed": handed,
            "ended": self._pass.ended,
            "crc": crc,
        }

    def replay(self, position: Mapping[str, Any], taken: int) -> list[str]:
        """Begin that pass again and skip its first `taken` batches; return in words what has
        changed.

        Batches that had been drawn beyond these are drawn again too.
        """
        doubts = self.rng_state().put(position["sampler"])
        self.set_passes(int(position["passes"]))
        begun = {key: position[key] for key in ("process", "sampler", "passes", "generator")}
        if self._draws_alone():
            del begun["process"]
        current = self._pass = _Pass(begun)
        with self._drawing_as(position["process"]):
            source = _counted(current, iter(self.batches))
            self.generator.set_state(position["generator"])
            again = list(itertools.islice(source, position["handed"]))
            if position["ended"] and len(again) == position["handed"]:
                # Some samplers draw a last number at their very end.
                again += itertools.islice(source, 1)
        needed = self.share.dealt(taken)
        if len(again) < needed:
            raise TaskError(
                f"an epoch of the training data has {len(again)} batches now, and this one had come"
                f" to its batch {needed}: give the data that the run had."
            )
        self.passes = position["passes"] + 1
        if len(again) != position["handed"] or current.checksum() != position["crc"]:
            doubts.append(
                "the rest of this epoch is made of other samples than it would have been: the data"
                " have changed, or the sampler draws random numbers in a way that cannot be"
                " repeated (give it a generator of its own, or state_dict() and load_state_dict())"
            )
        self._left = itertools.islice(self._own(itertools.chain(again, source)), taken, None)
        self.start = self.generator.get_state()
        return doubts


def _counted(current: _Pass, batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        # looked at later: at each update that would cost more
        if type(batch) is int and len(current.numbers) < _TOGETHER:
            current.numbers.append(batch)
        else:
            current.crc = _checksum(batch, current.checksum())
        current.count += 1
        yield batch
    current.ended = True


def _checksum(batch: Any, crc: int) -> int:
    """Continue the checksum `crc`. The seed that `KeyedBatches` adds to a batch is left out: it
    follows from its number.
    """
    if type(batch) is int:  # the number of a ready batch: as its repr, without the error below
        return zlib.crc32(b"%d" % batch, crc)
    if type(batch) is not list:
        batch = (
            batch[1]
            if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], list)
            else batch
        )
    try:
        return zlib.crc32(array("q", batch), crc)
    except (TypeError, OverflowError):
        return zlib.crc32(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(batch)).encode(), crc)
