"""Saves and restores the random states and other states inside data sets and samplers, and the process's own.

The states are plain containers and tensors, so that a checkpoint can store them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

State = dict[str, Any]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
OF_PROCESS = (torch.default_generator, random.random.__self__, np.random.mtrand._rand)  # type: ignore[attr-defined]
NO_STATE: Mapping[str, Any] = {"generators": {}, "states": {}, "counts": {}}
"""What `DataRngState.state` returns where nothing has a state."""
_CLOSED = (Tensor, np.ndarray, str, bytes, int, float, complex, type, types.ModuleType)
_DEPTH, _WIDE, _MOST = 7, 64, 5000


class DataRngState:
    """Finds the generators and stateful parts inside some objects, a few levels deep, and saves and restores them.

    Each is identified by its path ("dataset.transform.rng"), which is the same in another process.
    """

    def __init__(self, *, beside: object = None, **roots: Any) -> None:
        """`beside`: a generator that is saved elsewhere. Samplers are not followed into their data."""
        self.generators: dict[str, Any] = {}
        self._stateful: dict[str, Any] = {}
        self._samplers: dict[str, Any] = {}
        for path, part in _walk(roots):
            if isinstance(part, GENERATORS):
                # The process's own are saved by `process_state`, the system's cannot be.
                if not isinstance(part, random.SystemRandom) and not any(part is other for other in (beside, *OF_PROCESS)):
                    self.generators[path] = part
            elif isinstance(part, (Dataset, Sampler)) or path in roots:
                if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
                    self._stateful[path] = part
                elif isinstance(part, Sampler) and not _is_of(type(part), "torch", "workbench"):
                    self._samplers[path] = part

    @property
    def stateful(self) -> Mapping[str, Any]:
        """The parts with state_dict and load_state_dict, by their paths."""
        return self._stateful

    def state(self) -> State:
        """Return the present states."""
        return {
            "generators": {path: generator_state(generator) for path, generator in self.generators.items()},
            "states": {path: encode_arrays(copy.deepcopy(part.state_dict())) for path, part in self._stateful.items()},
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
                self._stateful[path].load_state_dict(decode_arrays(value))
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


def process_state() -> State:
    """Return the random states of this process from which samplers and data sets may draw."""
    return {
        "python": random.getstate(),
        "numpy": encode_arrays(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
    }


@contextlib.contextmanager
def restored_process_state(state: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which the process draws from the states in `state`; its own random states are restored afterwards."""
    before = process_state()
    set_process_state(state)
    try:
        yield
    finally:
        set_process_state(before)


def set_process_state(state: Mapping[str, Any]) -> None:
    """Set the process's random states."""
    _put_python(random, state["python"])
    np.random.set_state(decode_arrays(state["numpy"]))
    torch.set_rng_state(state["torch"])


def encode_arrays(value: Any) -> Any:
    """Replace numpy arrays by tensors of bytes, also inside dicts, lists and tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return {"array": value.dtype.str, "shape": tuple(value.shape), "data": torch.from_numpy(flat.copy())}
    if type(value) is dict:
        return {key: encode_arrays(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(encode_arrays(part) for part in value)
    return value


def decode_arrays(value: Any) -> Any:
    """Turn what `encode_arrays` made back into the original."""
    if type(value) is dict:
        if value.keys() == {"array", "shape", "data"}:
            return value["data"].numpy().view(np.dtype(value["array"])).reshape(value["shape"]).copy()
        return {key: decode_arrays(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(decode_arrays(part) for part in value)
    return value


def generator_state(generator: Any) -> Any:
    """The state of a generator of torch, numpy or Python, as containers of tensors and numbers."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return encode_arrays(copy.deepcopy(generator.bit_generator.state))
    if isinstance(generator, np.random.RandomState):
        return encode_arrays(generator.get_state(legacy=False))
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Put back what `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = decode_arrays(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(decode_arrays(state))
    else:
        _put_python(generator, state)


def _put_python(generator: Any, state: Any) -> None:
    version, numbers, gauss = state
    generator.setstate((version, tuple(numbers), gauss))


def _walk(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all objects inside the roots that are not data, with their paths, nearest first."""
    seen: set[int] = set()
    waiting = deque((path, root, 0) for path, root in roots.items())
    while waiting and len(seen) < _MOST:
        path, value, depth = waiting.popleft()
        if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):  # rng.normal
            path, value = f"{path}.__self__", value.__self__
        if id(value) in seen or value is None or isinstance(value, _CLOSED):
            continue
        seen.add(id(value))
        yield path, value
        if depth == _DEPTH or isinstance(value, GENERATORS):
            continue
        for name, part in _inside(value):
            if isinstance(value, Sampler) and (isinstance(part, Dataset) or name == ".data_source"):
                continue
            waiting.append((path + name, part, depth + 1))


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object, a container or a function."""
    if isinstance(value, (dict, list, tuple)):
        # A long container holds data.
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"[{key!r}]", part) for key, part in items if len(value) <= _WIDE)
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
    else:
        yield from ((f".{name}", part) for name, part in list(getattr(value, "__dict__", {}).items()))
        for kind in type(value).__mro__:
            if not _is_of(kind, "builtins", "torch", "numpy", "workbench"):
                for method, function in list(vars(kind).items()):
                    if isinstance(function, types.FunctionType) and method != "__init__":
                        yield from ((f".{method}{name}", part) for name, part in _used_by(function))


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values of a function's closure, and the generators among the globals that it uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f":{name}", cell.cell_contents
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        if isinstance(found, GENERATORS):
            yield f":{name}", found


def _is_of(kind: type, *packages: str) -> bool:
    return kind.__module__.partition(".")[0] in packages
