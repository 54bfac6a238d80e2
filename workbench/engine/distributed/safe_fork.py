"""Keeps a rank from forking loader workers that hang, in Python before 3.11.10.

A thread of gloo attaches itself to Python for a moment when it frees the tensors of a collective,
and so may one of NCCL. In these versions of Python
(https://github.com/python/cpython/issues/112275) a process that is forked while a thread attaches
itself waits for ever for a lock that the thread held. Collectives often end just before a loader
starts its workers.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HANGS = sys.platform == "linux" and sys.version_info < (3, 11, 10)
"""Whether a fork beside such a thread can hang here."""
_THREADS = "pt_gloo", "pt_nccl"
"""How the names of the threads begin."""
_LONGEST = 1.0
"""Seconds to wait at most: a thread frees its tensors in microseconds, once it has a core."""


@functools.cache
def guard_forks() -> None:
    """Let each fork of this process wait until these threads sleep. Does nothing where Python's
    fork is safe.
    """
    if HANGS:
        os.register_at_fork(before=wait_for_collectives)


def wait_for_collectives() -> None:
    """Wait until no thread of gloo or NCCL runs. One that sleeps has nothing to free, or has
    attached itself already.
    """
    until = time.monotonic() + _LONGEST
    while any(_runs(thread) for thread in _threads()) and time.monotonic() < until:
        os.sched_yield()


def _threads() -> Iterator[Path]:
    for thread in Path("/proc/self/task").iterdir():
        try:
            if (thread / "comm").read_text().startswith(_THREADS):
                yield thread
        except OSError:  # it has ended
            continue


def _runs(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "S"
