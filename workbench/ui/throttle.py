"""Decides how often the browser gets a message: for each flush, or for two at once while the process is busy."""

from __future__ import annotations

import time

BUSY = 0.5
"""The share of a core above which the process, without the calling thread, counts as busy."""
_RARE = 1.1
"""Intervals between flushes beyond which none waits for another."""
_ENOUGH = 1.9
"""Intervals since the last message after which a flush is sent at once."""
_LONGEST = 2.2
"""Intervals after which a value is sent in any case."""


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
