"""Events: frozen records of plain data that go up, from a running job to its listeners.

They are the record too: a run folder holds them line by line, and one read back equals the one emitted, so every view
has one way to draw.
"""

from workbench.events.bench import (
    Annotated,
    BenchEvent,
    Called,
    Compared,
    Deleted,
    SettingsSet,
    Shown,
)
from workbench.events.columns import (
    BY_LAYER,
    Floats,
    Numbers,
    pack,
    unpack,
)
from workbench.events.event import (
    Emit,
    Event,
    size_of,
)
from workbench.events.json_fields import (
    LARGEST,
)
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
    Suggestion,
    Trial,
    TrialStarted,
    TuneStep,
    last_of,
)
from workbench.events.serialization import (
    from_line,
    to_line,
)
from workbench.events.training import (
    ENDED_EARLY,
    Changed,
    Checksums,
    Logged,
    Message,
    Observed,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    Status,
    StatusChanged,
    StepsDone,
    TimeSpent,
    Validated,
    thinned,
)

__all__ = [
    "BY_LAYER",
    "ENDED_EARLY",
    "LARGEST",
    "Annotated",
    "BenchEvent",
    "Called",
    "Changed",
    "Checksums",
    "ClipSearchEnded",
    "Compared",
    "CurveEnded",
    "CurvePoint",
    "DecaySearchEnded",
    "DecayTrial",
    "Deleted",
    "Emit",
    "Event",
    "Floats",
    "Logged",
    "Message",
    "Numbers",
    "Observed",
    "RaceTrial",
    "Resumed",
    "RunEnded",
    "RunStarted",
    "Saved",
    "SearchEnded",
    "SettingsSet",
    "Shown",
    "SpeedSearchEnded",
    "SpeedTrial",
    "Status",
    "StatusChanged",
    "StepsDone",
    "Suggestion",
    "TimeSpent",
    "Trial",
    "TrialStarted",
    "TuneStep",
    "Validated",
    "from_line",
    "last_of",
    "pack",
    "size_of",
    "thinned",
    "to_line",
    "unpack",
]
