"""Defines the messages between the owner of a pool and its ranks, besides events and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.commands import Command

# -- down


@dataclass(frozen=True, slots=True)
class RankConfig:
    """To a new rank: its number, the number of ranks, and how they find each other."""

    rank: int
    world: int
    environment: Mapping[str, str]
    store: str
    """The file through which they find each other."""
    backend: str
    device: int | None
    """The number of its GPU among those that it sees."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """A job; the file descriptors of its package come with it."""

    commands: tuple[Command, ...] = ()
    """For rank 0: those that came while the job waited."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for the progress."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """To rank 0, when it waits for a lost rank: send the present state of the task."""


@dataclass(frozen=True, slots=True)
class RecordFlushed:
    """The record holds everything before the `FlushRecord` of this number."""

    number: int


# -- up


@dataclass(frozen=True, slots=True)
class Pong:
    """How often rank 0 has checked for commands or emitted something: it grows while the job makes progress."""

    count: int


@dataclass(frozen=True, slots=True)
class FlushRecord:
    """Asks for a `RecordFlushed` once the record holds all events so far; rank 0 waits for it at most this long."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank has ended its job. Two packages come with it: rank 0's `Done`, or an error; rank 0's changes of the
    task.
    """

    failed: bool = False
    traceback: str = ""
    updates: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    """The user's own modules that it has imported, with their times of change."""


@dataclass(frozen=True, slots=True)
class StateReply:
    """The answer to `RequestState`; the package of the task's state comes with it."""

    updates: int
