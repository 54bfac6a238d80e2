"""Reads what a step or a loss function returned: the loss, and the weight of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workbench.task.errors import TaskError


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
