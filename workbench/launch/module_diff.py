"""Finds what a job has changed in a task, and changes the same task in another process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.task.batch import leaves
from workbench.task.modules import named_parts, own_attributes
from workbench.task.protocol import Task
from workbench.task.state.contents import is_container, is_plain, overwrite, refill
from workbench.task.state.held import Held, HeldState
from workbench.task.state.of_task import held_state, load_held
from workbench.task.state.serialization import from_plain

Path = tuple[int, str]
"""A submodule: the index of one of the task's modules, and the name within that module."""
_KINDS = ("_parameters", "_buffers")
_CONTAINERS = (list, tuple, dict, Tensor, nn.Parameter)


class _Slot(NamedTuple):
    """A parameter or buffer: the submodule, "_parameters" or "_buffers", and the name there. It
    also stands for one to which something else refers, such as the flat weights of an LSTM.
    """

    path: Path
    kind: str
    name: str


@dataclass(frozen=True)
class ModuleDiff:
    """The weights of a task, its new layers, and what else a job has changed."""

    weights: Mapping[_Slot, Tensor | None]
    layers: Mapping[Path, Mapping[str, nn.Module | None]]
    """The new submodules of each."""
    references: Mapping[Path, Mapping[str, Any]]
    """The attributes of modules that refer to weights."""
    held: Held
    """What all objects of the task hold that has changed (`HeldState.state`)."""
    loss_part_names: frozenset[str]
    """Of the task, which may have returned further parts of the loss."""

    @classmethod
    def since_now(cls, task: Task) -> Callable[[], ModuleDiff]:
        """Remember the present state of a task; the function returns what has changed since."""
        layers = {path: frozenset(module._modules) for path, module in named_parts(task.modules)}
        return partial(cls._of, task, layers, held_state(task, set(), sent=True))

    @classmethod
    def _of(
        cls, task: Task, layers: Mapping[Path, frozenset[str]], before: HeldState
    ) -> ModuleDiff:
        """layers: the names of the direct submodules of each; one with two names counts once."""
        parts = {path: module for path, module in named_parts(task.modules) if path in layers}
        weights: dict[_Slot, Tensor | None] = {}
        slots: dict[int, _Slot] = {}
        for path, module in parts.items():
            for kind in _KINDS:
                for name, tensor in getattr(module, kind).items():
                    slot = _Slot(path, kind, name)
                    weights[slot] = None if tensor is None else tensor.detach()
                    slots[id(tensor)] = slot
        added = {
            path: {name: module._modules[name] for name in module._modules.keys() - layers[path]}
            for path, module in parts.items()
        }
        references = {path: _references(module, slots) for path, module in parts.items()}
        held, _ = before.state()
        for values in held.values():
            values.pop("training", None)  # the modes here are those of the moment
        return cls(weights, added, references, held, task.loss_part_names)

    def put(self, task: Task) -> None:
        """Apply the changes to the task, in place where shapes and types allow."""
        task.loss_part_names = task.loss_part_names.union(self.loss_part_names)
        parts = dict(named_parts(task.modules))
        for (path, kind, name), value in self.weights.items():
            if path in parts:
                tensors = getattr(parts[path], kind)
                tensors[name] = _filled(tensors.get(name), value, kind == "_parameters")
        for path, layers in self.layers.items():
            if path in parts:
                parts[path]._modules.update(layers)
        parts = dict(named_parts(task.modules))  # with the new layers
        for path, attributes in self.references.items():
            for name, value in attributes.items() if path in parts else ():
                _refer(parts[path], name, _mapped(value, lambda slot: _weight(parts, slot)))
        parameter = next(iter(task.model.parameters()), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        load_held(task, from_plain(self.held), device, sent=True)


def _filled(present: Tensor | None, value: Tensor | None, parameter: bool) -> Tensor | None:
    """The existing tensor, overwritten with this value, or a new one where shape or dtype
    differ.
    """
    if value is None:
        return None
    if present is None:
        tensor = value.clone()
    elif present.shape == value.shape and present.dtype == value.dtype:
        with torch.no_grad():
            overwrite(present, value)
        return present
    else:
        tensor = value.to(present.device, copy=True)
    trains = present is not None and present.requires_grad
    return nn.Parameter(tensor, requires_grad=trains) if parameter else tensor


def _references(part: nn.Module, slots: Mapping[int, _Slot]) -> dict[str, Any]:
    """The attributes in which there are weights, with a `_Slot` in the place of each."""
    references = {}
    for name, value in own_attributes(part).items():
        if type(value) not in _CONTAINERS:
            continue
        with contextlib.suppress(TypeError, RecursionError):  # it holds an object, or itself
            if any(id(tensor) in slots for _, tensor in leaves(value)):
                references[name] = _mapped(value, lambda tensor: slots.get(id(tensor), tensor))
    return references


def _refer(part: nn.Module, name: str, value: Any) -> None:
    """Set an attribute; a container stays the same object, since others may refer to it."""
    present = vars(part).get(name)
    if type(present) is type(value) and is_container(present):
        refill(present, value)
    else:
        vars(part)[name] = value


def _weight(parts: Mapping[Path, nn.Module], value: Any) -> Any:
    if not isinstance(value, _Slot):
        return value
    return getattr(parts[value.path], value.kind)[value.name]


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied to what its containers hold. Raises TypeError for what no
    other process has, such as an object.
    """
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    if not isinstance(value, Tensor | _Slot) and not is_plain(value):
        raise TypeError(type(value).__name__)
    changed = change(value)
    return changed.detach() if type(changed) is Tensor and changed.grad_fn is not None else changed
