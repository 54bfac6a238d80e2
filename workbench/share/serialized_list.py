"""Long lists of Python objects as bytes in shared memory: the pickle of each element in one buffer,
and their offsets.

This is detectron2's `TorchSerializedList`. To count a reference is to write to a page, so every
process that reads a list of Python objects ends up with a copy of it; bytes are read by all
processes and written by none.
"""

from __future__ import annotations

import io
import itertools
import pickle
import sys
import types
import warnings
from array import array
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workbench.share.pickling import Keep, Pickler, Unpickler

LONG = 2000
"""Lists with this many elements are serialized."""

_LARGE = 1 << 16
"""A list with a tensor or array of this many bytes stays a list: such buffers lie in the segment
and are read without a copy.
"""

_REPEATED = 256
"""The most bytes by which an element's own pickle may be longer than its part in a pickle of the
whole list.
"""

_CHECKED = 32
"""For so many reads, the previously read element is checked for changes."""

_CODE = (type, types.FunctionType)
_BY_VALUE = (type, types.FunctionType, types.MethodType, types.ModuleType)
_DEPTH = 3
_STATE = 100_000
"""A module's list with more elements counts as data."""


class SerializedList(MutableSequence[Any]):
    """Reads like the list it was made of, in another process. Each read makes a new object, equal
    to the element.

    Changing an element that was read changes a copy: assign it (`items[i] = item`) to keep the
    change. A warning appears if one of the first elements that are read is changed. The first
    assignment makes this a list of objects, in this process only. It is not a subclass of list,
    which C code would read as an empty list.
    """

    def __init__(self) -> None:
        self._objects: list[Any] | None = []
        self._checks, self._read = _CHECKED, _NO_READ

    @property
    def state(self) -> tuple[Any, ...] | None:
        """The pickles, their offsets, and the classes and functions in them; None where this
        process changed the list.
        """
        if self._objects is not None:
            return None
        return (
            pickle.PickleBuffer(self._data),
            pickle.PickleBuffer(self._offsets.cast("B")),
            self._code,
        )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        data, offsets, self._code = state
        self._data, self._offsets = (
            memoryview(data).cast("B"),
            memoryview(offsets).cast("B").cast("q"),
        )
        self._objects, self._checks, self._read = None, _CHECKED, _NO_READ

    def _list(self) -> list[Any]:
        """The elements as a list of objects, to be changed."""
        if self._objects is None:
            self._objects = list(self)
        return self._objects

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._objects is None else len(self._objects)

    def __getitem__(self, index: Any) -> Any:
        if self._objects is not None:
            return self._objects[index]
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        try:
            at = range(len(self))[index]
        except IndexError:
            raise IndexError("list index out of range") from None
        element = self._load(self._data[self._offsets[at] : self._offsets[at + 1]])
        if self._checks:
            self._check(at, element)
        return element

    def _load(self, data: memoryview) -> Any:
        if not self._code:
            return pickle.loads(data)
        return _ElementUnpickler(data, self._code).load()

    def _check(self, at: int, element: Any) -> None:
        """Warn if the previously read element has been changed since; remember this one."""
        index, before, pickled = self._read
        if pickled is not None and _plain_pickle(before) != pickled:
            self._checks, self._read = 0, _NO_READ
            warnings.warn(
                f"element {index} of a list of {len(self):,} was changed after it was read. In"
                " ranks and in loader workers each read makes a new element, so the change is"
                " lost: assign the element to keep it (items[i] = item), or ignore this if it only"
                " stores what can be computed again.",
                stacklevel=3,
            )
            return
        self._checks -= 1
        self._read = (at, element, _plain_pickle(element)) if self._checks else _NO_READ

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self):  # like a list's: it may grow or shrink meanwhile
            yield self[index]
            index += 1

    def __setitem__(self, index: Any, value: Any) -> None:
        self._list()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._list()[index]

    def insert(self, index: int, value: Any) -> None:
        self._list().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """Sort in place, as a list does."""
        self._list().sort(key=key, reverse=reverse)

    def copy(self) -> list[Any]:
        """A plain list of the same items."""
        return list(self)

    def __reduce__(self) -> Any:
        """Pickle as a plain list where no package is made."""
        return list, (), None, iter(self)

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list | SerializedList) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, count: int) -> list[Any]:
        return list(self) * count

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | SerializedList):
            return NotImplemented
        return self is other or list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(list(self), dtype=dtype)

    def __repr__(self) -> str:
        if len(self) <= LONG:
            return repr(list(self))
        return f"[{', '.join(map(repr, self[:3]))}, … {len(self):,} in all]"


_NO_READ: tuple[int, Any, bytes | None] = (0, None, None)


def _plain_pickle(element: Any) -> bytes | None:
    """The element's pickle; None where plain pickle cannot make one."""
    try:
        return pickle.dumps(element)
    except Exception:  # noqa: BLE001 - an element may raise anything; then its changes are not seen
        return None


class _StaysList(Exception):
    """The list is pickled as a whole, because it has large buffers or an element refers to it."""


class _File:
    """A file for a pickler, which only writes."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self.write = write


class _ElementPickler(Pickler):
    """Pickles elements one by one, with a number in the place of each class and function."""

    def __init__(self, whole: list[Any], write: Callable[[Any], object]) -> None:
        super().__init__(_File(write), _small)
        self._whole = whole
        self.code: dict[int, tuple[int, Any]] = {}
        """The number of each class and function, and the object itself, by its `id`."""

    def persistent_id(self, obj: Any) -> Any:
        if obj is self._whole:
            raise _StaysList
        if not isinstance(obj, _CODE):
            return None
        return self.code.setdefault(id(obj), (len(self.code), obj))[0]

    def one(self, element: Any) -> None:
        """Write the pickle of one element."""
        self.dump(element)
        self.memo: dict[int, Any] = {}
        self.tensors.clear()
        self._storages.clear()


def _small(buffer: pickle.PickleBuffer) -> bool:
    """Return True, so that a buffer's bytes go into the pickle; raise `_StaysList` for a large
    buffer.
    """
    if buffer.raw().nbytes >= _LARGE:
        raise _StaysList
    return True


def _serialized(elements: list[Any], devices: set[str]) -> SerializedList | None:
    """Serialize a list; None where its elements share so much, or are so large, that it is
    better pickled as a whole.
    """
    data, offsets = bytearray(), array("q", [0])
    pickler = _ElementPickler(elements, data.extend)
    most, limit = _REPEATED * len(elements), None
    try:
        for element in elements:
            pickler.one(element)
            offsets.append(len(data))
            if len(data) > most and limit is None:
                limit = most + 2 * _size(elements)
            if limit is not None and len(data) > limit:
                return None
    except _StaysList:
        return None
    devices |= pickler.devices
    serialized = SerializedList()
    serialized.__setstate__((data, offsets, tuple(thing for _, thing in pickler.code.values())))
    return serialized


def _size(elements: list[Any]) -> int:
    """The size of one pickle of the whole list."""
    pieces = array("q")
    _ElementPickler(elements, lambda piece: pieces.append(len(piece))).dump(tuple(elements))
    return sum(pieces)


class _StartAgain(Exception):
    """Raised when a list that must stay a list was serialized already; pickling starts again."""


class _ListPickler(Pickler):
    """A package's pickler, with long lists as `SerializedList`s."""

    def __init__(self, file: io.BytesIO, keep: Keep, stay: dict[int, list[Any]]) -> None:
        """stay: the lists, by id, that are pickled as lists; more are added."""
        super().__init__(file, keep)
        self._stay = stay
        self._made: dict[int, tuple[list[Any], SerializedList]] = {}

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not list or len(obj) < LONG or id(obj) in self._stay:
            return None
        if id(obj) not in self._made:
            serialized = _serialized(obj, self.devices)
            if serialized is None:
                self._stay[id(obj)] = obj
                return None
            self._made[id(obj)] = obj, serialized  # the list is held: its address is the key
        return self._made[id(obj)][1]

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is SerializedList and obj.state is not None:
            return SerializedList, (), obj.state
        reduction = super().reducer_override(obj)
        if isinstance(obj, torch.nn.Module):
            # What forward() appends to is state, and arrives as a list.
            self._leave_lists([vars(obj)], _STATE)
        elif (
            reduction is NotImplemented
            and _own_reduction(kind)
            and not isinstance(obj, _BY_VALUE)
            and kind not in self.dispatch_table
        ):
            reduction = obj.__reduce_ex__(5)
            # A function in C (an array of objects has one) takes nothing but lists.
            self._leave_lists(
                [argument for argument in reduction[1:3] if argument is not None]
                if isinstance(reduction, tuple)
                else []
            )
        return reduction

    def _leave_lists(self, parts: list[Any], most: int = sys.maxsize) -> None:
        """Lists among these, and a little way inside, stay lists, unless they have more elements
        than `most`.
        """
        for _ in range(_DEPTH):
            long_lists = {
                id(candidate): candidate
                for candidate in parts
                if type(candidate) is list and LONG <= len(candidate) <= most
            }
            self._stay |= long_lists
            if long_lists.keys() & self._made.keys():
                raise _StartAgain
            inside = (
                p.values() if type(p) is dict else p for p in parts if type(p) in (dict, tuple)
            )
            parts = list(itertools.chain.from_iterable(inside))


def _own_reduction(kind: type) -> bool:
    """Whether a class has its own function to rebuild its objects, or C code that sets their
    attributes.
    """
    members = {
        name: value for base in reversed(kind.__mro__[:-1]) for name, value in vars(base).items()
    }
    by_c = "__setstate__" in members and not isinstance(members["__setstate__"], types.FunctionType)
    return by_c or "__reduce__" in members or "__reduce_ex__" in members


class _ElementUnpickler(pickle.Unpickler):
    """Unpickles an element, whose functions and classes are kept beside all elements."""

    def __init__(self, data: memoryview, code: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._code = code

    def persistent_load(self, pid: Any) -> Any:
        """Return the function or class that was stored in place of itself."""
        return self._code[pid]


class ListUnpickler(Unpickler):
    """Unpickles what `_ListPickler` wrote."""

    def persistent_load(self, pid: Any) -> Any:
        """Return what was stored in place of the object: it is the object."""
        return pid


@dataclass
class Pickled:
    """A pickle with its out-of-band lists and buffers."""

    code: bytes
    buffers: list[Any]
    devices: set[str] = field(default_factory=set)
    tensors: tuple[torch.Tensor, ...] = ()
    """The plain tensors in it, outside of serialized lists."""


def pickled(value: Any, lists: bool) -> Pickled:
    """The pickle of `value`. lists: with its long lists serialized."""
    stay: dict[int, list[Any]] = {}
    while True:
        file, buffers = io.BytesIO(), list[Any]()
        pickler = (
            _ListPickler(file, buffers.append, stay) if lists else Pickler(file, buffers.append)
        )
        try:
            pickler.dump(value)
        except _StartAgain:
            continue
        return Pickled(file.getvalue(), buffers, pickler.devices, tuple(pickler.tensors.values()))
