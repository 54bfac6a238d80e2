"""Draws runs for a page, in the messages of the notebook's canvas (`workbench.ui.canvas`): one
run, several over one another, or a study.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.events import Event, RunEnded
from workbench.launch.study.followed import FollowedStudy
from workbench.runs import read
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import joined
from workbench.server.rows import Entry
from workbench.server.studies import LIMITS
from workbench.ui.canvas.model import CanvasModel
from workbench.ui.canvas.runs.run_brief import LiveRunBrief
from workbench.ui.canvas.study.calls import STEERS, call_of
from workbench.ui.canvas.study.described import Describer, pause_after
from workbench.ui.canvas.transport.messages import Packet

COMPARED = range(2, 6)
"""How many runs can be compared."""
_SLICE = 0.25
"""Seconds of reading between two messages, so that the beginning of a long record is shown
first.
"""
_LOOK = 2.0
"""Seconds between two checks whether the process of a silent run has ended, and between two
reads of compared runs.
"""
_log = logging.getLogger("workbench.server")


class Canvas:
    """What one page shows of one run. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._model = CanvasModel()
        self._model.outbox.put("followed", True)
        self._lock = threading.Lock()
        self.over = False
        """Whether no message will follow unless the page asks for something."""

    def frame(self) -> bytes | None:
        """Read what is new, and return the next message; None: there is nothing to send."""
        with self._lock:
            if not self.over:
                self._fold()
            self._model.settle()
            packet = self._model.outbox.take()
        return None if packet is None else framed(packet)

    def everything(self) -> None:
        """Send everything again, for a view that has just opened."""
        with self._lock:
            self._model.outbox.everything()

    def look(self, message: dict[str, Any]) -> bool:
        """Change a view as a request says; return False for a request that is not about a view."""
        with self._lock:
            return self._model.look(message)

    def _fold(self) -> None:
        """Draw what is new."""
        raise NotImplementedError


class RunCanvas(Canvas):
    """One run, drawn as its record grows."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self._folder, self._tail = entry.summary.path, Tail(entry.summary.path)
        self._model.findings.root = entry.root.path
        self._model.samples.folder = entry.summary.path
        self._looked = 0.0

    def _fold(self) -> None:
        until = time.monotonic() + _SLICE
        while not self.over and time.monotonic() < until:
            events = self._tail.new()
            for event in joined(events, across_epochs=True):
                self._draw(event)
            if not events:
                self._look_at_process()
                return

    def _draw(self, event: Event) -> None:
        self.over |= isinstance(event, RunEnded)
        try:
            self._model.draw(event)
        except Exception as error:  # noqa: BLE001 - the record may be damaged; the rest of it is drawn
            _log.warning(
                "%s has an event that cannot be drawn (%s: %.200r).",
                self._folder,
                type(error).__name__,
                str(error),
            )

    def _look_at_process(self) -> None:
        """End the drawing of a run whose process has died without ending it."""
        if time.monotonic() < self._looked + _LOOK:
            return
        self._looked = time.monotonic()
        try:
            now = read.summary(self._folder)
        except (OSError, ValueError):  # deleted, or unreadable: what was drawn stays
            self.over = not self._folder.is_dir()
            return
        if now.status == "failed":
            self._draw(
                next(
                    (event for event in self._tail.new() if isinstance(event, RunEnded)),
                    RunEnded("failed", now.step, now.seconds, now.error),
                )
            )


class ComparisonCanvas(Canvas):
    """Several fits over one another, read again while one of them runs."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__()
        paths = [entry.summary.path for entry in entries]
        self._runs = [(path, LiveRunBrief(path, history=True)) for path in paths]
        self._looked = -_LOOK
        self._reading = False
        """Whether one of the records was not yet read to its end."""

    def _fold(self) -> None:
        if not self._reading and time.monotonic() < self._looked + _LOOK:
            return
        self._looked = time.monotonic()
        briefs = []
        for path, run in self._runs:
            try:
                briefs.append(run.brief(time.monotonic() + _SLICE / len(self._runs)))
            except Exception as error:  # noqa: BLE001 - the run may be deleted or damaged: the others are compared
                read.name_unreadable(path, error)
        self._model.curves.over_one_another(self._model.outbox, briefs)
        self._reading = any(run.reading for _, run in self._runs)
        self.over = not self._reading and all(brief.status in read.OVER for brief in briefs)


class StudyCanvas(Canvas):
    """A study, drawn as its folder changes, and steered by its buttons."""

    def __init__(self, path: Path) -> None:
        """OSError or ValueError: it cannot be read."""
        super().__init__()
        self._study = FollowedStudy(path, LIMITS)
        self._describer = Describer(self._study, STEERS)
        self._due = 0.0

    def call(self, code: str) -> None:
        """Carry out the line of a button. ValueError, TypeError or SettingsError: it is no line
        that a server can carry out, or the study refuses it.
        """
        method, arguments, named = call_of(code, STEERS)
        getattr(self._study, method)(*arguments, **named)
        with self._lock:
            self._model.outbox.put("code", code)
            self._due = 0.0

    def _fold(self) -> None:
        if time.monotonic() < self._due:
            return
        begin = time.thread_time()
        status = ""
        try:
            values = self._describer.present()
        except (OSError, ValueError) as error:  # deleted, or unreadable: what was drawn stays
            self.over = not self._study.path.is_dir()
            read.name_unreadable(self._study.path, error)
        else:
            status = values["study_now"]["status"]
            for name, value in values.items():
                self._model.outbox.put(name, value)
        self._due = time.monotonic() + pause_after(time.thread_time() - begin, status)


def framed(packet: Packet) -> bytes:
    """Return a message as one frame: the length of the JSON as four little-endian bytes, the
    JSON, and the buffers.
    """
    content = {**packet.content, "sizes": [*map(len, packet.buffers)]}
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(text)), text, *packet.buffers])


def change_of(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the command in a request of the canvas; None for one that another process cannot
    carry out.
    """
    match message:
        case {"what": "measure_ratios", "on": bool(on)}:
            return {"type": "Change", "values": {"track_update_ratio": on}}
        case {"what": "use_clip", "value": float(clip) | int(clip)}:
            return {"type": "Change", "values": {"gradient_clip_val": clip}}
        case {"what": "histograms", "layers": list(layers)}:
            return {"type": "Histograms", "layers": layers}
    return None
