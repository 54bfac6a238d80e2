"""Saves and restores the random states and other states inside data sets and samplers."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from workbench.task.rng import GENERATORS, State, generator_state, is_generator, is_own, set_generator_state
from workbench.task.walk import Parts, cells, library, parts, walk

NO_STATE: Mapping[str, Any] = {"generators": {}, "states": {}, "counts": {}}
"""What `DataRngState.state` returns where nothing has a state."""
_CLOSED = (Tensor, np.ndarray, str, bytes, int, float, complex, type, types.ModuleType)
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
                if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
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

    def _counts(self) -> dict[str, int]:
        """Return the integer attributes of the user's samplers, which may count passes."""
        return {
            f"{path}.{name}": value
            for path, sampler in self._samplers.items()
            for name, value in vars(sampler).items()
            if type(value) is int
        }


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
