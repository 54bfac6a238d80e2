"""Defines the view of a study in a notebook's cell."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from IPython.display import display

from workbench.ui import texts
from workbench.ui.bundled import cut_off
from workbench.ui.canvas.study.described import Study
from workbench.ui.canvas.study.feed import StudyFeed
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls.notice import Notice
from workbench.ui.controls.widget_utils import reachable
from workbench.ui.static_output import CellEnds

_REDRAWN = 10.0
"""The least seconds between two pictures of a study that goes on, which take part of a second."""
_PAGES = 3
"""How many displays are drawn again, the latest ones; each picture is sent to all of them."""


class StudyPanel:
    """The live view of one study, and below it the page that stays in the notebook's file. Several
    displays of one study show the same view.
    """

    def __init__(
        self, study: Study, page: Callable[[], dict[str, str]], state: Callable[[], object]
    ) -> None:
        """page: makes the page that stays. state: something that differs when the page does."""
        self._page, self._state = page, state
        self._pages: deque[Any] = deque(maxlen=_PAGES)
        self._drawn: object = None
        self._drawn_at = 0.0
        self.canvas = LiveView(subject="study")
        self.notice = Notice(self.canvas.put)
        self.feed = StudyFeed(study, self.canvas.put_all, self.notice, self._looked)
        self._cells = CellEnds(self._cell_ends)
        self._drawing = threading.Lock()
        self.canvas.on_request = self._asked
        reachable(self.canvas)

        self.feed.follow()

    @property
    def closed(self) -> bool:
        """Whether no front end listens to it any more."""
        return cut_off(self.canvas)

    def close(self) -> None:
        """Stop following, and close the widget. The study goes on."""
        self.feed.close()
        self._cells.close()
        self.canvas.layout.close()
        self.canvas.close()

    def show(self) -> None:
        """Show it in the cell that runs now."""
        page = self._page()
        data = self.canvas._repr_mimebundle_()
        bundle = data[0] if isinstance(data, tuple) else data
        display({**bundle, "text/plain": page["text/plain"]}, raw=True)
        self._pages.append(display(_still(page), raw=True, display_id=True))
        self._drawn, self._drawn_at = self._state(), time.monotonic()
        self._cells.watch()

    def _asked(self, message: Mapping[str, Any]) -> None:
        if message.get("what") == "close_notices":
            self.notice.clear()
        elif message.get("what") != "drawer" and not self.feed.hear(message):
            self.notice.say(texts.unknown_request(dict(message)), "error")

    def _looked(self, status: str) -> bool:
        """Draw the page again where it is due. Returns whether the view can be seen."""
        due = status == "ended" or time.monotonic() - self._drawn_at > _REDRAWN
        if due:
            self._redraw()
        return not self.closed

    def _cell_ends(self) -> None:
        """Put the page of a study that has ended into the notebook, before the cell ends: where no
        front end is open, later output is dropped.
        """
        if self.feed.study.status == "ended":
            self._redraw()
            self._cells.close()

    def _redraw(self) -> None:
        """Draw the page that stays again, where the study has changed."""
        with self._drawing:
            state = self._state()
            if state == self._drawn or not self._pages:
                return
            self._drawn = state
            page = _still(self._page())
            for shown in [*self._pages]:
                shown.update(page, raw=True)
            self._drawn_at = time.monotonic()


def _still(page: Mapping[str, str]) -> dict[str, str]:
    """The page, which the style sheet hides beside the live view."""
    text = page["text/html"]
    return {
        "text/plain": f"{texts.PANEL_BACK}\n{page['text/plain']}",
        "text/html": f'<div class="wb-still"><p>{texts.PANEL_BACK}</p>{text}</div>',
    }
