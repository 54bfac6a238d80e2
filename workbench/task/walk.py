"""Walks through objects and all that they refer to: by attributes, containers, closures and the functions of their classes."""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from workbench.task.contents import is_container

Parts = Iterator[tuple[str, Any]]
"""The objects within another, each with its path from it: ".name", "[3]", ":closed_over"."""
OF_THREADS = frozenset({"threading", "_thread", "queue", "_queue", "asyncio", "multiprocessing", "concurrent", "logging", "weakref"})
"""Packages whose objects other threads use meanwhile."""
_WIDE, _MOST = 64, 5000
_NUMBERS_AND_TEXTS = {types.NoneType, bool, int, float, complex, str, bytes}
_UNNAMED = (frozenset, Tensor, nn.Module)
"""Keys whose repr may differ in another process, or is long."""
_LONGEST = 200


def walk(
    roots: Mapping[str, Any], within: Callable[[Any], Parts], *, depth: int, closed: Callable[[Any], bool], ends: tuple[type, ...]
) -> Iterator[tuple[str, Any, bool]]:
    """Yield every object that can be reached, nearest first, with its path, which is the same in another process; and whether the roots,
    the workbench or a module refers to it.

    Numbers and texts are left out. within: returns the objects within an object (`parts` below). closed: whether an object is left out.
    ends: types whose objects are yielded, but not walked through.
    """
    seen: set[int] = set()
    waiting = deque((path, root, 0, True) for path, root in roots.items())
    while waiting and len(seen) < _MOST:
        path, value, level, ours = waiting.popleft()
        if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):  # rng.normal
            path, value = f"{path}.__self__", value.__self__
        if value is None or id(value) in seen or closed(value):
            continue
        seen.add(id(value))
        yield path, value, ours
        if level < depth and not issubclass(type(value), ends):
            held = isinstance(value, nn.Module) or library(type(value)) == "workbench" or (ours and is_container(value))
            for name, part in within(value):
                if type(part) not in _NUMBERS_AND_TEXTS:
                    waiting.append((path + name, part, level + 1, held))


def parts(
    value: Any, containers: tuple[type, ...], libraries: Container[str], used_by: Callable[[types.FunctionType], Parts]
) -> Parts:
    """The objects within an object.

    containers: the types of containers to look into, but not into long ones, which hold data. libraries: packages; the methods of their
    classes are left out. used_by: returns the objects that a function, or a method, uses.
    """
    if isinstance(value, containers):
        yield from _items(value)
    elif isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.FunctionType):
        yield from used_by(value)
        yield from ((f".{name}", part) for name, part in list(vars(value).items()))
    else:
        yield from ((f".{name}", part) for name, part in list(getattr(value, "__dict__", {}).items()))
        for method, function in methods(value, libraries):
            if method != "__init__":
                yield from ((f".{method}{name}", part) for name, part in used_by(function))


def _items(container: Any) -> Parts:
    if len(container) <= _WIDE:
        items = container.items() if isinstance(container, dict) else enumerate(container)
        yield from ((f"[{_key(key, number)}]", part) for number, (key, part) in enumerate(items))


def _key(key: Any, number: int) -> str:
    """The name of a key in a path, which must be the same in another process, since checkpoints use it: the key's repr, or else its position."""
    if isinstance(key, (int, str)):
        return repr(key)
    said = "" if isinstance(key, _UNNAMED) else repr(key)
    return said if 0 < len(said) <= _LONGEST and " at 0x" not in said else f"#{number}"


def methods(value: Any, libraries: Container[str]) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions of an object's classes, except for those of libraries."""
    for kind in type(value).__mro__:
        if library(kind) not in libraries:
            yield from ((name, function) for name, function in list(vars(kind).items()) if isinstance(function, types.FunctionType))


def cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    """The variables of a function's closure, by name, except for those without a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            cell.cell_contents  # noqa: B018
            yield name, cell


def library(kind: type) -> str:
    """The top package of a class."""
    return kind.__module__.partition(".")[0]
