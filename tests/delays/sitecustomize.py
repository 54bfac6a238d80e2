"""Delays at random what threads and processes do to each other, so that a test which takes an order for granted fails.

`make delays` puts this folder on Python's path: every process of the tests imports this file when it starts.
WORKBENCH_TEST_DELAYS is the probability of a delay. Functions of `os` that work in folders stay, since code compares them
with `os.supports_dir_fd`.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing.connection
import os
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any

PROBABILITY = float(os.environ.get("WORKBENCH_TEST_DELAYS", "0"))
_MEAN, _LONGEST = 0.02, 0.4
"""Seconds of a delay."""
_random = random.Random()
"""Not the one whose state a fit saves."""
_sleep = time.sleep


def delay(share: float = 1.0) -> None:
    """Sleep for a moment, with this share of the probability."""
    if _random.random() < PROBABILITY * share:
        _sleep(min(_LONGEST, _random.expovariate(1 / _MEAN)))


def delayed(owner: Any, name: str, share: float = 1.0) -> None:
    """Let this function or method be delayed, before and after it works."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def slower(*args: Any, **options: Any) -> Any:
        delay(share)
        try:
            return function(*args, **options)
        finally:
            delay(share)

    setattr(owner, name, slower)


def delay_waking() -> None:
    """Let a thread that waits for a condition get its lock late: others have it in between."""
    make = threading.Condition.__init__

    def init(self: Any, lock: Any = None) -> None:
        make(self, lock)
        take = self._acquire_restore

        def late(state: Any) -> None:
            delay()
            take(state)

        self._acquire_restore = late

    threading.Condition.__init__ = init  # type: ignore[method-assign]


if PROBABILITY > 0:
    sys.setswitchinterval(1e-4)
    delay_waking()
    for owner, names, share in (
        (threading.Condition, ("notify",), 1.0),
        (threading.Event, ("set", "clear"), 1.0),
        (threading.Thread, ("start", "join"), 1.0),
        (os, ("kill", "waitpid"), 1.0),
        (os, ("write",), 0.25),
        (subprocess.Popen, ("__init__", "poll"), 1.0),
        (socket.socket, ("send", "sendall", "recv", "accept", "connect", "close"), 0.5),
        (
            multiprocessing.connection._ConnectionBase,
            ("send", "recv", "send_bytes", "recv_bytes", "poll"),
            0.5,
        ),
        (asyncio.BaseEventLoop, ("call_soon_threadsafe",), 1.0),
        (asyncio.Handle, ("_run",), 0.125),
    ):
        for name in names:
            delayed(owner, name, share)
    os.register_at_fork(before=delay, after_in_parent=delay, after_in_child=delay)
