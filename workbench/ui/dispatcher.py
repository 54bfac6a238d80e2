"""Passes events from the engine's threads to the browser, a few messages a second."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from workbench.events import BenchEvent, RunStarted, StepsDone

BUSY = 0.5
"""The share of a core above which the process, without the calling thread, counts as busy."""
_RARE = 1.1
"""If flushes are further apart than this many intervals, none waits for the next one."""
_ENOUGH = 1.9
"""A flush is sent at once if the last message is this many intervals ago."""
_LONGEST = 2.2
"""A value is sent after this many intervals in any case."""
INTERVAL = 0.1
"""The least seconds between two messages."""
_IDLE = 5.0
"""Seconds without work after which the thread ends; the next event starts another."""


class Throttle:
    """Decides whether a flush waits for the next one, since a busy process has less time for
    training if the panel uses more.

    A value is at most a quarter of a second old when it is on the screen. On a GPU, values are
    already a flush old when they come, so none waits. The work of the sending thread does not count
    as work of the process.
    """

    def __init__(self, interval: float) -> None:
        """interval: the least seconds between two flushes."""
        self._interval = interval
        self._sent, self._busy = 0.0, False
        self._spent: tuple[float, float, float] | None = None
        self._late = False

    def on(self, device: str) -> None:
        """Set the device of the run that begins: "cpu", "cuda:0", "2 x cuda"."""
        self._late = "cpu" not in device

    def begins(self) -> None:
        """Note that the calling thread is the one that sends from now on."""
        self._spent, self._busy = None, False

    def sends(self) -> None:
        """Note that a message is sent now."""
        last, self._spent = self._spent, _spent()
        if last is not None:
            elapsed, process, thread = (
                now - before for now, before in zip(self._spent, last, strict=True)
            )
            self._busy = process - thread > BUSY * elapsed
        self._sent = self._spent[0]

    def goes(self, came: float, before: float) -> bool:
        """Whether a flush is sent at once. came, before: the times of it and of the one before,
        by `time.monotonic`.
        """
        if self._late or not self._busy or came - before > _RARE * self._interval:
            return True
        return came - self._sent > _ENOUGH * self._interval

    def patience(self, last_sent: float) -> float:
        """Seconds that a flush may still wait. last_sent: the time of the last flush that was
        sent, whose values are on the screen.
        """
        return max(0.0, last_sent + _LONGEST * self._interval - time.monotonic())


def _spent() -> tuple[float, float, float]:
    """Seconds: of the clock, of CPU time of all threads, of CPU time of this thread."""
    return time.monotonic(), time.process_time(), time.thread_time()


class Dispatcher:
    """Calls `on_event` with each event and `flush` to send, in a thread of its own that lives only
    while there is work.

    A message is sent when an event comes, unless one has just been sent, or a flush can wait for
    the next one (`Throttle`). After the last event there is always a flush. `failed` is called with
    errors of `on_event` and `flush`, and the dispatcher continues.
    """

    def __init__(
        self,
        on_event: Callable[[BenchEvent], None],
        flush: Callable[[], bool],
        failed: Callable[[Exception], None],
        interval: float = INTERVAL,
    ) -> None:
        self._on_event, self._flush, self._failed, self._interval = (
            on_event,
            flush,
            failed,
            interval,
        )
        self._events: deque[BenchEvent] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._due = False
        """Whether a call of `flush` is due."""
        self._pace = Throttle(interval)
        self._came: deque[float] = deque([0.0, 0.0], maxlen=2)
        """The times at which the engine's last two flushes came."""
        self._last_sent = 0.0
        """The time at which the last flush came that was sent."""
        self._urgent = False
        """Whether an event waits that is no flush of the engine and is sent at once."""
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
        """Send data that comes from no event."""
        with self._changed:
            self._urgent = True
            self._work()

    def drain(self, timeout: float = 5.0) -> bool:
        """Wait until all events are handled and sent; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._due or self._busy), timeout)

    def close(self) -> None:
        """Stop; the thread, which keeps the view alive, ends."""
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
        except Exception as error:  # noqa: BLE001 - an error of a view must end neither the other views nor the job
            self._errors.append(error)
            try:
                self._failed(error)
            except Exception as second:  # noqa: BLE001 - showing the error failed, too; `errors` has both
                self._errors.append(second)
            return False
