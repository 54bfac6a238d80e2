"""The brief of a run that goes on: each look reads what its record has grown by, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workbench.events import Event
from workbench.runs.brief import COLUMNS, Fold, RunBrief
from workbench.runs.follow import Tail
from workbench.runs.stream import joined


class LiveRunBrief:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail, self._fold = folder, Tail(folder, COLUMNS), Fold()
        self._created: float | None = None
        """When the run was made that is read; None: none was yet."""

    def brief(self) -> RunBrief:
        """It as it stands now; OSError or ValueError where there is no run."""
        found = RunBrief.so_far(self._folder, self._new(), self._fold)
        if self._created not in (None, found.created):  # the name of a run that was deleted is given again
            self._tail, self._fold = Tail(self._folder, COLUMNS), Fold()
            found = RunBrief.so_far(self._folder, self._new(), self._fold)
        self._created = found.created
        return found

    def _new(self) -> Iterator[Event]:
        while events := self._tail.new():
            yield from joined(events)
