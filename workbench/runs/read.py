"""Reads run folders: events, headers, the list of runs. It never imports torch and never writes.

A record is read up to its last complete line: an incomplete line of a killed writer is ignored.
Other lines that cannot be read (a failed write, an event of a newer version) are skipped and
counted. A folder may come from an untrusted source. Only regular files are opened, types are
checked (`from_line`, `read_header`), and a folder that is not a record is left out of the list,
with one warning.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from workbench.events import (
    LARGEST,
    Changed,
    Event,
    Logged,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    Status,
    StatusChanged,
    StepsDone,
    Validated,
    from_line,
)
from workbench.runs.folder.alive import liveness
from workbench.runs.folder.files import check_no_link, open_regular, read_json
from workbench.runs.printable import printable
from workbench.runs.record.lines import LONGEST, Budget, whole_lines
from workbench.runs.record.sequence import stream
from workbench.settings import Settings, SettingsError
from workbench.units import fit_length
from workbench.values import NOT_HELD, from_record, is_held, value_text, with_values

RUNS, HEADER, RECORD = "runs", "run.json", "metrics.jsonl"
OUTPUT = "output.log"
"""The name of the file with the output of a launched run."""
START, START_HEAD = "start", "start.json"
"""The folder with what a fit starts from, and the file in it that says what was kept or why not."""
STUDY = "study"
"""The key of a header that says of which trial of a study the run is."""
TARGET = "_target_"
"""In a header, the key of the function among the parameters with which it was called; Hydra's name
for it.
"""
OVER: tuple[Status, ...] = ("finished", "stopped", "failed")
UNREADABLE = (ValueError, TypeError)
"""The errors that reading a line raises if it is not an event."""
_FIRST = 16
"""In how many lines of a record RunStarted is looked for; only messages precede it."""
_TAIL = 1 << 16
_ENDING = 1 << 20
"""Bytes at the end of a search's record that have its result. The norms of a clip search have
some 10 kB.
"""
_ERROR = 1 << 16
"""The most characters of an error that are kept; the workbench writes no more."""
_TEXT = 10_000
"""The most characters of a setting that is a text."""
_REASON = 1 << 16
"""The most bytes of a `start.json` that says why no start was kept; a longer one is of a kept
start.
"""
_HEADER_SIZE = 1 << 22
"""The most bytes of a `run.json`; the workbench writes some kilobytes."""
_HEADER: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "created": (int, float, str),
    "host": (str,),
    "boot": (str,),
    "pid_namespace": (str,),
    "pid": (int,),
    "pid_started": (int, float),
    "settings": (dict,),
    "seed": (int,),
    "threads": (int,),
    "versions": (dict,),
    "fingerprint": (str,),
    "scheduler_job": (str,),
    "takes_commands": (bool,),
    "launched": (bool,),
    "repeats": (str,),
    "built_by": (dict,),
    STUDY: (dict,),
}
"""The types of the values in a `run.json`; null is allowed too."""
_TASK: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "parameters": (int,),
    "trainable": (int,),
    "device": (str,),
    "data": (str,),
    "build": (dict,),
    "optimizer": (str,),
    "loss": (str,),
    "groups": (str,),
}
_LONGEST = 300
"""The most characters of what describes an optimizer."""
_NUMBER = re.compile(r"(\d{4,18})-[^\W\d]")  # does not match a date that a user chose as a name
_log = logging.getLogger("workbench.runs")
_named: set[tuple[str, str]] = set()
"""The folders that were reported as unreadable, each with the reason."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a job. `step` is the number of updates taken, `seconds` without pauses.

    `unseen`: whether its record has no end and it is unknown here whether its process still lives
    (`alive.liveness`).
    """

    status: Status
    step: int
    seconds: float
    error: str | None = None
    unseen: bool = False
    waits_for: str = ""
    """What a queued job waits for."""


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
    """Whether it counts as running only because its process cannot be seen from here."""
    waits_for: str = ""
    """What a queued job waits for."""

    @property
    def over(self) -> bool:
        """Whether no more events will be added to it."""
        return self.status in OVER


def read_header(folder: Path) -> dict[str, Any]:
    """The header in `run.json`; each known key has its type or is null. Raises OSError or
    ValueError if no valid header can be read.
    """
    path = Path(folder) / HEADER
    header = read_json(path, _HEADER_SIZE)
    _check_types(path, header, _HEADER)
    if isinstance(header.get("task"), dict):
        _check_types(path, header["task"], _TASK)
    return header


def why_not_repeated(folder: Path) -> str:
    """Why `wb.rerun` cannot repeat the fit in this folder, which kept no start; "": it kept one."""
    try:
        check_no_link(folder / START)
        head = read_json(folder / START / START_HEAD, _REASON)
    except FileNotFoundError:
        return (
            f"its folder has no {START}/{START_HEAD}: the fit had keep_start=0, did not begin, or"
            " is of an earlier version"
        )
    except (OSError, ValueError):  # wb.rerun reads all of it, and says what is wrong
        return ""
    missing = head.get("missing")
    if not isinstance(missing, str):
        return ""
    return f"its start was not kept: {printable(missing.removesuffix('.'))}"


class TrialPlace(NamedTuple):
    """The place of a run in a study: which trial it trains."""

    study: str
    """The study's id, the name of its folder."""
    trial: int
    """0 for the searches before the first one."""
    seed: int
    """0 for the trial itself; its repetitions have other seeds."""
    rung: int
    """How far it trains: 0 is the shortest length."""
    length: float = 0.0
    """That length, as a share of a whole fit; 0: its record does not say."""

    def __str__(self) -> str:
        """In a line: "0003-study trial 7, seed 0, 1/3 fit"."""
        if not self.trial:
            return f"{self.study} search"
        length = f", {fit_length(self.length)} fit" if self.length else ""
        return f"{self.study} trial {self.trial}, seed {self.seed}{length}"


def study_text(header: Mapping[str, Any]) -> str:
    """The place in a study of the run with this header, in a line; "": it is in none."""
    trial = trial_place(header)
    return "" if trial is None else str(trial)


def trial_place(header: Mapping[str, Any]) -> TrialPlace | None:
    """The place in a study of the run with this header; None: it is in none, or says so in no way
    that can be read.
    """
    entry = header.get(STUDY)
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return None
    trial, seed, rung = (_count(entry.get(name)) for name in ("trial", "seed", "rung"))
    if trial is None or seed is None or rung is None:
        return None
    share = entry.get("length")
    length = share if isinstance(share, int | float) and 1e-4 <= share <= 1 else 0.0
    return TrialPlace(printable(entry["id"]), trial, seed, rung, length)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= LARGEST else None


def _check_types(
    path: Path, values: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    for name, kinds in known.items():
        value = values.get(name)
        if value is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"{path}: {name}={value!r:.60} is not a {kinds[0].__name__}")
        countable = not isinstance(value, int | float) or (
            abs(value) <= LARGEST or (name == "seed" and abs(value) < 1 << 64)
        )
        if not countable:  # NaN, infinite, or too large
            raise ValueError(f"{path}: {name} is a number out of range")


def number_of(id: str) -> int | None:
    """The number in the id of a run: 12 in "0012-fit". None: the workbench has not given this id;
    somebody has renamed or copied the folder.
    """
    digits = _NUMBER.match(id)
    return int(digits[1]) if digits else None


def age(id: str, created: float = 0.0) -> tuple[int, float, str]:
    """The key that sorts the runs of a root, the oldest first: by their numbers, since a clock may
    be set back.

    Runs whose ids have no number come first, by the time at which they were made.
    """
    return number_of(id) or 0, created, id


def list_runs(root: Path) -> list[RunSummary]:
    """All runs in `root`, oldest first (`age`). Folders without a readable header, and links,
    are not runs.
    """
    runs = []
    for folder in run_folders(root):
        try:
            runs.append(summary(folder))
        except FileNotFoundError:  # being made, or being deleted
            continue
        except (OSError, ValueError) as error:
            name_unreadable(folder, error)
    return sorted(runs, key=lambda run: age(run.id, run.created))


def run_folders(root: Path) -> Iterator[Path]:
    """The folders in `root` that may be runs, in no order; raises OSError if the root cannot be
    listed.
    """
    try:
        entries = list(os.scandir(Path(root) / RUNS))
    except FileNotFoundError:
        return
    for entry in entries:
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def name_unreadable(folder: Path, error: Exception) -> None:
    """Log that a folder is not a record, and why; once for each folder in this process."""
    key = str(folder), str(error)
    if key not in _named:
        _named.add(key)
        _log.warning(
            "%s", f"{str(folder)!r} is skipped, since it is not a readable record: {str(error)!r}"
        )


def summary(folder: Path) -> RunSummary:
    """The summary of one run; reads only the end of its record, and its beginning while it
    runs.
    """
    header = read_header(folder)
    tail = _tail(folder / RECORD)
    end = _end(tail)
    now = state(tail if end else [*_started(folder / RECORD), *tail], header, folder)
    return RunSummary(
        id=folder.name,
        kind=header.get("kind") or "",
        created=created(header, folder),
        status=now.status,
        step=now.step,
        seconds=now.seconds,
        error=now.error,
        metrics=dict(end.metrics) if end else {},
        path=folder,
        header=header,
        unseen=now.unseen,
        waits_for=now.waits_for,
    )


def state(
    events: Sequence[Event], header: Mapping[str, Any] | None = None, folder: Path | None = None
) -> State:
    """The state of the job with these events; with the header and folder, it includes whether
    the process has died.
    """
    end = _end(events)
    fold = StateFold()
    for event in stream(events, ()) if end is None else (end,):
        fold.add(event)
    return fold.state(header, folder)


class StateFold:
    """Computes the state of a job from its events, one by one."""

    def __init__(self) -> None:
        self._end: RunEnded | None = None
        self._status: Status = "queued"
        self._waits_for = ""
        self._step, self._seconds = 0, 0.0

    def add(self, event: Event) -> None:
        """Take one more event; a flush may lack its columns."""
        if isinstance(event, RunEnded):
            self._end = event
        elif isinstance(event, StatusChanged):
            self._status, self._waits_for = event.status, event.why
        elif self._status == "queued":
            self._status, self._waits_for = "running", ""
        self._step = max(self._step, _updates(event))
        if isinstance(event, StepsDone):
            self._seconds = event.seconds

    def state(self, header: Mapping[str, Any] | None = None, folder: Path | None = None) -> State:
        """The present state; with the header and folder, it includes whether the process has
        died.
        """
        if self._end is not None:
            error = self._end.error
            return State(
                self._end.status,
                self._end.step,
                self._end.seconds,
                error if error is None else error[:_ERROR],
            )
        lives = (
            "alive"
            if header is None or folder is None or self._status in OVER
            else liveness(header)
        )
        if lives == "gone" and header is not None and folder is not None:
            # The process may have recorded its end after the record was read.
            again = _tail(folder / RECORD)
            if _end(again) is not None:
                return state(again)
            return State(
                "failed",
                self._step,
                self._seconds,
                f"{where_written(header)} ended without ending the run, after update {self._step}",
            )
        return State(
            self._status,
            self._step,
            self._seconds,
            unseen=lives == "unknown",
            waits_for=self._waits_for,
        )


def shown_status(status: Status, unseen: bool, trouble: str = "") -> str:
    """The text for a status: "running?" for a run whose process cannot be seen from here, and
    "finished, diverged" where its result is in doubt.
    """
    shown = f"{status}?" if unseen else status
    return f"{shown}, {trouble}" if trouble else shown


def where_written(header: Mapping[str, Any]) -> str:
    """A phrase that names the writer of a run: "process 12 on host"."""
    return f"process {header.get('pid')} on {header.get('host')}"


def _end(events: Sequence[Event]) -> RunEnded | None:
    return next((e for e in reversed(events) if isinstance(e, RunEnded)), None)


def _updates(event: Event) -> int:
    """The number of updates that had surely been taken when this event was emitted."""
    if isinstance(event, StepsDone):
        return event.done
    if isinstance(event, RunStarted):
        return event.resumed_at
    return (
        event.step if isinstance(event, Validated | Logged | Saved | Resumed | StatusChanged) else 0
    )


def parse(
    lines: Iterable[bytes], run: str, budget: Budget, only: Container[str] | None = None
) -> Iterator[Event]:
    """Yield the events in these lines of a record, as far as the budget allows. Lines that cannot
    be read are left out. run, only: see `event_of`.
    """
    for line in lines:
        try:
            event = event_of(line, run, only)
        except UNREADABLE:
            budget.other(len(line))
            if budget.spent:
                return
        else:
            budget.event(len(line), event)
            yield event


def event_of(line: bytes, run: str, only: Container[str] | None = None) -> Event:
    """The event in one line of a record, with settings that `Settings` accepts; raises one of
    `UNREADABLE` if there is none.

    run: the name of the record's folder, which is the id of its run; the record may be a copy and
    name another.
    only: the columns of flushes to decode; None: all.
    """
    if len(line) > LONGEST:
        raise ValueError(f"a line of more than {LONGEST} bytes")
    event = from_line(line, only)
    if isinstance(event, RunStarted):
        return replace(event, run=run, settings=accepted(event.settings))
    if isinstance(event, Changed | Resumed):
        return replace(event, values=accepted(event.values))
    return event


def optimization(header: Mapping[str, Any]) -> tuple[str, str]:
    """What made the optimizer of a run where no setting names it, and the rules of its parameter
    groups; "": unknown, or none.
    """
    task = header.get("task")
    texts = [task.get(name) for name in ("optimizer", "groups")] if isinstance(task, dict) else []
    optimizer, groups = [printable(t[:_LONGEST]) if isinstance(t, str) else "" for t in texts] or [
        ""
    ] * 2
    return optimizer, groups


def build_values(header: Mapping[str, Any]) -> dict[str, Any]:
    """The values with which a function made the model of a run (`wb.Workbench(build, …)`), by the
    names of its parameters; empty where the model was given.

    A value that is no number, text or list of these is {"not held": its text}.
    """
    task = header.get("task")
    build = task.get("build") if isinstance(task, dict) else None
    if not isinstance(build, dict):
        return {}
    values = from_record({name: value for name, value in build.items() if name.isidentifier()})
    return {
        name: value if is_held(value) else {NOT_HELD: printable(value_text(value))}
        for name, value in values.items()
    }


def model_text(header: Mapping[str, Any]) -> str:
    """The model's name, with the values with which a function made it: "Net(width=256)"."""
    task = header.get("task")
    name = str(task.get("model") or "") if isinstance(task, dict) else ""
    return printable(with_values(name, build_values(header))) if name else ""


def accepted(values: dict[str, Any]) -> dict[str, Any]:
    """The values that `Settings` accepts, and those of unknown settings (of a newer version)."""
    values = {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and len(value) > _TEXT)
    }
    known = {
        name: value
        for name, value in values.items()
        if name in Settings.model_fields and value is not None
    }
    try:
        settings = Settings.make(**known)
        wrong = {
            name for name, value in known.items() if _other_type(value, getattr(settings, name))
        }
    except SettingsError:
        wrong = {name for name, value in known.items() if not _is_taken(name, value)}
    return {name: value for name, value in values.items() if name not in wrong} if wrong else values


def _is_taken(name: str, value: Any) -> bool:
    try:
        return not _other_type(value, getattr(Settings.make(**{name: value}), name))
    except SettingsError:
        return False


def _other_type(recorded: Any, settled: Any) -> bool:
    """Whether a value is a string or a bool where a number belongs, which `Settings` would
    convert.
    """
    return (
        isinstance(recorded, str | bool)
        and isinstance(settled, int | float)
        and type(settled) is not type(recorded)
    )


def _started(path: Path) -> list[RunStarted]:
    """The first event of a job that has begun: it says where a fit continues, whose record begins
    with what came before.
    """
    with contextlib.suppress(OSError, ValueError), open_regular(path) as file:
        budget = Budget(path)
        lines = itertools.islice(whole_lines(file, budget), _FIRST)
        for event in parse(lines, path.parent.name, budget, ()):
            if isinstance(event, RunStarted):
                return [event]
    return []


def _tail(path: Path) -> list[Event]:
    """The last events of a record; at least one if there is a readable one in its last `LONGEST`
    bytes.
    """
    run = path.parent.name
    try:
        with open_regular(path) as file:
            size, block, budget = file.seek(0, os.SEEK_END), _TAIL, Budget()
            while True:
                start = max(0, size - block)
                file.seek(start)
                data = file.read(block)
                # The first line of a block is cut, unless the block begins at the start of the
                # file.
                line_start = data.find(b"\n") + 1 if start else 0
                events = _ending(data, run) or list(
                    parse(whole_lines(io.BytesIO(data[line_start:]), budget), run, budget)
                )
                if events or start == 0 or block > LONGEST or budget.spent or b"\0" in data:
                    return events
                block = min(8 * block, LONGEST + 1)
    except FileNotFoundError:
        return []


def ending(run: Path) -> list[Event]:
    """The events in the last `_ENDING` bytes of a record; an empty list where there is none."""
    try:
        with open_regular(run / RECORD) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _ENDING))
            budget = Budget()
            return list(parse(whole_lines(file, budget), run.name, budget))
    except FileNotFoundError:
        return []


def _ending(lines: bytes, run: str) -> list[Event]:
    """A list with the last event if it is RunEnded, since no earlier event is needed then; else
    an empty list.
    """
    end = lines.rfind(b"\n")
    last = lines[lines.rfind(b"\n", 0, max(0, end)) + 1 : max(0, end)]
    with contextlib.suppress(*UNREADABLE):
        event = event_of(last, run)
        if isinstance(event, RunEnded):
            return [event]
    return []


def created(header: Mapping[str, Any], folder: Path) -> float:
    """When the run of this header was made, in seconds since 1970; if the header lacks that,
    when it was written.
    """
    when = header.get("created")
    if isinstance(when, int | float):
        return float(when)  # `read_header` has checked its size
    if isinstance(when, str):
        try:
            return datetime.fromisoformat(when).timestamp()
        except (ValueError, OverflowError, OSError):
            pass
    return (folder / HEADER).stat().st_mtime
