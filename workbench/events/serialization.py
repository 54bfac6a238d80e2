"""Writes an event as one line of JSON, and reads it back."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Container, Mapping
from dataclasses import astuple, fields
from typing import Any, get_args

from workbench.events.columns import BY_LAYER, MEASURED
from workbench.events.event import Event
from workbench.events.json_fields import LARGEST, dataclass_from, json_object
from workbench.events.searches import CurveEnded, ProfileEnded
from workbench.events.training import LayersMeasured, StepsDone
from workbench.values import from_json

_TYPES: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in _TYPES.values()}
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_UNMEASURED = 1 << 8
"""The most rows that a flush without columns may have."""
_LONG = 1 << 22
"""The bytes of a line from which on it must be a flush, with the bytes of its columns as text."""
_ESCAPES, _NAME = 1000, 1000
"""How many escapes such a line may have, and the most bytes of the names that have them."""
_TABLE = 1 << 24
"""The most numbers of a table by layer, with the rows that were thinned out."""


def to_line(event: Event) -> str:
    """One event as one line of JSON, without the newline."""
    record: dict[str, Any] = {"type": type(event).__name__}
    for name in _FIELDS[type(event)]:
        record[name] = getattr(event, name)
    if isinstance(event, StepsDone):
        record["columns"] = {
            k: base64.b64encode(v).decode("ascii") for k, v in event.columns.items()
        }
    if isinstance(event, CurveEnded):
        record["suggestions"] = [[s.name, s.lr, s.index, s.why] for s in event.suggestions]
    if isinstance(event, LayersMeasured):
        record["layers"] = [astuple(layer) for layer in event.layers]
    if isinstance(event, ProfileEnded):
        record["operators"] = [astuple(operator) for operator in event.operators]
        record["kernels"] = [astuple(kernel) for kernel in event.kernels]
    return _ENCODER.encode(record)


def from_line(line: str | bytes, only: Container[str] | None = None) -> Event:
    """Read an event that `to_line` wrote. `only`: the columns of flushes that are wanted; the
    others are not decoded.

    Raises ValueError or TypeError for anything else: a field of another type, a count above 2^53, a
    column whose length is not that of its flush, data nested too deeply.
    """
    try:
        if len(line) > _LONG:
            _check_long(line.encode() if isinstance(line, str) else line)
        record = from_json(line)
        if not isinstance(record, dict):
            raise TypeError("a line of a record is a JSON object")
        return _checked(record, only)
    except (RecursionError, OverflowError, KeyError) as error:
        raise ValueError(f"not an event: {error!r}") from None


def _check_long(line: bytes) -> None:
    """Raise ValueError for a long line that is no flush, or that would take several times its
    length in memory.
    """
    if not line.startswith(b'{"type":"StepsDone",') or not line.isascii():
        raise ValueError(f"a line of more than {_LONG} bytes that is no flush")
    position, escapes = line.find(b"\\"), 0
    while position >= 0:  # in a long text, one sign would make all others four bytes wide
        escapes += 1
        first, last = (
            line.rfind(b'"', max(0, position - _NAME), position),
            line.find(b'"', position + 2, position + _NAME),
        )
        if first < 0 or last < 0 or escapes > _ESCAPES:
            raise ValueError("escapes in a long text")
        position = line.find(b"\\", position + 2)


def _checked(record: dict[str, Any], only: Container[str] | None) -> Event:
    name = record.pop("type")
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"no event is called {name!r:.80}")
    if kind is StepsDone:
        record["columns"], texts = {}, json_object(record.get("columns"))
    event: Event = dataclass_from(kind, record)
    if isinstance(event, StepsDone):
        _check_flush(event, texts)
        for column, text in texts.items():
            if only is None or column in only:
                event.columns[column] = binascii.a2b_base64(text, strict_mode=True)
    return event


def _check_flush(event: StepsDone, texts: Mapping[str, Any]) -> None:
    """Check that the columns are as long as the flush says, without decoding them; ValueError if
    not.
    """
    if (
        event.step < 0
        or event.every < 1
        or event.rows < 0
        or event.layers_every < 1
        or event.step + event.every * event.rows > 2 * LARGEST
    ):
        raise ValueError("updates are counted from 0 on")
    if not math.isfinite(event.seconds) or not math.isfinite(event.waited):
        raise ValueError("a time is a finite number")
    single = False
    first, every = event.step // event.every, event.layers_every
    by_layer = 4 * ((first + event.rows - 1) // every - (first - 1) // every)
    for name, text in texts.items():
        size, column = _decoded_size(text), (8 if name in event.double else 4) * event.rows
        if name in BY_LAYER:
            fits = name not in event.double and (size % by_layer == 0 if by_layer else size == 0)
            fits = fits and (event.layers_every == 1 or size * event.rows <= by_layer * _TABLE)
        else:  # one of a newer version may be a table
            fits = size == column or bool(
                column and size % column == 0 and not MEASURED.fullmatch(name)
            )
            single |= size == column
        if not fits:
            raise ValueError(f"column {name!r:.80} does not have {event.rows} rows")
    if not single and event.rows > _UNMEASURED:
        raise ValueError(f"{event.rows} updates of which nothing was measured")


def _decoded_size(text: object) -> int:
    """Return how many bytes a base64 text encodes."""
    if not isinstance(text, str) or len(text) % 4:
        raise ValueError("a column is base64 text")
    return len(text) // 4 * 3 - text[-2:].count("=")
