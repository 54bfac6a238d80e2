"""Events of the bench itself, for views. No record holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.events.event import Event


@dataclass(frozen=True, slots=True)
class Called:
    """The line of code for the user's latest request to the bench. For views; not recorded."""

    code: str


@dataclass(frozen=True, slots=True)
class SettingsSet:
    """The bench has these settings now. For views; not recorded."""

    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """Views draw this recorded run; "": the present job. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Views draw these runs over one another; empty: they remove the comparison. Not recorded."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run is gone from the folder. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Annotated:
    """A run has another name, notes, tags or pin. Not recorded."""

    run: str


BenchEvent = Event | Called | SettingsSet | Shown | Compared | Deleted | Annotated
