"""How often the screen is told: of each flush of the engine, or of two at once where the process has its hands full."""

from __future__ import annotations

import time

BUSY = 0.5
"""The share of a core from which on the process, without the thread that asks, is busy."""
_RARE = 1.1
"""Intervals from one flush to the next beyond which none waits for another."""
_ENOUGH = 1.9
"""Intervals since the last message after which a flush goes at once."""
_LONGEST = 2.2
"""Intervals after which a value goes, whatever comes."""


class Throttle:
    """Whether a flush is kept back for the one behind it. What the panel takes from a busy process, training lacks.

    A value is a quarter of a second old at most when it is on the screen. On a GPU values are a flush old when they come, and
    none is kept back. What the thread that sends works does not count as the process's.
    """

    def __init__(self, interval: float) -> None:
        """interval: seconds between two flushes at least."""
        self._interval = interval
        self._sent, self._busy = 0.0, False
        self._spent: tuple[float, float, float] | None = None
        self._late = False

    def on(self, device: str) -> None:
        """Where the run is that begins: "cpu", "cuda:0", "2 x cuda"."""
        self._late = "cpu" not in device

    def begins(self) -> None:
        """The thread that calls this is the one that sends from now on."""
        self._spent, self._busy = None, False

    def sends(self) -> None:
        """A message goes now."""
        last, self._spent = self._spent, _spent()
        if last is not None:
            elapsed, process, own = (now - before for now, before in zip(self._spent, last, strict=True))
            self._busy = process - own > BUSY * elapsed
        self._sent = self._spent[0]

    def goes(self, came: float, before: float) -> bool:
        """Whether a flush goes at once; when it came, and when the one before it did, on `time.monotonic`."""
        if self._late or not self._busy or came - before > _RARE * self._interval:
            return True
        return came - self._sent > _ENOUGH * self._interval

    def patience(self, told: float) -> float:
        """Seconds that one may still wait for another; when the last one came that was told, and values of which are on the screen."""
        return max(0.0, told + _LONGEST * self._interval - time.monotonic())


def _spent() -> tuple[float, float, float]:
    """Seconds: by the clock, of all threads' work, of this thread's."""
    return time.monotonic(), time.process_time(), time.thread_time()
