"""Defines Event: any of the events that a job emits and a record holds."""

from __future__ import annotations

from collections.abc import Callable

from workbench.events.searches import (
    ClipSearchEnded,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    RaceTrial,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    Trial,
    TrialStarted,
    TuneStep,
)
from workbench.events.training import (
    Changed,
    Checksums,
    Logged,
    Message,
    Observed,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    StatusChanged,
    StepsDone,
    TimeSpent,
    Validated,
)

Event = (
    RunStarted | StepsDone | TimeSpent | Validated | Logged | Saved | Resumed | Changed | StatusChanged | CurvePoint | RaceTrial | CurveEnded
    | TrialStarted | Trial | SearchEnded | SpeedTrial | SpeedSearchEnded | ClipSearchEnded | DecayTrial | DecaySearchEnded | TuneStep
    | Message | Checksums | Observed | RunEnded
)  # fmt: skip
Emit = Callable[[Event], None]


def size_of(event: Event) -> int:
    """About how many bytes an event takes in memory."""
    return 500 + event.nbytes if isinstance(event, StepsDone) else 500
