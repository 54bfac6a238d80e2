"""Knows where the next pass over a stream with `state_dict` and `load_state_dict` begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from workbench.task.batch import checksum_of
from workbench.task.data.combined import has_loaders
from workbench.task.data.loader_parts import users_data
from workbench.task.data.rng_state import NO_STATE, DataRngState
from workbench.task.data.to_dataset import is_of_hugging_face, shuffles_in_a_buffer
from workbench.task.errors import TaskError
from workbench.task.rng import State

_NO_BATCH_YET = -1


class StreamPosition:
    """The states of a stream, under the contract of torchdata's StatefulDataLoader.

    `load_state_dict` gives the position of the next pass, and the pass after that begins anew. A
    stream of Hugging Face would begin every later pass at that position too, so `forget` clears it
    once a pass has begun there. A user's own stream that begins there again raises TaskError: its
    first samples would never be seen again. So does one that begins
    the pass anew where it was put: all samples of that pass would be seen twice. One without an
    end, which repeats its samples,
    may do so: it is where its pass began.
    Methods take the present `data`, which knows the parts of the data set that have a state.
    """

    def __init__(self, name: str, dataset: Any, in_process: bool) -> None:
        """dataset: the loader's. in_process: it is read in this process, whose objects alone can
        be asked for their state.
        """
        self._name, self._dataset = name, dataset
        # How far the loaders inside it have come, and which have ended, is in no state.
        self._is_stream = (
            in_process and isinstance(dataset, IterableDataset) and not has_loaders(dataset)
        )
        self.next: Mapping[str, Any] | None = None
        """The states from which the next pass begins; None: it begins as the stream does by
        itself.
        """
        self._resumed: int | None = None
        """A checksum of the states at the first batch after a position within a pass; None: none
        was loaded.
        """
        self.first: int | None = None
        """A checksum of the states at the first batch of the latest pass; None: they are not
        known.
        """
        self.start: int | None = None
        """A checksum of the states from which the latest pass began; None: they are not known,
        or may be those of the end of a pass.
        """
        self._loaded: int | None = None
        """A checksum of the states that were loaded last."""

    def is_known(self, data: DataRngState) -> bool:
        """Whether the states are the position: the samples in a shuffle buffer are in no state."""
        return (
            self._is_stream
            and bool(data.stateful)
            and not any(map(shuffles_in_a_buffer, data.stateful.values()))
        )

    def is_known_between(self, data: DataRngState) -> bool:
        """Whether the states also matter between two passes: a stream of Hugging Face begins
        each of them anew.
        """
        return self.is_known(data) and not all(map(is_of_hugging_face, data.stateful.values()))

    def state(self, data: DataRngState) -> State:
        """The state of the data, with the states from which the next pass begins."""
        return data.state() if self.next is None else {**data.state(), "states": self.next}

    def load(self, data: DataRngState, within: bool) -> None:
        """Give the stream the states of the next pass, which is about to begin. within: they are
        a position within a pass.
        """
        if self.next is None:
            return
        lost = data.put({**NO_STATE, "states": self.next})
        if lost:
            raise TaskError(f"{self._name}: {lost[0]}: give the data that the run had.")
        self._loaded = checksum_of(self.next)
        self.next, self._resumed = None, _NO_BATCH_YET if within else None

    @property
    def awaits_batch(self) -> bool:
        """Whether no batch has come yet since a position within a pass was loaded."""
        return self._resumed == _NO_BATCH_YET

    def note_start(self, data: DataRngState, *, after_end: bool) -> None:
        """Note the states from which a pass begins. after_end: the pass before was read to its
        end, which the states then may say.
        """
        self.start = (
            checksum_of(self.state(data)["states"])
            if self.is_known(data) and not after_end
            else None
        )

    def note_first(self, data: DataRngState) -> None:
        """Note the states at the first batch of a pass."""
        self.first = checksum_of(data.state()["states"]) if self.is_known(data) else None

    def note_batch(self, data: DataRngState) -> None:
        """Note the states at the first batch after a position within a pass. TaskError: they are
        those of the pass's first batch.
        """
        self.forget(data)
        self._resumed = checksum_of(data.state()["states"])
        if self._resumed == self.first and self._loaded not in (self.first, self.start):
            raise TaskError(
                f"{self._users_name()} begins the pass anew where load_state_dict() has put it, so"
                " that a resumed run sees its samples twice: with the state of the end of a pass,"
                " let __iter__() give no sample, and begin anew when it is called again."
            )

    def begins_after_restored(self) -> bool:
        """Whether the next whole pass is the first one after a restored position."""
        return self.next is not None or self._resumed is not None

    def refuse_same(self, data: DataRngState, empty: bool) -> None:
        """Raise TaskError if a whole pass has begun where the pass before was resumed. empty: no
        batch has come.
        """
        if empty or (
            checksum_of(data.state()["states"]) == self._resumed and self._loaded != self.start
        ):
            raise TaskError(
                f"{self._users_name()} begins each pass where load_state_dict() has put it, so that"
                " a resumed run never sees its first samples again: forget that position in"
                " __iter__() once it is used."
            )
        self._resumed = None

    def _users_name(self) -> str:
        return f"{self._name} ({type(users_data(self._dataset)).__name__})"

    @staticmethod
    def forget(data: DataRngState) -> None:
        """Let the next pass of Hugging Face's streams begin anew."""
        for stream in data.stateful.values():
            if is_of_hugging_face(stream):
                stream.load_state_dict(None)
