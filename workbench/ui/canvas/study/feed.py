"""Keeps the view of a study up to date, and carries out its buttons."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from workbench.ui import texts
from workbench.ui.canvas.study.calls import call_of
from workbench.ui.canvas.study.described import Describer, Study, pause_after
from workbench.ui.controls.notice import CLICKED, Notice
from workbench.ui.controls.widget_utils import aside


class StudyFeed:
    """Follows one study in a thread, until it is closed."""

    def __init__(
        self,
        study: Study,
        put: Callable[[Mapping[str, Any]], None],
        notice: Notice,
        looked: Callable[[str], bool] = lambda status: True,
    ) -> None:
        """put: sends values by name. looked: called with the study's status after each look; it
        returns whether somebody still sees the view.
        """
        self.study = study
        self._put, self._notice, self._looked = put, notice, looked
        self._describer = Describer(study)
        self._lock = threading.Lock()
        """Held while the study is described: a click does that in another thread."""
        self._calls = threading.Lock()
        """Held during a call, so that calls are carried out one after another."""
        self._changed = threading.Event()
        self._closed = False

    def follow(self) -> None:
        """Begin to follow."""
        aside(self._follow, self._notice.error, "study-view")

    def close(self) -> None:
        """Stop following."""
        self._closed = True
        self._changed.set()

    def look(self) -> str:
        """Send what the study's folder says now; returns the study's status."""
        with self._lock:
            values = self._describer.present()
            self._put(values)
        return str(values["study_now"]["status"])

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Carry out a button of the view; False: the message is about something else. Errors become
        notices.
        """
        match message:
            case {"what": "study", "code": str(code)}:
                failed = lambda error: self._notice.error(error, code[:80], CLICKED)  # noqa: E731
                aside(lambda: self._call(code), failed, "study-call")
                return True
        return False

    def _call(self, code: str) -> None:
        method, arguments, named = call_of(code)
        with self._calls:
            self._notice.drop(CLICKED)
            why = ""
            try:
                result = getattr(self.study, method)(*arguments, **named)
                if method == "export":
                    self._notice.say(texts.written(str(result)), about=CLICKED)
                elif method not in ("pause", "stop"):
                    why = self.study.why_idle
            except UserWarning as warning:  # where a filter makes errors of warnings
                why = str(warning)
            self._put({"code": code})
            self._notice.say(why, "warning", about=CLICKED)
        self.look()
        self._changed.set()

    def _follow(self) -> None:
        trouble = status = ""
        about = f"look.{self.study.id}"
        while not self._closed:
            self._changed.clear()
            begin = time.thread_time()
            try:
                status = self.look()
                if not self._looked(status):
                    return
                trouble = ""
                self._notice.drop(about)
            except Exception as error:  # noqa: BLE001 - shown until a look succeeds
                if str(error) != trouble:
                    trouble = str(error)
                    self._notice.error(error, self.study.id, about)
            spent = time.thread_time() - begin
            self._changed.wait(pause_after(spent, "" if trouble else status))
