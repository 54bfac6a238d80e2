"""Saves and restores the random states and other states inside data sets and samplers."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

from workbench.task.contents import (
    MOST_PARTS,
    content_of,
    copy_of,
    is_container,
    is_data,
    mark_of,
    put_attributes,
    put_content,
    put_items,
    put_place,
    refill,
)
from workbench.task.rng import GENERATORS, State, generator_state, is_generator, is_own, set_generator_state
from workbench.task.signature import fits
from workbench.task.walk import OF_THREADS, Parts, cells, library, parts, walk

NO_STATE: Mapping[str, Any] = {"generators": {}, "states": {}, "counts": {}}
"""What `DataRngState.state` returns where nothing has a state."""
_ARRAYS = (Tensor, np.ndarray)
_CLOSED = (*_ARRAYS, str, bytes, int, float, complex, type, types.ModuleType)
_LIBRARIES = frozenset({"builtins", "torch", "numpy", "workbench"})
_DEPTH = 7


class DataRngState:
    """Finds the generators and stateful parts inside some objects, a few levels deep, and saves and restores them.

    Each is identified by its path ("dataset.transform.rng"), which is the same in another process.
    """

    def __init__(self, *, beside: object = None, **roots: Any) -> None:
        """`beside`: a generator that is saved elsewhere. Samplers are not followed into their data."""
        self.generators: dict[str, Any] = {}
        self._stateful: dict[str, Any] = {}
        self._samplers: dict[str, Any] = {}
        for path, part, _ in walk(roots, _within, depth=_DEPTH, closed=lambda value: isinstance(value, _CLOSED), ends=GENERATORS):
            if is_generator(part):
                if part is not beside and is_own(part):
                    self.generators[path] = part
            elif isinstance(part, (Dataset, Sampler)) or path in roots:
                if _has_state_dict(part):
                    self._stateful[path] = part
                elif isinstance(part, Sampler) and library(type(part)) not in ("torch", "workbench"):
                    self._samplers[path] = part

    @property
    def stateful(self) -> Mapping[str, Any]:
        """The parts with state_dict and load_state_dict, by their paths."""
        return self._stateful

    def state(self) -> State:
        """Return the present states."""
        return {
            "generators": {path: generator_state(generator) for path, generator in self.generators.items()},
            "states": {path: copy.deepcopy(part.state_dict()) for path, part in self._stateful.items()},
            "counts": self._counts(),
        }

    def put(self, state: Mapping[str, Any], states: bool = True) -> list[str]:
        """Restore the states (`states`: also those other than generators); return in words what could not be restored."""
        doubts = []
        for path, value in state["generators"].items():
            try:
                set_generator_state(self.generators[path], value)
            except (KeyError, TypeError, ValueError, RuntimeError):
                doubts.append(f"there is no generator like {path} any more, whose random numbers should continue")
        for path, value in state["states"].items() if states else ():
            if path in self._stateful:
                self._stateful[path].load_state_dict(copy.deepcopy(value))
            else:
                doubts.append(f"{path} takes no state any more (load_state_dict)")
        now = self._counts()
        for path, value in state["counts"].items():
            if path in now and now[path] != value:
                owner = path.rpartition(".")[0]
                doubts.append(
                    f"{path} was {value} and is {now[path]}, which the workbench does not restore: give {owner} state_dict() and "
                    "load_state_dict()"
                )
        return doubts

    @contextlib.contextmanager
    def attributes_kept(self) -> Iterator[list[str]]:
        """Context manager in which the parts with a state, and samplers, may be read: afterwards they, and the objects inside them, have
        the attributes that they had, containers and arrays their contents, and files their places. The list gets the parts with an iterator that was
        read, which nothing puts back.
        """
        read_on: list[str] = []
        put_back: list[Callable[[], None]] = []
        marks: list[tuple[str, Any, Any]] = []
        for name, part in {**self._stateful, **self._samplers}.items():
            for _, value, _ in walk({name: part}, _within, depth=_DEPTH, closed=_is_left_out, ends=(*GENERATORS, *_ARRAYS)):
                put_back += _puts(value)
                if isinstance(value, Iterator):
                    marks.append((name, value, mark_of(value)))
        try:
            yield read_on
        finally:
            for put in put_back:
                put()
            read_on += [name for name, value, mark in marks if mark_of(value) != mark]

    def _counts(self) -> dict[str, int]:
        """Return the integer attributes of the user's samplers, which may count passes."""
        return {
            f"{path}.{name}": value
            for path, sampler in self._samplers.items()
            for name, value in vars(sampler).items()
            if type(value) is int
        }


def _has_state_dict(part: Any) -> bool:
    """Whether it has torchdata's `state_dict()` and `load_state_dict(state)`; methods that need other arguments are another protocol's."""
    give, take = getattr(part, "state_dict", None), getattr(part, "load_state_dict", None)
    return callable(give) and callable(take) and fits(give) and fits(take, {})


def _is_left_out(value: Any) -> bool:
    """Whether it holds nothing to put back, or other threads may use it meanwhile."""
    return not isinstance(value, _ARRAYS) and (isinstance(value, _CLOSED) or library(type(value)) in OF_THREADS)


def _puts(value: Any) -> Iterator[Callable[[], None]]:
    """The ways to give an object back what it holds."""
    if isinstance(value, _ARRAYS):
        if math.prod(value.shape) <= MOST_PARTS and (content := content_of(value)) is not None:
            yield functools.partial(put_content, value, content)
    elif is_container(value):
        if not is_data(value):
            yield functools.partial(put_items, value, copy_of(value))
        elif len(value) <= MOST_PARTS:  # a list of long lists, say: only their order is kept
            yield functools.partial(_put_same, value, copy.copy(value))
    elif isinstance(value, io.IOBase):
        with contextlib.suppress(OSError, ValueError):
            yield functools.partial(put_place, value, value.tell())
    elif not isinstance(value, (types.FunctionType, nn.Module)) and hasattr(value, "__dict__"):
        before = dict(vars(value))
        yield lambda: put_attributes(value, before, vars(value))


def _put_same(container: Any, content: Any) -> None:
    """Let a container hold the same objects again, whatever they hold now."""
    if len(container) != len(content) or any(one is not other for one, other in zip(_items(container), _items(content), strict=True)):
        refill(container, content)


def _items(container: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(container.items()) if isinstance(container, dict) else iter(container)


def _within(value: Any) -> Parts:
    for name, part in parts(value, (dict, list, tuple), _LIBRARIES, _used_by):
        if not (isinstance(value, Sampler) and (isinstance(part, Dataset) or name == ".data_source")):
            yield name, part


def _used_by(function: types.FunctionType) -> Parts:
    """The values of a function's closure, and the generators among the globals that it uses."""
    yield from ((f":{name}", cell.cell_contents) for name, cell in cells(function))
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        if is_generator(found):
            yield f":{name}", found
