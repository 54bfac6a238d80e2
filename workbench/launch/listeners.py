"""Calls the listeners of a bench's events. An error in one does not end a run and is reported
once.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from workbench.events import BenchEvent, Called, Event
from workbench.launch.job import AnyJob
from workbench.task.errors import TaskError
from workbench.task.lightning.unsupported import refuse_callbacks
from workbench.values import shown

Listener = Callable[[BenchEvent], None]


class Listeners:
    """The listeners of one bench: functions that are called with each event."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners: list[Listener] = [_checked(listener) for listener in _several(listeners)]
        self._failing: list[Listener] = []
        self._thread = threading.local()
        """Its attribute `tells`: whether the present thread is calling listeners."""

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; call the result to remove it."""
        self._listeners.append(_checked(listener))

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def on_event(self, job: AnyJob, event: Event) -> list[str]:
        """Call all listeners with an event of a job; returns a message for each that failed for
        the first time.
        """
        new = [
            (listener, text)
            for listener, text in self.notify(event)
            if listener not in self._failing
        ]
        self._failing += [listener for listener, _ in new]
        return [
            f"a listener failed (it is called again; this message comes once):\n{text}"
            for _, text in new
        ]

    def notify(self, event: BenchEvent) -> list[tuple[Listener, str]]:
        """Call all listeners with an event; returns those that failed, with their tracebacks."""
        failed = []
        before, self._thread.tells = self._tells, True
        try:
            for listener in tuple(self._listeners):
                try:
                    listener(event)
                except (Exception, SystemExit):  # noqa: BLE001
                    failed.append((listener, traceback.format_exc()))
        finally:
            self._thread.tells = before
        return failed

    def called(self, code: str) -> None:
        """Report a line of code that the user ran; not one that a listener ran, which would be
        called for it again.
        """
        if not self._tells:
            self.notify(Called(code))

    @property
    def _tells(self) -> bool:
        return getattr(self._thread, "tells", False)


def _several(listeners: Any) -> list[Any]:
    if callable(listeners) or not isinstance(listeners, Iterable):
        refuse_callbacks(listeners, "listeners=")
        raise TaskError(f"listeners={listeners!r}: give a list of functions, listeners=[f].")
    return list(listeners)


def _checked(listener: Any) -> Listener:
    """Return the listener; raise TaskError where it cannot be called."""
    refuse_callbacks(listener, "listeners=")
    if not callable(listener):
        raise TaskError(
            f"listeners=: {shown(listener)} cannot be called; a listener is a function of one"
            " event."
        )
    typed: Listener = listener
    return typed
