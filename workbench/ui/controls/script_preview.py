"""The script of a run as it would be written, to be read and copied in the canvas before it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.ui.canvas.messages import cut

PART = 30_000
"""Bytes of a part, as JSON has them: one fits into a message."""
MOST = 12
"""Parts shown at most; a longer script is cut, and says so. What is written is whole."""


class ScriptPreview:
    """Hands the text on in parts, each small enough for one message. `put` takes a name and plain data.

    Parts come on their own. Each says of which showing it is, so that those of two scripts are never put together.
    """

    def __init__(self, put: Callable[[str, Any], None]) -> None:
        self._put = put
        self.run = ""
        """The run whose script is shown; empty: none is."""
        self._parts = self._showings = 0

    def show(self, run: str, text: str) -> None:
        """Show the script of this run."""
        self.run = run
        parts = _parts(text)
        self._showings += 1
        for number, part in enumerate(parts):
            self._put(f"script.{number}", {"of": self._showings, "text": part})
        self._parts = max(self._parts, len(parts))
        self._put("script", {"run": run, "of": self._showings, "parts": len(parts), "lines": text.count("\n") + 1})

    def hide(self) -> None:
        """Put it away, text and all: a view that opens later is not sent what nobody looks at."""
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
        parts[-1] += "\n# … cut here; the written file is whole.\n"
    return parts
