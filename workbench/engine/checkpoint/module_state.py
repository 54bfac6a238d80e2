"""Saves the state of modules besides their weights: counters that forward() changes, statistics, generators, modes.

A checkpoint stores the attributes that have changed since the fit began. The user may set all others, also between a run
and the one that continues it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.checkpoint.serialization import NotPlainError, to_plain
from workbench.engine.checkpoint.weights_copy import checksum_of_tensors
from workbench.task.batch import leaves, to_device
from workbench.task.contents import is_container
from workbench.task.modules import is_own_name, named_parts, parts_of, set_attribute, slots_of
from workbench.task.protocol import Task
from workbench.task.rng import generator_state, is_generator, set_generator_state

_BY_ID = "_metric_attributes"
"""A LightningModule's names by the ids of objects, which differ in another process."""
Moved = set[tuple[str, str]]
"""Attributes, by module and name, that a checkpoint restored: the next checkpoint stores them too."""


class ModuleState:
    """Remembers the state of a task's modules; `state` returns what has changed since then."""

    def __init__(self, task: Task, moved: Moved) -> None:
        self._task = task
        self._moved = moved
        self._known: set[int] = set()
        self._before = {(path, name): now for path, _, name, _, now in self._now()}
        self._reported: Moved = set()

    def state(self) -> tuple[dict[str, Any], list[str]]:
        """The new or changed attributes of each module, in plain form; and descriptions of those that cannot be stored, each once."""
        found: dict[str, Any] = {}
        lost: list[str] = []
        for path, part, name, value, now in self._now():
            place = path, name
            if place not in self._moved and self._before.get(place) == now:
                continue
            if not isinstance(now, _Reference):
                found.setdefault(path, {})[name] = _kept(value)
            elif now.counts and place not in self._reported:
                self._reported.add(place)
                lost.append(f"{type(part).__name__}.{name} ({now.what})")
        return found, lost

    def _now(self) -> Iterator[tuple[str, nn.Module, str, Any, Any]]:
        """Every attribute of every module with its fingerprint."""
        self._known = {id(tensor) for _, tensor in slots_of(parts_of(self._task.modules))}
        for path, part in _named(self._task):
            for name, value in _all(part):
                yield path, part, name, value, self._print(value, own=name in part._buffers)

    def _print(self, value: Any, *, own: bool) -> Any:
        """The fingerprint of a value. own: the value is a buffer of the module, not a reference to one."""
        if is_generator(value):
            return fingerprint(to_plain(generator_state(value), "it"))
        if any(id(tensor) in self._known for tensor in _tensors(value)) and not own:
            return _Reference(value, "", counts=False)  # a reference to the weights, such as an LSTM's list of them, has no value of its own
        try:
            return fingerprint(to_plain(value, "it"))
        except NotPlainError as error:
            return _Reference(value, str(error).removeprefix("it holds "), counts=not callable(value))


class _Reference:
    """An attribute that a checkpoint cannot store. Two are equal if they are the same object, or containers of the same objects."""

    def __init__(self, value: Any, what: str, *, counts: bool) -> None:
        self._value, self.what, self.counts = value, what, counts
        self._content = list(value.values() if isinstance(value, dict) else value) if is_container(value) else []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Reference) or self._value is not other._value:
            return False
        pairs = zip(self._content, other._content, strict=False)
        return len(self._content) == len(other._content) and all(mine is theirs for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]


def load_module_state(task: Task, state: Mapping[str, Mapping[str, Any]], device: torch.device) -> tuple[Moved, list[str]]:
    """Restore what `ModuleState.state` returned; returns the restored attributes, and the names of modules that no longer
    exist.
    """
    modules = dict(_named(task))
    moved: Moved = set()
    for path, attributes in state.items():
        if path not in modules:
            continue
        for name, kept in attributes.items():
            if name == "training" or _is_kept(name):  # a file may name anything
                _put(modules[path], name, kept, device)
                moved.add((path, name))
    return moved, [path.partition(":")[2] or path for path in state if path not in modules]


def freed(task: Task, state: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """The ids of the parameters that the run itself unfroze, according to this `ModuleState.state`."""
    modules, found = dict(_named(task)), set()
    for path, attributes in state.items():
        own = modules[path]._parameters if path in modules else {}
        found |= {id(own[name[1:]]) for name, kept in attributes.items() if name[:1] == "?" and name[1:] in own and kept.get("value") is True}
    return found


def _kept(value: Any) -> dict[str, Any]:
    if is_generator(value):
        return {"random": to_plain(generator_state(value), "a generator")}
    # A stored tensor is in host memory; it will be moved to the device of the old one.
    away = any(tensor.device.type != "cpu" for tensor in _tensors(value))
    return {"value": to_plain(value, "it"), "away": away}


def _put(part: nn.Module, name: str, kept: Mapping[str, Any], device: torch.device) -> None:
    there = part._parameters.get(name[1:]) if name[0] == "?" else part._buffers.get(name, vars(part).get(name))
    if "random" in kept:
        if is_generator(there):
            set_generator_state(there, kept["random"])
        return
    value = to_device(kept["value"], device) if kept["away"] else kept["value"]
    if name[0] == "?":
        if isinstance(there, Tensor):
            there.requires_grad_(value)
    elif isinstance(there, Tensor) and isinstance(value, Tensor) and there.grad_fn is None and _alike(there, value):
        with torch.no_grad():
            there.copy_(value)
    elif name in part._buffers:
        part._buffers[name] = value
    elif name not in part._parameters and name not in part._modules:
        set_attribute(part, name, value)


def _all(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's own attributes, its mode, its non-persistent buffers, and which parameters train ("?name")."""
    yield "training", part.training
    for name, value in vars(part).items():
        if _is_kept(name):
            yield name, value
    for name in part._non_persistent_buffers_set:
        yield name, part._buffers.get(name)
    for name, parameter in part._parameters.items():
        if parameter is not None:
            yield f"?{name}", parameter.requires_grad


def _is_kept(name: str) -> bool:
    return is_own_name(name) and name != _BY_ID


def _named(task: Task) -> Iterator[tuple[str, nn.Module]]:
    """All modules of a task, each once, by a name that is the same in another process."""
    return ((f"{number}:{path}", part) for (number, path), part in named_parts(task.modules))


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a value and its containers; none where one contains itself."""
    try:
        return [tensor for _, tensor in leaves(value)]
    except RecursionError:
        return []


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def fingerprint(packed: Any) -> Any:
    """Fingerprint of a plain value, without its tensors."""
    if isinstance(packed, Tensor):
        return packed.dtype, packed.shape, packed.layout, checksum_of_tensors([packed.to_dense()])
    if isinstance(packed, dict):
        return type(packed), [(key, fingerprint(own)) for key, own in packed.items()]
    if isinstance(packed, (list, tuple)):
        return type(packed), [fingerprint(own) for own in packed]
    return type(packed), repr(packed)  # a NaN is equal to itself, and True is not 1
