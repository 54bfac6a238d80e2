"""Reads everything about one run for its page: facts, settings, changes, checkpoints, and
printed output.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.events import Changed, Event, Resumed, RunStarted
from workbench.launch.code_line import line
from workbench.runs import read
from workbench.runs.checkpoints import Checkpoint, list_checkpoints
from workbench.runs.folder.control import why_not_taken
from workbench.runs.folder.files import open_regular
from workbench.runs.printable import printable
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import joined
from workbench.secrets import without_secrets
from workbench.server.commands import settings_of
from workbench.server.rows import Entry
from workbench.settings import LOCAL, setting_text
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import cut

CHUNK = 1 << 16
"""The most bytes of output in an answer."""
_CHANGES, _CHECKPOINTS = 200, 200
"""The most changes and checkpoints in an answer: the last ones."""
_TEXT = 400
"""The most bytes of a fact or a setting."""
_LOOKED = 8 * _TEXT
"""In how many characters of a setting secrets are looked for."""
_KEPT = 8
"""How many runs stay in memory after they were read. Of a run that trains, each answer then
reads only what is new.
"""
_SLICE = 0.5
"""The most seconds that an answer reads a record. A longer record is read in part, and the next
answer has more.
"""
_AT_ITS_END = -1


class Details:
    """Reads runs for their pages."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[Path, float], _Record] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, entry: Entry, row: dict[str, Any]) -> dict[str, Any]:
        """All about a run besides its row. OSError or ValueError where it cannot be read.
        "reading": the record is long, and only its beginning was read for changes and facts; ask
        again for the rest.
        """
        path = entry.summary.path
        header = read.read_header(path)
        seen = self._record(entry).seen()
        checkpoints = list_checkpoints(path)
        return {
            "row": row,
            "facts": [
                [label, cut(printable(text), _TEXT)]
                for label, text in _facts(entry, header, seen).items()
                if text
            ],
            "settings": _settings(entry),
            "changes": [[step, cut(text, _TEXT)] for step, text in seen.changes],
            "checkpoints": [_checkpoint(checkpoint) for checkpoint in checkpoints[-_CHECKPOINTS:]],
            "output": _has_output(path),
            "why_no_commands": why_not_taken(entry.summary),
            "why_no_rerun": cut(_why_not_repeated(entry), _TEXT),
            "reading": seen.reading,
            "code": _code(entry, checkpoints),
        }

    def _record(self, entry: Entry) -> _Record:
        key = entry.summary.path, entry.summary.created
        with self._lock:
            record = self._read.pop(key, None) or _Record(entry.summary.path)
            self._read[key] = record
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return record


@dataclass(frozen=True)
class _Seen:
    """The facts in those events of a run that were read so far."""

    start: RunStarted | None = None
    changes: tuple[tuple[int, str], ...] = ()
    reading: bool = True
    """Whether there is more to read."""


class _Record:
    """Collects facts from the events of a run while it is read."""

    def __init__(self, folder: Path) -> None:
        self._tail, self._lock = Tail(folder), threading.Lock()
        self._seen = _Seen()
        self._start: RunStarted | None = None
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES)

    def seen(self) -> _Seen:
        """Read what is new, for a while. While another request reads, return what was read
        before, so that nobody waits.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._read(time.monotonic() + _SLICE)
            finally:
                self._lock.release()
        return self._seen

    def _read(self, until: float) -> None:
        reading = False
        while not reading and (events := self._tail.new()):
            for event in joined(events):
                self._add(event)
            reading = time.monotonic() >= until
        self._seen = _Seen(self._start, tuple(self._changes), reading)

    def _add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start = event
            case Changed():
                self._changes.append(
                    (
                        event.step,
                        ", ".join(
                            format.change(name, value) for name, value in event.values.items()
                        ),
                    )
                )
            case Resumed():
                edited = [format.change(name, value) for name, value in event.values.items()]
                self._changes.append(
                    (event.step, ", ".join([f"{texts.RESUMED} from {event.run}", *edited]))
                )
            case _:
                pass


def output(entry: Entry, offset: int) -> dict[str, Any]:
    """Return what a launched run has printed from byte `offset` on; -1: near its end.

    "offset" in the answer is where to continue, and "more" says whether more can be read now.
    """
    try:
        with open_regular(entry.summary.path / read.OUTPUT) as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - CHUNK) if offset == _AT_ITS_END else min(offset, size)
            file.seek(start)
            data = file.read(CHUNK)
    except (OSError, ValueError):  # there is no output, or the file is not one of ours
        return {"text": "", "offset": 0, "more": False}
    if offset == _AT_ITS_END and start:  # begin with a whole line
        start += data.find(b"\n") + 1
        data = data[data.find(b"\n") + 1 :]
    data = _whole_characters(data)
    end = start + len(data)
    lines = data.decode(errors="replace").split("\n")
    # keeps the last state of a progress bar
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return {"text": printable(text, lines=True), "offset": end, "more": end < size}


def _whole_characters(data: bytes) -> bytes:
    """Return the bytes without an incomplete UTF-8 character at their end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of 2 to 4 bytes
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return data if back >= needed or back == len(data) else data[:-back]
        if byte < 0x80:
            break
    return data


def _has_output(path: Path) -> bool:
    try:
        with open_regular(path / read.OUTPUT):
            return True
    except (OSError, ValueError):
        return False


def _facts(entry: Entry, header: dict[str, Any], seen: _Seen) -> dict[str, str]:
    task = header.get("task")
    task = task if isinstance(task, dict) else {}
    versions = header.get("versions") or {}
    parameters = task.get("parameters")
    start = seen.start
    return {
        "Job": format.job(entry.summary.kind),
        "Model": (
            f"{entry.model} ({format.count(parameters)} parameters)"
            if entry.model and parameters
            else entry.model
        ),
        "Data": str(task.get("data") or ""),
        "Device": start.device if start is not None else str(task.get("device") or ""),
        "Processes": str(start.ranks) if start is not None and start.ranks > 1 else "",
        "Epochs": str(start.epochs) if start is not None and start.epochs else "",
        "Updates": str(start.updates) if start is not None and start.updates else "",
        "Seed": str(header["seed"]) if header.get("seed") is not None else "",
        "Process": read.where_written(header),
        "Versions": ", ".join(f"{name} {version}" for name, version in list(versions.items())[:12]),
        "Folder": str(entry.summary.path),
    }


def _settings(entry: Entry) -> list[dict[str, Any]]:
    changed = settings_of(entry).changed()
    return [
        {
            "name": name,
            "text": cut(
                str(without_secrets(setting_text.recorded(name, value)[:_LOOKED], name)), _TEXT
            ),
            "default": name not in changed,
        }
        for name, value in settings_of(entry)
    ]


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    value = (
        f"{checkpoint.monitor} {format.number(checkpoint.value)}"
        if checkpoint.monitor and checkpoint.value is not None
        else ""
    )
    facts = [
        *(["the end"] if checkpoint.end else []),
        *([value] if value else []),
        *(["kept"] if checkpoint.kept else []),
        *([] if checkpoint.resumable else ["weights alone"]),
    ]
    return {
        "name": checkpoint.name,
        "step": checkpoint.step,
        "what": cut(", ".join(facts), _TEXT),
        "bytes": _size(checkpoint.path),
    }


def _size(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0


def _code(entry: Entry, checkpoints: list[Checkpoint]) -> dict[str, str]:
    """Return lines of code for a cell. They leave out settings of where code runs, which an
    untrusted record must not decide.

    The one that repeats the run needs no bench. Where the kernel runs is not known here, so it has
    the whole path of the root.
    """
    changed = {
        name: value for name, value in settings_of(entry).changed().items() if name not in LOCAL
    }
    resumable = (
        entry.summary.kind == "fit"
        and entry.summary.over
        and any(checkpoint.resumable for checkpoint in checkpoints)
    )
    return {
        "settings": line("set", changed) if changed else "",
        "continue": line("fit", {"start": entry.summary.id}) if resumable else "",
        "rerun": "" if _why_not_repeated(entry) else _rerun(entry),
    }


def _rerun(entry: Entry) -> str:
    root = str(entry.summary.path.parents[1].absolute())
    return f"import workbench as wb\n\n{line('rerun', {}, entry.summary.id, root, of='wb')}"


def _why_not_repeated(entry: Entry) -> str:
    """Why `wb.rerun` does not repeat this run; "": it does."""
    if entry.summary.kind != "fit":
        return "only fits can be repeated"
    if not entry.summary.over:
        return "it has not ended"
    return read.why_not_repeated(entry.summary.path)
