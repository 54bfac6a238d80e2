"""A small bench for tests of studies, whose data keeps a generator and counts what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import workbench as wb

SCALE = 2.0


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise from a generator of its own to each sample."""

    def __init__(self, samples: int) -> None:
        source = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 6, generator=source)
        self.y = (self.x.sum(1) > 0).long()
        self.noise = torch.Generator().manual_seed(2)
        self.count = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.count += 1
        noise = torch.randn(6, generator=self.noise)
        return self.x[index] + (0.1 + self.count * 1e-5) * noise, self.y[index]


def net(width: int = 8, dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2))


def scaled(output: Tensor, target: Tensor) -> Tensor:
    return SCALE * nn.functional.cross_entropy(output, target)


def bench(root: Path, model: Any = net, **arguments: Any) -> wb.Workbench:
    """A bench with this model, or a function that makes one."""
    defaults: dict[str, Any] = {
        "train": Noisy(64),
        "val": Noisy(32),
        "loss": scaled,
        "max_epochs": 3,
        "batch_size": 8,
        "enable_progress_bar": False,
    }
    return wb.Workbench(model, root=root, **{**defaults, **arguments})
