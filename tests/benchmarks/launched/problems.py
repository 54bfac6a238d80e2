"""The same little model and the same data for every launcher, with marks by which a job is measured from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

GATE, MARKS = "RANKS_GATE", "RANKS_MARKS"
"""Environment variables: the folder where ranks wait to be measured; the file of their first updates."""
SAMPLES, BATCH = 16384, 64
"""Of tensors and arrays, whatever their size: what grows with it is the sample."""
LIST_BATCH = 1000


class Pictures(Dataset[Any]):
    """A numpy array in a class of the user's own."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.array[index]), torch.zeros(1)


class Records(Dataset[Any]):
    """A long list of small Python objects."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        item = self.items[index]
        return torch.full((4,), float(item["id"] % 7)), torch.zeros(1)


def data(kind: str, size: float) -> Dataset[Any]:
    """size: of "tensor" and "array" in GiB, of "list" in objects."""
    width = max(4, round(size * 2**30 / (SAMPLES * 4)))
    if kind == "tensor":
        return TensorDataset(torch.ones(SAMPLES, width), torch.zeros(SAMPLES, 1))
    if kind == "array":
        return Pictures(np.ones((SAMPLES, width), dtype=np.float32))
    return Records([{"id": n, "file": f"images/train/{n:09d}.jpg"} for n in range(round(size))])


def batch_size(kind: str) -> int:
    return LIST_BATCH if kind == "list" else BATCH


class Little(nn.Module):
    """One weight. Its n-th forward in training waits, where it is told to, until it was measured."""

    taken = 0

    def __init__(self, gate_at: int = 0) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        self.gate_at = gate_at

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            Little.taken += 1
            if Little.taken == self.gate_at:
                wait_to_be_measured(Path(os.environ[GATE]))
        out: Tensor = self.line(x.mean(1, keepdim=True))
        return out


def wait_to_be_measured(folder: Path) -> None:
    (folder / f"rank-{os.getpid()}").touch()
    end = time.monotonic() + 120
    while not (folder / "measured").exists():
        if time.monotonic() > end:
            raise TimeoutError("nobody came to measure this rank")
        time.sleep(0.02)


class Marked(torch.optim.SGD):
    """Writes when its first step was taken."""

    told = False

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        if not self.told:
            self.told = True
            with open(os.environ[MARKS], "a") as marks:
                marks.write(f"{time.time()}\n")
        return found
