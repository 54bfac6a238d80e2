"""Those who hear a bench's events. A view's mistake must not end a run: it is told, once."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from workbench.events import BenchEvent, Called, Event
from workbench.launch.job import AnyJob
from workbench.task.lightning.unsupported import refuse_callbacks
from workbench.task.protocol import TaskError
from workbench.values import shown

Listener = Callable[[BenchEvent], None]


class Listeners:
    """Functions of one event."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners: list[Listener] = [_checked(listener) for listener in _several(listeners)]
        self._failing: list[Listener] = []
        self._thread = threading.local()
        """`tells`: whether the thread that looks is telling an event."""

    def add(self, listener: Listener) -> Callable[[], None]:
        """One more from now on; call what is returned to be rid of it."""
        self._listeners.append(_checked(listener))

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def hear(self, job: AnyJob, event: Event) -> list[str]:
        """Tell an event of a job; the failures of listeners that had not failed before, in words."""
        new = [(listener, text) for listener, text in self.tell(event) if listener not in self._failing]
        self._failing += [listener for listener, _ in new]
        return [f"a listener failed (this is said once; it goes on hearing):\n{text}" for _, text in new]

    def tell(self, event: BenchEvent) -> list[tuple[Listener, str]]:
        """Tell all; those that failed, with their tracebacks."""
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
        """Tell a line of code; not one that a listener runs as it hears, which would come back to it, and again."""
        if not self._tells:
            self.tell(Called(code))

    @property
    def _tells(self) -> bool:
        return getattr(self._thread, "tells", False)


def _several(listeners: Any) -> list[Any]:
    if callable(listeners) or not isinstance(listeners, Iterable):
        refuse_callbacks(listeners, "listeners=")
        raise TaskError(f"listeners={listeners!r}: give a list of functions, listeners=[f].")
    return list(listeners)


def _checked(listener: Any) -> Listener:
    """The listener, if it can be one."""
    refuse_callbacks(listener, "listeners=")
    if not callable(listener):
        raise TaskError(f"listeners=: {shown(listener)} cannot be called; a listener is a function of one event.")
    heard: Listener = listener
    return heard
