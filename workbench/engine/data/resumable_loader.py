"""Reads a loader pass after pass and knows its position, so that another process can continue from there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset

from workbench.engine.data.first_batches import close_workers, end_workers, first_batches
from workbench.task.data.datasets import Batches, CopiedStream
from workbench.task.data.resumable_sampler import checksum_of
from workbench.task.data.rng_state import DataRngState
from workbench.task.data.sharding import SharedLoader, has_ended, has_known_length
from workbench.task.data.spec import (
    Loader,
    batches_in,
    common_rng_of,
    resumable_sampler_of,
    set_epoch,
    users_collate,
    users_dataset,
)
from workbench.task.data.to_dataset import shuffles_in_a_buffer
from workbench.task.errors import TaskError
from workbench.task.rng import State, process_state, restored_process_state, set_process_state

_NONE = object()
_NOT_READ_YET = -1


class ResumableLoader:
    """The passes over one loader. `taken`: the batches of the latest one so far.

    A position is restored like this: the sampler yields its indices again without loading samples, and the data set's
    own generators are restored. A data set with a state_dict gets its state. Any other is read again from the beginning
    of the pass, with the random numbers of then.
    `rereads`: the last batch may be needed once more (it is used piece by piece).
    """

    def __init__(self, loader: Loader, name: str, batch_size: int, rereads: bool = False) -> None:
        self.loader = loader
        self.batch_size = batch_size
        self.taken = 0
        self.begun = False
        """Whether a pass has begun since `begun` was last set to False."""
        self.epoch: int | None = None
        """The epoch that the user's sampler and data set got last (set_epoch)."""
        self._name = name
        self._in_process = loader.num_workers == 0
        self._sampler = resumable_sampler_of(loader)
        self._common_rng = common_rng_of(loader)
        ready = loader.batch_sampler is None and loader.batch_size is None
        self._by_index = self._sampler is not None and (self._in_process or not ready)
        self._shared = loader.common_rng if isinstance(loader, SharedLoader) else None
        """The random numbers that all ranks share when they read this data; None: each rank reads with its own."""
        self._rereads = rereads and self._in_process
        self._data = self._data_rng_state()
        self._generator_before: Tensor | None = None
        """The generator before the iterator was made, from which its workers get their seeds."""
        self._start: Tensor | None = None
        """The generator after that, where no sampler takes it."""
        self._pass_start: State = {}
        self._before: State | None = None
        """The state of the process and the data before the latest batch was read."""
        self._last: Any = _NONE
        self._last_checksum: int | None = None
        if self._rereads and self._sampler is not None:
            self._sampler.before_each = self._remember  # after the sampler's draws, before the data are read
        self._placed: int | None = None
        """The finished batches of a pass that is to be resumed."""
        self._cut = False
        """Whether the latest pass was left before its end."""
        self._restored_sum: int | None = None
        """A checksum of the data's state at the first batch after the restored position; None: nothing was restored."""
        self._ended = False
        """Whether the data had come to their end in the latest pass."""
        self._restored_state: State | None = None
        """The state of restored data, which may not show it before they are read."""
        self._between: State | None = None
        self._read_ahead: list[tuple[Any, int | None]] = []
        """Batches that are read already, and their numbers of samples."""
        self._rest: Iterator[Any] | None = None
        self._iterator_in_use: Iterator[Any] | None = None
        """The iterator of the latest pass."""

    @property
    def counted(self) -> bool:
        """Whether a pass surely has as many batches as its loader's length."""
        return self._sampler is not None and self._by_index and has_known_length(self._sampler.batches)

    @property
    def order_read(self) -> tuple[int, int] | None:
        """How many batches of indices the latest pass has sharded out, and a checksum; None where there are no
        indices.
        """
        return None if self._sampler is None else self._sampler.order_read

    def set_epoch(self, epoch: int | None) -> None:
        """Call set_epoch where samplers and data sets have it, for a pass of this epoch; None: they were not called
        then.
        """
        self.epoch, self._between = epoch, None
        if epoch is not None:
            set_epoch(self.loader, epoch)

    def batches(self, count: int | None) -> Iterator[Any]:
        """The batches of one pass, `count` at most, or the rest of the resumed pass."""
        self._between = None
        ahead, rest = self._open(count)
        self._cut = True
        try:
            for batch in itertools.chain(self._already_read(ahead), rest):
                self.taken += 1
                if not self._by_index:
                    self._last = batch
                    if self._restored_sum == _NOT_READ_YET:
                        self._restored_sum = self._state_checksum()
                yield batch
                if self._rereads and not self._by_index:
                    self._remember()
            self._cut = count is not None and self.taken >= count and count != batches_in(self.loader)
            if self._cut and self._restored_sum == _NOT_READ_YET:
                self._use_up()
        finally:
            self._between = None
            self._ended, self._iterator_in_use = self._has_ended, None
            rest.close()
            if self._sampler is not None:
                self._sampler.leave()

    def _already_read(self, ahead: list[tuple[Any, int | None]]) -> Iterator[Any]:
        for batch, self.loader.samples in ahead:
            yield batch

    def _open(self, count: int | None) -> tuple[list[tuple[Any, int | None]], Generator[Any]]:
        """Begin a pass: batches that are read already, then the others."""
        self.taken, placed, self.begun = self._placed or 0, self._placed is not None, True
        ahead, left = self._read_ahead, self._rest
        self._placed, self._read_ahead, self._rest, self._restored_state = None, [], None, None
        if not placed:
            self._pass_start = {}
            if not self._by_index or self._rereads:
                self._data = self._data_rng_state()
            if not self._by_index:
                self._pass_start = {"process": self._process_rng(), "data": self._data.state()}
            if self._restored_sum is not None:
                return self._open_again(count, self._restored_sum)
            if self._rereads:
                self._remember(first=True)
        return ahead, first_batches(self.loader, count, self._iterator() if left is None else left, self.taken + len(ahead))

    def _open_again(self, count: int | None, restored_sum: int) -> tuple[list[tuple[Any, int | None]], Generator[Any]]:
        """Begin the pass after a restored one: some streams stay at the restored position, or at their end, until they
        are iterated again, or are a fresh copy.
        """
        self._restored_sum = None
        for attempt in (1, 2, 3):
            if attempt == 3:
                self._rewind()
            rest = first_batches(self.loader, count, self._iterator())
            batch = next(rest, _NONE)
            if batch is not _NONE and self._state_checksum() != restored_sum:
                break
            if attempt < 3:
                rest.close()
                self._restore_draws(self._pass_start)
        return [] if batch is _NONE else [(batch, self.loader.samples)], rest

    def _rewind(self) -> None:
        """Read from a copy without a position, with the random numbers of this one."""
        if not isinstance(self.loader.dataset, CopiedStream):
            raise TaskError(
                f"{self._name} ({type(users_dataset(self.loader)).__name__}) begins each pass where load_state_dict() has put "
                "it, so that a resumed run never sees its first samples again: forget that position in __iter__() once it is used."
            )
        generators = self._data.state()["generators"]
        self.loader.dataset.rewind()
        self._data = self._data_rng_state()
        self._data.put({"generators": generators, "states": {}, "counts": {}})
        if self.epoch is not None:
            set_epoch(self.loader, self.epoch)

    def _use_up(self) -> None:
        """Let restored data of which nothing more is needed begin the next pass from the start."""
        before = {"process": self._process_rng(), "data": self._data.state()}
        if next(self._iterator(), _NONE) is not _NONE:
            self._restored_sum = self._state_checksum()
        self._restore_draws(before)

    def _restore_draws(self, before: Mapping[str, Any]) -> None:
        self._iterator_in_use = None  # run now what the data do at the end of a pass
        self._set_process_rng(before["process"])
        self._data.put(before["data"], states=False)

    def _process_rng(self) -> State:
        """The generators that data read in this process may draw from."""
        return process_state() if self._shared is None else self._shared.state

    def _set_process_rng(self, state: State) -> None:
        if self._shared is None:
            set_process_state(state)
        else:
            self._shared.state = state

    def _with_process_rng(self, state: State) -> contextlib.AbstractContextManager[None]:
        """Context manager in which such data draw the numbers that they would have drawn then."""
        return restored_process_state(state) if self._shared is None else self._shared.with_state(state)

    def _state_checksum(self) -> int:
        return checksum_of(self._data.state()["states"])

    def _remember(self, first: bool = False) -> None:
        data = self._data.state()
        # At the first batch, the data's own state would be that of the pass before.
        self._before = {"process": self._process_rng(), "data": {**data, "states": {}} if first else data}

    def _iterator(self) -> Iterator[Any]:
        if not self._workers_persist:
            self._generator_before = self.loader.generator.get_state()
        batches = iter(self.loader)
        if self._start is not None:
            self.loader.generator.set_state(self._start)
            self._start = None
        self._iterator_in_use = batches
        return batches

    @property
    def _has_ended(self) -> bool:
        """Whether the data have ended, which the loader has yet to find out."""
        if self._iterator_in_use is None:
            return self._ended
        return has_ended(self._iterator_in_use)

    @property
    def _workers_persist(self) -> bool:
        """Whether worker processes of the last pass will serve the next one."""
        return self.loader.persistent_workers and self.loader._iterator is not None

    def _data_rng_state(self) -> DataRngState:
        return DataRngState(dataset=users_dataset(self.loader), collate_fn=users_collate(self.loader))

    @property
    def _has_state_dict(self) -> bool:
        """Whether the data set has a state_dict."""
        known = self._in_process and isinstance(self.loader.dataset, IterableDataset) and self._data.stateful
        return known and not shuffles_in_a_buffer(users_dataset(self.loader))

    @contextlib.contextmanager
    def untouched(self, states: bool = False) -> Iterator[None]:
        """Context manager in which another loader may read the same data: their generators are restored (`states`: and their states)."""
        parts = [self._data_rng_state()] if self._sampler is None else [self._data_rng_state(), self._sampler.held()]
        before = [part.state() for part in parts]
        try:
            yield
        finally:
            for part, state in zip(parts, before, strict=True):
                part.put(state, states=states)

    # -- between two passes

    def state_between_passes(self) -> State:
        """The state between two passes, on which the next passes depend."""
        if self._between is None:
            start = self._start if self._sampler is None else self._sampler.start
            self._between = {
                "made": self._generator_before if self._workers_persist or start is not None else None,
                "generator": self.loader.generator.get_state() if start is None else start,
                "sampler": None if self._sampler is None else self._sampler.held().state(),
                "passes": 0 if self._sampler is None else self._sampler.passes,
                "data": self._data_rng_state().state() if self._restored_state is None else self._restored_state,
                "dealing": None if self._common_rng is None else self._common_rng.state,
                "cut": self._cut,
                "doubts": self._doubts_between(),
                "epoch": self.epoch,
            }
        return self._between

    def restore_between_passes(self, position: Mapping[str, Any]) -> list[str]:
        """Let the next pass be the one that was next then; returns, in words, what could not be restored."""
        self.set_epoch(position.get("epoch"))  # a checkpoint of an earlier version has none: set_epoch was not called then
        doubts = [*position["doubts"], *self._restore_data(position["data"], states=not position["cut"])]
        self._between, self._restored_state, self._cut = None, position["data"], position["cut"]
        if self._sampler is not None:
            self._sampler.set_passes(int(position["passes"]))
            if position["sampler"] is not None:
                doubts += self._sampler.held().put(position["sampler"])
        if position["made"] is None or not self.loader.persistent_workers:
            self.loader.generator.set_state(position["generator"])
        else:
            self._generator_before = position["made"]
            self.loader.generator.set_state(position["made"])
            self._set_start(position["generator"])
        self._restore_common_rng(position)
        return doubts

    def follow(self, before: ResumableLoader, *, own_generator: bool) -> None:
        """Let the first pass be the next one after those of another loader: it has another order, and other seeds of workers.

        own_generator: the user's loader has a generator, which is left as it is.
        """
        state = before.state_between_passes()
        if self._sampler is not None:
            self._sampler.set_passes(int(state["passes"]))
        if not own_generator:
            self.loader.generator.set_state(state["generator"])
        self._restore_common_rng(state)

    def _restore_common_rng(self, position: Mapping[str, Any]) -> None:
        """Let all ranks shard as they would have; a fit of one process has nothing that ranks draw alike."""
        if self._common_rng is not None and position.get("dealing") is not None:
            self._common_rng.state = position["dealing"]

    def _restore_data(self, data: Mapping[str, Any], states: bool = True) -> list[str]:
        """Restore the data's generators, and the `states` of data with a state_dict."""
        if not self._has_state_dict:
            return self._data.put(data, states=self._by_index)
        self._restored_sum = _NOT_READ_YET if states else None
        return self._data.put(data, states=states)

    def _set_start(self, state: Tensor) -> None:
        if self._sampler is None:
            self._start = state
        else:
            self._sampler.start = state

    def _doubts_between(self) -> list[str]:
        if self._cut and self._has_state_dict:
            return [
                f"{self._name} was not read to its end in the epoch before: it is not told its state of then, and begins "
                "the next epoch as data that are new"
            ]
        if not self._workers_persist:
            return []
        if self._by_index and not self._data.generators:
            return []
        if isinstance(users_dataset(self.loader), (list, tuple)):
            return []  # ready batches draw nothing
        which = ", ".join(self._data.generators) or "random numbers that the data set draws"
        return [
            f"{self._name}: with persistent_workers=True, {which} advanced in the loader's workers, where nobody can read "
            "how far (exact with persistent_workers=False)"
        ]

    # -- in the middle of a pass

    def state_in_pass(self, taken: int, rereads: bool) -> State:
        """The position of the latest pass after its first `taken` batches (`rereads`: and within the next one)."""
        ahead = self.taken - taken - rereads
        if self._by_index and self._restored_state is None:
            self._data = self._data_rng_state()  # not before each pass: that would cost as much as many small updates
        data = self._data.state() if self._restored_state is None else self._restored_state
        crc = self._last_checksum if self._last is _NONE else checksum_of(self._last) if not self._by_index else None
        return {
            "made": self._generator_before,
            "pass": {**self._pass_start, "order": None if self._sampler is None else self._sampler.position()},
            "data": data,
            "dealing": None if self._common_rng is None else self._common_rng.state,
            "here": self._in_process,
            "epoch": self.epoch,
            "before": self._before if rereads else None,
            "last": crc if not ahead else None,
            "ended": self._has_ended and not rereads,
            "doubts": self._doubts_inside(ahead),
        }

    def why_inexact(self) -> str | None:
        """Why a position in the middle of a pass cannot be restored; None: it can."""
        if isinstance(self.loader.dataset, Batches) and self.loader.dataset.one_shot and not self._has_state_dict:
            return (
                f"{self._name} can be read only once, so that its middle cannot be reached again: give a Dataset, a "
                "DataLoader, or wb.batches(list)"
            )
        if self._in_process or not self._by_index or not self._data.generators:
            return None
        return (
            f"{self._name}: {', '.join(self._data.generators)} draws in the loader's workers, whose position cannot be read "
            "(the random numbers of torch, numpy and python themselves can be repeated there)"
        )

    def _doubts_inside(self, ahead: int) -> list[str]:
        doubts = [why for why in [self.why_inexact()] if why is not None]
        if ahead and self._in_process and (self._data.generators or self._has_state_dict):
            doubts.append(f"{self._name} had been read further than it was used, and was not read back")
        return doubts

    def restore_in_pass(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        """Let the next pass be the rest of that one; returns, in words, what could not be restored."""
        once = self.why_inexact()
        if once is not None and not self._by_index:
            raise TaskError(f"{once}.")
        self.set_epoch(position.get("epoch"))
        self.taken, self._placed, self._generator_before = taken + rereads, taken, position["made"]
        self._pass_start = {key: value for key, value in position["pass"].items() if key != "order"}
        self._before, self._last_checksum, self._restored_state = position["before"], position["last"], position["data"]
        self.loader.generator.set_state(position["made"])
        try:
            if self._by_index and position["pass"]["order"] is not None:
                doubts = self._replay_order(position, taken, rereads)
            elif self._has_state_dict and position["here"]:
                doubts = self._resume_stateful(position, rereads)
            elif self._pass_start:
                doubts = self._read_again(position, taken, rereads)
            else:
                raise TaskError(
                    f"{self._name} is no longer read in the same way (samples by number, or ready batches): give the data that "
                    "the run had."
                )
        except BaseException:
            self.close()
            raise
        self._restore_common_rng(position)
        return [*position["doubts"], *doubts]

    def _replay_order(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        assert self._sampler is not None
        doubts = self._sampler.replay(position["pass"]["order"], taken)
        self.loader.generator.set_state(position["made"])
        if rereads and self._in_process and position["before"] is not None:  # workers make it again
            self._read_once_more(position["before"])
        return doubts + self._data.put(position["data"])

    def _resume_stateful(self, position: Mapping[str, Any], rereads: bool) -> list[str]:
        """Continue with data that have a state_dict."""
        self._ended = position["ended"]
        if self._ended:  # their state is that of another pass already
            self._rest = iter(())
            return self._restore_data(position["data"])
        if not rereads:
            return self._restore_data(position["data"])
        self._restore_data({**position["data"], "states": {}})
        self._read_once_more(position["before"])
        doubts = self._data.put(position["data"], states=False)  # reading has moved the states
        return doubts + self._doubt_of_batch(position["last"], self._read_ahead[0][0], self.taken)

    def _read_once_more(self, before: Mapping[str, Any]) -> None:
        """Read the batch that was in use."""
        with self._with_process_rng(before["process"]):
            self._data.put(before["data"])
            self._rest = self._iterator()
            self._read_ahead = [(self._next(self.taken), self.loader.samples)]

    def _read_again(self, position: Mapping[str, Any], taken: int, rereads: bool) -> list[str]:
        with self._with_process_rng(self._pass_start["process"]):
            # The pass begins again: the data's own state would be where they were left, here or in another process.
            self._data.put(self._pass_start["data"], states=False)
            self._rest = self._iterator()
            batch = None
            for number in range(taken + rereads):
                batch = self._next(number + 1)
        if rereads:
            self._read_ahead = [(batch, self.loader.samples)]
        return self._doubt_of_batch(position["last"], batch, taken + rereads)

    def _doubt_of_batch(self, crc: int | None, batch: Any, number: int) -> list[str]:
        if crc is None or checksum_of(batch) == crc:
            return []
        return [
            f"{self._name} read again from the beginning of the epoch gives another batch {number} than it gave: what "
            "follows is not what it would have been. Give the data set a generator of its own, or state_dict() and "
            "load_state_dict()"
        ]

    def _next(self, number: int) -> Any:
        assert self._rest is not None
        batch = next(self._rest, _NONE)
        if batch is _NONE:
            raise TaskError(
                f"{self._name} ended before its batch {number}, which the run had had: give the data that the run had."
            )
        return batch

    def close(self) -> None:
        """End the loader processes."""
        end_workers(self._rest)
        self._rest = None
        close_workers(self.loader)
