"""Keeps the brief of a growing run: each update reads only what is new in its record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbench.events import Event
from workbench.runs.brief import COLUMNS, Fold, RunBrief
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import joined


class LiveRunBrief:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail, self._fold = folder, Tail(folder, COLUMNS), Fold()
        self._created: float | None = None
        """The time at which the read run was made; None: none was read yet."""

    def brief(self) -> RunBrief:
        """Its present brief; OSError or ValueError where there is no run."""
        found = RunBrief.so_far(self._folder, self._new(), self._fold)
        if self._created not in (None, found.created):  # a deleted run's name may be used again
            self._tail, self._fold = Tail(self._folder, COLUMNS), Fold()
            found = RunBrief.so_far(self._folder, self._new(), self._fold)
        self._created = found.created
        return found

    def _new(self) -> Iterator[Event]:
        while events := self._tail.new():
            yield from joined(events)
