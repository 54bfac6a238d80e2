"""A list whose elements are in a buffer and become objects when they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any

import numpy as np

from workbench.share.elements import Elements, Numbers

LONG = 2000
"""Lists with this many elements are packed, and a slice of one stays packed."""


class PackedList(MutableSequence[Any]):
    """Replaces a long list in another process. With its first change it becomes a list of objects inside.

    It is not a subclass of list: C code would look into that and find nothing.
    """

    def __init__(self, source: Elements | Numbers, at: range) -> None:
        """at: which elements of the source they are."""
        self._source = source
        self._at = at
        self._real: list[Any] | None = None

    @property
    def packed(self) -> tuple[Elements | Numbers, range] | None:
        """Where the elements lie; None once they are a list of objects."""
        return None if self._real is not None else (self._source, self._at)

    def _own(self) -> list[Any]:
        """The elements as a list, which is to be changed."""
        if self._real is None:
            self._real = list(self)
        return self._real

    def __len__(self) -> int:
        return len(self._at if self._real is None else self._real)

    def __getitem__(self, index: Any) -> Any:
        if self._real is not None:
            return self._real[index]
        try:
            found = self._at[index]
        except IndexError:
            raise IndexError("list index out of range") from None
        if not isinstance(found, range):
            return self._source[found]
        return PackedList(self._source, found) if len(found) >= LONG else [self._source[at] for at in found]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._own()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def insert(self, index: int, value: Any) -> None:
        self._own().insert(index, value)

    def append(self, value: Any) -> None:
        self._own().append(value)

    def extend(self, values: Iterable[Any]) -> None:
        self._own().extend(values)

    def reverse(self) -> None:
        self._own().reverse()

    def clear(self) -> None:
        self._real = []

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        self._own().sort(key=key, reverse=reverse)

    def copy(self) -> Any:
        return PackedList(self._source, self._at) if self._real is None else self._real.copy()

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        made: list[Any] = []
        memo[id(self)] = made
        made.extend(copy.deepcopy(element, memo) for element in self)
        return made

    def __reduce__(self) -> Any:
        """Outside a parcel: a list."""
        return list, (), None, iter(self)

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list | PackedList) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, count: int) -> list[Any]:
        return list(self) * count

    __rmul__ = __mul__

    def __imul__(self, count: int) -> PackedList:
        self._own().__imul__(count)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | PackedList):
            return NotImplemented
        if self is other:
            return True
        return len(self) == len(other) and all(a is b or a == b for a, b in zip(self, other, strict=False))

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> bool:
        return list(self) < list(other) if isinstance(other, list | PackedList) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return list(self) > list(other) if isinstance(other, list | PackedList) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return list(self) <= list(other) if isinstance(other, list | PackedList) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return list(self) >= list(other) if isinstance(other, list | PackedList) else NotImplemented

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self):  # as a list: it may grow or shrink meanwhile
            yield self[index]
            index += 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(list(self), dtype=dtype)

    def __repr__(self) -> str:
        if len(self) <= LONG:
            return repr(list(self))
        return f"[{', '.join(map(repr, self[:3]))}, … {len(self):,} in all]"
