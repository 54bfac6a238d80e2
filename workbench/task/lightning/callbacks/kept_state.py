"""Keeps the state of callbacks, with all that it holds, and puts it back in place."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.contents import content_of, is_container, put_attributes, put_content, refill
from workbench.task.device import xla
from workbench.task.rng import GENERATORS

_LONG = 100_000
"""Containers with more parts count as data, and are not copied."""
_GIVEN = frozenset({"log", "log_dict"})
"""Attributes that a callback has only while a job runs."""
_SHARED = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_LIBRARIES = frozenset({"builtins", "torch", "numpy", "workbench", "threading", "_thread", "io", "_io", "weakref", "logging", "concurrent"})


class KeptState:
    """The attributes of some objects: containers, tensors, modules and objects within them get their contents back, in place.

    What belongs to the module that is trained, and objects of libraries, stay as they are.
    """

    def __init__(self, owners: Iterable[Any], module: Any) -> None:
        seen = _parts_of(module)
        self._storages = {_storage(part) for part in seen.values() if isinstance(part, Tensor)}
        self._seen: dict[int, Any] = seen
        self._kept = [(one, {name: self._copy(value) for name, value in _attributes(one).items()}) for one in owners]
        del self._seen, self._storages

    def put(self) -> None:
        """Give the objects these attributes and contents."""
        for one, attributes in self._kept:
            put_attributes(one, {name: value.put() for name, value in attributes.items()}, _attributes(one))

    def take_changes(self, before: KeptState, module: Any) -> None:
        """Keep what the user has set on the objects since `before`."""
        now = KeptState([one for one, _ in self._kept], module)
        for (_, attributes), (_, old), (_, new) in zip(self._kept, before._kept, now._kept, strict=True):
            for name in old.keys() - new.keys():
                attributes.pop(name, None)
            attributes.update({name: value for name, value in new.items() if name not in old or not value.same(old[name])})

    def _copy(self, value: Any) -> _Copy:
        found = _Copy(value)
        if id(value) in self._seen or value is None or isinstance(value, (bool, int, float, complex, str, bytes, *_SHARED)):
            return found
        self._seen[id(value)] = value
        if isinstance(value, (Tensor, np.ndarray, *GENERATORS)):
            if not (isinstance(value, Tensor) and _storage(value) in self._storages):
                found.content = content_of(value)
        elif is_container(value) or isinstance(value, tuple):
            if len(value) <= _LONG:
                parts = [(key, self._copy(one)) for key, one in value.items()] if isinstance(value, dict) else [(None, self._copy(one)) for one in value]
                found.parts = parts
        elif hasattr(value, "__dict__") and (isinstance(value, nn.Module) or type(value).__module__.partition(".")[0] not in _LIBRARIES):
            found.attributes = {name: self._copy(one) for name, one in vars(value).items()}
        return found


class _Copy:
    """One value: the object itself, and a copy of its contents."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.content: Any = None
        self.parts: list[tuple[Any, _Copy]] | None = None
        self.attributes: dict[str, _Copy] | None = None

    def put(self) -> Any:
        """Give the object its contents; returns it."""
        value = self.value
        if self.attributes is not None:
            put_attributes(value, {name: one.put() for name, one in self.attributes.items()}, vars(value))
        elif self.parts is not None:
            found = [(key, one.put()) for key, one in self.parts]
            if is_container(value):
                refill(value, dict(found) if isinstance(value, dict) else [one for _, one in found])
        elif self.content is not None:
            put_content(value, self.content)
        return value

    def same(self, other: _Copy) -> bool:
        """Whether it is the same value, with the same contents."""
        if self.parts is not None or other.parts is not None:
            ours, theirs = self.parts or [], other.parts or []
            alike = type(self.value) is type(other.value) and len(ours) == len(theirs)
            return alike and all(key == name and one.same(two) for (key, one), (name, two) in zip(ours, theirs, strict=True))
        if self.attributes is not None or other.attributes is not None:
            mine, their = self.attributes or {}, other.attributes or {}
            return self.value is other.value and mine.keys() == their.keys() and all(one.same(their[name]) for name, one in mine.items())
        if isinstance(self.content, Tensor) and isinstance(other.content, Tensor):
            return self.value is other.value and torch.equal(self.content, other.content)
        if isinstance(self.content, np.ndarray) and isinstance(other.content, np.ndarray):
            return self.value is other.value and self.content.tobytes() == other.content.tobytes()
        if isinstance(self.value, (bool, int, float, complex, str, bytes)):
            return type(self.value) is type(other.value) and (self.value == other.value or self.value != self.value)
        return self.value is other.value


def _attributes(one: Any) -> Mapping[str, Any]:
    return {name: value for name, value in vars(one).items() if name not in _GIVEN}


def _parts_of(module: Any) -> dict[int, Any]:
    """The module that is trained and all that belongs to it, by identity."""
    found = {id(module): module}
    networks = (module,) if isinstance(module, nn.Module) else vars(module).values() if hasattr(module, "__dict__") else ()
    for network in networks:
        if isinstance(network, nn.Module):
            found |= {id(part): part for part in (*network.modules(), *network.parameters(), *network.buffers())}
    return found


def _storage(tensor: Tensor) -> int:
    if xla.is_xla(tensor.device):
        return xla.tensor_id(tensor)
    stored = tensor.layout is torch.strided and not tensor.is_meta and not nn.parameter.is_lazy(tensor)
    return tensor.untyped_storage().data_ptr() if stored else 0
