"""Writes the folder of a short run for tests, and reads a whole record: its events, how many lines could not be read, its history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.events import Event, RunEnded, RunStarted
from workbench.runs.record.follow import Tail
from workbench.runs.record.sequence import but_by_layer
from workbench.runs.record.series import Series, layer_history, scalars
from workbench.runs.store import RunFolder


def write_run(
    root: Path, id: str, *, created: float = 0.0, over: bool = True, **header: object
) -> Path:
    """Write the folder of a fit, which has ended or (over=False) still runs; returns it."""
    with RunFolder.create(root, id, {"kind": "fit", "created": created, **header}) as folder:
        folder.append(RunStarted(id, "fit", {}, "cpu"))
        if over:
            folder.append(RunEnded("finished", 1, 0.1))
    return folder.path


class Record(NamedTuple):
    """What a run folder's record holds. `skipped` counts the lines that could not be read."""

    events: list[Event]
    skipped: int


def read_record(folder: Path) -> Record:
    """The record to its last whole line; no events where there is none yet."""
    tail, events = Tail(folder), list[Event]()
    while new := tail.new():
        events += new
    return Record(events, tail.skipped)


def read_events(folder: Path) -> list[Event]:
    return read_record(folder).events


def history(events: Sequence[Event]) -> Series:
    """`Run.history` of these events."""
    out = scalars(but_by_layer(events))
    return {**out, **layer_history(events, len(out["step"]))}
