"""Gives jobs their turns: those that need nothing in common run side by side, the others in the
order in which they were submitted.

While a job runs it has its devices, the objects that it changes and the runs that it writes to
itself. At most one job has this process, since random states and torch's flags belong to a process.
A job whose turn comes meanwhile runs in a worker process (`pool/`), where that is possible.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from workbench.settings import SettingsError

CPU = "cpu"
"""The device that several jobs may have."""
CPU_JOBS = "WORKBENCH_CPU_JOBS"
"""The environment variable that says how many jobs train on the CPU at once."""
PATIENCE = 5.0
"""Seconds that `alone` waits for a job that has just ended and still cleans up."""
_LOOK = 0.1
"""Seconds after which a job that waits checks again whether it was stopped."""
_changed = threading.Condition()
"""Notified when a turn ends; guards the two lists."""
_waiting: list[Turn] = []
"""In the order in which the jobs were submitted."""
_running: list[Turn] = []
_looking = threading.RLock()
_depth = 0
"""How many times the thread that holds `_looking` has entered `alone`."""


def cpu_jobs() -> int:
    """How many jobs train on the CPU at once. Raises SettingsError for a value that is no number
    of them.
    """
    value = os.environ.get(CPU_JOBS, "1")
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise SettingsError(
            f"{CPU_JOBS}={value!r} in the environment: give how many jobs train on the CPU at once,"
            " 1 or more, or leave it out (one after the other)."
        )
    return int(value)


def is_idle() -> bool:
    """Whether no job runs or waits."""
    return not (_running or _waiting)


@dataclass(frozen=True)
class Claim:
    """What a job needs to itself while it runs."""

    devices: frozenset[str] = frozenset()
    """ "cuda:0", "mps", `CPU`."""
    process: Literal["this", "any", "other"] = "this"
    """Where it runs: in this process only; in this one if that is free, else in a worker; in
    processes of its own in any case.
    """
    changes: Mapping[Hashable, str] = field(default_factory=dict)
    """What it changes, with its names: the ids of objects, the folder of its run."""
    reads: frozenset[Hashable] = frozenset()
    """What no other job may change meanwhile."""
    alone: bool = False
    """Whether no other job of this process may run beside it."""
    cpu_jobs: int = 1
    """How many jobs may have the CPU."""


class Turn:
    """A job's turn: it waits, then the job runs, and then it ends."""

    def __init__(self, job: str, kind: str, claim: Claim) -> None:
        """job: the id of the job."""
        self.job, self.kind, self._claim = job, kind, claim
        self.in_process = False
        """Whether its job has this process."""
        self.why = ""
        """Why its job waits; "": it does not wait."""
        self._is_next = True
        """Whether the other ranks of its job are ready for it, as of the latest look."""

    def submit(self) -> None:
        """Put it at the end of the queue."""
        with _changed:
            _waiting.append(self)
            self.why = self._why_not()

    def begin(
        self,
        gives_up: Callable[[], bool],
        is_next: Callable[[], bool] = lambda: True,
        on_wait: Callable[[], object] = lambda: None,
    ) -> bool:
        """Wait until it begins, and return True; False: the job has given up.

        on_wait: called when `why` has changed.
        """
        while not gives_up():
            self._is_next = is_next()
            with _changed:
                before, self.why = self.why, self._why_not()
                if not self.why and self._is_next:
                    self.in_process = self._gets_process(_reserved(_waiting_before(self)))
                    _waiting.remove(self)
                    _running.append(self)
                    return True
            if self.why != before:
                on_wait()
            with _changed:
                if self.why == self._why_not():  # else it has changed since
                    _changed.wait(_LOOK)
        return False

    def take_process(self, gives_up: Callable[[], bool], on_wait: Callable[[], object]) -> bool:
        """Wait, in the middle of the job, until it has this process, and return True; False: the
        job has given up. Jobs that begin meanwhile do not get it.
        """
        with _changed:
            self._claim = replace(self._claim, process="this")
        while not gives_up():
            with _changed:
                holder = next((turn for turn in _running if turn.in_process), None)
                if holder is None:
                    self.in_process, self.why = True, ""
                    return True
                before, self.why = self.why, _in_process(holder)
            if self.why != before:
                on_wait()
            with _changed:
                _changed.wait(_LOOK)
        self.why = ""
        return False

    def end(self) -> None:
        """Give back all that it has. A second call has no effect."""
        with _changed:
            for turns in (_waiting, _running):
                if self in turns:
                    turns.remove(self)
            self.in_process, self.why = False, ""
            _changed.notify_all()

    def _begin_at_once(self) -> bool:
        """Begin before the jobs that wait, once none runs in this process; False: one still runs
        after `PATIENCE`.
        """
        with _changed:
            begun = _changed.wait_for(
                lambda: not any(turn.in_process for turn in _running), PATIENCE
            )
            if begun:
                self.in_process = True
                _running.append(self)
        return begun

    def _why_not(self) -> str:
        """Why it cannot begin now; "": it can. The caller holds the lock."""
        before = _waiting_before(self)
        shared = self._shares(_running) or self._shares(before)
        if shared:
            return shared
        reserved = _reserved(before)
        for turn in (*_running, *reserved):
            if self._claim.alone or turn._claim.alone:
                return f"waiting for {turn.job}: {_ALONE[turn._claim.alone]}"
        return self._no_device(reserved) or self._no_process(reserved)

    def _shares(self, turns: Iterable[Turn]) -> str:
        """Why it cannot run beside these: they have objects in common."""
        for turn in turns:
            ours, theirs = self._claim, turn._claim
            names = [
                *(ours.changes[key] for key in ours.changes if key in theirs.changes),
                *(ours.changes[key] for key in ours.changes if key in theirs.reads),
                *(theirs.changes[key] for key in theirs.changes if key in ours.reads),
            ]
            if names:
                return f"waiting for {turn.job}, which uses the same {names[0]}"
        return ""

    def _no_device(self, reserved: list[Turn]) -> str:
        for device in sorted(self._claim.devices):
            users = [turn for turn in (*_running, *reserved) if device in turn._claim.devices]
            if len(users) >= (self._claim.cpu_jobs if device == CPU else 1):
                name = device.removeprefix("cuda:")
                on = "the CPU" if device == CPU else f"device {name}"
                return f"waiting for {on}: {_doing(users[0], 'on it')}"
        return ""

    def _no_process(self, reserved: list[Turn]) -> str:
        if self._claim.process != "this":
            return ""
        users = [turn for turn in (*_running, *reserved) if turn._wants_process]
        return _in_process(users[0]) if users else ""

    def _gets_process(self, reserved: list[Turn]) -> bool:
        if self._claim.process == "other":
            return False
        return not any(turn._wants_process for turn in (*_running, *reserved))

    @property
    def _wants_process(self) -> bool:
        return self.in_process or self._claim.process == "this"


_ALONE = {
    True: "it needs the process to itself",
    False: "this job needs the process to itself",
}


def _waiting_before(turn: Turn) -> list[Turn]:
    return _waiting[: _waiting.index(turn)] if turn in _waiting else []


def _reserved(turns: list[Turn]) -> list[Turn]:
    """Those of these waiting turns that come before later ones: not those that wait for an object
    of another job, or for other ranks, since their devices would be idle meanwhile.
    """
    return [
        turn
        for index, turn in enumerate(turns)
        if turn._is_next and not turn._shares(_running) and not turn._shares(turns[:index])
    ]


def _in_process(turn: Turn) -> str:
    return f"waiting for this process: {_doing(turn, 'in it')}"


def _doing(turn: Turn, where: str) -> str:
    """A phrase for what has a device or the process."""
    if turn in _waiting:
        return f"{turn.job} comes before"
    return f"{turn.job} {'trains' if turn.kind == 'fit' else 'runs'} {where}"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context manager in which no job of this process begins, and none runs in it: jobs wait for
    their turn, and so do other threads that enter it. Raises RuntimeError while a job runs in this
    process.
    """
    global _depth
    with _looking:
        turn = Turn("bench.export", "export", Claim(process="this", alone=True))
        if _depth == 0 and not turn._begin_at_once():
            raise RuntimeError(
                "a job of another bench runs, and all benches share the process's random states:"
                " try again when that job has ended."
            )
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                turn.end()
