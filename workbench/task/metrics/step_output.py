"""Reads what a step or a loss function returned: the loss, its named parts, and the weight of
the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.task.errors import TaskError

_NO_PARTS = ("loss", "weight", "hiddens", "log", "progress_bar")
"""Keys of a step's result that are no part of the loss: they have another meaning, here or in
Lightning 1.
"""


def loss_parts(result: Any) -> dict[str, Tensor]:
    """The parts of the loss, for the record: the other scalar tensors and floats in a result by
    name, detached.
    """
    if not isinstance(result, Mapping) or len(result) < 2:
        return {}
    return {
        name: _copied(value)
        for name, value in result.items()
        if isinstance(name, str) and name not in _NO_PARTS and _is_part(value)
    }


def _is_part(value: Any) -> bool:
    """Whether it is one measured number; outputs of shape (1, 1) and counts (int) are not."""
    if isinstance(value, Tensor):
        return value.shape in ((), (1,)) and not value.is_complex()
    return isinstance(value, (float, np.floating))


def _copied(value: Any) -> Tensor:
    """A copy of a scalar, shape (), since the original may be changed in place."""
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float64)
    single = value.detach().reshape(())
    return single.clone() if single.is_floating_point() else single.float()


def reported_weight(result: Any, where: str) -> Tensor | float | None:
    """The "weight" in a result (its tokens, for example); None where it has none."""
    if not isinstance(result, Mapping) or result.get("weight") is None:
        return None
    weight = result["weight"]
    single = weight.numel() == 1 if isinstance(weight, Tensor) else isinstance(weight, (int, float))
    if not single or isinstance(weight, bool):
        raise TaskError(
            f"{where} returned weight={weight!r}: it must be one number, e.g. the batch's tokens."
        )
    # On a device, reading the number would wait for it.
    known = not isinstance(weight, Tensor) or weight.device.type == "cpu"
    if known and not 0 <= float(weight) < math.inf:
        raise TaskError(
            f"{where} returned weight={float(weight)!r}: it must be 0 or more, e.g. the batch's"
            " tokens."
        )
    return weight.detach() if isinstance(weight, Tensor) else float(weight)


def score_weight(result: Any, samples: int, where: str) -> float:
    """The weight of a validation batch: the one that it reports, else its number of samples."""
    weight = reported_weight(result, where)
    return float(samples if weight is None else weight)
