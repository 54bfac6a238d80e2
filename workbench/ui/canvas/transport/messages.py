"""Packs changes into messages of bounded size: JSON, and rows of float32 as buffers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workbench.ui.canvas.transport.channels import Channel, Channels

LIMIT = 40_000
"""How many bytes a message may have, JSON and buffers together."""
_FRAME = 200
"""Bytes for the description of one part."""
_ROOM = LIMIT - _FRAME
"""Bytes for values and rows."""


def cut(text: str, size: int) -> str:
    """The longest beginning of `text` that takes at most `size` bytes in JSON, where one
    character may take twelve.
    """
    length = 0
    for i, character in enumerate(text):
        length += len(json.dumps(character)) - 2
        if length > size:
            return text[:i]
    return text


@dataclass(frozen=True, slots=True)
class Packet:
    """One message. `content` is its JSON and describes the buffers, which are rows of the
    channels in the order of `parts`.
    """

    content: dict[str, Any]
    buffers: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(json.dumps(self.content)) + sum(map(len, self.buffers))


class Outbox:
    """The changes that the browser does not have yet. `take` returns the next message with some
    of them.
    """

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._held: frozenset[str] = frozenset()

    def put(self, key: str, value: Any) -> None:
        """Queue a small value of plain data. Only the newest value of a key is sent; ValueError:
        it is too large for a message.
        """
        if key in self._values and self._values[key] == value:
            return
        text = json.dumps({key: value}, allow_nan=False)
        if len(text) > _ROOM:
            raise ValueError(f"{key!r} is too long for one message ({len(text)} bytes)")
        self._values[key], self._sizes[key] = value, len(text)
        self._changed[key] = None

    def hold(self, names: Iterable[str]) -> None:
        """Send none of these values and channels for now; those of the last call are sent again.

        The name of a value with parts ("notes.0003") is what is before the point.
        """
        self._held = frozenset(names)

    def holds(self, name: str) -> bool:
        """Whether a value or a channel is not sent for now."""
        return name in self._held

    def everything(self) -> None:
        """Queue everything again from the start, since a view has opened."""
        self._changed = dict.fromkeys(self._values)
        for channel in self._channels.values():
            channel.restart()

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._due) or any(c.unsent is not None for c in self._open.values())

    @property
    def _due(self) -> list[str]:
        return [key for key in self._changed if key.partition(".")[0] not in self._held]

    @property
    def _open(self) -> Channels:
        return {name: channel for name, channel in self._channels.items() if name not in self._held}

    def take(self) -> Packet | None:
        """The next message, or None when the browser has everything."""
        if not self.waiting:
            return None
        room = _ROOM
        state: dict[str, Any] = {}
        for key in self._due:
            if self._sizes[key] <= room:
                room -= self._sizes[key]
                state[key] = self._values[key]
                del self._changed[key]
        parts: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        for name, channel in self._open.items():
            if channel.unsent is not None:
                header, data = _part(name, channel, room - _FRAME)
                if header is not None:
                    parts.append(header)
                    buffers.append(data)
                    room -= _FRAME + len(data)
        return Packet({"type": "draw", "state": state, "parts": parts}, tuple(buffers))


def _part(name: str, channel: Channel, room: int) -> tuple[dict[str, Any] | None, bytes]:
    start = channel.unsent
    assert start is not None
    stop = min(channel.length, start + max(0, room) // (4 * channel.columns))
    if room < 0 or (stop <= start and channel.length > start):
        return None, b""
    data = channel.rows(start, stop).tobytes()
    more = stop < channel.length
    channel.unsent = stop if more else None
    header = {
        "channel": name, "generation": channel.generation, "start": start, "rows": stop - start,
        "columns": channel.columns, "more": more, **channel.head(),
    }  # fmt: skip
    return header, data
