"""Those who hear a bench's events. A view's mistake must not end a run: it is told, once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from workbench.events import BenchEvent, Event
from workbench.launch.protocol import AnyJob

Listener = Callable[[BenchEvent], None]


class Listeners:
    """Functions of one event."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners: list[Listener] = list(listeners)
        self._failing: list[Listener] = []

    def add(self, listener: Listener) -> Callable[[], None]:
        """One more from now on; call what is returned to be rid of it."""
        self._listeners.append(listener)

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
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except (Exception, SystemExit):  # noqa: BLE001
                failed.append((listener, traceback.format_exc()))
        return failed
