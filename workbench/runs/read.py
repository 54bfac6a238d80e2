"""Reading run folders: events, headers, the list of runs. Never imports torch; never writes.

A record is read to its last whole line: what a killed writer left of a line is ignored. Lines in the middle
that cannot be read (a failed write, an event of a newer version) are skipped and counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.events import (
    Event,
    Logged,
    Resumed,
    RunEnded,
    Saved,
    Status,
    StatusChanged,
    StepsDone,
    Validated,
    from_line,
)
from workbench.plots.downsample import downsample as downsample
from workbench.runs.alive import liveness
from workbench.runs.series import history as history
from workbench.runs.series import logged as logged
from workbench.runs.series import validation as validation

RUNS, HEADER, RECORD = "runs", "run.json", "metrics.jsonl"
OVER: tuple[Status, ...] = ("finished", "stopped", "failed")
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""What is raised for a line that is no event."""
_TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """What a `metrics.jsonl` holds. `skipped` counts the lines that could not be read."""

    events: list[Event]
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Where a job stands. `step` is the count of updates taken, `seconds` without pauses.

    `unseen`: its record has no end, and whether its process still lives cannot be told from here (`alive.liveness`).
    """

    status: Status
    step: int
    seconds: float
    error: str | None = None
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of the list, from its header and the end of its record."""

    id: str
    kind: str
    created: float
    """Seconds since 1970."""
    status: Status
    step: int
    seconds: float
    error: str | None
    metrics: dict[str, float]
    path: Path
    header: dict[str, Any] = field(repr=False)
    unseen: bool = False
    """Whether it only counts as running, since its process cannot be seen from here."""

    @property
    def over(self) -> bool:
        """Whether nothing will be added to it."""
        return self.status in OVER


def read_events(folder: Path) -> list[Event]:
    """The events of a run folder, in order, to the last whole line; none where there is no record yet."""
    return read_record(folder).events


def read_record(folder: Path) -> Record:
    """The events of a run folder, and how many lines could not be read."""
    try:
        return parse((Path(folder) / RECORD).read_bytes())
    except FileNotFoundError:
        return Record([])


def read_header(folder: Path) -> dict[str, Any]:
    """What `run.json` holds; OSError or ValueError where there is none."""
    header = json.loads((Path(folder) / HEADER).read_text(encoding="utf-8"))
    if not isinstance(header, dict):
        raise ValueError(f"{folder} has no readable {HEADER}")
    return header


def list_runs(root: Path) -> list[RunSummary]:
    """All runs in `root`, oldest first. Folders without a readable header, and links, are not runs."""
    runs = []
    try:
        entries = list(os.scandir(Path(root) / RUNS))
    except FileNotFoundError:
        return []
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            runs.append(summary(Path(entry.path)))
        except (OSError, ValueError):  # being made, being deleted, or not ours
            continue
    return sorted(runs, key=lambda run: (run.created, run.id))


def summary(folder: Path) -> RunSummary:
    """One run of the list; reads only the end of its record."""
    header = read_header(folder)
    tail = _tail(folder / RECORD)
    now = state(tail, header, folder)
    end = _end(tail)
    return RunSummary(
        id=folder.name,
        kind=str(header.get("kind", "")),
        created=_created(header, folder),
        status=now.status,
        step=now.step,
        seconds=now.seconds,
        error=now.error,
        metrics=dict(end.metrics) if end else {},
        path=folder,
        header=header,
        unseen=now.unseen,
    )


def state(
    events: Sequence[Event], header: Mapping[str, Any] | None = None, folder: Path | None = None
) -> State:
    """Where the job of these events stands; with its folder's header, also whether its process has died."""
    end = _end(events)
    if end is not None:
        return State(end.status, end.step, end.seconds, end.error)
    told = next((e.status for e in reversed(events) if isinstance(e, StatusChanged)), None)
    status: Status = told or ("running" if events else "queued")
    step = max((_updates(e) for e in events), default=0)
    seconds = next((e.seconds for e in reversed(events) if isinstance(e, StepsDone)), 0.0)
    lives = "alive" if header is None or folder is None or status in OVER else liveness(header)
    if lives == "gone" and header is not None and folder is not None:
        # The event may have come between our reading and the process's end.
        again = _tail(folder / RECORD)
        if _end(again) is not None:
            return state(again)
        return State("failed", step, seconds, f"{where_written(header)} ended without ending the run, after update {step}")
    return State(status, step, seconds, unseen=lives == "unknown")


def shown_status(status: Status, unseen: bool) -> str:
    """A status as a person reads it: "running?" where it only counts as running."""
    return f"{status}?" if unseen else status


def where_written(header: Mapping[str, Any]) -> str:
    """The process that a header names as its run's writer, in words."""
    return f"process {header.get('pid')} on {header.get('host')}"


def _end(events: Sequence[Event]) -> RunEnded | None:
    return next((e for e in reversed(events) if isinstance(e, RunEnded)), None)


def _updates(event: Event) -> int:
    """The count of updates known to be taken when this event was sent."""
    if isinstance(event, StepsDone):
        return event.step + event.every * (event.rows - 1) + 1 if event.rows else event.step
    return event.step if isinstance(event, Validated | Logged | Saved | Resumed | StatusChanged) else 0


def parse(data: bytes, only: Collection[str] | None = None) -> Record:
    """The events in the lines of a record; what stands behind the last whole line is left out. `only`: as in `from_line`."""
    *lines, _torn_end = data.split(b"\n")
    events: list[Event] = []
    skipped = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            events.append(from_line(line, only))
        except UNREADABLE:
            skipped += 1
    return Record(events, skipped)


def _tail(path: Path) -> list[Event]:
    """The last events of a record, at least one where there is a readable one."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            block = _TAIL
            while True:
                start = max(0, size - block)
                file.seek(start)
                data = file.read(size - start)
                # Unless the block begins the file, its first line is cut.
                whole = data if start == 0 else data.partition(b"\n")[2]
                events = parse(whole).events
                if events or start == 0:
                    return events
                block *= 8
    except FileNotFoundError:
        return []


def _created(header: Mapping[str, Any], folder: Path) -> float:
    created = header.get("created")
    if isinstance(created, int | float):
        return float(created)
    if isinstance(created, str):
        try:
            return datetime.fromisoformat(created).timestamp()
        except ValueError:
            pass
    return (folder / HEADER).stat().st_mtime
