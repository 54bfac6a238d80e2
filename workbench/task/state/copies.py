"""Copies what the user's own objects hold, restores it, and finds out what has changed.

A fresh fit begins with the state that the objects had when the bench was made, a search restores the state from before it, and so does
the trial of two samples. All of them copy the same objects (`walk.py`).
"""

from __future__ import annotations

import abc
import ast
import contextlib
import copy
import dis
import functools
import io
import itertools
import random
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.modules import is_own_name
from workbench.task.rng import is_generator, is_own
from workbench.task.state.contents import (
    MOST_PARTS,
    content_of,
    is_container,
    is_data,
    is_large,
    is_plain,
    mark_of,
    put_content,
    put_place,
    refill,
)
from workbench.task.state.walk import (
    ARRAYS,
    Reached,
    attributes_of,
    cells,
    functions_of,
    is_own_class,
    is_own_code,
    is_users,
    slots_of_class,
)

_OURS = ("workbench.task.metrics", "workbench.task.data")
"""The workbench's own objects that hold the user's functions and objects."""
_MACHINERY = ("workbench.task.data.spec", "workbench.engine.")
"""Those that hold none: data are roots of their own."""
_UNDRAWN = 624
"""The position of a Mersenne Twister that has just been seeded."""
_SMALL, _SAMPLED = 1 << 16, 1 << 12
"""Bytes up to which an array is always copied, and how many values of a large one are compared."""
_DATA_BUDGET = 1 << 26
"""Bytes of arrays in data that are copied; what is beyond them is data."""
ANY = "*"
"""Stands for all names, where code sets attributes by names that are known only when it runs."""
_SOURCES: tuple[Iterable[Any], ...] = ([], (), range(1), "", b"", bytearray())
IN_PLACE: tuple[type[Any], ...] = tuple(type(iter(source)) for source in _SOURCES)
"""Iterators that can be set to a place."""


# ---- what an object holds ---------------------------------------------------------------------------------------


class Holding(abc.ABC):
    """What one object held when the copy was made."""

    @abc.abstractmethod
    def same(self, other: Self) -> bool:
        """Whether the object held the same at both moments."""

    def merged(self, left: Self, now: Self) -> Self:
        """This, with what the user has changed between `left` and `now`."""
        return self if now.same(left) else now

    @abc.abstractmethod
    def put(self, names: Collection[str] | None) -> str | None:
        """Restore the object; returns what could not be restored. names: the attributes to restore; None: all."""


class Attributes(Holding):
    """The attributes of an object: the same objects again, and none that were added."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names = {name: _frozen(value) for name, value in state_names(owner).items()}
        self._layers = _layers_of(owner)

    def same(self, other: Self) -> bool:
        return self.names.keys() == other.names.keys() and all(_alike(value, other.names[name]) for name, value in self.names.items())

    def merged(self, left: Self, now: Self) -> Self:
        return self.adopting(left, now, now.names.keys() | left.names.keys())

    def adopting(self, left: Self, now: Self, names: Iterable[str]) -> Self:
        """This, with the changes of these attributes between `left` and `now`."""
        missing = object()
        changed = copy.copy(self)
        changed.names = dict(self.names)
        changed._layers = self._layers | now._layers
        for name in names:
            before, after = left.names.get(name, missing), now.names.get(name, missing)
            if after is missing and before is not missing:
                changed.names.pop(name, None)
            elif after is not missing and not _alike(before, after):
                changed.names[name] = after
        return changed

    def put(self, names: Collection[str] | None) -> None:
        """Restore the attributes. Attributes that a job has added stay where it has added layers: a flag may belong to one."""
        now = state_names(self.owner)
        if _layers_of(self.owner) <= self._layers:
            for name in now.keys() - self.names.keys():
                if names is None or name in names:
                    _delete(self.owner, name)
        for name, value in self.names.items():
            if (names is None or name in names) and not (name in now and _alike(now[name], value)):
                set_name(self.owner, name, _frozen(value))


class Numbers(Holding):
    """The numbers among the attributes of an object that a set-up fills."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names = {name: value for name, value in vars(owner).items() if _is_number(value)}

    def same(self, other: Self) -> bool:
        return self.names == other.names

    def put(self, names: Collection[str] | None) -> None:
        now = vars(self.owner)
        now.update({name: value for name, value in self.names.items() if _is_number(now.get(name))})


class Items(Holding):
    """What a container holds. Containers inside it stay the same objects, since others may refer to them."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.items = copy.copy(container)
        nested = not is_data(container) and is_plain(container)
        self._inner = [Items(item) for item in _flat(container) if is_container(item)] if nested else []

    def same(self, other: Self) -> bool:
        if len(self.items) != len(other.items) or len(self._inner) != len(other._inner):
            return False
        pairs = zip(self._inner, other._inner, strict=True)
        return _same_items(self.items, other.items) and all(inner.same(theirs) for inner, theirs in pairs)

    def put(self, names: Collection[str] | None) -> None:
        for inner in self._inner:
            inner.put(names)
        if len(self.container) != len(self.items) or not _same_items(self.container, self.items):
            refill(self.container, copy.copy(self.items))


class Variables(Holding):
    """The variables that a function's code sets: those of enclosing functions, and globals."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.values = {name: _frozen(value) for name, value in variables_of(function).items()}

    def same(self, other: Self) -> bool:
        return self.values.keys() == other.values.keys() and all(_alike(value, other.values[name]) for name, value in self.values.items())

    def put(self, names: Collection[str] | None) -> None:
        now = variables_of(self.function)
        for name, value in self.values.items():
            if name in now and not _alike(now[name], value):
                set_variable(self.function, name, _frozen(value))


class Content(Holding):
    """The values of a tensor or an array, or the state of a generator. copied: False for what is too large to be copied."""

    def __init__(self, value: Any, *, copied: bool) -> None:
        self.value = value
        self.content = content_of(value) if copied else None
        self._version = _version_of(value) if self.content is None else None
        self._seed = _seed_of(value)
        self._mark: Any = None

    @property
    def mark(self) -> Any:
        """A checksum of the values; of large ones torch's version."""
        if self._mark is None:
            self._mark = (self._version,) if self.content is None else _checksum(self.content)
        return self._mark

    def same(self, other: Self) -> bool:
        return bool(self.mark == other.mark)

    def merged(self, left: Self, now: Self) -> Self:
        """A generator that was used meanwhile begins anew, unless the user has seeded it."""
        if is_generator(self.value) and not (now._seed is not None and now._seed != left._seed):
            return self
        return super().merged(left, now)

    def put(self, names: Collection[str] | None) -> str | None:
        if self.content is not None:
            put_content(self.value, self.content)
        elif self._version is not None and self._version != _version_of(self.value):
            return "too large to be copied"
        return None

    def forget(self) -> None:
        """Keep a checksum alone, for comparing."""
        _ = self.mark
        self.content = None


class Place(Holding):
    """The place in a file or in an iterator."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.place = place_of(value)

    def same(self, other: Self) -> bool:
        return bool(self.place == other.place)

    def put(self, names: Collection[str] | None) -> str | None:
        if place_of(self.value) == self.place:
            return None
        if isinstance(self.value, io.IOBase):
            put_place(self.value, self.place)
        elif isinstance(self.value, IN_PLACE) and isinstance(self.place, int):
            set_place(self.value, self.place)
        if place_of(self.value) == self.place:
            return None
        return f"a {type(self.value).__name__} that was read further"


def place_of(value: Any) -> Any:
    """The place of a file or an iterator, as far as it can be seen."""
    if isinstance(value, io.IOBase):
        return None if value.closed else value.tell()
    if isinstance(value, IN_PLACE):
        state = value.__reduce__()
        return state[2] if isinstance(state, tuple) and len(state) > 2 else mark_of(value)
    return mark_of(value)


def set_place(iterator: Any, place: int) -> None:
    """Set an iterator of `IN_PLACE` to a place."""
    iterator.__setstate__(place)


# ---- the state of a task ----------------------------------------------------------------------------------------


class StateCopy:
    """A copy of what the objects of a task hold, beside their weights and buffers, which `WeightsCopy` has."""

    def __init__(self, holdings: Mapping[int, tuple[str, Holding]], counted: frozenset[str]) -> None:
        """holdings: by the ids of the objects, with their paths. counted: the names of attributes that the task's own code sets."""
        self._holdings = holdings
        self._counted = counted

    @classmethod
    def of_data(cls, objects: Iterable[Reached]) -> StateCopy:
        """Copy what these objects of data hold."""
        copied = Copied(False, 0, set())
        copied.take(objects, data=True)
        return copied.all()

    def put(self, *, searched: bool = False) -> list[str]:
        """Restore this state; returns the paths of what could not be restored, each with the reason.

        searched: the user's cells may have run meanwhile. What they have set stays: of objects other than modules, only the attributes
        that the task's own code sets are restored.
        """
        lost = []
        for path, holding in self._holdings.values():
            limited = searched and ANY not in self._counted and isinstance(holding, Attributes) and not isinstance(holding.owner, nn.Module)
            try:
                left = holding.put(self._counted if limited else None)
            except Exception as error:  # noqa: BLE001  # the user's object may raise anything
                left = f"{type(error).__name__}: {error}"
            if left is not None:
                lost.append(f"{path} ({left})")
        return lost

    def with_changes(self, left: StateCopy, now: StateCopy) -> tuple[StateCopy, list[str]]:
        """This state, with what the user has changed between `left` and `now`; and the paths of what may have changed by accident.
        """
        merged, changed = dict(self._holdings), []
        for key, (path, holding) in now._holdings.items():
            before = left._holdings.get(key)
            if before is None or type(before[1]) is not type(holding):
                merged[key] = path, holding
            elif not holding.same(before[1]):
                if key in merged:
                    merged[key] = path, merged[key][1].merged(before[1], holding)
                if self._is_told(holding, before[1]):
                    changed.append(path)
        return StateCopy(merged, self._counted), changed

    def _is_told(self, holding: Holding, before: Holding) -> bool:
        """Whether a change between two jobs may be an accident: of an array in data, or of what the task's own code counts."""
        if isinstance(holding, Attributes) and isinstance(before, Attributes) and not isinstance(holding.owner, nn.Module):
            names = (name for name, value in holding.names.items() if name not in before.names or not _alike(value, before.names[name]))
            return ANY in self._counted or any(name in self._counted for name in names)
        return isinstance(holding, Content) and not is_generator(holding.value)

    def adopting(self, begun: StateCopy, end: StateCopy) -> StateCopy:
        """This state, with the attributes that the user's cells have set while a job ran, from `begun` to `end`: those that the task's own
        code does not set.
        """
        merged = dict(self._holdings)
        if ANY in end._counted:
            return self
        for key, (path, holding) in end._holdings.items():
            before, kept = begun._holdings.get(key), merged.get(key)
            if before is None or kept is None or not isinstance(holding, Attributes) or isinstance(holding.owner, nn.Module):
                continue
            names = holding.names.keys() - end._counted
            if isinstance(kept[1], Attributes) and isinstance(before[1], Attributes):
                merged[key] = path, kept[1].adopting(before[1], holding, names)
        return StateCopy(merged, self._counted)


class Copied:
    """Copies what objects hold."""

    def __init__(self, trial: bool, budget: int, sources: Collection[int], *, marks: bool = False) -> None:
        """trial: copy the containers that functions use, too. budget: bytes of arrays beside the data. sources: the ids of objects that a
        set-up fills, of which numbers alone are copied. marks: keep checksums of arrays alone, for comparing.
        """
        self._marks = marks
        self.holdings: dict[int, tuple[str, Holding]] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._trial, self._budget, self._sources = trial, budget, sources
        self._data_budget = _DATA_BUDGET

    def take(self, objects: Iterable[Reached], *, data: bool) -> None:
        """Copy what these hold. data: they belong to a data set."""
        for reached in objects:
            self._functions.update((id(function), function) for function in functions_of(reached.value))
            holding = self._of(reached, data)
            if holding is not None:
                if self._marks and isinstance(holding, Content):
                    holding.forget()
                self.holdings[id(reached.value)] = reached.path, holding
            if isinstance(holding, Items) and has_state(reached.value):  # of a class of the user's own
                self.holdings[-id(reached.value)] = reached.path, Attributes(reached.value)

    def all(self) -> StateCopy:
        """All copies, with those of the variables that functions set."""
        for key, function in self._functions.items():
            if variables_of(function):
                self.holdings[-key] = function.__qualname__, Variables(function)
        return StateCopy(self.holdings, counted_names(self._functions.values()))

    def _of(self, reached: Reached, data: bool) -> Holding | None:
        """What to copy of an object; None: it holds no state."""
        value = reached.value
        if is_generator(value):
            return Content(value, copied=True) if is_own(value) else None
        if isinstance(value, ARRAYS):
            return None if reached.ours else Content(value, copied=self._may_copy(value, data))
        if is_container(value):
            wanted = not reached.ours and (reached.attribute or self._trial) and len(value) <= MOST_PARTS
            return Items(value) if wanted else None
        if isinstance(value, types.FunctionType):
            return Attributes(value) if is_own_code(value.__code__) else None
        if isinstance(value, nn.Module) or has_state(value):
            return Numbers(value) if data and id(value) in self._sources else Attributes(value)
        if type(value) is itertools.count and reached.attribute and not reached.path.endswith("]"):
            return None  # its owner gets another one
        if isinstance(value, (Iterator, io.IOBase)) and not (reached.ours or _is_written(value)):
            with contextlib.suppress(Exception):  # the user's object may raise anything
                return Place(value)
        return None

    def _may_copy(self, value: Any, data: bool) -> bool:
        """Whether an array is small enough; beside the data a large one may be state, such as an average of the weights."""
        size = 0 if isinstance(value, Tensor) and value.layout is not torch.strided else value.nbytes
        if size <= _SMALL:
            return True
        if (data and is_large(value)) or size > (self._data_budget if data else self._budget):
            return False
        if data:
            self._data_budget -= size
        else:
            self._budget -= size
        return True


def counted_names(functions: Iterable[types.FunctionType]) -> frozenset[str]:
    """The names of the attributes that this code sets, other than where objects are made."""
    return frozenset[str]().union(*(set_names(function.__code__)["STORE_ATTR"] for function in functions))


def is_machinery(value: Any) -> bool:
    """Whether it is an object of the workbench's own that holds none of the user's."""
    home = type(value).__module__
    return home.startswith(_MACHINERY) or (home.startswith("workbench.") and not isinstance(value, nn.Module) and not home.startswith(_OURS))


def has_state(value: Any) -> bool:
    """Whether the attributes of an object are state: it is of the user's own class, or a namespace."""
    kind = type(value)
    if isinstance(value, type):
        return is_users(value)
    if not (is_own_class(kind) or isinstance(value, types.SimpleNamespace)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of_class(kind))


def state_names(owner: Any) -> dict[str, Any]:
    """The attributes of an object that are state. Of a module, its own, and not those that every module has."""
    if isinstance(owner, nn.Module):
        return {name: value for name, value in vars(owner).items() if is_own_name(name)}
    return attributes_of(owner)


def set_name(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, in the slot where the class has one."""
    slot = slots_of_class(type(owner)).get(name)
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif slot is None:
        vars(owner)[name] = value
    else:
        slot.__set__(owner, value)


def _delete(owner: Any, name: str) -> None:
    slot = slots_of_class(type(owner)).get(name)
    if isinstance(owner, type):
        delattr(owner, name)
    elif slot is None:
        del vars(owner)[name]
    else:
        slot.__delete__(owner)


def variables_of(function: types.FunctionType) -> dict[str, Any]:
    """The present values of the variables that a function's code sets outside of itself."""
    named = set_names(function.__code__)
    values = {name: cell.cell_contents for name, cell in cells(function) if name in named["STORE_DEREF"]}
    if is_own_code(function.__code__):
        values |= {name: function.__globals__[name] for name in named["STORE_GLOBAL"] if name in function.__globals__}
    return values


def set_variable(function: types.FunctionType, name: str, value: Any) -> None:
    """Set such a variable."""
    cell = dict(cells(function)).get(name)
    if cell is None:
        function.__globals__[name] = value
    else:
        cell.cell_contents = value


@functools.cache
def set_names(code: types.CodeType) -> dict[str, frozenset[str]]:
    """The names that code and the functions within it assign: globals, variables of enclosing functions, and (not in __init__) attributes."""
    names: dict[str, set[str]] = {"STORE_GLOBAL": set(), "STORE_DEREF": set(), "STORE_ATTR": set()}
    for step in dis.get_instructions(code):
        if step.opname in names and (step.opname, code.co_name) != ("STORE_ATTR", "__init__"):
            names[step.opname].add(str(step.argval))
    if is_own_code(code) and {"setattr", "__setattr__", "__dict__", "vars"} & {*code.co_names} and code.co_name != "__init__":
        names["STORE_ATTR"].add(ANY)
    inner = [set_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {kind: frozenset(own.union(*(other[kind] for other in inner))) for kind, own in names.items()}


def _layers_of(owner: Any) -> frozenset[str]:
    return frozenset({*owner._parameters, *owner._modules}) if isinstance(owner, nn.Module) else frozenset()


def _is_written(value: Any) -> bool:
    """Whether it is a file that is written: what was logged there stays."""
    return isinstance(value, io.IOBase) and not value.closed and value.writable()


def _same_items(container: Any, other: Any) -> bool:
    """Whether two containers of one length hold the same objects, or equal numbers and texts, in the same order."""
    return all(_alike(item, theirs) for item, theirs in zip(_flat(container), _flat(other), strict=True))


def _flat(container: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(container.items()) if isinstance(container, dict) else iter(container)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _frozen(value: Any) -> Any:
    """The value; of an `itertools.count`, which moves when it is read, one that stands at the same number."""
    return copy_of_count(value) if type(value) is itertools.count else value


def copy_of_count(count: Any) -> Any:
    """Another `itertools.count` like this one, or like the one with this text; itself where its numbers are of an unusual kind."""
    try:
        numbers = ast.literal_eval(f"({str(count)[len('count(') : -1]},)")
    except (ValueError, SyntaxError):
        return count
    return itertools.count(*numbers)


def _alike(value: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers or texts."""
    if value is other and type(value) is not itertools.count:
        return True
    if type(value) is not type(other):
        return False
    if type(value) in (bool, int, float, complex, str, bytes, itertools.count):
        return repr(value) == repr(other)
    return isinstance(value, np.generic) and bool(value == other)


def _seed_of(value: Any) -> Any:
    """What shows that a generator has been seeded since: torch's seed, or the state of one that has drawn nothing yet; None: it has drawn."""
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, random.Random):
        state = value.getstate()
        return state if state[1][-1] == _UNDRAWN else None
    if isinstance(value, np.random.RandomState):
        legacy: Any = value.get_state(legacy=True)
        return legacy[1].tobytes() if legacy[2] == _UNDRAWN else None
    return None


def _version_of(value: Any) -> Any:
    """What shows that a large tensor or array has changed: torch's version, or a checksum of some of its values; None: nothing does."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and value.size:
        flat = value.reshape(-1) if value.flags.c_contiguous else value[:1].reshape(-1)
        return zlib.crc32(flat[:: max(1, flat.size // _SAMPLED)].tobytes())
    return None


def _checksum(content: Any) -> Any:
    if isinstance(content, Tensor):
        dense = content.to_dense() if content.layout is not torch.strided else content
        flat = dense.contiguous().reshape(-1).view(torch.uint8) if dense.numel() else dense
        return content.dtype, content.shape, zlib.crc32(flat.numpy().tobytes() if dense.numel() else b"")
    if isinstance(content, np.ndarray):
        return content.dtype, content.shape, zlib.crc32(content.tobytes())
    return repr(content)
