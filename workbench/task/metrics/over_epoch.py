"""Defines `over_epoch`: a metric that is one function of all outputs and targets of a validation.

Exported scripts contain this code, so its annotations are evaluated and bring their imports along.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class OverEpoch:
    """Collects outputs and targets by batch, in host memory; `compute` calls the function once
    on all of them.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.batches: list[tuple[Any, Any]] = []

    def reset(self) -> None:
        """Drop all batches."""
        self.batches = []

    def update(self, output: Any, target: Any) -> None:
        """Add one batch."""
        self.batches.append((in_host_memory(output), in_host_memory(target)))

    def compute(self) -> Any:
        """The function's value for all batches; tensors and arrays are joined along their first
        dimension.
        """
        outputs, targets = zip(*self.batches, strict=True)
        return self.function(joined(outputs), joined(targets))


def over_epoch(function: Callable[[Any, Any], Any]) -> OverEpoch:
    """A metric of all outputs and targets of a validation, for `metrics={"auc": wb.over_epoch(f)}`.

    `f(outputs, targets)` is called once in a validation, on the CPU, with the batches of all ranks
    joined along the first dimension, in the order of the data. It returns one number, or a dict of
    numbers. All outputs of the validation are kept in memory.
    """
    return OverEpoch(function)


def in_host_memory(value: Any) -> Any:
    """A copy whose tensors are detached and in host memory; other values stay the same."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: in_host_memory(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(in_host_memory(item) for item in value)
    return value


def joined(parts: Sequence[Any]) -> Any:
    """Join the values of all batches: concatenate tensors, arrays and lists; join dicts and
    tuples item by item.
    """
    first = parts[0]
    if isinstance(first, Tensor | np.ndarray):
        shapes = {tuple(batch.shape[1:]) for batch in parts}
        if len(shapes) > 1:
            listed = " and ".join(map(str, sorted(shapes)))
            raise ValueError(
                "over_epoch joins batches along their first dimension, and their other dimensions "
                f"differ ({listed}): pad them"
            )
        if isinstance(first, np.ndarray):
            return np.concatenate(parts) if first.ndim else np.stack(parts)
        return torch.cat(list(parts)) if first.ndim else torch.stack(list(parts))
    if isinstance(first, Mapping):
        return {key: joined([batch[key] for batch in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(joined(items) for items in zip(*parts, strict=True))
    if isinstance(first, list):
        return [item for batch in parts for item in batch]
    return None if first is None else list(parts)
