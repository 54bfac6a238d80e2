"""In the kernel: the CNN that is trained under the panel, and one whose every update is noted."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import workbench as wb
from tests.benchmarks.step_overhead import cnn, data


def bench(root: str, loss: Any = F.cross_entropy, **settings: Any) -> Any:
    """Of the CNN on digits that `step_overhead` has too."""
    return wb.Workbench(
        cnn(), train=data(), loss=loss, root=root, batch_size=64, accelerator="cpu", **settings
    )


noted: list[float] = []
"""When each loss was known."""


def noted_loss(outputs: Tensor, target: Tensor) -> Tensor:
    """As fast as ever."""
    return _noted(F.cross_entropy(outputs, target))


def slow_loss(outputs: Tensor, target: Tensor) -> Tensor:
    """Ten updates a second, and somewhat less, so that they come at any time between two messages."""
    time.sleep(0.093)
    return _noted(F.cross_entropy(outputs, target))


def heavy_loss(outputs: Tensor, target: Tensor) -> Tensor:
    """As many, whose process works all the while."""
    end = time.monotonic() + 0.093
    numbers = torch.ones(200, 200)
    while time.monotonic() < end:
        numbers @ numbers
    return _noted(F.cross_entropy(outputs, target))


def _noted(loss: Tensor) -> Tensor:
    noted.append(time.time())
    return loss


def followed(of: Any, steps: int) -> list[float]:
    """When each update's loss was known, in a fit of so many."""
    of.fit(max_steps=steps).result()
    return noted[-steps:]
