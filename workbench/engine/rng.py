"""Saves and restores the random states of the process: python's, numpy's, torch's and the devices'."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.task.device import xla
from workbench.task.device.seeding import seed


@dataclass(frozen=True)
class RandomState:
    """The states of all generators at one moment."""

    python: Any
    numpy: Any
    cpu: Tensor
    cuda: tuple[Tensor, ...]
    seed: int
    mps: Tensor | None
    xla: int | None = None

    @classmethod
    def capture(cls) -> RandomState:
        """The present random states of this process: Python, numpy, torch and the devices in use."""
        # Reading CUDA's states would initialise CUDA; until somebody has, there is nothing to save.
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda, torch.initial_seed(), mps, xla.random_state())

    def restore(self) -> None:
        """Put the random states back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(self.seed)  # as they would have begun for the user
        if self.mps is not None:
            torch.mps.set_rng_state(self.mps)
        if self.xla is not None:
            xla.seed(self.xla)


    def state_dict(self) -> dict[str, Any]:
        """The states by name, to be written to a file."""
        return {name: getattr(self, name) for name in ("python", "numpy", "cpu", "cuda", "seed", "mps", "xla")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RandomState:
        """The states of a file, for the devices that exist here."""
        cuda = state["cuda"][: torch.cuda.device_count()]
        mps = state["mps"] if torch.backends.mps.is_available() else None
        return cls(**{**state, "cuda": cuda, "mps": mps})


class _Turn:
    """A lock for the process's random states, since jobs run beside the user's calls.

    A job holds it while it runs and releases it between two updates. Whoever waits sees the states of the moment between
    two updates and restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._count = threading.Lock()
        self._wanted = 0

    def __enter__(self) -> None:
        with self._count:
            self._wanted += 1
        try:
            self._lock.acquire()
        finally:
            with self._count:
                self._wanted -= 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def yield_lock(self) -> None:
        """Let waiting threads take the lock, if there are any."""
        if not self._wanted:
            return
        self._lock.release()
        try:
            while self._wanted:
                time.sleep(1e-3)
        finally:
            self._lock.acquire()


_turn = _Turn()
yield_lock = _turn.yield_lock


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restore the random states at the end of the block; no other thread of the workbench draws meanwhile."""
    with _turn:
        state = RandomState.capture()
        try:
            yield
        finally:
            state.restore()


def seed_rank(value: int, rank: int) -> None:
    """Give each rank random numbers of its own from here on (dropout, augmentation); rank 0 keeps its own."""
    if rank:
        seed(int(np.random.SeedSequence([value, rank]).generate_state(1)[0]))
