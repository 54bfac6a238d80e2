"""Saves and restores the random numbers with which a loader is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from workbench.task.data.resumable_sampler import ResumableBatchSampler
from workbench.task.data.sharding import SharedLoader
from workbench.task.data.spec import Loader
from workbench.task.rng import State, process_state, restored_process_state, set_process_state


class ReadingRng:
    """The random states from which data that are read in this process may draw: on several ranks
    those that all share.
    """

    def __init__(self, loader: Loader) -> None:
        self._common = loader.common_rng if isinstance(loader, SharedLoader) else None

    def state(self) -> State:
        """The present states."""
        return process_state() if self._common is None else self._common.state

    def set_state(self, state: State) -> None:
        """Let data draw from these states from now on."""
        if self._common is None:
            set_process_state(state)
        else:
            self._common.state = state

    def restored(self, state: State) -> contextlib.AbstractContextManager[None]:
        """Context manager in which data draw from these states."""
        return (
            restored_process_state(state)
            if self._common is None
            else self._common.with_state(state)
        )


class WorkerSeeds:
    """The loader's generator, from which a loader draws the seeds of its workers when its iterator
    is made.

    Workers that live from one pass to the next have those of the first pass. So two states are
    kept: that before the iterator was made, and that of the next pass.
    """

    def __init__(self, loader: Loader, sampler: ResumableBatchSampler | None) -> None:
        self._loader, self._sampler = loader, sampler
        self.before: Tensor | None = None
        """The generator before the iterator was made."""
        self._start: Tensor | None = None
        """The generator after that, where no sampler takes it; None: the next pass begins with
        the generator as it then is.
        """

    @property
    def persist(self) -> bool:
        """Whether worker processes of the last pass will serve the next one."""
        return self._loader.persistent_workers and self._loader._iterator is not None

    def iterator(self) -> Iterator[Any]:
        """Make the iterator of a pass."""
        if not self.persist:
            self.before = self._loader.generator.get_state()
        batches = iter(self._loader)
        if self._start is not None:
            self._loader.generator.set_state(self._start)
            self._start = None
        return batches

    def set_before(self, state: Tensor) -> None:
        """Let the iterator be made from this state of the generator."""
        self.before = state
        self._loader.generator.set_state(state)

    def state(self) -> State:
        """The state between two passes."""
        start = self._start if self._sampler is None else self._sampler.start
        return {
            "made": self.before if self.persist or start is not None else None,
            "generator": self._loader.generator.get_state() if start is None else start,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if state["made"] is None or not self._loader.persistent_workers:
            self._loader.generator.set_state(state["generator"])
            return
        self.set_before(state["made"])
        if self._sampler is None:
            self._start = state["generator"]
        else:
            self._sampler.start = state["generator"]
