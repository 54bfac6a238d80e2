"""Is the run still finite, and if not: since which update, and where did it begin?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.task.batch import leaves


class NonFiniteError(FloatingPointError):
    """The loss or a gradient became NaN or infinite; the message says at which update and what was seen."""

    def __init__(self, message: str, loss: float = float("nan")) -> None:
        super().__init__(message)
        self.loss = loss
        self.own = True
        """Of several processes: whether it was this one's own loss. The others know the sum alone."""


def explain(
    step: int, loss: float, gradients: Mapping[str, Tensor], batches: Sequence[Any], before: Mapping[str, Tensor]
) -> str:
    """Why update `step` was not taken, in words: inputs first, then weights, then the loss, then the gradients."""
    lines = [f"loss is {loss} at update {step}" if not _finite(loss) else f"a gradient is not finite at update {step}"]
    bad_inputs = [f"{where} ({count} of {total} values)" for where, count, total in _bad(batches)]
    bad_weights = [name for name, value in before.items() if not bool(torch.isfinite(value).all())]
    if bad_inputs:
        lines.append(f"the batch itself holds NaN or infinite values: {', '.join(bad_inputs)}. Clean the data")
    elif bad_weights:
        lines.append(f"the weights were not finite before it, first in {bad_weights[0]!r}")
    elif _finite(loss):
        names = [name for name, value in gradients.items() if not bool(torch.isfinite(value).all())]
        lines.append(f"the loss is {loss:.4g}, and the first gradient that is not finite is {names[0]!r}")
    else:
        lines.append("inputs and weights are finite: lower the learning rate, clip, or look for log(0) or 0/0")
    return "; ".join(lines) + ". The update was not taken."


def _finite(value: float) -> bool:
    return value - value == 0.0


def _bad(batches: Sequence[Any]) -> list[tuple[str, int, int]]:
    found = []
    for number, batch in enumerate(batches):
        where = "" if len(batches) == 1 else f"batch {number} of the window, "
        for path, tensor in leaves(batch):
            if tensor.is_floating_point():
                count = int((~torch.isfinite(tensor)).sum())
                if count:
                    found.append((f"{where}batch[{path}]" if path else f"{where}batch", count, tensor.numel()))
    return found
