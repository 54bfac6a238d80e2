"""Packs long lists: finds what their elements share, and makes one buffer of all of their pickles.

An element is pickled alone, so what it shares with another element, or with the rest of the package, must not go into
its pickle: it would become two. Everything that is pickled is therefore checked. What only one reference leads to is
not shared. The rest is remembered, and what is met a second time is common: it goes into the package's own pickle once,
and the elements refer to it by number. So identity survives, and a large object that all elements refer to is there
once. A list most of whose elements are shared is left to the ordinary pickle.
"""

from __future__ import annotations

import io
import itertools
import pickle
import sys
import types
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from workbench.share.elements import ATOMS, ElementPickler, Elements, Numbers, narrow
from workbench.share.packed_list import LONG, PackedList
from workbench.share.pickling import Keep, Pickler, Unpickler, by_reference

_TEXTS = frozenset({str, bytes})
_SHORT = 40
"""Texts up to here are repeated in each pickle; longer ones that several elements share are common."""

_SAMPLE, _MOST_SAMPLED, _MOST_FREQUENT = 256, 1 << 20, 64

_CODE = (type, types.FunctionType, types.MethodType, types.ModuleType)
_ROUNDS = 4
_HELD_HERE = 3
"""References to a list from `_Survey.lists`, `_Survey._outside` and an argument."""
_DEPTH = 3
_STATE = 100_000
"""A module's list that has more elements is its data."""
_HEAP_TYPE = 1 << 9
"""In a type's flags: it was made by a class statement."""

_LOOKUP = "buffers"


class _Lookup:
    """Stands in a pickle for the parcel's buffers."""


class _Unpackable(Exception):
    """These lists (by id) are better left to the ordinary pickle."""

    def __init__(self, lists: set[int]) -> None:
        self.lists = lists


class _Probe(pickle.Pickler):
    least = 0

    def persistent_id(self, obj: Any) -> Any:
        self.least = sys.getrefcount(obj)


def _least() -> int:
    """How often an object that one reference leads to counts in `persistent_id`, at the least."""
    probe = _Probe(io.BytesIO())
    probe.dump(([],))  # the last one it sees is inside: nothing but a tuple holds it
    return probe.least


_ALONE = _least()


class ListPickler(Pickler):
    """A parcel's pickler, with long lists as `PackedList`s. `dump` twice gives nothing: take `pickled`."""

    def __init__(self, file: io.BytesIO, keep: Keep, extra: list[Any], survey: _Survey) -> None:
        super().__init__(file, keep)
        self._extra = extra
        self._survey = survey

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in ATOMS:
            return None
        if kind is _Lookup:
            return _LOOKUP
        found = self._survey.stand_in(obj) if kind is list and len(obj) >= LONG else None
        if found is None and sys.getrefcount(obj) > _ALONE:
            self._survey.met(obj)
        return found

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is PackedList and obj.packed is not None:
            return PackedList, obj.packed
        if kind is Elements:
            return Elements, (), obj.state(_Lookup(), self._number), None, None, _fill
        found = super().reducer_override(obj)
        in_c = not kind.__flags__ & _HEAP_TYPE and not isinstance(obj, _CODE) and kind not in self.dispatch_table
        if found is NotImplemented and in_c:
            found = obj.__reduce_ex__(5)
            # What is written in C (an array of objects) wants true lists back.
            self._leave_lists([part for part in found[1:3] if part is not None] if isinstance(found, tuple) else [])
        elif isinstance(obj, torch.nn.Module):
            # What forward() appends to is state, and comes back as what it is.
            self._leave_lists([vars(obj)], _STATE)
        return found

    def _leave_lists(self, parts: list[Any], most: int = sys.maxsize) -> None:
        """Lists among these, and a little way inside, stay as they are, unless they have more elements than `most`."""
        for _ in range(_DEPTH):
            found = [part for part in parts if type(part) is list]
            self._survey.leave([one for one in found if LONG <= len(one) <= most])
            inside = (p.values() if type(p) is dict else p for p in parts if type(p) in (dict, tuple))
            parts = list(itertools.chain.from_iterable(inside))

    def _number(self, buffer: Any) -> int:
        self._extra.append(buffer)
        return len(self._extra) - 1


class ListUnpickler(Unpickler):
    """The other side. lookup: gives a parcel's extra buffers by their numbers."""

    def __init__(self, file: io.BytesIO, buffers: Any, lookup: Callable[[int], memoryview]) -> None:
        super().__init__(file, buffers)
        self._lookup = lookup

    def persistent_load(self, pid: Any) -> Any:
        return self._lookup if pid == _LOOKUP else pid


def _fill(elements: Elements, state: tuple[Any, ...]) -> None:
    elements.fill(*state)


@dataclass
class Pickled:
    """A pickle, and what lies beside it."""

    code: bytes
    buffers: list[Any]
    extra: list[Any] = field(default_factory=list)
    """The buffers of packed lists."""
    devices: set[str] = field(default_factory=set)
    tensors: tuple[torch.Tensor, ...] = ()
    """The plain tensors in it, outside of packed lists."""


def pickled(value: Any) -> Pickled:
    """The pickle of `value`, with its long lists packed."""
    plain: set[int] = set()
    common: dict[int, Any] = {}
    for last in [False] * _ROUNDS + [True]:
        survey = _Survey(plain, common, none=last)
        found = _dumped(value, survey)
        if not survey.lists:
            return found
        del found
        if survey.met_too_early:
            plain |= survey.met_too_early
            continue
        try:
            survey.pack()
        except _Unpackable as error:
            plain |= error.lists
            continue
        found = _dumped(value, survey)
        if not survey.missed:
            return found
        common |= survey.missed  # met only beside what is common: known from the start the next time
    raise AssertionError("unreachable")  # the last round packs no list


def _dumped(value: Any, survey: _Survey) -> Pickled:
    file, buffers, extra = io.BytesIO(), list[Any](), list[Any]()
    pickler = ListPickler(file, buffers.append, extra, survey)
    pickler.dump(value)
    return Pickled(file.getvalue(), buffers, extra, pickler.devices | survey.devices, tuple(pickler.tensors.values()))


class _Survey:
    """What one pack has met: first outside of long lists, then in their elements."""

    def __init__(self, plain: set[int], common: dict[int, Any], none: bool) -> None:
        """plain: lists that stay as they are (none: all of them). common: what is known to be shared, by id."""
        self._plain, self._none = plain, none
        self.lists: dict[int, list[Any]] = {}
        self.devices: set[str] = set()
        self.missed: dict[int, Any] = {}
        self._left: dict[int, list[Any]] = {}
        self._outside = dict(common)
        self._packer: _Packer | None = None
        self._stand_ins: dict[int, PackedList] = {}

    def stand_in(self, found: list[Any]) -> Any:
        """What the pickle has in the place of a long list; None where it is to be pickled as it is."""
        if self._packer is not None:
            return self._stand_ins.get(id(found))
        if self._none or id(found) in self._plain or id(found) in self._left:
            return None
        self.lists[id(found)] = found
        self._outside[id(found)] = found
        return _LOOKUP

    def leave(self, lists: list[list[Any]]) -> None:
        """These are to stay as they are, wherever else they have been met or will be."""
        self._left |= {id(found): found for found in lists}

    @property
    def met_too_early(self) -> set[int]:
        """Lists that are to stay as they are, and had been met before that was known."""
        return self._left.keys() & self.lists.keys()

    def met(self, obj: Any) -> None:
        """The rest of the parcel has something that more than one reference leads to."""
        if self._packer is None:
            self._outside[id(obj)] = obj
        elif id(obj) in self._packer.inside and id(obj) not in self._packer.common:
            self.missed[id(obj)] = obj

    def pack(self) -> None:
        """Make stand-ins of all lists that were met."""
        packer = self._packer = _Packer(self._outside)
        others = {}
        # Held here alone: it was made while it was pickled, and the next time there will be another one.
        passing = [key for key in self.lists if sys.getrefcount(self.lists[key]) <= _HELD_HERE]
        for key in passing:
            del self.lists[key]
        for key, found in self.lists.items():
            numbers = Numbers.of(found)
            if numbers is not None:
                self._stand_ins[key] = PackedList(numbers, range(len(numbers)))
            else:
                others[key] = found
        packer.give(_frequent([one for found in others.values() for one in found[:: max(1, len(found) // _SAMPLE)]]))
        for key, found in others.items():
            self._stand_ins[key] = PackedList(packer.elements, packer.add(key, found))
        packer.finish()
        self.devices = packer.devices


class _Sampler(ElementPickler):
    """Counts in how many elements each class, function and text is met."""

    def __init__(self) -> None:
        super().__init__({})
        self.counts: Counter[int] = Counter()
        self.met: dict[int, Any] = {}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType)):
            self.met[id(obj)] = obj
            return None if by_reference(obj) else 0
        if type(obj) is str and 1 < len(obj) <= _SHORT:
            self.met[id(obj)] = obj
        return None


def _frequent(elements: Sequence[Any]) -> list[Any]:
    """What many elements have in common, and few others: their classes, keys, labels."""
    sampler, everything = _Sampler(), dict[int, Any]()
    size = 0
    for element in elements:
        if size > _MOST_SAMPLED:
            break
        size += len(sampler.one(element)[0])
        sampler.counts.update(sampler.met.keys())
        everything |= sampler.met
        sampler.met = {}
    found = [everything[key] for key, count in sampler.counts.most_common(_MOST_FREQUENT) if count > len(elements) // 32 + 1]
    # Texts are interned in the copy: of equal ones there is one.
    texts = {thing: thing for thing in found if type(thing) is str}
    return [thing for thing in found if type(thing) is not str or texts[thing] is thing]


class _Packer(ElementPickler):
    """Pickles the elements of all long lists of a package, one after the other."""

    def __init__(self, outside: dict[int, Any]) -> None:
        self.common: dict[int, int] = {}
        super().__init__(self.common)
        self.elements = Elements()
        self.inside: dict[int, int] = {}
        """What was met in an element, by id: in which one first."""
        self._outside = outside
        self._extra: list[pickle.PickleBuffer] = []
        self._named: set[int] = set()
        self._kept: list[Any] = []
        self._things: list[Any] = []
        self._values: list[Any] = []
        self._data = bytearray()
        self._sizes = array("q")
        self._beside: dict[int, list[int]] = {}
        self._again: set[int] = set()
        self._index = 0
        self._element: Any = None  # only while it has one reference, beside those here

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str and len(obj) <= _SHORT:  # asked of every object there is: the most frequent comes first
            return self.common.get(id(obj))
        if kind in ATOMS and (kind not in _TEXTS or len(obj) <= _SHORT):
            return None
        if sys.getrefcount(obj) <= _ALONE or obj is self._element:
            return None
        return self._number_of(obj)

    def _number_of(self, obj: Any) -> int | None:
        """The number of a common object, or None: so far it is no other element's."""
        key = id(obj)
        if key in self._named:
            return None
        number = self.common.get(key)
        if number is not None:
            return number
        first = self.inside.get(key)
        if isinstance(obj, _CODE):
            if by_reference(obj):
                self._named.add(key)
                self._kept.append(obj)
                return None
        elif first == self._index:
            return None
        elif first is None and key not in self._outside:
            self.inside[key] = self._index
            self._kept.append(obj)  # its id is its own as long as it is there
            return None
        if first is not None:
            self._again.add(first)
        number = self.common[key] = len(self._things)
        self._things.append(obj)
        return number

    def give(self, things: Sequence[Any]) -> None:
        """These are common from the start."""
        self._things += things
        self.common |= {id(thing): number for number, thing in enumerate(self._things)}

    def add(self, key: int, found: list[Any]) -> range:
        """Pickle the elements of one more list; where they will be."""
        start, known = len(self._values), len(self._things)
        self._values += found
        for index in range(start, len(self._values)):
            data = self._pickle(index)
            self._data += data
            self._sizes.append(len(data))
            if len(self._things) - known > 64 + (index - start) // 4:
                raise _Unpackable({key})
        return range(start, len(self._values))

    def _pickle(self, index: int) -> bytes:
        self._index = index
        # Its list's, that of `_values`, and the argument's.
        values = self._values
        self._element = values[index] if sys.getrefcount(values[index]) <= 3 else None
        data, buffers = self.one(values[index])
        if buffers:
            self._beside[index] = list(range(len(self._extra), len(self._extra) + len(buffers)))
            self._extra += buffers
        elif self._beside:
            self._beside.pop(index, None)
        return data

    def finish(self) -> None:
        """Elements that had what turned out to be common are pickled once more, and all are put together."""
        anew: dict[int, bytes] = {}
        while self._again:
            again, self._again = self._again, set()
            # What only they had, and have under something common now, is nobody's.
            for key in [key for key, index in self.inside.items() if index in again]:
                del self.inside[key]
            for index in sorted(again):
                anew[index] = self._pickle(index)
        data, ends = self._put_together(anew)
        extra, beside = self._extra, [self._beside.get(index, ()) for index in range(len(ends) - 1)] if self._beside else []
        self.elements.fill(
            data,
            ends,
            array("q", itertools.chain.from_iterable(beside)),
            array("q", [0, *itertools.accumulate(map(len, beside))]),
            tuple(self._things),
            {},
            lambda number: memoryview(extra[number]),  # not of `self`: all of it would stay until the next collection
        )

    def _put_together(self, anew: dict[int, bytes]) -> tuple[bytearray, array[int]]:
        """The pickles, those in `anew` as they are there, and where each begins, and the last one ends."""
        data, done = self._data, 0
        starts = [0, *itertools.accumulate(self._sizes)] if anew else []
        if anew:
            data = bytearray()
            for index in sorted(anew):
                data += memoryview(self._data)[done : starts[index]]
                data += anew[index]
                done = starts[index + 1]
                self._sizes[index] = len(anew[index])
            data += memoryview(self._data)[done:]
        ends = array(narrow(len(data)), [0])
        ends.extend(itertools.accumulate(self._sizes))
        return data, ends
