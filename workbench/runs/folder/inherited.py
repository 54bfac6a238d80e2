"""Copies the parts of a run that a resumed run inherits: the record up to the checkpoint, the
starting weights, the checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.events import (
    BY_LAYER,
    Event,
    Logged,
    RunEnded,
    RunStarted,
    Saved,
    StatusChanged,
    StepsDone,
    Validated,
)
from workbench.events.columns import unpack
from workbench.runs.checkpoints import FILES, Checkpoint, files_of, list_checkpoints
from workbench.runs.folder.files import check_no_link, make_folder
from workbench.runs.samples import FILE as SAMPLE_FILE
from workbench.runs.samples import SAMPLES

_OF_A_JOB = RunStarted | RunEnded | StatusChanged
"""Header keys that belong to one job only."""


def record_until(events: Sequence[Event], point: Checkpoint, checked: int) -> list[Event]:
    """The events up to the state of a checkpoint; a flush that goes beyond it is cut.

    checked: the update after which its last validation ran.
    """
    index = _place(events, point)
    return [
        kept for i, event in enumerate(events) for kept in _kept(event, point, i <= index, checked)
    ]


def _kept(event: Event, point: Checkpoint, before: bool, checked: int) -> Iterator[Event]:
    if isinstance(event, StepsDone):
        rows = len(range(event.step, point.step, event.every)[: event.rows])
        if rows:
            yield event if rows == event.rows else first_rows(event, rows)
    elif isinstance(event, Validated) and not event.asked:
        if event.step <= checked:
            yield event
    elif isinstance(event, Logged):
        # an epoch within which the length of the run ended is not finished
        if event.step <= point.step and event.epoch < point.epoch:
            yield event
    elif before and not isinstance(event, _OF_A_JOB):
        yield event


def _place(events: Sequence[Event], point: Checkpoint) -> int:
    """The index of the last event before the checkpoint."""
    for index in reversed(range(len(events))):
        event = events[index]
        if isinstance(event, Saved) and event.name == point.name:
            return index
    beyond = (i for i, event in enumerate(events) if _begins(event) > point.step)
    return next(beyond, len(events)) - 1


def _begins(event: Event) -> int:
    """The number of updates taken after the first update of this event."""
    step = int(getattr(event, "step", 0))
    return step + 1 if isinstance(event, StepsDone) else step


def first_rows(event: StepsDone, rows: int) -> StepsDone:
    """The first rows of a flush."""
    has_norms = event.layer_rows
    layers = int(has_norms.sum()), int(has_norms[:rows].sum())
    parts = {name: layers if name in BY_LAYER else (event.rows, rows) for name in event.columns}
    columns = {
        name: data[: len(data) // max(1, parts[name][0]) * parts[name][1]]
        for name, data in event.columns.items()
    }
    return replace(event, rows=rows, columns=columns)


def with_layers(event: Event, then: Sequence[str], now: Sequence[str]) -> Event:
    """A flush with its columns by layer arranged for other layers: NaN for layers that were not
    measured.
    """
    if not isinstance(event, StepsDone):
        return event
    places = [list(now).index(name) for name in then if name in now]
    kept = [number for number, name in enumerate(then) if name in now]
    columns = dict(event.columns)
    for name in BY_LAYER:
        flat = unpack(columns.get(name, b""))
        if len(flat) and len(flat) % len(then) == 0:
            table = np.full((len(flat) // len(then), len(now)), np.nan, np.float32)
            table[:, places] = flat.reshape(-1, len(then))[:, kept]
            columns[name] = table.tobytes()
    return replace(event, columns=columns)


def missing(past: Sequence[Event], step: int) -> int | None:
    """The first update before `step` that a record lacks; None: it has all of them."""
    last = next((event for event in reversed(past) if isinstance(event, StepsDone)), None)
    due = 0 if last is None else last.step + last.every * last.rows
    return due if due < step else None


def take_over(run: Path, mine: Path, point: Checkpoint) -> None:
    """Copy the starting weights, the samples and the checkpoints up to this one, as hard links
    where the file system has them.

    `mine`: the folder of checkpoints of the resumed run. Raises OSError if they cannot be copied.
    """
    if (run / SAMPLES).is_dir():
        check_no_link(run / SAMPLES)
        make_folder(mine.parent / SAMPLES)
        for sample in (run / SAMPLES).iterdir():
            is_one = SAMPLE_FILE.fullmatch(sample.name) is not None
            if is_one and int(sample.name.partition("-")[0]) <= point.step:
                _take(sample, mine.parent / SAMPLES / sample.name)
    check_no_link(run / "checkpoints")
    for start in files_of(run / "checkpoints" / "start.safetensors"):
        _take(start, mine / start.name)
    for checkpoint in list_checkpoints(run):
        if (checkpoint.step, checkpoint.end) <= (point.step, point.end):
            aside = mine / f".{checkpoint.name}"
            try:
                aside.mkdir()
                for file in sorted(checkpoint.path.iterdir()):
                    if FILES.fullmatch(file.name):
                        _take(file, aside / file.name)
                aside.rename(mine / checkpoint.name)
            except FileNotFoundError:  # that run continues, and has deleted it
                continue
            finally:
                shutil.rmtree(aside, ignore_errors=True)


def _take(file: Path, mine: Path) -> None:
    if file.is_symlink() or not file.is_file():
        raise OSError(f"{file} is not a plain file")
    with contextlib.suppress(OSError):
        os.link(file, mine)
        return
    aside = mine.with_name(f".{mine.name}")
    try:
        shutil.copyfile(file, aside)
        aside.replace(mine)
    finally:
        aside.unlink(missing_ok=True)
