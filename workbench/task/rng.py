"""Random generators: seeds them, and reads and restores their states, whether the process's, the
devices' or an object's own.

A state consists of containers, numbers, tensors and arrays, which `to_plain` makes fit for a
checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
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

State = dict[str, Any]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_PROCESS = {
    "python": random.random.__self__,  # type: ignore[attr-defined]
    "numpy": np.random.mtrand._rand,
    "torch": torch.default_generator,
}


def is_generator(value: Any) -> bool:
    """Whether it is a generator of torch, numpy or Python; `isinstance` would ask the metaclass
    of torch's, for each of many objects.
    """
    return issubclass(type(value), GENERATORS)


def is_own(generator: Any) -> bool:
    """Whether a generator has a state of its own to be restored: the process's three have
    `process_state`, and the system's has none.
    """
    return not isinstance(generator, random.SystemRandom) and not any(
        generator is process_generator for process_generator in _PROCESS.values()
    )


def generator_state(generator: Any) -> Any:
    """The state of a generator of torch, numpy or Python; None: it is the system's, which has
    none.
    """
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return (
        generator.get_state(legacy=False)
        if isinstance(generator, np.random.RandomState)
        else generator.getstate()
    )


def set_generator_state(generator: Any, state: Any) -> None:
    """Put back what `generator_state` returned."""
    if isinstance(generator, random.SystemRandom):
        return
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


# ---- the process ---------------------------------------------------------------------------------


def seed(value: int) -> None:
    """Seed every generator of the process."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    xla.seed(value)


def seed_rank(value: int, rank: int) -> None:
    """Give each rank random numbers of its own from here on (dropout, augmentation); rank 0
    keeps its own.
    """
    if rank:
        seed(int(np.random.SeedSequence([value, rank]).generate_state(1)[0]))


def process_state() -> State:
    """The states of python's, numpy's and torch's generators on the CPU, from which samplers and
    data sets may draw.
    """
    return {name: generator_state(generator) for name, generator in _PROCESS.items()}


def set_process_state(state: Mapping[str, Any]) -> None:
    """Put back what `process_state` returned."""
    for name, generator in _PROCESS.items():
        set_generator_state(generator, state[name])


@contextlib.contextmanager
def restored_process_state(state: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which the process draws from the states in `state`; its own random
    states are restored afterwards.
    """
    before = process_state()
    set_process_state(state)
    try:
        yield
    finally:
        set_process_state(before)


# ---- the process and its devices -----------------------------------------------------------------


def device_state(device: torch.device) -> Tensor | None:
    """The state of the generator that a forward pass on this device draws from; None: it cannot
    be read without waiting.
    """
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_device_state(device: torch.device, state: Tensor) -> None:
    """Put back what `device_state` returned."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


@dataclass(frozen=True)
class RandomState:
    """The states of all generators of the process and its devices at one moment."""

    process: State
    cuda: tuple[Tensor, ...]
    seed: int
    mps: Tensor | None
    xla: int | None = None

    @classmethod
    def capture(cls) -> RandomState:
        """The present states: Python, numpy, torch and the devices in use."""
        # Reading CUDA's states would initialise CUDA; until somebody has, there is nothing to save.
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        return cls(process_state(), cuda, torch.initial_seed(), mps, xla.random_state())

    def restore(self) -> None:
        """Put the random states back."""
        set_process_state(self.process)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(self.seed)  # as they would have begun for the user
        if self.mps is not None:
            torch.mps.set_rng_state(self.mps)
        if self.xla is not None:
            xla.seed(self.xla)

    def state_dict(self) -> State:
        """The states by name, to be written to a file."""
        return {
            **self.process,
            "cuda": self.cuda,
            "seed": self.seed,
            "mps": self.mps,
            "xla": self.xla,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RandomState:
        """The states of a file, for the devices that exist here."""
        process = {name: state[name] for name in ("python", "numpy")}
        # "cpu": its name in an earlier version
        process["torch"] = state["cpu"] if "cpu" in state else state["torch"]
        mps = state["mps"] if torch.backends.mps.is_available() else None
        return cls(
            process,
            state["cuda"][: torch.cuda.device_count()],
            state["seed"],
            mps,
            state.get("xla"),
        )


class _Turn:
    """A lock for the process's random states, since jobs run beside the user's calls.

    A job holds it while it runs and releases it between two updates. Whoever waits sees the states
    of the moment between two updates and restores them.
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


_outermost: RandomState | None = None
"""The states that the outermost block of `preserved` restores; None: there is no block."""


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restore the random states at the end of the block; no other thread of the workbench draws
    meanwhile.
    """
    global _outermost
    with _turn:
        state = RandomState.capture()
        is_outermost = _outermost is None
        if is_outermost:
            _outermost = state
        try:
            yield
        finally:
            state.restore()
            if is_outermost:
                _outermost = None


def users_state() -> State:
    """The states of the process's generators, as they are for the user's cells: without what a job
    that runs in this process has drawn.
    """
    outermost = _outermost
    return process_state() if outermost is None else outermost.process
