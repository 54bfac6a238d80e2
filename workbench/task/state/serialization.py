"""Turns state into containers and tensors that `torch.load(weights_only=True)` reads without
running code.

`to_plain` turns NumPy values and less common containers into marked dicts, and raises
NotPlainError, naming the place, for objects that have no such form; `from_plain` turns the dicts
back.
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.device.dtensor import in_shards

MARK = "__workbench__"
"""The key of a dict that stands for another kind of value."""
_ARRAY = {"array", "shape", "data"}
_KEYS = (type(None), bool, int, float, str)
_AS_THEY_ARE = (*_KEYS, complex, torch.Size, torch.dtype, torch.device)
_SEQUENCES: tuple[type, ...] = (list, tuple)
_MANY = 64
_MOST = 1 << 21
"""How many values a state may have besides twice those that are stored."""
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class NotPlainError(TypeError):
    """A value that cannot be stored in a checkpoint; the message names its place."""


def to_plain(value: Any, whose: str, *, functions: bool = True) -> Any:
    """The value as plain containers and tensors in host memory. whose: whose value it is, for the
    error.

    functions: True raises an error for functions too; False leaves out dict entries that are
    functions (in a scheduler's state, where the scheduler that loads the state has its own).
    """
    return _Packing(whose, functions).pack(value, "")


def from_plain(value: Any) -> Any:
    """The value from which `to_plain` made this one, its tensors in host memory."""
    if isinstance(value, dict):
        if MARK in value:
            return _UNPACK[value[MARK]](value)
        if _is_earlier_array(value):
            return (
                value["data"].numpy().view(np.dtype(value["array"])).reshape(value["shape"]).copy()
            )
        items = ((from_plain(key), from_plain(item)) for key, item in value.items())
        return OrderedDict(items) if type(value) is OrderedDict else dict(items)
    if type(value) in _SEQUENCES:
        return type(value)(from_plain(item) for item in value)
    return value


def check_extent(value: Any) -> None:
    """Raise ValueError for packed state that would take much more memory or time than its file:
    what refers to one list a thousand times, or a tensor whose numbers are one number.
    """
    extents: dict[int, int] = {}
    stored = 0

    def extent(part: Any) -> int:
        """How many values a part has for who walks through it."""
        nonlocal stored
        if isinstance(part, Tensor):
            repeats = (
                part.layout is torch.strided
                and part.numel() * part.element_size() > part.untyped_storage().nbytes()
            )
            return part.numel() if repeats else 0
        if not isinstance(part, dict | list | tuple):
            return 0
        if id(part) not in extents:
            extents[id(part)] = _MOST  # for one that contains itself
            stored += len(part)
            extents[id(part)] = len(part) + sum(
                map(extent, part.values() if isinstance(part, dict) else part)
            )
        return extents[id(part)]

    if extent(value) > 2 * stored + _MOST:
        raise ValueError("it repeats a few values millions of times")


def _is_earlier_array(value: dict[Any, Any]) -> bool:
    """Whether it has the form in which an earlier version stored arrays of data sets and
    generators. A user's dict may have the same keys.
    """
    if (
        value.keys() != _ARRAY
        or type(value["array"]) is not str
        or type(value["shape"]) is not tuple
    ):
        return False
    data = value["data"]
    return isinstance(data, Tensor) and data.dtype is torch.uint8 and data.dim() == 1


class _Packing:
    """Packs one value, container by container."""

    def __init__(self, whose: str, functions: bool) -> None:
        self._whose, self._functions = whose, functions
        self._within: set[int] = set()

    def pack(self, value: Any, path: str) -> Any:
        if type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if type(value) is bytes:
            return {MARK: "bytes", "text": value.decode("latin-1")}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, path)
        if id(value) in self._within:
            raise NotPlainError(
                f"{self._whose} holds something that contains itself under {path!r}"
            )
        self._within.add(id(value))
        try:
            return self._container(value, path)
        finally:
            self._within.discard(id(value))

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _SEQUENCES:
            return self._integers(value) or kind(self._all(value, path))
        if kind in (dict, OrderedDict):
            if MARK in value:
                raise NotPlainError(
                    f"{self._whose} has {MARK!r} as a key, which checkpoints reserve"
                )
            return kind(self._items(value, path))
        if kind is Counter:
            return {MARK: "Counter", "items": self._items(value, path)}
        if kind is defaultdict and value.default_factory in _FACTORIES.values():
            factory = next(
                name for name, default in _FACTORIES.items() if default is value.default_factory
            )
            return {MARK: "defaultdict", "items": self._items(value, path), "factory": factory}
        if kind is deque:
            return {MARK: "deque", "items": self._all(value, path), "maxlen": value.maxlen}
        if kind in (set, frozenset) and all(map(_is_key, value)):
            return set(value) if kind is set else {MARK: "frozenset", "items": list(value)}
        raise self._refused(value, path)

    def _integers(self, value: Any) -> dict[str, Any] | None:
        """A list of many integers (an order of samples, Python's random state) as one tensor,
        which is written ten times as fast. None: it is no such list.
        """
        if len(value) < _MANY or set(map(type, value)) != {int}:
            return None
        try:
            data = torch.from_numpy(np.array(value, np.int64))
        except OverflowError:
            return None
        return {MARK: "integers", "data": data, "tuple": type(value) is tuple}

    def _all(self, values: Any, path: str) -> list[Any]:
        return [self.pack(item, f"{path}[{number}]") for number, item in enumerate(values)]

    def _items(self, value: Mapping[Any, Any], path: str) -> list[tuple[Any, Any]]:
        pairs = []
        for key, item in value.items():
            if not _is_key(key):
                raise NotPlainError(
                    f"{self._whose} has a key of type {type(key).__name__}" + _under(path)
                )
            if self._functions or not isinstance(item, _FUNCTIONS):
                pairs.append((key, self.pack(item, f"{path}.{key}" if path else str(key))))
        return pairs

    def _tensor(self, value: Tensor, path: str) -> Tensor:
        if in_shards(value):  # engine/checkpoint/shards.py stores it
            sharded: Tensor = value.detach()
            return sharded
        if (
            type(value) not in (Tensor, nn.Parameter, nn.Buffer)
            or value.is_quantized
            or value.is_meta
        ):
            raise self._refused(value, path)
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if type(tensor) is not Tensor:  # a Buffer or Parameter in host memory
            tensor = tensor.as_subclass(Tensor)
        if (
            tensor.layout is torch.strided
            and tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        ):
            tensor = tensor.clone()  # a view: torch.save would write its whole storage
        return tensor

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        array = np.asarray(value)
        if (
            array.dtype.hasobject
            or array.dtype.names
            or type(value) not in (np.ndarray, array.dtype.type)
        ):
            raise self._refused(value, path)
        flat = torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
        scalar = isinstance(value, np.generic)
        return {
            MARK: "numpy",
            "data": flat,
            "type": array.dtype.str,
            "shape": array.shape,
            "scalar": scalar,
        }

    def _refused(self, value: Any, path: str) -> NotPlainError:
        name = type(value).__name__
        article = "an" if name[0].lower() in "aeiou" else "a"
        return NotPlainError(f"{self._whose} holds {article} {name}" + _under(path))


def _is_key(key: Any) -> bool:
    return type(key) in _KEYS or (type(key) is tuple and all(map(_is_key, key)))


def _under(path: str) -> str:
    return f" under {path!r}" if path else ""


def _array(packed: Mapping[str, Any]) -> Any:
    flat = np.frombuffer(packed["data"].numpy().tobytes(), np.dtype(packed["type"])).copy()
    return flat[0] if packed["scalar"] else flat.reshape(packed["shape"])


def _integers(packed: Mapping[str, Any]) -> Any:
    numbers = packed["data"].tolist()
    return tuple(numbers) if packed["tuple"] else numbers


def _pairs(packed: Mapping[str, Any]) -> dict[Any, Any]:
    return {from_plain(key): from_plain(item) for key, item in packed["items"]}


_FACTORIES: dict[str, Any] = {
    "None": None,
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
}
_UNPACK: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "bytes": lambda value: value["text"].encode("latin-1"),
    "numpy": _array,
    "integers": _integers,
    "Counter": lambda value: Counter(_pairs(value)),
    "defaultdict": lambda value: defaultdict(_FACTORIES[value["factory"]], _pairs(value)),
    "deque": lambda value: deque(from_plain(value["items"]), value["maxlen"]),
    "frozenset": lambda value: frozenset(value["items"]),
}
