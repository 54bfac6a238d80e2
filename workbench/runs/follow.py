"""Following a record while another process writes it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from workbench.events import Event
from workbench.runs.files import open_regular
from workbench.runs.read import RECORD, parse

_BLOCK = 1 << 22


class Tail:
    """The events of a run folder as they come: each call reads what is new, to the last whole line.

    only: the columns of flushes that are wanted.
    """

    def __init__(self, folder: Path, only: Collection[str] | None = None) -> None:
        self._path, self._only = Path(folder) / RECORD, only
        self._place = 0
        self.skipped = 0
        """Lines that could not be read."""

    def new(self) -> list[Event]:
        """What has come since; of much, its beginning. None where there is nothing new."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._place)
                data = file.read(_BLOCK)
                while len(data) >= _BLOCK and b"\n" not in data and (more := file.read(_BLOCK)):
                    data += more
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole)
        found = parse(whole, self._only)
        self.skipped += found.skipped
        return found.events
