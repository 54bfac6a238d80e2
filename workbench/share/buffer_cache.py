"""Caches large buffers in shared memory between jobs, so that each is copied once.

A buffer is recognized by its address and its bytes: all of them are compared with the segment, so
that a tensor that was changed in place is copied again. What the latest package does not use is
freed.
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
"""Buffers from this size on are cached; smaller ones travel with each package."""

_ALONE = 8 << 20
"""From this size on a buffer has a segment of its own, which can be freed alone."""

_MOST_ALONE = 32
_MOST = 100
"""With more segments all are placed again: each is a file descriptor in a job's message, which
has room for few.
"""

Spot = tuple[Segment, int]
"""A segment, and the index of a buffer in it."""

_compare = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class _CachedBuffer:
    """A cached segment, mapped for comparison."""

    segment: Segment
    views: Views
    sources: list[tuple[int, int]]
    """The address and size, in this process, of the memory that each buffer was copied from."""
    nbytes: int


class BufferCache:
    """Keeps the segments with the large buffers of the latest package. Not thread-safe."""

    def __init__(self) -> None:
        self._cached: list[_CachedBuffer] = []

    @property
    def nbytes(self) -> int:
        """The total size of its segments, in bytes."""
        return sum(cached.nbytes for cached in self._cached)

    def place(
        self, buffers: Sequence[Any], capacity: Capacity | None = None
    ) -> tuple[dict[int, Spot], list[str]]:
        """Put each large buffer into a segment, unless one has it already.

        Returns the place of each by its index, and messages for the user about memory. Raises
        NotEnoughMemory.
        """
        wanted: dict[tuple[int, int], list[int]] = {}
        raws: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        for number, buffer in enumerate(buffers):
            flat = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer).cast("B")
            if flat.nbytes >= LARGE:
                raw = np.frombuffer(flat, dtype=np.uint8)
                source = (address_of(raw), raw.nbytes)
                wanted.setdefault(source, []).append(number)
                raws[source] = raw
        if len(self._cached) > _MOST:
            self.close()
        slots = self._known(raws)
        self._free_unused(set(slots))
        slots = {
            source: slot
            for source, slot in slots.items()
            if slot[0] in {cached.segment for cached in self._cached}
        }
        notes: dict[str, None] = {}
        for group in _groups([source for source in raws if source not in slots]):
            folder, note = (
                (None, None)
                if capacity is None
                else capacity.for_size(sum(size for _, size in group))
            )
            segment = Segment.place([raws[source] for source in group], folder)
            notes |= {} if note is None else {note: None}
            self._cached.append(
                _CachedBuffer(segment, segment.views(), group, sum(size for _, size in group))
            )
            slots |= {source: (segment, index) for index, source in enumerate(group)}
        return {
            number: slots[source] for source, numbers in wanted.items() for number in numbers
        }, list(notes)

    def _known(
        self, raws: dict[tuple[int, int], np.ndarray[Any, Any]]
    ) -> dict[tuple[int, int], Spot]:
        """Return the places of the buffers that are cached and unchanged."""
        spots: dict[tuple[int, int], Spot] = {}
        for cached in self._cached:
            for index, source in enumerate(cached.sources):
                if source in raws and _same(raws[source], cached.views[index]):
                    spots[source] = (cached.segment, index)
        return spots

    def _free_unused(self, used: set[tuple[int, int]]) -> None:
        """Free each segment of which half or more is unused. What it still holds is then placed
        again.
        """
        kept = []
        for cached in self._cached:
            if (
                sum(size for address, size in cached.sources if (address, size) in used) * 2
                > cached.nbytes
            ):
                kept.append(cached)
            else:
                cached.segment.close()
        self._cached = kept

    def slot(self, source: tuple[int, int]) -> Spot | None:
        """The place of memory (an address and a size) in the cache, if its bytes are unchanged."""
        memory = np.frombuffer(
            memoryview((ctypes.c_ubyte * source[1]).from_address(source[0])).cast("B"),
            dtype=np.uint8,
        )
        return self._known({source: memory}).get(source)

    def moved(self, source: tuple[int, int], to: tuple[int, int]) -> None:
        """Record that the contents of the memory `source` are now in the memory `to`."""
        for cached in self._cached:
            cached.sources = [to if known == source else known for known in cached.sources]

    def close(self) -> None:
        """Free everything."""
        self._free_unused(set())


def _groups(sources: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group buffers by segment: the largest have one each, as long as that makes few segments."""
    by_size = sorted(sources, key=lambda source: -source[1])
    alone = [source for source in by_size[:_MOST_ALONE] if source[1] >= _ALONE]
    rest = by_size[len(alone) :]
    return [*([source] for source in alone), *([rest] if rest else [])]


def _same(raw: np.ndarray[Any, Any], view: memoryview) -> bool:
    stored = np.frombuffer(view, dtype=np.uint8)
    # Memory that is mapped from the segment and was not written to is compared with itself.
    return (
        raw.nbytes == stored.nbytes
        and _compare(address_of(raw), address_of(stored), raw.nbytes) == 0
    )
