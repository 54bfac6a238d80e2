"""Shows notices (errors, warnings and messages) above the canvas until they are closed."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from typing import Literal

import ipywidgets as widgets

from workbench.ui import texts
from workbench.ui.controls.widget_utils import shown

Level = Literal["info", "warning", "error"]
_CLASSES = {"info": "wb-info", "warning": "wb-warning", "error": "wb-error-notice"}
_KEPT = 4
"""How many notices are shown at once. When there are more, the oldest that is not an error is
removed, or else the oldest.
"""
_LONGEST = 1500
CLICKED = "clicked"
"""The key of notices about clicks that failed; they are removed when the next job starts."""


class Notice(widgets.HBox):  # type: ignore[misc]
    """The last few notices, newest first. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lines: list[tuple[Level, str, str, widgets.Button | None]] = []
        """Level, text, key and button of each."""
        self._lock = threading.Lock()
        self._text = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", width="auto")).add_class(
            "wb-notice"
        )
        self._close = widgets.Button(
            icon="times",
            tooltip=texts.CLOSE_NOTICES,
            layout=widgets.Layout(width="30px", flex="0 0 auto"),
        )
        self._close.on_click(lambda _: self.clear())
        super().__init__([self._text, self._close])
        shown(self, False)

    @property
    def lines(self) -> list[tuple[Level, str]]:
        """Level and text of each notice, newest first."""
        with self._lock:  # another thread may add one meanwhile
            return [(level, text) for level, text, _, _ in self._lines]

    def say(
        self,
        text: str,
        level: Level = "info",
        about: str = "",
        action: tuple[str, Callable[[], None]] | None = None,
    ) -> None:
        """Show one notice; the same one twice in a row is shown once.

        about: the key for `drop`. action: the text of a button, and what a click on it calls.
        """
        text = text.strip()[:_LONGEST]
        with self._lock:
            if not text or (self._lines and self._lines[0][:2] == (level, text)):
                return
            offer = None
            if action is not None:
                words, clicked = action
                offer = widgets.Button(
                    description=words, layout=widgets.Layout(width="auto", flex="0 0 auto")
                )
                offer.on_click(lambda _: clicked())
            self._lines.insert(0, (level, text, about, offer))
            if len(self._lines) > _KEPT:
                calm = (at for at in range(_KEPT, 0, -1) if self._lines[at][0] != "error")
                del self._lines[next(calm, _KEPT)]
            self._show(new=True)

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
            kept = [line for line in self._lines if line[2] != about]
            if len(kept) < len(self._lines):
                self._lines = kept
                self._show()

    def clear(self) -> None:
        """Remove all lines."""
        with self._lock:
            self._lines.clear()
            self._show()

    def _show(self, new: bool = False) -> None:
        """Show all lines. new: the first line is new; only it gets a role, since a screen reader
        reads each text with a role again when it is written.
        """
        lines = []
        for at, (level, text, *_) in enumerate(self._lines):
            role = "alert" if level == "error" else "status"
            attribute = f' role="{role}"' if new and at == 0 else ""
            lines.append(f'<div class="{_CLASSES[level]}"{attribute}>{html.escape(text)}</div>')
        self._text.value = "".join(lines)
        self.children = (
            self._text,
            *(offer for *_, offer in self._lines if offer is not None),
            self._close,
        )
        shown(self, bool(self._lines))
