"""Defines Event, any of the events that a job emits and a record holds, and the events of the
bench itself, for views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.events.searches import (
    ClipSearchEnded,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    ProfileEnded,
    RaceTrial,
    RecipeSearchEnded,
    RecipeTrial,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    Trial,
    TrialStarted,
    TuneStep,
    TuneTrial,
)
from workbench.events.training import (
    Changed,
    Checksums,
    LayersMeasured,
    Logged,
    Message,
    Observed,
    Resumed,
    RunEnded,
    RunStarted,
    Sampled,
    Saved,
    Spiked,
    StatusChanged,
    StepsDone,
    TimeSpent,
    Validated,
)

Event = (
    RunStarted
    | StepsDone
    | TimeSpent
    | Validated
    | Sampled
    | LayersMeasured
    | Logged
    | Saved
    | Resumed
    | Changed
    | StatusChanged
    | CurvePoint
    | RaceTrial
    | CurveEnded
    | TrialStarted
    | Trial
    | SearchEnded
    | SpeedTrial
    | SpeedSearchEnded
    | ClipSearchEnded
    | DecayTrial
    | DecaySearchEnded
    | RecipeTrial
    | RecipeSearchEnded
    | ProfileEnded
    | TuneStep
    | TuneTrial
    | Message
    | Checksums
    | Observed
    | Spiked
    | RunEnded
)
Emit = Callable[[Event], None]


def size_of(event: Event) -> int:
    """Estimate how many bytes an event takes in memory."""
    return 500 + event.nbytes if isinstance(event, StepsDone) else 500


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
    """A run was deleted from the folder. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Annotated:
    """The name, notes, tags or pin of a run changed. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Studied:
    """The bench has begun this study, or lets it go on. For views; not recorded."""

    study: str


Unrecorded = Called | SettingsSet | Shown | Compared | Deleted | Annotated | Studied
BenchEvent = Event | Unrecorded
