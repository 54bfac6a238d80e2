"""The state of a task: the objects in which it lies, a copy of it, and its stored form."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.task.modules import kept_buffers, named_parts, parts_of, slots_of
from workbench.task.protocol import Task
from workbench.task.state.copies import Attributes, Copied, StateCopy, Weights
from workbench.task.state.held import HeldState, Moved, load
from workbench.task.state.places import changes, is_machinery
from workbench.task.state.walk import Reached, walk

_BUDGET = 1 << 28
"""Bytes of arrays, beside weights and data, that are copied at least; a model with larger
weights may hold as much again, twice.
"""


def copy_state(task: Task, *, trial: bool = False, marks: bool = False) -> StateCopy:
    """Copy what the objects of a task hold, beside their weights and buffers.

    trial: no other code runs until it is restored. Only then are containers copied that functions
    use as variables (logs, say), and data
    that are yet to be made. marks: keep checksums of arrays alone, for comparing.
    """
    modules = parts_of(task.modules)
    weights = {id(tensor): tensor for _, tensor in slots_of(modules)}
    size = sum(math.prod(tensor.shape) * tensor.element_size() for tensor in weights.values())
    preparation = () if task.preparation is None else task.preparation.sources
    sources = {f"source {number}": source for number, source in enumerate(preparation)}
    copied = Copied(trial, max(_BUDGET, 2 * size), set(map(id, sources.values())), marks=marks)
    # a quantized weight keeps its scales as attributes
    for (module, _, name), tensor in slots_of(modules):
        copied.add(tensor, f"{type(module).__name__}.{name}", Attributes(tensor))

    def closed(value: Any) -> bool:
        return id(value) in weights or (is_machinery(value) and value is not task)

    copied.take(walk(_roots(task), closed=closed), data=False)
    data = {**_data_roots(task, made=trial), **sources}
    copied.take(walk(data, closed=lambda value: copied.has(value) or closed(value)), data=True)
    return copied.all()


def objects_with_state(task: Task) -> dict[int, str]:
    """The objects of a task that a job changes, or that its code may change: the id of each, with
    the name of its class. Two jobs that have one in common cannot run side by side.
    """
    weights = {id(tensor) for _, tensor in slots_of(parts_of(task.modules))}

    def closed(value: Any) -> bool:
        return id(value) in weights or (is_machinery(value) and value is not task)

    roots = {**_roots(task), **_data_roots(task, made=False)}
    return {
        id(reached.value): type(reached.value).__name__
        for reached in walk(roots, closed=closed)
        if reached.value is not task and changes(reached.value)
    }


def copy_weights(task: Task) -> StateCopy:
    """Copy the parameters and buffers of a task's modules."""
    copies: dict[Tensor, Tensor] = {}
    return StateCopy(
        {
            (id(module), Weights): (type(module).__name__, Weights(module, copies))
            for module in parts_of(task.modules)
        }
    )


def copy_all(task: Task) -> StateCopy:
    """Copy the weights, the state, and that of callbacks, which begin each fit anew themselves."""
    callbacks = None if task.hooks is None else task.hooks.keep()
    return copy_weights(task).joined(copy_state(task), callbacks)


@contextlib.contextmanager
def kept_state(task: Task) -> Iterator[None]:
    """Context manager that restores the buffers of a task's modules afterwards, and all that these
    hold beside the weights. Data are not among it: workers may read them meanwhile.
    """
    weights = {id(tensor) for _, tensor in slots_of(parts_of(task.modules))}

    def closed(value: Any) -> bool:
        return id(value) in weights or is_machinery(value)

    copied = Copied(False, _BUDGET, set())
    copied.take(walk(_module_roots(task), closed=closed), data=False)
    before = copied.all()
    with kept_buffers(task.modules):
        try:
            yield
        finally:
            before.put()


def held_state(task: Task, moved: Moved, *, sent: bool = False) -> HeldState:
    """The state of a task in its stored form, without that of its data, which loaders store.
    sent: see `HeldState`.
    """
    return HeldState(lambda: _objects(task), moved, modules=task.modules, sent=sent)


def held_data(task: Task) -> HeldState:
    """The state of a task's data in its stored form."""
    return HeldState(lambda: _data_objects(task), set())


def load_held(
    task: Task, held: Mapping[str, Mapping[str, Any]], device: torch.device, *, sent: bool = False
) -> tuple[Moved, list[str]]:
    """Restore what `HeldState.state` returned of a task; returns the restored places, and the
    names of objects that no longer exist.
    """
    return load(_objects(task), held, device, sent=sent)


def freed(task: Task, held: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """The ids of the parameters that the run itself unfroze, according to this
    `HeldState.state`.
    """
    modules = _module_roots(task)
    ids: set[int] = set()
    for path, values in held.items():
        parameters = modules[path]._parameters if path in modules else {}
        names = [
            name[1:]
            for name, kept in values.items()
            if name[:1] == "?" and kept.get("value") is True
        ]
        ids |= {id(parameters[name]) for name in names if name in parameters}
    return ids


def _objects(task: Task) -> Iterator[Reached]:
    """The objects of a task whose state is not that of its data."""
    weights = {id(tensor) for _, tensor in slots_of(parts_of(task.modules))}
    elsewhere = weights | {id(reached.value) for reached in _data_objects(task)}
    return walk(
        _roots(task),
        closed=lambda value: id(value) in elsewhere or (is_machinery(value) and value is not task),
    )


def _data_objects(task: Task) -> Iterator[Reached]:
    """The objects of a task's data, without the modules that are trained."""
    parts = parts_of(task.modules)
    beside = {id(module) for module in parts} | {id(tensor) for _, tensor in slots_of(parts)}
    return walk(
        _data_roots(task, made=True),
        closed=lambda value: id(value) in beside or is_machinery(value),
    )


def _module_roots(task: Task) -> dict[str, Any]:
    """The modules of a task by names that are the same in another process ("0:layer.1")."""
    return {f"{number}:{path}": module for (number, path), module in named_parts(task.modules)}


def _roots(task: Task) -> dict[str, Any]:
    """The modules of a task, and the task."""
    return {**_module_roots(task), "task": task}


def _data_roots(task: Task, *, made: bool) -> dict[str, Any]:
    """The data sets of a task with all that reads them. made: make those that an object is yet
    to make.
    """
    roots: dict[str, Any] = {}
    for whole in (task.train, task.val):
        if whole is None or (whole.made_by_object and not made):
            continue
        for spec in whole.sets:
            parts = spec.parts
            names = {
                "": parts.dataset,
                ".collate_fn": parts.collate_fn,
                ".sampler": parts.sampler,
                ".batch_sampler": parts.batch_sampler,
                ".generator": parts.generator,
            }
            roots |= {spec.name + name: value for name, value in names.items()}
    return roots
