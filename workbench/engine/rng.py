"""The random states of the process: python's, numpy's, torch's and the devices', kept and put back together."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """All generators at one moment."""

    python: Any
    numpy: Any
    cpu: Tensor
    cuda: tuple[Tensor, ...]
    mps: Tensor | None

    @classmethod
    def capture(cls) -> RandomState:
        # Asking CUDA for its states would initialise it; until someone has, there is nothing to keep.
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda, mps)

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        if self.mps is not None:
            torch.mps.set_rng_state(self.mps)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Whatever is drawn inside is not missed outside."""
    state = RandomState.capture()
    try:
        yield
    finally:
        state.restore()


def seed(value: int) -> None:
    """Seed every generator."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
