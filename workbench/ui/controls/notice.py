"""Keeps the notices (errors, warnings and messages) above the stage until they are closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.ui import texts
from workbench.ui.canvas.transport.messages import cut

Level = Literal["info", "warning", "error"]
_KEPT = 4
"""How many notices are shown at once. When there are more, the oldest that is not an error is
removed, or else the oldest.
"""
_LONGEST = 1500
_BYTES = 6000
"""Bytes of a notice as JSON, so that all of them fit into one message."""
CLICKED = "clicked"
"""The key of notices about clicks that failed; they are removed when the next job starts."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One notice. about: the key for `drop`; actions: what its buttons call, by their texts."""

    number: int
    level: Level
    text: str
    about: str
    actions: Mapping[str, Callable[[], object]] = field(default_factory=dict)


class Notice:
    """The last few notices, newest first. Safe to call from any thread. `put` sends plain data to
    the front end.
    """

    def __init__(self, put: Callable[[str, Any], None]) -> None:
        self._put = put
        self._lines: list[_Line] = []
        self._lock = threading.RLock()
        self._count = 0

    @property
    def lines(self) -> list[tuple[Level, str]]:
        """Level and text of each notice, newest first."""
        with self._lock:  # another thread may add one meanwhile
            return [(line.level, line.text) for line in self._lines]

    @property
    def offers(self) -> dict[int, list[str]]:
        """The texts of the buttons of the notices, by the numbers of the notices."""
        with self._lock:
            return {line.number: [*line.actions] for line in self._lines if line.actions}

    def say(
        self,
        text: str,
        level: Level = "info",
        about: str = "",
        actions: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        """Show one notice; the same one twice in a row is shown once.

        about: the key for `drop`. actions: what a click on each of its buttons calls, by the
        button's text.
        """
        text = text.strip()[:_LONGEST]
        with self._lock:
            if not text or self.lines[:1] == [(level, text)]:
                return
            self._count += 1
            self._lines.insert(0, _Line(self._count, level, text, about, actions or {}))
            if len(self._lines) > _KEPT:
                calm = (at for at in range(_KEPT, 0, -1) if self._lines[at].level != "error")
                del self._lines[next(calm, _KEPT)]
            self._show()

    def answer(self, number: int, offer: str) -> None:
        """Do what this button of the notice does, if the notice is still shown."""
        with self._lock:
            shown = [line.actions for line in self._lines if line.number == number]
        for actions in shown:
            if offer in actions:
                actions[offer]()

    def error(self, error: BaseException, doing: str = "", about: str = "") -> None:
        """Show an error as a sentence."""
        words = str(error).strip() or type(error).__name__
        plain = type(error).__module__.startswith("workbench")
        said = words if plain else f"{type(error).__name__}: {words}"
        self.say(texts.failed(doing, said) if doing else said, "error", about)

    def attempt(self, doing: str, call: Callable[[], object]) -> None:
        """Call a function after a click; an error becomes a notice that begins with `doing`."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self.error(error, doing, CLICKED)

    def drop(self, about: str) -> None:
        """Remove a notice that no longer applies."""
        with self._lock:
            kept = [line for line in self._lines if line.about != about]
            if len(kept) < len(self._lines):
                self._lines = kept
                self._show()

    def clear(self) -> None:
        """Remove all lines."""
        with self._lock:
            self._lines.clear()
            self._show()

    def _show(self) -> None:
        self._put(
            "notices",
            [
                {
                    "number": line.number,
                    "level": line.level,
                    "text": cut(line.text, _BYTES),
                    "offers": [cut(offer, _BYTES // 4) for offer in line.actions],
                }
                for line in self._lines
            ],
        )
