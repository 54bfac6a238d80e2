"""Reads what a step or a loss function returned: the loss, its named parts, and the weight of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.task.errors import TaskError

_NO_PARTS = ("loss", "weight", "hiddens", "log", "progress_bar")
"""Keys of a step's result that mean something else, here or in Lightning 1."""


def loss_parts(result: Any) -> dict[str, Tensor]:
    """The further scalar tensors and floats in a result by their names, without a graph: the parts of the loss, for the record."""
    if not isinstance(result, Mapping) or len(result) < 2:
        return {}
    device = getattr(result.get("loss"), "device", None)
    return {
        name: _copied(value, device) for name, value in result.items()
        if isinstance(name, str) and name not in _NO_PARTS and _is_part(value)
    }  # fmt: skip


def _is_part(value: Any) -> bool:
    """Whether it is one measured number; a batch's outputs of shape (1, 1) and counts (int) are not."""
    if isinstance(value, Tensor):
        return value.shape in ((), (1,)) and not value.is_complex()
    return isinstance(value, (float, np.floating))


def _copied(value: Any, device: torch.device | None) -> Tensor:
    """A scalar of shape (), which a statistic that changes in place does not change; of a float on the loss's device."""
    if not isinstance(value, Tensor):
        return torch.full((), float(value), device=device)
    single = value.detach().reshape(())
    return single.clone() if single.is_floating_point() else single.float()


def reported_weight(result: Any, where: str) -> Tensor | float | None:
    """The "weight" in a result (its tokens, for example); None where it has none."""
    if not isinstance(result, Mapping) or result.get("weight") is None:
        return None
    weight = result["weight"]
    single = weight.numel() == 1 if isinstance(weight, Tensor) else isinstance(weight, (int, float))
    if not single or isinstance(weight, bool):
        raise TaskError(f"{where} returned weight={weight!r}: it must be one number, e.g. the batch's tokens.")
    # On a device the number is not known here without waiting for it.
    known = not isinstance(weight, Tensor) or weight.device.type == "cpu"
    if known and not 0 <= float(weight) < math.inf:
        raise TaskError(f"{where} returned weight={float(weight)!r}: it must be 0 or more, e.g. the batch's tokens.")
    return weight.detach() if isinstance(weight, Tensor) else float(weight)


def score_weight(result: Any, samples: int, where: str) -> float:
    """How much a validation batch counts: the weight that it reports, else its samples."""
    weight = reported_weight(result, where)
    return float(samples if weight is None else weight)
