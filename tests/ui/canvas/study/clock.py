"""A clock for tests of how often a study is looked at."""

from __future__ import annotations

import time


class Clock:
    """A machine's time and a thread's own, which pass as a test says; it stands for `time`."""

    now = own = 0.0
    time = staticmethod(time.time)

    def passes(self, now: float, own: float) -> None:
        self.now += now
        self.own += own

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.own
