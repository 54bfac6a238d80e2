"""Keeps the brief of a running run: each update reads only the new part of its record."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench.events import Event
from workbench.runs import read
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import joined
from workbench.runs.tables.brief import COLUMNS, Fold, RunBrief


class LiveRunBrief:
    """The brief of one run folder, updated while the run's record grows."""

    def __init__(self, folder: Path, *, history: bool = False) -> None:
        self._folder, self._history = folder, history
        self._tail, self._fold = Tail(folder, COLUMNS), Fold(history)
        self._created: float | None = None
        """The time at which the run was made; None: nothing was read yet."""
        self.reading = False
        """Whether the last brief lacks the end of the record, because the time was over."""

    def brief(self, until: float = math.inf) -> RunBrief:
        """The present brief. Raises OSError or ValueError where there is no run.

        until: when to stop reading, by `time.monotonic`; each call reads at least a part. Before
        the whole record is read, the brief has the present state of the run, and the curves up to
        there.
        """
        brief = RunBrief.so_far(self._folder, self._new(until), self._fold)
        if self._created not in (None, brief.created):  # a deleted run's name may be used again
            self._tail, self._fold = Tail(self._folder, COLUMNS), Fold(self._history)
            brief = RunBrief.so_far(self._folder, self._new(until), self._fold)
        self._created = brief.created
        if self.reading:
            now = read.summary(self._folder)
            brief = replace(
                brief,
                status=now.status,
                step=now.step,
                seconds=now.seconds,
                error=now.error,
                unseen=now.unseen,
                waits_for=now.waits_for,
            )
        return brief

    def _new(self, until: float) -> Iterator[Event]:
        self.reading = False
        while events := self._tail.new():
            yield from joined(events)
            if time.monotonic() >= until:
                self.reading = True
                return
