"""Shows the script of a run in the canvas, to be read and copied before it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.ui import texts
from workbench.ui.canvas.transport.messages import cut

PART = 30_000
"""Bytes of a part as JSON: one fits into a message."""
MOST = 12
"""The most parts that are shown; a longer script is cut, with a note. The written file is complete."""


class ScriptPreview:
    """Sends the text in parts, each small enough for one message. `put` takes a name and plain data.

    Each part names its showing, so that parts of two scripts are never put together.
    """

    def __init__(self, put: Callable[[str, Any], None]) -> None:
        self._put = put
        self.run = ""
        """The run whose script is shown; "": none."""
        self._parts = self._showings = 0

    def show(self, run: str, text: str, format: str = "script") -> None:
        """Show the script of this run, or another format of it."""
        self.run = run
        parts = _parts(text)
        self._showings += 1
        for number, part in enumerate(parts):
            self._put(f"script.{number}", {"of": self._showings, "text": part})
        self._parts = max(self._parts, len(parts))
        self._put("script", {"run": run, "format": format, "of": self._showings, "parts": len(parts), "lines": text.count("\n") + 1})

    def hide(self) -> None:
        """Close it and drop the text, so that a view that opens later does not get it."""
        self.run = ""
        self._put("script", None)
        for number in range(self._parts):
            self._put(f"script.{number}", None)
        self._parts = 0


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    while text and len(parts) < MOST:
        parts.append(cut(text, PART))
        text = text[len(parts[-1]) :]
    if text:
        parts[-1] += texts.SCRIPT_CUT
    return parts
