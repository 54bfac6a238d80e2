"""Commands: what a person tells a running job. Frozen records of plain data that only go down.

The engine looks into its inbox between updates; nobody else touches its state.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next update."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after a pause."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End at the next update and keep what there is."""


@dataclass(frozen=True, slots=True)
class Change:
    """New values for settings that may change while a run goes on, from the next update."""

    values: dict[str, float | None]


Command = Pause | Resume | Stop | Change


class Inbox(Protocol):
    """Where a job finds its commands."""

    def __bool__(self) -> bool:
        """Whether a command is waiting; asked at every update, so it must be cheap."""

    def take(self) -> Command | None:
        """The next command, or None."""

    def has(self, kind: type[Command]) -> bool:
        """Whether a command of this kind is waiting; it stays there."""

    def wait(self, timeout: float) -> bool:
        """Until a command arrives, `timeout` seconds at most; whether one is there."""


class Mailbox:
    """An inbox within one process: any thread puts, the engine's thread takes."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Condition()

    def put(self, command: Command) -> None:
        with self._arrived:
            self._commands.append(command)
            self._arrived.notify_all()

    def __bool__(self) -> bool:
        return bool(self._commands)

    def take(self) -> Command | None:
        return self._commands.popleft() if self._commands else None

    def has(self, kind: type[Command]) -> bool:
        """Whether a command of this kind is waiting; it stays there."""
        return any(isinstance(command, kind) for command in tuple(self._commands))

    def wait(self, timeout: float) -> bool:
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._commands), timeout)
