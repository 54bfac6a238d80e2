"""Reads a loader pass after pass and knows its position, so that another process can continue
from there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

from workbench.engine.data import inexact
from workbench.engine.data.first_batches import close_workers, end_workers, first_batches
from workbench.engine.data.loader_rng import ReadingRng, WorkerSeeds
from workbench.task.batch import checksum_of
from workbench.task.data.datasets import Batches
from workbench.task.data.loader_parts import length_of
from workbench.task.data.rng_state import NO_STATE, DataRngState
from workbench.task.data.sharding import has_ended, has_known_length
from workbench.task.data.spec import (
    Loader,
    common_rng_of,
    resumable_sampler_of,
    set_epoch,
    users_collate,
    users_dataset,
)
from workbench.task.data.stream_position import StreamPosition
from workbench.task.errors import TaskError
from workbench.task.rng import State

_NONE = object()


class ResumableLoader:
    """The passes over one loader. `taken`: the batches of the latest one so far.

    A position is restored in one of three ways. Where a sampler gives indices, it yields them
    again, no sample is loaded, and the data set's generators are restored. A stream with state_dict
    and load_state_dict gets its state for its next pass, and begins the pass after that anew
    (`StreamPosition`). Any other data are read again from the beginning of the pass, with the
    random numbers of then.
    `rereads`: the last batch may be needed once more (it is used piece by piece).
    """

    def __init__(
        self,
        loader: Loader,
        name: str,
        batch_size: int,
        rereads: bool = False,
        changing: Sequence[str] = (),
    ) -> None:
        """changing: what reading samples changes in the data, as the trial of two samples has
        shown.
        """
        self.loader = loader
        self.batch_size = batch_size
        self.batches_read = 0
        self.begun = False
        """Whether a pass has begun since `begun` was last set to False."""
        self.epoch: int | None = None
        """The epoch that the user's sampler and data set got last (set_epoch)."""
        self._name, self._changing = name, changing
        self._in_process = loader.num_workers == 0
        self._sampler = resumable_sampler_of(loader)
        self._common_rng = common_rng_of(loader)
        ready = loader.batch_sampler is None and loader.batch_size is None
        self._by_index = self._sampler is not None and (self._in_process or not ready)
        self._rereads = rereads and self._in_process
        self._data = DataRngState(dataset=users_dataset(loader), collate_fn=users_collate(loader))
        self._stream = StreamPosition(name, loader.dataset, self._in_process)
        self._rng, self._seeds = ReadingRng(loader), WorkerSeeds(loader, self._sampler)
        self._pass_start: State = {}
        self._before: State | None = None
        """The state of the process and the data before the latest batch was read."""
        self._last: Any = _NONE
        self._last_checksum: int | None = None
        if self._rereads and self._sampler is not None:
            # after the sampler's draws, before the data are read
            self._sampler.before_each = self._remember
        self._placed: int | None = None
        """The finished batches of a pass that is to be resumed."""
        self._limit: int | None = None
        """The number of batches after which the latest pass is left before its end; None: it is
        read to its end.
        """
        self._cut = False
        """Whether the latest pass was left before its end: a stream's state does not say where
        the next begins.
        """
        self._over = False
        """Whether the latest pass was read to its end."""
        self._ended = False
        """Whether the data had come to their end in the latest pass."""
        self._between: State | None = None
        self._read_ahead: list[tuple[Any, int | None]] = []
        """Batches that are read already, and their numbers of samples."""
        self._rest: Iterator[Any] | None = None
        self._iterator_in_use: Iterator[Any] | None = None
        """The iterator of the latest pass."""

    @property
    def reads(self) -> bool:
        """Whether a pass has begun and not ended, here or where it is resumed from."""
        return self._iterator_in_use is not None or self._placed is not None

    @property
    def counted(self) -> bool:
        """Whether a pass surely has as many batches as its loader's length."""
        return (
            self._sampler is not None and self._by_index and has_known_length(self._sampler.batches)
        )

    @property
    def order_read(self) -> tuple[int, int] | None:
        """How many batches of indices the latest pass has sharded out, and a checksum; None:
        there are no indices.
        """
        return None if self._sampler is None else self._sampler.order_read

    def set_epoch(self, epoch: int | None) -> None:
        """Call set_epoch where samplers and data sets have it, for a pass of this epoch; None:
        they were not called then.
        """
        self.epoch, self._between = epoch, None
        if epoch is not None:
            set_epoch(self.loader, epoch)

    def batches(self, count: int | None) -> Iterator[Any]:
        """The batches of one pass, `count` at most, or the rest of the resumed pass."""
        self._between = None
        self._limit = None if count == length_of(self.loader) else count
        ahead, rest = self._open(count)
        self._cut = True
        try:
            for batch in itertools.chain(self._already_read(ahead), rest):
                self.batches_read += 1
                if not self._by_index:
                    self._last = batch
                    if self._stream.awaits_batch:
                        self._stream.note_batch(self._data)
                    elif self.batches_read == 1:
                        self._stream.note_first(self._data)
                yield batch
                if self._rereads and not self._by_index:
                    self._remember()
            self._cut = self._limit is not None and self.batches_read >= self._limit
            self._over = not self._cut
        finally:
            self._between = None
            self._ended, self._iterator_in_use = self._has_ended, None
            rest.close()
            if self._sampler is not None:
                self._sampler.leave()

    def _already_read(self, ahead: list[tuple[Any, int | None]]) -> Iterator[Any]:
        for batch, self.loader.samples in ahead:
            self.loader.indices = None
            yield batch

    def _open(self, count: int | None) -> tuple[list[tuple[Any, int | None]], Generator[Any]]:
        """Begin a pass, or the rest of a restored one: the batches that are read already, then
        the others.
        """
        self.batches_read, placed, self.begun = self._placed or 0, self._placed is not None, True
        ahead, rest = self._read_ahead, self._rest
        self._read_ahead, self._rest = [], None
        if not placed:
            self._begin_pass()
        if not placed and self._stream.begins_after_restored():
            ahead, rest = self._begin_after_restored()
        elif (
            placed and rest is None and self._limit is not None and self.batches_read >= self._limit
        ):
            # nothing is left of a pass that is cut here: its state is not used
            self._stream.next = None
        rest = self._iterator() if rest is None else rest
        self._placed = None
        return ahead, first_batches(self.loader, count, rest, self.batches_read + len(ahead))

    def _begin_pass(self) -> None:
        """Note what the data are read with, in case the pass is resumed."""
        self._pass_start = {}
        if not self._by_index or self._rereads:
            self._data = self._data_rng_state()
        if not self._by_index:
            self._pass_start = {"process": self._rng.state(), "data": self._data.state()}
            self._stream.note_start(self._data, after_end=self._over)
            self._over = False
        if self._rereads:
            self._remember(first=True)

    def _begin_after_restored(self) -> tuple[list[tuple[Any, int | None]], Iterator[Any]]:
        """Begin the first whole pass of a stream after a restored position."""
        stream, ended = self._stream, self._stream.next is not None
        stream.forget(self._data)
        rest = self._iterator()
        batch = next(rest, _NONE)
        stream.forget(self._data)
        if batch is _NONE and ended:  # it was what the pass that had ended had left
            self._rng.set_state(self._pass_start["process"])
            self._data.put(self._pass_start["data"], states=False)
            self.loader.generator.set_state(self._seeds.before)
            rest = self._iterator()
            batch = next(rest, _NONE)
        stream.refuse_same(self._data, empty=batch is _NONE)
        return [(batch, self.loader.samples)], rest

    def _remember(self, first: bool = False) -> None:
        """Note the state before the next batch is read. first: it is the first one of a pass."""
        data = self._data.state()
        # At the first batch, the data's own state would be that of the pass before.
        self._before = {
            "process": self._rng.state(),
            "data": {**data, "states": {}} if first else data,
        }

    def _iterator(self) -> Iterator[Any]:
        """Begin a pass of the loader, at the restored position of a stream."""
        continues = self._stream.next is not None and bool(self._placed)
        self._stream.load(self._data, within=bool(self._placed))
        state = self._rng.state() if continues else None
        batches = self._seeds.iterator()
        if state is not None and self._common_rng is not None:
            self._rng.set_state(state)  # a loader that begins a pass may seed it
        self._iterator_in_use = batches
        return batches

    @property
    def _has_ended(self) -> bool:
        """Whether the data have ended, which the loader has yet to find out."""
        if self._iterator_in_use is None:
            return self._ended
        return has_ended(self._iterator_in_use)

    def _data_rng_state(self) -> DataRngState:
        """The generators and stateful parts that the user's data have now."""
        return DataRngState(
            dataset=users_dataset(self.loader),
            collate_fn=users_collate(self.loader),
            earlier=self._data,
        )

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Context manager in which positions may be loaded into the user's data.

        Afterwards the data begin where they began before.
        """
        data = self._data_rng_state()
        parts = [data] if self._sampler is None else [data, self._sampler.rng_state()]
        before = [rng_state.state() for rng_state in parts]
        with contextlib.ExitStack() as kept:
            for rng_state, state in zip(parts, before, strict=True):
                kept.callback(rng_state.put, state, states=False)
                kept.enter_context(rng_state.attributes_kept())
            yield

    @contextlib.contextmanager
    def untouched(self) -> Iterator[list[str]]:
        """Context manager in which another loader may read the same data: the rest of a pass here,
        and the next one, are as they would have been. The list gets a message for each part that
        could not be moved back.

        Where restoring attributes does not restore a part, its state is loaded for the next pass.
        Within a pass that is not possible: the state is that of another place.
        """
        lost: list[str] = []
        self._data = self._data_rng_state()
        parts = [self._data] if self._sampler is None else [self._data, self._sampler.rng_state()]
        before = [rng_state.state() for rng_state in parts]
        try:
            with contextlib.ExitStack() as kept:
                read_on = [kept.enter_context(rng_state.attributes_kept()) for rng_state in parts]
                yield lost
        finally:
            for rng_state, state, paths in zip(parts, before, read_on, strict=True):
                rng_state.put(state, states=False)
                lost += self._move_back(rng_state, state["states"], paths)

    def _move_back(
        self, data: DataRngState, states: Mapping[str, Any], read_on: Collection[str]
    ) -> list[str]:
        """Let the next pass begin from these states of some parts; returns messages about those
        that could not be moved back, since a pass has begun.

        read_on: the parts with an iterator that was read.
        """
        now = {path: checksum_of(stream.state_dict()) for path, stream in data.stateful.items()}
        moved = {
            path: state
            for path, state in states.items()
            if path in read_on or now[path] != checksum_of(state)
        }
        if not moved:
            return []
        if self.reads:
            return [inexact.moved(self._name, moved)]
        if data is not self._data or self._by_index:
            data.put({**NO_STATE, "states": moved})
        elif not self._cut and self._stream.next is None and self._stream.is_known_between(data):
            self._stream.next = states
        return []

    # -- between two passes

    def state_between_passes(self) -> State:
        """The state between two passes, on which the next passes depend."""
        if self._between is None:
            self._data = self._data_rng_state()
            self._between = {
                **self._seeds.state(),
                "sampler": None if self._sampler is None else self._sampler.rng_state().state(),
                "passes": 0 if self._sampler is None else self._sampler.passes,
                "data": self._stream.state(self._data),
                "dealing": None if self._common_rng is None else self._common_rng.state,
                "cut": self._cut,
                "doubts": self._doubts_between(),
                "epoch": self.epoch,
            }
        return self._between

    def restore_between_passes(self, position: Mapping[str, Any]) -> list[str]:
        """Let the next pass be the one that was next then; returns, in words, what could not be
        restored.
        """
        # a checkpoint of an earlier version has none: set_epoch was not called then
        self.set_epoch(position.get("epoch"))
        doubts = [*position["doubts"], *self._data.put(position["data"], states=self._by_index)]
        self._between, self._cut, self._over = None, position["cut"], not position["cut"]
        if not self._cut and self._stream.is_known_between(self._data):
            self._stream.next = position["data"]["states"]
        if self._sampler is not None:
            self._sampler.set_passes(int(position["passes"]))
            if position["sampler"] is not None:
                doubts += self._sampler.rng_state().put(position["sampler"])
        self._seeds.restore(position)
        self._restore_common_rng(position)
        return doubts

    def follow(self, before: ResumableLoader, *, own_generator: bool) -> None:
        """Let the first pass be the next one after those of another loader: it has another order,
        and other seeds of workers.

        own_generator: the user's loader has a generator, which is left as it is.
        """
        state = before.state_between_passes()
        if self._sampler is not None:
            self._sampler.set_passes(int(state["passes"]))
        if not own_generator:
            self.loader.generator.set_state(state["generator"])
        self._restore_common_rng(state)

    def _restore_common_rng(self, position: Mapping[str, Any]) -> None:
        """Let all ranks shard as they would have; a fit of one process has nothing that ranks
        draw alike.
        """
        if self._common_rng is not None and position.get("dealing") is not None:
            self._common_rng.state = position["dealing"]

    @property
    def _moving(self) -> list[str]:
        """The generators of the data, and what else reading samples changes in them."""
        return [*self._data.generators, *self._changing]

    def _doubts_between(self) -> list[str]:
        """Why the next pass may not be what it would have been, in words."""
        if self._cut and self._stream.is_known_between(self._data):
            return [inexact.left_early(self._name)]
        if self._data.lost:
            return [inexact.not_stored(self._name, self._data.lost)]
        ready = isinstance(users_dataset(self.loader), (list, tuple))  # such batches draw nothing
        if not self._seeds.persist or ready or (self._by_index and not self._moving):
            return []
        return [inexact.advanced_in_workers(self._name, self._moving)]

    # -- in the middle of a pass

    def state_in_pass(self, taken: int, rereads: bool) -> State:
        """The position of the latest pass after its first `taken` batches (`rereads`: and within
        the next one).
        """
        ahead = self.batches_read - taken - rereads
        if self._by_index:
            # not before each pass: that would cost as much as many small updates
            self._data = self._data_rng_state()
        crc = self._last_checksum
        if self._last is not _NONE:
            crc = None if self._by_index else checksum_of(self._last)
        return {
            "made": self._seeds.before,
            "generator": self.loader.generator.get_state(),
            "pass": {
                **self._pass_start,
                "order": None if self._sampler is None else self._sampler.position(),
            },
            "data": self._stream.state(self._data),
            "dealing": None if self._common_rng is None else self._common_rng.state,
            "here": self._in_process,
            "epoch": self.epoch,
            "before": self._before if rereads else None,
            "first": self._stream.first,
            "start": self._stream.start,
            "last": crc if not ahead else None,
            "ended": self._has_ended and not rereads,
            "doubts": self._doubts_inside(taken, ahead),
        }

    def why_inexact(self) -> str | None:
        """Why a position in the middle of a pass cannot be restored; None: it can."""
        if (
            isinstance(self.loader.dataset, Batches)
            and self.loader.dataset.one_shot
            and not self._stream.is_known(self._data)
        ):
            return inexact.read_once(self._name)
        if self._in_process or not self._by_index or not self._moving:
            return None
        return inexact.drawn_in_workers(self._name, self._moving)

    def _doubts_inside(self, taken: int, ahead: int) -> list[str]:
        """Why the rest of the pass after `taken` batches may not be what it would have been, in
        words.
        """
        doubts = [why for why in [self.why_inexact()] if why is not None]
        if (
            self._limit is not None
            and taken >= self._limit
            and self._stream.is_known_between(self._data)
        ):
            doubts.append(inexact.left_early(self._name))
        if self._data.lost:
            doubts.append(inexact.not_stored(self._name, self._data.lost))
        if (
            ahead
            and self._in_process
            and (self._data.generators or self._stream.is_known(self._data))
        ):
            doubts.append(inexact.read_further(self._name))
        return doubts

    def restore_in_pass(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        """Let the next pass be the rest of that one; returns, in words, what could not be
        restored.
        """
        once = self.why_inexact()
        if once is not None and not self._by_index:
            raise TaskError(f"{once}.")
        self.set_epoch(position.get("epoch"))
        self.batches_read, self._placed = taken + rereads, taken
        self._pass_start = {key: value for key, value in position["pass"].items() if key != "order"}
        self._before, self._last_checksum = position["before"], position["last"]
        self._seeds.set_before(position["made"])
        try:
            if self._by_index and position["pass"]["order"] is not None:
                doubts = self._replay_order(position, taken, rereads)
            elif (
                self._stream.is_known(self._data)
                and position["here"]
                and position["data"]["states"]
            ):
                doubts = self._resume_stream(position, rereads)
            elif self._pass_start:
                doubts = self._read_again(position, taken, rereads)
            else:
                raise TaskError(
                    f"{self._name} is no longer read in the same way (samples by number, or ready"
                    " batches): give the data that the run had."
                )
        except BaseException:
            self.close()
            raise
        self._restore_common_rng(position)
        return [*position["doubts"], *doubts]

    def _replay_order(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        """Let the sampler yield the indices of the pass again."""
        assert self._sampler is not None
        doubts = self._sampler.replay(position["pass"]["order"], taken)
        self.loader.generator.set_state(position["made"])
        if rereads and self._in_process and position["before"] is not None:  # workers make it again
            self._read_once_more(position["before"])
        return doubts + self._data.put(position["data"])

    def _resume_stream(self, position: Mapping[str, Any], rereads: bool) -> list[str]:
        """Let a stream with a state_dict continue from its state."""
        self._ended, self._stream.first, self._stream.start = (
            position["ended"],
            position.get("first"),
            position.get("start"),
        )
        if rereads:
            self._stream.next = position["before"]["data"]["states"]
            self._read_once_more(position["before"])
        elif not self._ended:
            self._stream.next = position["data"]["states"]
        else:
            self._rest = iter(())
            # where an iterator would be made, which draws; an earlier version has not stored it
            self.loader.generator.set_state(position.get("generator", position["made"]))
            if self._stream.is_known_between(self._data):
                self._stream.next = position["data"]["states"]  # that after the pass
        doubts = self._data.put(position["data"], states=False)
        return (
            doubts
            + self._doubt_of_batch(position["last"], self._read_ahead[0][0], self.batches_read)
            if rereads
            else doubts
        )

    def _read_once_more(self, before: Mapping[str, Any]) -> None:
        """Read the batch that was in use."""
        with self._rng.restored(before["process"]):
            self._data.put(before["data"], states=self._by_index)
            self._rest = self._iterator()
            self._read_ahead = [(self._next(self.batches_read), self.loader.samples)]

    def _read_again(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        """Read the pass again from its beginning, with the random numbers of then."""
        with self._rng.restored(self._pass_start["process"]):
            # The pass begins again: the data's own state would be where they were left, here or in
            # another process.
            self._data.put(self._pass_start["data"], states=False)
            self._rest = self._iterator()
            batch = None
            for number in range(taken + rereads):
                batch = self._next(number + 1)
        if rereads:
            self._read_ahead = [(batch, self.loader.samples)]
        return self._doubt_of_batch(position["last"], batch, taken + rereads)

    def _doubt_of_batch(self, crc: int | None, batch: Any, number: int) -> list[str]:
        """What to tell the user if this is another batch than the one with the checksum `crc`."""
        return (
            []
            if crc is None or checksum_of(batch) == crc
            else [inexact.another_batch(self._name, number)]
        )

    def _next(self, number: int) -> Any:
        """The next batch of a pass that is read again, which is its `number`-th."""
        assert self._rest is not None
        batch = next(self._rest, _NONE)
        if batch is _NONE:
            raise TaskError(
                f"{self._name} ended before its batch {number}, which the run had had: give the"
                " data that the run had."
            )
        return batch

    def close(self) -> None:
        """End the loader processes."""
        end_workers(self._rest)
        self._rest = None
        close_workers(self.loader)
