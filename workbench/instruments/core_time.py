"""Times work on a machine that other programs use, too.

While other programs have the core, the work stands still. How long depends on them and not on the
work, so this time is not counted. Time in which the work itself waits, for a device, a disk or
another process, is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time


def core_seconds(work: Callable[[], object]) -> float:
    """The seconds that `work()` takes in this thread, without those in which the thread waited for
    a core; where the system does not tell (it is Linux that does), all of them.
    """
    waited_before = _waited()
    began, used_before = perf_counter(), thread_time()
    work()
    used = thread_time() - used_before
    elapsed = perf_counter() - began
    # the system updates its count at times of its own, so it may be a little above the elapsed time
    blocked = elapsed - used - (_waited() - waited_before)
    return used + max(0.0, blocked)


def _waited() -> float:
    """The seconds for which this thread has waited for a core so far."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
