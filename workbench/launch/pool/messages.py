"""What the owner of a pool and its ranks say to each other, beside events and commands, which travel as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# -- down


@dataclass(frozen=True, slots=True)
class Placement:
    """To a new rank: which one of how many it is, and how they find each other. Its place does not change."""

    rank: int
    world: int
    environment: Mapping[str, str]
    store: str
    """The file through which they find each other."""
    backend: str
    device: int | None
    """The number of its GPU, as it sees them."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """A job; its letter's file descriptors come with it."""


@dataclass(frozen=True, slots=True)
class Ping:
    """How far are you?"""


@dataclass(frozen=True, slots=True)
class Exit:
    """To rank 0, which waits for a rank that is lost: what is there of the task?"""


@dataclass(frozen=True, slots=True)
class Settled:
    """The record holds all that came before the `Settle` of this number."""

    number: int


# -- up


@dataclass(frozen=True, slots=True)
class Pong:
    """How often rank 0 has looked for commands or said something: it grows while the job comes on."""

    count: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell me when the record holds all that I have said; I wait so long at most."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank is done. Two parcels come with it: from rank 0 the job's `Done`, or an error; what rank 0 has left."""

    failed: bool = False
    traceback: str = ""
    updates: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    """The user's own modules that it has imported, and when each was written."""


@dataclass(frozen=True, slots=True)
class LateEvents:
    """The answer to `Exit`; the parcel of what there is comes with it."""

    updates: int
