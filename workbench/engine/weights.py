"""The weights of a task at one moment, kept in host memory, and whether they are still the same."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.task.protocol import Task


def _tensors(task: Task) -> list[Tensor]:
    found = (t for whole in task.modules for t in (*whole.parameters(), *whole.buffers()))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Weights:
    """Parameters, buffers and plain attributes of a task's modules; `put` writes them back in place."""

    values: tuple[Tensor, ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]

    @classmethod
    def of(cls, task: Task) -> Weights:
        """A copy of the weights as they are now."""
        values = tuple(t.detach().to("cpu", copy=True) for t in _tensors(task))
        parts = (part for whole in task.modules for part in whole.modules())
        return cls(values, tuple((part, plain_attributes(part)) for part in parts))

    def put(self, task: Task) -> None:
        """Make these the task's weights."""
        with torch.no_grad():
            for tensor, value in zip(_tensors(task), self.values, strict=True):
                tensor.copy_(value)
        for part, attributes in self.attributes:
            vars(part).update(copy.deepcopy(attributes))


    def with_attributes(self, changed: Mapping[nn.Module, Mapping[str, Any]]) -> Weights:
        """The same weights, with some attributes of some modules as given."""
        attributes = tuple((part, {**own, **changed.get(part, {})}) for part, own in self.attributes)
        return Weights(self.values, attributes)


@dataclass(frozen=True)
class Mark:
    """What tells whether a task's weights or attributes were changed: checksums, and the attributes."""

    parameters: int
    buffers: int
    attributes: Mapping[nn.Module, Mapping[str, Any]]

    @classmethod
    def of(cls, task: Task) -> Mark:
        parameters = [p for whole in task.modules for p in whole.parameters()]
        buffers = [b for whole in task.modules for b in whole.buffers()]
        parts = (part for whole in task.modules for part in whole.modules())
        # Another buffer means another model, and so another start.
        shapes = zlib.crc32(repr([b.shape for b in buffers]).encode())
        return cls(
            _checksum(parameters, shapes), _checksum(buffers), {part: plain_attributes(part) for part in parts}
        )

    def set_since(self, before: Mark) -> dict[nn.Module, dict[str, Any]]:
        """The attributes that are new or different."""
        missing = object()
        return {
            part: {k: v for k, v in now.items() if before.attributes.get(part, {}).get(k, missing) != v}
            for part, now in self.attributes.items()
        }


def _checksum(tensors: Iterable[Tensor], total: int = 0) -> int:
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        total = zlib.crc32(data, total)
    return total


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """A module's own numbers, strings and plain containers: a counter that forward() moves is state too."""
    found = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and _is_plain(value):
            found[name] = copy.deepcopy(value)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))
