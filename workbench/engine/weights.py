"""The weights of a task at one moment, kept in host memory, and whether they are still the same."""

from __future__ import annotations

import contextlib
import copy
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.protocol import Task

# What every module has: the rest of its attributes are its own.
_COMMON = frozenset(vars(nn.Module()))
Slot = tuple[nn.Module, str, str]
"""A module, "_parameters" or "_buffers", and a name in it."""


@dataclass(frozen=True)
class Weights:
    """Parameters, buffers and plain attributes of a task's modules, and their generators; `put` writes them back."""

    values: tuple[tuple[Slot, Tensor], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]
    held: tuple[Callable[[], object], ...]

    @classmethod
    def of(cls, task: Task, tensors: bool = False) -> Weights:
        """A copy of the weights as they are now. `tensors`: also of tensors that are mere attributes."""
        parts = _parts(task)
        copies: dict[Tensor, Tensor] = {}  # tied weights are copied once
        values = []
        for slot, tensor in _slots(parts):
            if tensor not in copies:
                copies[tensor] = tensor.detach().to("cpu", copy=True)
            values.append((slot, copies[tensor]))
        held = [back for part in parts for back in _held(part, tensors)]
        return cls(tuple(values), tuple((part, plain_attributes(part)) for part in parts), tuple(held))

    def put(self, task: Task) -> None:
        """Make these the task's weights, in place where the tensors are still there."""
        known = {(id(part), kind, name) for (part, kind, name), _ in self.values}
        with torch.no_grad():
            for (part, kind, name), value in self.values:
                there = getattr(part, kind).get(name)
                if there is not None and there.shape == value.shape:
                    there.copy_(value)
                else:  # forward() put another tensor in its place
                    getattr(part, kind)[name] = value.clone() if there is None else value.to(there.device, copy=True)
        for (part, kind, name), _ in list(_slots(_parts(task))):
            if kind == "_buffers" and (id(part), kind, name) not in known:
                del part._buffers[name]
        for part, attributes in self.attributes:
            vars(part).update(copy.deepcopy(attributes))
        for back in self.held:
            back()

    def with_attributes(self, changed: Mapping[nn.Module, Mapping[str, Any]]) -> Weights:
        """The same weights, with some attributes of some modules as given."""
        attributes = tuple((part, {**own, **changed.get(part, {})}) for part, own in self.attributes)
        return replace(self, attributes=attributes)


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
        # Another buffer means another model, and so another start.
        shapes = zlib.crc32(repr([b.shape for b in buffers]).encode())
        return cls(
            _checksum(parameters, shapes), _checksum(buffers), {part: plain_attributes(part) for part in _parts(task)}
        )

    def set_since(self, before: Mark) -> dict[nn.Module, dict[str, Any]]:
        """The attributes that are new or different."""
        missing = object()
        return {
            part: {k: v for k, v in now.items() if before.attributes.get(part, {}).get(k, missing) != v}
            for part, now in self.attributes.items()
        }


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """A module's own numbers, strings and plain containers: a counter that forward() moves is state too."""
    return {
        name: copy.deepcopy(value)
        for name, value in vars(module).items()
        if name not in _COMMON and not name.startswith("__") and _is_plain(value)
    }


def _parts(task: Task) -> list[nn.Module]:
    return list(dict.fromkeys(part for whole in task.modules for part in whole.modules()))


def _slots(parts: Iterable[nn.Module]) -> Iterator[tuple[Slot, Tensor]]:
    for part in parts:
        for kind in ("_parameters", "_buffers"):
            for name, tensor in getattr(part, kind).items():
                if tensor is not None:
                    yield (part, kind, name), tensor


def _held(part: nn.Module, tensors: bool) -> Iterator[Callable[[], object]]:
    """How to bring back a module's own generators, and the tensors that are mere attributes."""
    for name, value in vars(part).items():
        if name in _COMMON:
            continue
        if isinstance(value, torch.Generator):
            yield partial(value.set_state, value.get_state())
        elif isinstance(value, np.random.Generator):
            yield partial(setattr, value.bit_generator, "state", copy.deepcopy(value.bit_generator.state))
        elif isinstance(value, random.Random):
            yield partial(value.setstate, value.getstate())
        elif isinstance(value, Tensor) and tensors:
            yield partial(_put_back, part, name, value, value.detach().clone())


def _put_back(part: nn.Module, name: str, tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # a view of a graph that is gone cannot be written to
        tensor.copy_(value)
    vars(part)[name] = tensor


def _checksum(tensors: Iterable[Tensor], total: int = 0) -> int:
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        total = zlib.crc32(data, total)
    return total


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))
