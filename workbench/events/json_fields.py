"""Reads the fields of a dataclass from JSON data, each checked against the type that the class
names.

A record may come from an untrusted source: counts above 2^53 and data nested too deeply are errors.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1 << 53
"""The largest count that a record may hold: beyond it, float64 cannot represent every integer."""
_DEEPEST = 32
"""The most levels of containers within a setting."""

_Read = Callable[[Any], Any]


def dataclass_from(kind: type, record: Mapping[str, Any]) -> Any:
    """Make an object of a frozen class from its fields by name. Each must have the type that the
    class names; unknown fields are an error.
    """
    readers = _readers_of(kind)
    values = {}
    for name, value in record.items():
        if name not in readers:
            raise ValueError(f"{kind.__name__} has no {name!r:.80}")
        try:
            values[name] = readers[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from None
    return kind(**values)


@cache
def _readers_of(kind: type) -> dict[str, _Read]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _reader(hint: Any) -> _Read:
    """Return a function that reads a value of this type from JSON data, and raises TypeError or
    ValueError for any other value.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return _plain
    if hint in (bool, str, bytes):
        return lambda value: _of(hint, value)
    if hint is int:
        return _count
    if hint is float:
        return _number
    if hint is type(None):
        return _none
    if origin is Literal:
        return lambda value: _one_of(inner, value)
    if origin in (Union, types.UnionType):
        return _any_of([_reader(argument) for argument in inner])
    if origin is dict:
        read = _reader(inner[1])
        return lambda value: {key: read(item) for key, item in json_object(value).items()}
    if origin is tuple and inner[1:] == (...,):
        read = _reader(inner[0])
        return lambda value: tuple(map(read, _list(value)))
    if origin is tuple:
        parts = [_reader(argument) for argument in inner]
        return lambda value: tuple(
            read(item) for read, item in zip(parts, _list(value), strict=True)
        )
    names = [f.name for f in fields(hint)]  # of a class: its fields in order
    return lambda value: dataclass_from(hint, dict(zip(names, _list(value), strict=True)))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is not a {kind.__name__}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise TypeError(f"{value!r:.80} is not a whole number that can be counted with")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.80} is not a number")
    # Whole numbers stay what they are (batch_size=32); numpy does not take those that are too
    # large.
    return value if isinstance(value, int) and abs(value) < 1 << 53 else float(value)


def _none(value: Any) -> None:
    if value is not None:
        raise TypeError(f"{value!r:.80} is not null")


def _one_of(known: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{value!r:.80} is none of {', '.join(map(repr, known))}")
    return value


def _any_of(readers: list[_Read]) -> _Read:
    def read(value: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(value)
            except (TypeError, ValueError):
                continue
        return readers[-1](value)

    return read


def _list(value: Any) -> list[Any]:
    checked: list[Any] = _of(list, value)
    return checked


def json_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object; otherwise raise TypeError."""
    checked: dict[str, Any] = _of(dict, value)
    return checked


def _plain(value: Any, depth: int = 0) -> Any:
    """Return JSON data after a check that it is not nested too deeply and its numbers are not
    too large.
    """
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} containers within one another")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("a number of more than 64 bits")
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    return value
