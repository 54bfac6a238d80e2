"""Passes a child's stdout and stderr on in whole lines, so that lines of several children do not
mix.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from tqdm.std import tqdm

Hear = Callable[[str], None]


class OutputLines:
    """Splits the output of one child into lines, and gives each to `on_message`, or else writes
    it to this process's stdout or stderr.
    """

    _KEPT = 100

    def __init__(
        self, on_message: Hear | None = None, prefix: str = "", also: Hear | None = None
    ) -> None:
        """prefix: written before each line. also: called with each line that goes to stdout or
        stderr.
        """
        self._on_message, self._prefix, self._also = on_message, prefix, also
        self._rest = {"out": b"", "err": b""}
        self._errors: list[str] = []

    @property
    def tail(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self._errors)

    def feed(self, name: str, data: bytes) -> None:
        """Take more of its output; name: "out" or "err"."""
        *whole, self._rest[name] = (self._rest[name] + data).split(b"\n")
        for line in whole:
            self._say(name, line)

    def finish(self) -> None:
        """Pass on the last line, which may lack its newline. Call it when the child has ended."""
        for name, rest in self._rest.items():
            if rest:
                self._rest[name] = b""
                self._say(name, rest)

    def _say(self, name: str, line: bytes) -> None:
        # A progress bar redraws its line with "\r": only the last drawing is passed on.
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
        # A closed or missing stream must not end the job. tqdm clears its bars, and draws them
        # again after the line.
        with (
            contextlib.suppress(OSError, ValueError, AttributeError),
            tqdm.external_write_mode(file=stream),
        ):
            stream.write(text + "\n")
            stream.flush()
