"""Stores many small objects in one buffer: each a pickle of its own, read when needed.

What several of them refer to is stored once next to them. An element that was read stays the same object as long as
something refers to it, and changes to it stay: before it is freed, it is compared with its pickle.
"""

from __future__ import annotations

import io
import pickle
import sys
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from workbench.share.pickling import Pickler, restored
from workbench.share.segment import address_of

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values never change, and of which nobody minds whether two are one."""

Buffer: TypeAlias = "bytes | bytearray | memoryview | array[Any]"
Lookup = Callable[[int], memoryview]

_CODES: dict[type, str] = {int: "q", float: "d", bool: "?"}
_NONE = object()
_MOST, _FEWEST, _BYTES = 1024, 16, 1 << 20
_LARGE = 1 << 16
_FRAME = b"\x95"
_PLAIN = frozenset({dict, list, tuple})
_OWN = 3
"""References to an element that nobody else holds: the dict's, a local variable's, and an argument's."""


class ElementPickler(Pickler):
    """Pickles elements, one by one, with a number in the place of each object of `common`."""

    def __init__(self, common: Mapping[int, int]) -> None:
        """common: the number of each of the common objects, by its id."""
        self._pieces: list[bytes] = []
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(_Sink(self._pieces.append), self.buffers.append)
        self._common = common

    def persistent_id(self, obj: Any) -> Any:
        return self._common.get(id(obj))

    def one(self, element: Any) -> tuple[bytes, Sequence[pickle.PickleBuffer]]:
        """The pickle of one element, and what lies beside it."""
        data, pieces = b"", self._pieces
        flat = self.fast = _is_flat(element)  # nothing in it could be met twice: no need to remember what was
        try:
            pickle.Pickler.dump(self, element)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            one_frame = data[2:3] == _FRAME and int.from_bytes(data[3:11], "little") == len(data) - 11
            # One frame need not be told; and the protocol matters only to what has classes in it.
            data = (b"" if flat else data[:2]) + data[11 if one_frame else 2 :]
            return data, tuple(self.buffers)
        finally:
            pieces.clear()
            self.buffers.clear()
            if flat:
                pass
            elif len(data) > _LARGE:
                self.memo: dict[int, Any] = {}  # a large table would take its time to be cleared for each of the next
            else:
                self.clear_memo()


def _is_flat(element: Any) -> bool:
    kind = type(element)
    if kind not in _PLAIN or not ATOMS.issuperset(map(type, element)):
        return False
    return kind is not dict or ATOMS.issuperset(map(type, element.values()))


class _Sink:
    """A file for a pickler that only appends."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


class _ElementUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return restored(super().find_class(module, name))


class Numbers:
    """Plain numbers of one type, 8 bytes each (truth values 1)."""

    def __init__(self, code: str, data: Buffer) -> None:
        self.code = code
        self._data: memoryview[Any] = memoryview(data).cast("B").cast(code)  # type: ignore[call-overload]

    @classmethod
    def of(cls, values: list[Any]) -> Numbers | None:
        """None where they are not of one type, or too large."""
        kinds = set(map(type, values))
        code = _CODES.get(kinds.pop()) if len(kinds) == 1 else None
        try:
            return None if code is None else cls(code, array("b" if code == "?" else code, values))
        except OverflowError:
            return None

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __reduce__(self) -> Any:
        return Numbers, (self.code, pickle.PickleBuffer(self._data.cast("B")))


def narrow(size: int) -> Literal["I", "Q"]:
    """What places in so many bytes are written as."""
    return "Q" if size >> 32 else "I"


class Elements:
    """Any objects. It is made empty and filled later, since a common object may refer to a list of these."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._recent: deque[int] = deque()
        self._pickler: ElementPickler | None = None

    def fill(
        self, data: Buffer, ends: Buffer, numbers: Buffer, numbers_ends: Buffer, common: Sequence[Any],
        changed: dict[int, Any], lookup: Lookup,
    ) -> None:  # fmt: skip
        """data, ends: the pickles, and where each ends (as in `narrow`). numbers, numbers_ends: their buffers, for
        `lookup`, where they have any.

        common: what several of them refer to. changed: those that are not as their pickle says.
        """
        self._data = memoryview(data).cast("B")
        self._ends = memoryview(ends).cast("B").cast(narrow(len(self._data)))
        self._numbers, self._numbers_ends = (memoryview(one).cast("B").cast("q") for one in (numbers, numbers_ends))
        # The names of an object's attributes are interned when it is unpickled, and are to be these.
        self._common = tuple(sys.intern(thing) if type(thing) is str else thing for thing in common)
        self._held, self._lookup = changed, lookup
        each = len(self._data) // max(len(self), 1)
        self._most = min(max(_BYTES // max(each, 1), _FEWEST), _MOST)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Any:
        found = self._held.get(index, _NONE)
        if found is not _NONE:
            return found
        made = self._make(index)
        if type(made) in ATOMS or (type(made) is tuple and ATOMS.issuperset(map(type, made))):
            return made
        made = self._held.setdefault(index, made)
        self._recent.append(index)
        if len(self._recent) > self._most:
            self._review()
            self._review()
        return made

    def _make(self, index: int) -> Any:
        data = self._data[self._ends[index] : self._ends[index + 1]]
        unpickler: pickle.Unpickler
        if self._numbers:
            unpickler = _ElementUnpickler(io.BytesIO(data), buffers=self._buffers(index))
        else:
            unpickler = pickle.Unpickler(io.BytesIO(data))
        unpickler.persistent_load = self._common.__getitem__  # type: ignore[method-assign]
        return unpickler.load()

    def _buffers(self, index: int) -> list[memoryview]:
        if not self._numbers:
            return []
        return [self._lookup(n) for n in self._numbers[self._numbers_ends[index] : self._numbers_ends[index + 1]]]

    def _review(self) -> None:
        """Let go of the element that was read longest ago, unless it is held or has been changed."""
        # No lock: a loader process may be forked while another thread is here.
        try:
            index = self._recent.popleft()
        except IndexError:
            return
        element = self._held.get(index)
        if sys.getrefcount(element) > _OWN:
            self._recent.append(index)
        elif not self._has_changed(index, element):
            self._held.pop(index, None)

    def _has_changed(self, index: int, element: Any) -> bool:
        if _has_tensor(element) and _alike(element, self._make(index)):
            return False
        if self._pickler is None:
            self._pickler = ElementPickler({id(thing): n for n, thing in enumerate(self._common)})
        try:
            data, buffers = self._pickler.one(element)
            now = data, _places(buffers)
            if now == (bytes(self._data[self._ends[index] : self._ends[index + 1]]), _places(self._buffers(index))):
                return False
            # A pickle may differ in what two equal strings share: one that went the same way has the same.
            data, buffers = self._pickler.one(self._make(index))
            return now != (data, _places(buffers))
        except Exception:  # noqa: BLE001 - what cannot be compared is kept
            return True

    def state(self, lookup: Any, keep: Callable[[memoryview], int]) -> tuple[Any, ...]:
        """What `fill` is given in the copy. lookup: stands for the copy's. keep: takes a buffer, gives its number."""
        changed = {
            index: element
            for index, element in list(self._held.items())
            if sys.getrefcount(element) > _OWN + 1 or self._has_changed(index, element)
        }
        numbers = array("q", [keep(self._lookup(number)) for number in self._numbers])
        parts: list[Any] = [self._data, self._ends.cast("B"), numbers, self._numbers_ends.cast("B")]
        return (*map(pickle.PickleBuffer, parts), self._common, changed, lookup)


def _has_tensor(element: Any) -> bool:
    """Whether it is a tensor, or there is one right inside."""
    kind = type(element)
    inside = element.values() if kind is dict else element if kind in _PLAIN else (element,)
    return any(type(one) is torch.Tensor for one in inside)


def _alike(one: Any, made: Any) -> bool:
    """Whether a tensor, or a flat container of some, still is what was made of its pickle; False: a pickle will tell.

    To make one takes a third of the time that its pickle does. What is in a tensor is no matter: that lies in the buffer.
    """
    kind = type(one)
    if kind is not type(made):
        return False
    if kind not in _PLAIN:
        return _same_inside(one, made)
    if len(one) != len(made):
        return False
    if kind is dict:
        return all(map(_same_atom, one, made)) and all(map(_same_inside, one.values(), made.values()))
    return all(map(_same_inside, one, made))


def _same_inside(one: Any, made: Any) -> bool:
    if type(one) is type(made) is torch.Tensor:
        return one is made or _same_view(one, made)
    return _same_atom(one, made)


def _same_atom(one: Any, made: Any) -> bool:
    kind = type(one)
    if kind is not type(made) or kind not in ATOMS:
        return False
    return bool(one == made) if kind not in (float, complex) else repr(one) == repr(made)  # -0.0, and what is not a number


def _same_view(one: torch.Tensor, made: torch.Tensor) -> bool:
    """The same elements in memory, and nothing else that a pickle tells of a tensor."""
    if one.layout is not torch.strided or one.requires_grad or made.requires_grad or one.__dict__:
        return False
    return (
        (one.data_ptr(), one.shape, one.stride(), one.dtype) == (made.data_ptr(), made.shape, made.stride(), made.dtype)
        and (one.is_conj(), one.is_neg(), one.untyped_storage().nbytes()) == (made.is_conj(), made.is_neg(), made.untyped_storage().nbytes())
    )  # fmt: skip


def _places(buffers: Sequence[Any]) -> list[tuple[int, int]]:
    raws = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
    return [(address_of(raw), raw.nbytes) for raw in raws]
