"""Finds the changes that a job made to the modules of a task, and applies them to the same task in another process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.modules import named_parts, own_attributes, plain_attributes, set_attribute
from workbench.task.protocol import Task
from workbench.task.rng import generator_state, is_generator, set_generator_state
from workbench.task.state.contents import overwrite
from workbench.task.state.held import HeldState
from workbench.task.state.of_task import held_state, load_held
from workbench.task.state.serialization import from_plain

Path = tuple[int, str]
"""A submodule: the index of one of the task's modules, and the name within that module."""
_KINDS = ("_parameters", "_buffers")
_MISSING = object()


@dataclass(frozen=True)
class _Slot:
    """Stands for a parameter or buffer that something else refers to as well, such as the flat weights of an LSTM."""

    path: Path
    kind: str
    name: str

    def of(self, parts: Mapping[Path, nn.Module]) -> Tensor | None:
        """The parameter or buffer of these modules to which it refers."""
        found: Tensor | None = getattr(parts[self.path], self.kind)[self.name]
        return found


@dataclass(frozen=True)
class ModulesBefore:
    """Fingerprints of the modules' attributes before a job, with which the changed ones are found afterwards."""

    names: Mapping[Path, frozenset[str]]
    marks: Mapping[Path, Mapping[str, Any]]
    layers: Mapping[Path, frozenset[str]]
    """The names of the direct submodules of each; a module with two names counts once."""
    held: HeldState
    """What all objects of the task held."""

    @classmethod
    def of(cls, task: Task) -> ModulesBefore:
        """The present state of a task's modules."""
        parts = dict(named_parts(task.modules))
        return cls(
            {path: frozenset(own_attributes(part)) for path, part in parts.items()},
            {path: {name: _mark(value) for name, value in own_attributes(part).items()} for path, part in parts.items()},
            {path: frozenset(part._modules) for path, part in parts.items()},
            held_state(task, set()),
        )


@dataclass
class _Part:
    """The changes of one module."""

    slots: dict[str, dict[str, Tensor | None]]
    trains: dict[str, bool]
    """Which parameters require a gradient."""
    attributes: dict[str, Any]
    generators: dict[str, Any] = field(default_factory=dict)
    """The states of its generators."""
    replaced: set[str] = field(default_factory=set)
    """Attributes that are another tensor now; the tensor from before keeps its values."""
    gone: tuple[str, ...] = ()
    layers: dict[str, nn.Module | None] = field(default_factory=dict)
    """The submodules that are new."""


@dataclass(frozen=True)
class ModuleDiff:
    """Parameters, buffers, generators, plain attributes and tensor attributes that a job has changed."""

    parts: Mapping[Path, _Part]
    loss_part_names: frozenset[str] = frozenset()
    """Of the task, which may have returned further parts of the loss."""
    objects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What objects other than the modules hold that has changed, in plain form (`HeldState.state`)."""

    @classmethod
    def of(cls, task: Task, before: ModulesBefore) -> ModuleDiff:
        """What has changed in a task's modules since `before`."""
        slots = {
            id(tensor): _Slot(path, kind, name)
            for path, part in named_parts(task.modules) for kind in _KINDS for name, tensor in getattr(part, kind).items()
        }  # fmt: skip
        parts = {path: _left(part, path, before, slots) for path, part in named_parts(task.modules) if path in before.names}
        modules = {f"{number}:{name}" for (number, name), _ in named_parts(task.modules)}
        changed, _ = before.held.state()
        return cls(parts, task.loss_part_names, {path: values for path, values in changed.items() if path not in modules})

    def put(self, task: Task) -> None:
        """Apply the changes to the task's modules, in place where shapes and types allow."""
        task.loss_part_names = task.loss_part_names.union(self.loss_part_names)
        parts = dict(named_parts(task.modules))
        there = {path: left for path, left in self.parts.items() if path in parts}
        for path, left in there.items():
            _put_tensors(parts[path], left)
            parts[path]._modules.update(left.layers)
        parts = dict(named_parts(task.modules))  # with the new layers
        for path, left in there.items():
            _put_attributes(parts[path], left, parts)
        load_held(task, from_plain(self.objects), next((parameter.device for parameter in task.model.parameters()), torch.device("cpu")))


def _left(part: nn.Module, path: Path, before: ModulesBefore, slots: Mapping[int, _Slot]) -> _Part:
    tensors = {
        kind: {name: None if tensor is None else tensor.detach() for name, tensor in getattr(part, kind).items()}
        for kind in _KINDS
    }
    trains = {name: p.requires_grad for name, p in part._parameters.items() if p is not None}
    left = _Part(tensors, trains, plain_attributes(part))
    own, marks = own_attributes(part), before.marks[path]
    for name, value in own.items():
        if is_generator(value):
            left.generators[name] = generator_state(value)
        elif name not in left.attributes and _changed(marks.get(name, _MISSING), value):
            left.attributes[name] = _mapped(value, lambda tensor: slots.get(id(tensor)) or tensor.detach())
            if isinstance(value, Tensor) and _mark(value)[0] != (marks.get(name) or (None,))[0]:
                left.replaced.add(name)
    left.gone = tuple(before.names[path].difference(own))
    left.layers.update((name, layer) for name, layer in part._modules.items() if name not in before.layers[path])
    return left


def _put_tensors(part: nn.Module, left: _Part) -> None:
    for kind, tensors in left.slots.items():
        there = getattr(part, kind)
        for name, value in tensors.items():
            there[name] = _filled(there.get(name), value, kind == "_parameters")
    for name, trains in left.trains.items():
        parameter = part._parameters[name]
        if parameter is not None:
            parameter.requires_grad_(trains)


def _put_attributes(part: nn.Module, left: _Part, parts: Mapping[Path, nn.Module]) -> None:
    for name in left.gone:
        vars(part).pop(name, None)
    for name, value in left.attributes.items():
        own = vars(part).get(name)
        if isinstance(value, Tensor):
            same = own if isinstance(own, Tensor) and name not in left.replaced else None
            vars(part)[name] = _filled(same, value, False)
        else:
            set_attribute(part, name, _mapped(value, lambda one: one.of(parts) if isinstance(one, _Slot) else one))
    for name, state in left.generators.items():
        generator = vars(part).get(name)
        if is_generator(generator):
            set_generator_state(generator, state)


def _filled(there: Tensor | None, value: Tensor | None, parameter: bool) -> Tensor | None:
    """The existing tensor, overwritten with this value, or a new tensor where shape or dtype differ."""
    if value is None:
        return None
    if there is not None and there.shape == value.shape and there.dtype == value.dtype:
        with torch.no_grad():
            overwrite(there, value)
        return there
    own = value.clone() if there is None else value.to(there.device, copy=True)
    return nn.Parameter(own, requires_grad=False) if parameter else own


class _Which:
    """The identity of a tensor. A weak reference alone would compare the contents of the tensors."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = weakref.ref(tensor)

    def __eq__(self, other: object) -> bool:
        here = self._reference()
        return here is not None and isinstance(other, _Which) and other._reference() is here

    __hash__ = None  # type: ignore[assignment]


def _mark(value: Any) -> Any:
    """A fingerprint of a tensor, an array or a container of them; None: it is something else."""
    if isinstance(value, Tensor):
        return _Which(value), 0 if value.is_inference() else value._version
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
"""Arrays and containers with more entries count as data, and are not compared."""


def _changed(before: Any, value: Any) -> bool:
    now = _mark(value)
    return now is not None and (before is _MISSING or now != before)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied to each tensor or `_Slot` in it."""
    if isinstance(value, Tensor | _Slot):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return type(value)(_mapped(item, change) for item in value) if type(value) in (list, tuple) else value
