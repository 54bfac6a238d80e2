"""What a job has left in the modules of a task, to be put into the same task in another process."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.engine.weights import COMMON, plain_attributes, set_attribute
from workbench.task.protocol import Task

Path = tuple[int, str]
"""Which of the task's modules, and the name within it."""
_MISSING = object()


@dataclass(frozen=True)
class Before:
    """What tells afterwards which attributes a job has changed."""

    names: Mapping[Path, frozenset[str]]
    marks: Mapping[Path, Mapping[str, Any]]

    @classmethod
    def of(cls, task: Task) -> Before:
        parts = dict(_parts(task))
        return cls(
            {path: frozenset(_own(part)) for path, part in parts.items()},
            {path: {name: _mark(value) for name, value in _own(part).items()} for path, part in parts.items()},
        )


@dataclass
class _Part:
    """Of one module."""

    slots: dict[str, dict[str, Tensor | None]]
    trains: dict[str, bool]
    """Which parameters require a gradient."""
    attributes: dict[str, Any]
    generators: dict[str, Any] = field(default_factory=dict)
    """Their states."""
    gone: tuple[str, ...] = ()
    layers: dict[str, nn.Module | None] = field(default_factory=dict)
    """The modules within that were not there before."""


@dataclass(frozen=True)
class Left:
    """Parameters, buffers, generators, plain attributes and those of tensors that a job has changed."""

    parts: Mapping[Path, _Part]

    @classmethod
    def of(cls, task: Task, before: Before) -> Left:
        return cls({path: _left(part, path, before) for path, part in _parts(task) if path in before.names})

    def put(self, task: Task) -> None:
        """Make the task's modules such; what is there stays the same objects where it can."""
        parts = dict(_parts(task))
        for path, left in self.parts.items():
            if path in parts:
                _put(parts[path], left)


def _parts(task: Task) -> Iterator[tuple[Path, nn.Module]]:
    for number, whole in enumerate(task.modules):
        for name, part in whole.named_modules():
            yield (number, name), part


def _own(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in COMMON and not name.startswith("__")}


def _left(part: nn.Module, path: Path, before: Before) -> _Part:
    number, prefix = path
    slots = {
        kind: {name: None if tensor is None else tensor.detach() for name, tensor in getattr(part, kind).items()}
        for kind in ("_parameters", "_buffers")
    }
    trains = {name: p.requires_grad for name, p in part._parameters.items() if p is not None}
    left = _Part(slots, trains, plain_attributes(part))
    own, marks = _own(part), before.marks[path]
    for name, value in own.items():
        state = _state(value)
        if state is not None:
            left.generators[name] = state
        elif name not in left.attributes and _changed(marks.get(name, _MISSING), value):
            left.attributes[name] = _detached(value)
    left.gone = tuple(before.names[path].difference(own))
    for name, layer in part._modules.items():
        if (number, f"{prefix}.{name}".lstrip(".")) not in before.names:
            left.layers[name] = layer
    return left


def _put(part: nn.Module, left: _Part) -> None:
    for kind, tensors in left.slots.items():
        there = getattr(part, kind)
        for name, value in tensors.items():
            there[name] = _filled(there.get(name), value, kind == "_parameters")
    for name, trains in left.trains.items():
        parameter = part._parameters[name]
        if parameter is not None:
            parameter.requires_grad_(trains)
    for name in left.gone:
        vars(part).pop(name, None)
    for name, value in left.attributes.items():
        own = vars(part).get(name)
        if isinstance(own, Tensor) and isinstance(value, Tensor):
            vars(part)[name] = _filled(own, value, False)
        else:
            set_attribute(part, name, value)
    for name, state in left.generators.items():
        _set_state(vars(part).get(name), state)
    part._modules.update(left.layers)


def _filled(there: Tensor | None, value: Tensor | None, parameter: bool) -> Tensor | None:
    """The tensor that is there with this value, or one of its own where it does not fit."""
    if value is None:
        return None
    if there is not None and there.shape == value.shape and there.dtype == value.dtype:
        with torch.no_grad():
            there.copy_(value)
        return there
    own = value.clone() if there is None else value.to(there.device, copy=True)
    return nn.Parameter(own, requires_grad=False) if parameter else own


def _mark(value: Any) -> Any:
    """What tells whether a tensor, an array or a container of them is still the same; None: it is nothing of that kind."""
    if isinstance(value, Tensor):
        return weakref.ref(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray) and value.nbytes < _SMALL and not value.dtype.hasobject:
        return value.shape, value.dtype, value.tobytes()
    if type(value) in (list, tuple, dict) and len(value) < _MANY:
        items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
        marks = [(key, _mark(item)) for key, item in items]
        return None if any(mark is None for _, mark in marks) else (type(value), marks)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return "plain", value
    return None


_SMALL = 1 << 20
_MANY = 10_000
"""Arrays and containers beyond these are data, and are not looked at."""


def _changed(before: Any, value: Any) -> bool:
    now = _mark(value)
    return now is not None and (before is _MISSING or now != before)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    return type(value)(map(_detached, value)) if type(value) in (list, tuple) else value


def _state(value: Any) -> Any:
    """The state of a generator; None: it is none."""
    if isinstance(value, torch.Generator | np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.getstate() if isinstance(value, random.Random) else None


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
