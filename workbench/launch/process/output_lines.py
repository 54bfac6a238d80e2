"""Passes a child's stdout and stderr on in whole lines, so that several children do not mix theirs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from tqdm.std import tqdm

Hear = Callable[[str], None]


class OutputLines:
    """The lines of one child; without `on_message` they go to our own stdout and stderr."""

    _KEPT = 100

    def __init__(self, on_message: Hear | None = None, prefix: str = "", also: Hear | None = None) -> None:
        """prefix: before each line. also: gets the lines that go to our stdout and stderr."""
        self._on_message, self._prefix, self._also = on_message, prefix, also
        self._rest = {"out": b"", "err": b""}
        self._errors: list[str] = []

    @property
    def tail(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self._errors)

    def feed(self, name: str, data: bytes) -> None:
        """More of its output, "out" or "err"."""
        *whole, self._rest[name] = (self._rest[name] + data).split(b"\n")
        for line in whole:
            self._say(name, line)

    def finish(self) -> None:
        """Nothing more comes: what is left is a line too."""
        for name, rest in self._rest.items():
            if rest:
                self._rest[name] = b""
                self._say(name, rest)

    def _say(self, name: str, line: bytes) -> None:
        # A progress bar redraws its line: what a terminal would show of it at the end.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        if name == "err":
            self._errors = [*self._errors, text][-self._KEPT :]
        text = self._prefix + text
        if self._on_message is not None:
            self._on_message(text)
            return
        if self._also is not None:
            self._also(text)
        stream = sys.stdout if name == "out" else sys.stderr
        # A closed or missing stream ends no job. A progress bar makes room, and is drawn again after the line.
        with contextlib.suppress(OSError, ValueError, AttributeError), tqdm.external_write_mode(file=stream):
            stream.write(text + "\n")
            stream.flush()
