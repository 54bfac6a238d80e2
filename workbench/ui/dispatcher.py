"""Brings events from the engine's threads to the browser: events in from any thread, a few messages a second out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from workbench.events import BenchEvent, RunStarted, StepsDone

BUSY = 0.5
"""The share of a core above which the process, without the calling thread, counts as busy."""
_RARE = 1.1
"""Intervals between flushes beyond which none waits for another."""
_ENOUGH = 1.9
"""Intervals since the last message after which a flush is sent at once."""
_LONGEST = 2.2
"""Intervals after which a value is sent in any case."""
INTERVAL = 0.1
"""Least seconds between two messages: ten a second."""
_IDLE = 5.0
"""Seconds without work after which the thread ends; the next event starts another."""


class Throttle:
    """Decides whether a flush waits for the next one. What the panel uses of a busy process, training lacks.

    A value is at most a quarter of a second old when it is on the screen. On a GPU values are a flush old when they
    come, and none waits. The work of the sending thread does not count as the process's.
    """

    def __init__(self, interval: float) -> None:
        """interval: least seconds between two flushes."""
        self._interval = interval
        self._sent, self._busy = 0.0, False
        self._spent: tuple[float, float, float] | None = None
        self._late = False

    def on(self, device: str) -> None:
        """The device of the run that begins: "cpu", "cuda:0", "2 x cuda"."""
        self._late = "cpu" not in device

    def begins(self) -> None:
        """The calling thread is the one that sends from now on."""
        self._spent, self._busy = None, False

    def sends(self) -> None:
        """A message is sent now."""
        last, self._spent = self._spent, _spent()
        if last is not None:
            elapsed, process, own = (now - before for now, before in zip(self._spent, last, strict=True))
            self._busy = process - own > BUSY * elapsed
        self._sent = self._spent[0]

    def goes(self, came: float, before: float) -> bool:
        """Whether a flush is sent at once; the times of it and of the one before, by `time.monotonic`."""
        if self._late or not self._busy or came - before > _RARE * self._interval:
            return True
        return came - self._sent > _ENOUGH * self._interval

    def patience(self, last_sent: float) -> float:
        """Seconds that a flush may still wait; from the time of the last one that was sent, whose values are on the
        screen.
        """
        return max(0.0, last_sent + _LONGEST * self._interval - time.monotonic())


def _spent() -> tuple[float, float, float]:
    """Seconds by the clock, of all threads' work, of this thread's."""
    return time.monotonic(), time.process_time(), time.thread_time()


class Dispatcher:
    """Gives events to `hear` and lets `flush` send, on one thread of its own that lives only while there is work.

    A message is sent when an event comes, unless one has just been sent, or a flush can wait for the next one
    (`Throttle`). The last event is always followed by a flush. Errors of `on_event` and `flush` go to `failed`, and the
    dispatcher continues.
    """

    def __init__(
        self,
        on_event: Callable[[BenchEvent], None],
        flush: Callable[[], bool],
        failed: Callable[[Exception], None],
        interval: float = INTERVAL,
    ) -> None:
        self._on_event, self._flush, self._failed, self._interval = on_event, flush, failed, interval
        self._events: deque[BenchEvent] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._due = False
        """A flush is owed."""
        self._pace = Throttle(interval)
        self._came: deque[float] = deque([0.0, 0.0], maxlen=2)
        """When the engine's last two flushes came."""
        self._last_sent = 0.0
        """The time at which the last flush that was sent had come."""
        self._urgent = False
        """Something other than a flush is waiting, which is sent at once."""
        self._busy = False
        self._closed = False
        self._errors: deque[Exception] = deque(maxlen=20)

    def put(self, event: BenchEvent) -> None:
        """Queue an event, from any thread; returns at once."""
        with self._changed:
            self._events.append(event)
            if isinstance(event, StepsDone):
                self._came.append(time.monotonic())
            else:
                self._urgent = True
            if isinstance(event, RunStarted):
                self._pace.on(event.device)
            self._work()

    def wake(self) -> None:
        """Send something that no event brought."""
        with self._changed:
            self._urgent = True
            self._work()

    def drain(self, timeout: float = 5.0) -> bool:
        """Wait until everything is heard and sent; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._due or self._busy), timeout)

    def close(self) -> None:
        """Stop; its thread, which holds the view, ends now."""
        with self._changed:
            self._closed = True
            self._events.clear()
            self._due = False
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """The last errors, newest last; also those that could not be shown."""
        return tuple(self._errors)

    def _work(self) -> None:
        if self._closed:
            return
        self._due = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="workbench-pump", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        self._pace.begins()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed, _IDLE)
                if self._due and not self._urgent:
                    self._changed.wait_for(self._may_go, self._pace.patience(self._last_sent))
                if self._closed or not self._due:
                    self._thread = None
                    return
                events = list(self._events)
                self._events.clear()
                self._last_sent = self._came[-1]
                self._due, self._urgent, self._busy = False, False, True
            for event in events:
                self._guarded(lambda event=event: self._on_event(event))  # type: ignore[misc]
            self._pace.sends()
            earliest = time.monotonic() + self._interval
            more = bool(self._guarded(self._flush))
            with self._changed:
                self._urgent = self._urgent or more
                self._due, self._busy = (self._due or more) and not self._closed, False
                self._changed.notify_all()
            time.sleep(max(0.0, earliest - time.monotonic()))

    def _may_go(self) -> bool:
        return self._urgent or self._closed or self._pace.goes(self._came[1], self._came[0])

    def _guarded(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a broken view must not end the others, nor the job
            self._errors.append(error)
            try:
                self._failed(error)
            except Exception as second:  # noqa: BLE001 - showing failed too: it stays in `errors`
                self._errors.append(second)
            return False
