"""The shelf: large buffers that lie ready from one parcel to the next, and are placed once.

A buffer is known again by where it is in memory and by its bytes: all of them are compared with what lies in the
segment, so that a tensor that was changed in place is placed anew. What the latest parcel does not use is let go.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.share.capacity import Capacity
from workbench.share.segment import Segment, Views, address_of

LARGE = 1 << 20
"""Buffers from this size on lie on the shelf; the others travel with each parcel."""

_ALONE = 8 << 20
"""From this size on a buffer has a segment of its own, which can be let go of without another."""

_MOST_ALONE = 32
_MOST = 100
"""With more segments all are placed anew: each is a file descriptor in a job's letter, which has room for few."""

Spot = tuple[Segment, int]
"""A segment, and which of its buffers."""

_compare = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class _Shelved:
    """A segment on the shelf, mapped to be compared with."""

    segment: Segment
    views: Views
    sources: list[tuple[int, int]]
    """Where in this process's memory each of its buffers came from, and its size."""
    nbytes: int


class BufferCache:
    """The segments with the large buffers of the latest parcel. For one thread at a time."""

    def __init__(self) -> None:
        self._shelved: list[_Shelved] = []

    @property
    def nbytes(self) -> int:
        """The size of all that lies here."""
        return sum(one.nbytes for one in self._shelved)

    def place(self, buffers: Sequence[Any], room: Capacity | None = None) -> tuple[dict[int, Spot], list[str]]:
        """Where each large one of these lies now, by its number, and what to tell of it."""
        wanted: dict[tuple[int, int], list[int]] = {}
        raws: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        for number, buffer in enumerate(buffers):
            flat = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer).cast("B")
            if flat.nbytes >= LARGE:
                raw = np.frombuffer(flat, dtype=np.uint8)
                source = (address_of(raw), raw.nbytes)
                wanted.setdefault(source, []).append(number)
                raws[source] = raw
        if len(self._shelved) > _MOST:
            self.close()
        spots = self._known(raws)
        self._let_go(set(spots))
        spots = {source: spot for source, spot in spots.items() if spot[0] in {one.segment for one in self._shelved}}
        notes: dict[str, None] = {}
        for group in _groups([source for source in raws if source not in spots]):
            folder, note = (None, None) if room is None else room.for_size(sum(size for _, size in group))
            segment = Segment.place([raws[source] for source in group], folder)
            notes |= {} if note is None else {note: None}
            self._shelved.append(_Shelved(segment, segment.views(), group, sum(size for _, size in group)))
            spots |= {source: (segment, index) for index, source in enumerate(group)}
        return {number: spots[source] for source, numbers in wanted.items() for number in numbers}, list(notes)

    def _known(self, raws: dict[tuple[int, int], np.ndarray[Any, Any]]) -> dict[tuple[int, int], Spot]:
        """Of these, those that lie here as they are."""
        found: dict[tuple[int, int], Spot] = {}
        for one in self._shelved:
            for index, source in enumerate(one.sources):
                if source in raws and _same(raws[source], one.views[index]):
                    found[source] = (one.segment, index)
        return found

    def _let_go(self, used: set[tuple[int, int]]) -> None:
        """A segment goes when half of it or more is not used: what is left is placed anew."""
        kept = []
        for one in self._shelved:
            if sum(size for address, size in one.sources if (address, size) in used) * 2 > one.nbytes:
                kept.append(one)
            else:
                one.segment.close()
        self._shelved = kept

    def spot(self, source: tuple[int, int]) -> Spot | None:
        """Where memory (an address and a size) lies here, if its bytes are still what they were."""
        memory = np.frombuffer(memoryview((ctypes.c_ubyte * source[1]).from_address(source[0])).cast("B"), dtype=np.uint8)
        return self._known({source: memory}).get(source)

    def moved(self, source: tuple[int, int], to: tuple[int, int]) -> None:
        """What was in this memory is in that from now on."""
        for one in self._shelved:
            one.sources = [to if known == source else known for known in one.sources]

    def close(self) -> None:
        """Let go of everything."""
        self._let_go(set())


def _groups(sources: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Which buffers share a segment: the largest have one each, as far as there are few of them."""
    by_size = sorted(sources, key=lambda source: -source[1])
    alone = [source for source in by_size[:_MOST_ALONE] if source[1] >= _ALONE]
    rest = by_size[len(alone) :]
    return [*([source] for source in alone), *([rest] if rest else [])]


def _same(raw: np.ndarray[Any, Any], view: memoryview) -> bool:
    there = np.frombuffer(view, dtype=np.uint8)
    # Memory that is mapped from the segment and was not written to is compared with itself.
    return raw.nbytes == there.nbytes and _compare(address_of(raw), address_of(there), raw.nbytes) == 0
