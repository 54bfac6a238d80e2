"""Explains why something cannot be sent to another process: which part of it, and the remedy."""

from __future__ import annotations

import functools
import io
import socket
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from workbench.share.pickling import hooks_of

_DEEPEST = 40
_LOCKS: tuple[type, ...] = (
    type(threading.Lock()), type(threading.RLock()), threading.Thread, threading.local,
    threading.Condition, threading.Event, threading.Semaphore,
)  # fmt: skip


def explain(error: BaseException, roots: Mapping[str, Any], fails: Callable[[Any], bool]) -> str:
    """One sentence with the path to the part of `roots` for which `fails`, and one with the
    remedy.
    """
    for path, value in roots.items():
        if fails(value):
            path, value = _narrow(path, value, fails)
            kind = type(value)
            name = (
                kind.__qualname__
                if kind.__module__ == "builtins"
                else f"{kind.__module__}.{kind.__qualname__}"
            )
            return (
                f"{path} cannot be sent to another process: it is a {name} ({error})."
                f" {_remedy(value)}"
            )
    return f"{', '.join(roots) or 'it'} cannot be sent to another process: {error}. {_remedy(None)}"


def _narrow(path: str, value: Any, fails: Callable[[Any], bool]) -> tuple[str, Any]:
    """Follow the failing part of each failing part, until all parts of one can be sent."""
    seen = {id(value)}
    held = [value]  # what a reduction made would be freed, and its id used again
    for _ in range(_DEEPEST):
        for step, child in _parts(value):
            held.append(child)
            if id(child) not in seen and fails(child):
                seen.add(id(child))
                path, value = path + step, child
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, torch.Tensor):
        for hooks in hooks_of(value):
            yield from ((" -> its hook", hook) for hook in (hooks or {}).values())
    elif isinstance(value, type):
        yield from ((f".{name}", item) for name, item in vars(value).items())
    else:
        yield from _parts_of_instance(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" -> {name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" -> {name}", function.__globals__[name]
    yield " -> its defaults", (function.__defaults__, function.__kwdefaults__)


def _parts_of_instance(value: Any) -> Iterator[tuple[str, Any]]:
    """What the pickle of `value` would be made of, so that its own `__getstate__` is respected."""
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:  # noqa: BLE001 - then the object itself is what cannot be sent
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    for substate in state if isinstance(state, tuple) else (state,):
        if isinstance(substate, dict):
            yield from ((f".{name}", item) for name, item in substate.items())
        elif substate is not None:
            yield " -> its state", substate
    yield from ((f"[{index}]", item) for index, item in enumerate(items or ()))
    yield from ((f"[{key!r}]", item) for key, item in pairs or ())
    yield from (("", argument) for argument in arguments or () if argument is not value)


def _remedy(value: Any) -> str:
    if isinstance(value, types.GeneratorType | types.AsyncGeneratorType | types.CoroutineType):
        return "Give a list, or an object whose __iter__ starts a new generator."
    if isinstance(value, io.IOBase):
        return "Give the path, and open the file inside the function or when it is first used."
    if isinstance(value, socket.socket):
        return "Open the connection inside the function or when it is first used."
    if isinstance(value, Iterator):
        return (
            "An iterator is half used and cannot be copied: give what it was made from, and call"
            " iter() in the function."
        )
    if isinstance(value, _LOCKS):
        return (
            "Leave it out of the object's __getstate__ and make a new one in __setstate__, or make"
            " it when first used."
        )
    return (
        "Make it inside the function or when first used, or leave it out of the object's"
        " __getstate__."
    )
