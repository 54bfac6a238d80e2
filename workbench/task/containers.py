"""The containers whose contents can be replaced in place."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any

_FILLS: tuple[tuple[type, str, tuple[Any, ...]], ...] = (
    (list, "extend", (list.extend,)),
    (deque, "extend", (deque.extend,)),
    (set, "update", (set.update,)),
    (dict, "update", (dict.update, OrderedDict.update, Counter.update)),
)
"""Kinds of containers and how to fill an empty one; a class with its own `__reduce__` is not among them."""


def is_container(value: Any) -> bool:
    """Whether it is a list, dict, set or deque that `refill` can fill."""
    return any(isinstance(value, kind) and getattr(type(value), fill) in usual for kind, fill, usual in _FILLS)


def refill(container: Any, content: Any) -> None:
    """Replace the contents of a container."""
    fill = next(fill for kind, fill, _ in _FILLS if isinstance(container, kind))
    container.clear()
    getattr(container, fill)(content)
