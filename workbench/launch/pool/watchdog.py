"""Watches whether a job of several ranks makes progress, and collects their stacks if it hangs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from workbench.launch.pool.messages import Ping
from workbench.launch.pool.worker_handle import WorkerHandle

_EVERY = 1.0
"""Seconds between two checks, at most."""
_STARTING = 120.0
"""Seconds until rank 0's first answer, at least: the server may be reading torch from a slow
disk.
"""
_WRITING = 10.0
"""Seconds that the ranks have to write their stacks, at most."""
_QUIET = 0.3
"""Seconds without new output after which the stacks count as complete."""


class Watchdog:
    """Asks rank 0 regularly for its progress. No rank can be ahead of another by more than a
    step, so rank 0 is enough.
    """

    def __init__(self, members: Sequence[WorkerHandle], timeout: float) -> None:
        self._members, self._timeout = members, timeout
        self._every = min(_EVERY, timeout / 4)
        self._count = -1
        self._waited = 0.0
        self._looked = time.monotonic()
        self._answered = True

    def on_pong(self, count: int) -> None:
        """Note rank 0's progress."""
        self._answered = True
        if count != self._count:
            self._count, self._waited = count, 0.0

    def due(self) -> bool:
        """Return whether there was no progress for too long. Call it often: it does not count
        long gaps between calls.
        """
        now = time.monotonic()
        if now - self._looked < self._every:
            return False
        # Time in which a listener was slow or the machine slept does not count.
        self._waited += min(now - self._looked, 2 * self._every)
        self._looked = now
        if self._answered:
            self._answered = False
            self._members[0].send(Ping())
        return self._waited > (self._timeout if self._count >= 0 else max(self._timeout, _STARTING))

    def report(self) -> str:
        """Text for the error: how long there was no progress, and the stack of each rank."""
        stopped = [member.rank for member in self._members if member.state in ("T", "t")]
        for member in self._members:
            member.ask_for_stacks()
        _written([member for member in self._members if member.rank not in stopped])
        stacks = [
            f"rank {m.rank} of {len(self._members)}:\n{self._doing(m, stopped)}"
            for m in self._members
        ]
        return "\n\n".join(
            [
                (
                    f"no rank has made progress for {self._timeout:g} s (rank_timeout)."
                    f" {_stopped_ranks(stopped)}"
                ),
                *stacks,
            ]
        )

    def _doing(self, member: WorkerHandle, stopped: Sequence[int]) -> str:
        if member.rank in stopped:
            return f"its process {member.pid} is stopped (SIGSTOP, or by a debugger)."
        return _own_threads(member.stacks()) or "it did not write its stack."


def _written(members: Sequence[WorkerHandle]) -> None:
    """Wait until these ranks have written their whole stacks."""
    until = time.monotonic() + _WRITING
    written, since = [""], time.monotonic()
    while (now := time.monotonic()) < until:
        stacks = [member.stacks() for member in members]
        if stacks != written:
            written, since = stacks, now
        elif all(written) and now - since > _QUIET:
            return
        time.sleep(0.02)


def _stopped_ranks(stopped: Sequence[int]) -> str:
    if not stopped:
        return "One of them hangs, or takes longer than that for one update; the stack of each:"
    return f"Rank {stopped[0]} is stopped, and the others wait for it:"


def _own_threads(dump: str) -> str:
    """The threads that run the job, without the workbench's own frames and the threads that talk
    to the owner.
    """
    threads = [
        thread
        for thread in re.split(r"^(?=(?:Current t|T)hread 0x)", dump, flags=re.MULTILINE)
        if thread.strip()
    ]
    return "\n".join(_without_ours(thread) for thread in threads if not _is_our_thread(thread))


def _is_our_thread(thread: str) -> bool:
    return "_bootstrap" in thread and _OURS in thread.replace("\\", "/")


def _without_ours(thread: str) -> str:
    lines = thread.rstrip().splitlines()
    ours = [number for number, line in enumerate(lines) if _OURS in line.replace("\\", "/")]
    return "\n".join(lines[: ours[0]] if ours else lines)


_OURS = "/workbench/launch/pool/worker.py"
