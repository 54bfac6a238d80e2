"""Restores the user's own objects after a trial or a search: generators, counters, environments.

A data set may draw from its own generator, a loss may count its calls, an environment may take a step. The modules of
the task have their snapshot (engine/snapshot.py); this file restores all other objects that the task's functions and data
refer to.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import io
import operator
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from workbench.task.contents import (
    MOST_PARTS,
    content_of,
    copy_of,
    is_container,
    is_large,
    mark_of,
    put_attributes,
    put_content,
    put_items,
    put_place,
)
from workbench.task.modules import parts_of, slots_of
from workbench.task.protocol import Task
from workbench.task.rng import GENERATORS, is_generator
from workbench.task.walk import OF_THREADS, Parts, cells, library, methods, parts, walk

_DEPTH = 8
_NOT_OWN_CODE = frozenset({
    "builtins", "torch", "numpy", "workbench", "threading", "_thread", "io", "_io", "weakref", "asyncio", "multiprocessing",
    "concurrent", "logging", "IPython", "ipykernel", "traitlets", "functools", "types", "re", "abc",
})  # fmt: skip
"""The libraries whose classes are not the user's own: their methods are not read."""
_CLOSED = (str, bytes, int, float, complex, type, types.ModuleType, types.CodeType, Optimizer)
Restore = Callable[[], str | None]
"""Restores one object; returns the name of what could not be restored."""


def restored_state(task: Task) -> contextlib.AbstractContextManager[list[str]]:
    """Restore, at the end of the block, the objects to which the task's functions and data refer. Names of objects that could
    not be restored are appended to the list.
    """
    return _restoring(_recorded(task))


def restored_counters(task: Task) -> contextlib.AbstractContextManager[list[str]]:
    """Restore, at the end of the block, generators, arrays, and the numbers that the task's own code sets.

    For searches, which run while the user may run cells: changes by the cells are kept. Lists and dicts, which hold data, logs and
    caches, are not restored.
    """
    return _restoring(_counters(task))


def own_objects(task: Task) -> list[tuple[Any, frozenset[str]]]:
    """The user's own functions and objects to which the task refers; each object with the names of its classes, each function with its own."""
    found: list[tuple[Any, frozenset[str]]] = []
    for _, value, _ in _reached({"task": task}):  # nothing is made for it
        if isinstance(value, types.FunctionType):
            names = frozenset({value.__name__} if _is_own_code(value.__code__) else ())
        else:
            names = frozenset(kind.__name__ for kind in type(value).__mro__ if library(kind) not in _NOT_OWN_CODE)
        if names and type(value).__weakrefoffset__:
            found.append((value, names))
    return found


@contextlib.contextmanager
def _restoring(found: Iterator[tuple[str, Restore]]) -> Iterator[list[str]]:
    lost: list[str] = []
    put_back = list(found)
    try:
        yield lost
    finally:
        for path, put in put_back:
            try:
                what = put()
            except Exception as error:  # noqa: BLE001  # the user's object may raise anything
                what = f"{type(error).__name__}: {error}"
            if what is not None:
                lost.append(f"{path} ({what})")


def _recorded(task: Task) -> Iterator[tuple[str, Restore]]:
    for (part, _, name), tensor in slots_of(parts_of(task.modules)):  # a quantized weight keeps its scales as attributes
        yield f"{type(part).__name__}.{name}", functools.partial(_put_attributes, tensor, dict(vars(tensor)), False)
    kept_elsewhere = {id(part) for part in parts_of(task.modules)}
    sources = {id(source) for source in (() if task.preparation is None else task.preparation.sources)}
    for path, value, ours in _reached(_roots(task)):
        if isinstance(value, nn.Module):
            for name, part in value.named_modules():
                if id(part) not in kept_elsewhere:
                    kept_elsewhere.add(id(part))
                    yield from ((f"{path}.{name}", put) for put in _of_module(part))
        elif is_generator(value):
            yield from ((path, put) for put in _values(value))
        elif not (ours and (is_container(value) or isinstance(value, (Tensor, np.ndarray, Iterator)))):
            yield from ((path + name, put) for name, put in _puts(value, only_numbers=id(value) in sources))


def _counters(task: Task) -> Iterator[tuple[str, Restore]]:
    kept_elsewhere = {id(part) for part in parts_of(task.modules)}
    reached = list(_reached(_roots(task)))
    functions = {id(function): function for _, value, _ in reached for function in _functions(value)}.values()
    counted = frozenset[str]().union(*(_set_names(function.__code__)["STORE_ATTR"] for function in functions))
    for path, value, ours in reached:
        if isinstance(value, nn.Module):
            for name, part in value.named_modules():
                if id(part) not in kept_elsewhere:
                    kept_elsewhere.add(id(part))
                    yield f"{path}.{name}", _numbers(vars(part), counted)
                    yield from ((f"{path}.{name}", put) for buffer in part.buffers(recurse=False) for put in _values(buffer))
        elif is_generator(value):
            yield from ((path, put) for put in _values(value))
        elif isinstance(value, (Tensor, np.ndarray)):
            yield from ((path, put) for put in (() if ours else _values(value)))
        elif library(type(value)) not in _NOT_OWN_CODE or isinstance(value, types.FunctionType):
            yield path, _numbers(getattr(value, "__dict__", {}), counted)
    for function in (one for one in functions if _is_own_code(one.__code__)):
        named = _set_names(function.__code__)
        yield function.__name__, _numbers(function.__globals__, named["STORE_GLOBAL"])
        for name, cell in cells(function):
            if name in named["STORE_DEREF"] and _is_number(cell.cell_contents):
                yield name, functools.partial(setattr, cell, "cell_contents", cell.cell_contents)


def _of_module(part: nn.Module) -> Iterator[Restore]:
    """Restore a module that is not part of the task (a teacher in a loss), except for its parameters, which nothing
    trains.
    """
    yield functools.partial(_put_attributes, part, dict(vars(part)), False)
    yield functools.partial(put_items, part._buffers, dict(part._buffers))
    for buffer in part._buffers.values():
        if buffer is not None:
            yield from _values(buffer)


def _roots(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for whole in (task.train, task.val):
        for spec in () if whole is None else whole.sets:
            parts = spec.parts  # makes the data now, before the trial
            found[spec.name] = [parts.dataset, parts.collate_fn, parts.sampler, parts.batch_sampler, parts.generator]
    return {**found, "task": task}


def _reached(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    return walk(roots, _within, depth=_DEPTH, closed=_is_closed, ends=(*GENERATORS, Tensor, np.ndarray))


def _is_closed(value: Any) -> bool:
    return isinstance(value, (*_CLOSED, threading.Thread)) or library(type(value)) in OF_THREADS


def _within(value: Any) -> Parts:
    return parts(value, (dict, list, tuple, set, deque), _NOT_OWN_CODE, _used_by)


def _used_by(function: types.FunctionType) -> Parts:
    """The variables of a function's closure, its defaults, and, for the user's own code, the globals that it names."""
    yield from ((f":{name}", cell.cell_contents) for name, cell in cells(function))
    yield from ((":default", part) for part in function.__defaults__ or ())
    if _is_own_code(function.__code__):
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield f":{name}", function.__globals__[name]


def _functions(value: Any) -> list[types.FunctionType]:
    """The value if it is a function, or its methods if it is an object of the user's own class."""
    return [value] if isinstance(value, types.FunctionType) else [function for _, function in methods(value, _NOT_OWN_CODE)]


def _is_own_code(code: types.CodeType) -> bool:
    return not any(part in code.co_filename for part in ("site-packages", "dist-packages", "<frozen", "/lib/python"))


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found |= _names(part)
    return found


# ---- restoring one object ---------------------------------------------------------------------------------------


def _puts(value: Any, *, only_numbers: bool) -> Iterator[tuple[str, Restore]]:
    """Yield functions that restore one object. only_numbers: restore numbers alone, since a set-up may add objects meanwhile."""
    if isinstance(value, (Tensor, np.ndarray)):
        yield from (("", put) for put in _values(value))
    elif is_container(value):
        if len(value) <= MOST_PARTS:
            yield "", functools.partial(put_items, value, copy_of(value))
    elif isinstance(value, types.FunctionType):
        if _is_own_code(value.__code__):  # `loss.calls += 1`
            yield "", functools.partial(_put_attributes, value, dict(vars(value)), only_numbers)
        yield from _variables(value)
    elif isinstance(value, io.IOBase):
        with contextlib.suppress(OSError, ValueError):
            yield "", functools.partial(put_place, value, value.tell())
    elif isinstance(value, Iterator) and not isinstance(value, IterableDataset):
        yield "", functools.partial(_compare, value, mark_of(value))
        if hasattr(value, "__dict__"):
            yield "", functools.partial(_put_attributes, value, dict(vars(value)), only_numbers)
    elif library(type(value)) not in _NOT_OWN_CODE:
        if hasattr(value, "__dict__"):
            yield "", functools.partial(_put_attributes, value, dict(vars(value)), only_numbers)
        for function in _functions(value):
            yield from _variables(function)


def _values(value: Any) -> Iterator[Restore]:
    """Yield a function that restores a tensor, an array or a generator."""
    if isinstance(value, (Tensor, np.ndarray)) and is_large(value):
        if isinstance(value, Tensor) and not value.is_inference():
            yield functools.partial(_compare_version, value, value._version)
    elif (content := content_of(value)) is not None:
        yield functools.partial(put_content, value, content)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Restore]]:
    """The nonlocal and global names that a function's code sets."""
    for name, cell in cells(function):
        yield f":{name}", functools.partial(setattr, cell, "cell_contents", cell.cell_contents)
    for name in _set_names(function.__code__)["STORE_GLOBAL"]:
        if name in function.__globals__:
            yield f":{name}", functools.partial(operator.setitem, function.__globals__, name, function.__globals__[name])


@functools.cache
def _set_names(code: types.CodeType) -> dict[str, frozenset[str]]:
    """The names that code and the functions within it assign: globals, variables of enclosing functions, and (not in __init__) attributes."""
    found: dict[str, set[str]] = {"STORE_GLOBAL": set(), "STORE_DEREF": set(), "STORE_ATTR": set()}
    for step in dis.get_instructions(code):
        if step.opname in found and (step.opname, code.co_name) != ("STORE_ATTR", "__init__"):
            found[step.opname].add(str(step.argval))
    parts = [_set_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return {name: frozenset(own.union(*(part[name] for part in parts))) for name, own in found.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(names: dict[str, Any], counted: frozenset[str]) -> Restore:
    """Return a function that restores the numbers with these names."""
    return functools.partial(_put_numbers, names, {name: names[name] for name in counted & names.keys() if _is_number(names[name])})


def _put_numbers(names: dict[str, Any], before: Mapping[str, Any]) -> None:
    names.update({name: value for name, value in before.items() if _is_number(names.get(name)) and names[name] != value})


def _put_attributes(value: Any, before: Mapping[str, Any], only_numbers: bool) -> None:
    now = vars(value)
    if only_numbers:
        now.update({k: v for k, v in before.items() if isinstance(v, (int, float)) and isinstance(now.get(k), (int, float))})
        return
    put_attributes(value, before, now)


def _compare_version(tensor: Tensor, version: int) -> str | None:
    return None if tensor._version == version else "a tensor too large to be copied"


def _compare(iterator: Any, mark: Any) -> str | None:
    return None if mark_of(iterator) == mark else f"a {type(iterator).__name__} that was read further"
