"""Defines the messages, besides events and commands, between the process that owns a pool and
its ranks.
"""

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
    """For rank 0: the commands that came while the job waited."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks rank 0 for its progress; the answer is a `Pong`."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """Asks rank 0 for the present state of the task, when it waits for a lost rank."""


@dataclass(frozen=True, slots=True)
class RecordFlushed:
    """The record holds everything before the `FlushRecord` of this number."""

    number: int


# -- up


@dataclass(frozen=True, slots=True)
class Terminated:
    """The rank got SIGTERM: the job is to stop."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Counts how often rank 0 has checked for commands or emitted an event: the count grows
    while the job makes progress.
    """

    count: int


@dataclass(frozen=True, slots=True)
class FlushRecord:
    """Asks for a `RecordFlushed` once the record holds all events so far; rank 0 waits for it at
    most this long.
    """

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank has ended its job. Two packages come with it: rank 0's `Done`, or an error; and
    rank 0's `ModuleDiff`.
    """

    failed: bool = False
    traceback: str = ""
    updates: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    """The user's own modules that it has imported, with their times of change."""


@dataclass(frozen=True, slots=True)
class StateReply:
    """The answer to `RequestState`; the package of a `ModuleDiff` comes with it."""

    updates: int
