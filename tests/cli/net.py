"""What the configurations of these tests build."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 2


def make(width: int = 8, drop: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Dropout(drop), nn.Linear(width, CLASSES)
    )


def data(samples: int = 64) -> dict[str, object]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 4, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return {"train": (x, y), "val": (x[:16], y[:16]), "loss": nn.CrossEntropyLoss()}


def both(width: int = 8) -> dict[str, object]:
    return {"model": make(width), **data()}


def nothing() -> None:
    """A function that has forgotten its return."""


def fails() -> nn.Module:
    raise LookupError("no such picture")
