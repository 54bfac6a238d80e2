"""Passes the commands in the `control/` folders of this process's jobs to those jobs, while they
wait or run.

One thread reads the folders of all jobs of a root, so that a disk that hangs delays only commands
to jobs of its root. Listeners are called in a thread of the job, so that a slow one delays no
command.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from workbench.commands import Command
from workbench.launch.job import WORKERS, AnyJob
from workbench.runs.folder import control

_PERIOD = 0.2
"""Seconds between two reads of the folders."""


class _Listening:
    """Takes the commands of one job from its folder."""

    def __init__(self, job: AnyJob, path: Path) -> None:
        self.root = path.parents[1]
        self._job, self._path = job, path
        self._looking = threading.Lock()
        """Held while the folder is read."""
        self._over = False
        self._left_out: set[str] = set()
        """Files that the latest read could not take. Each read finds a file again that cannot be
        removed; it is reported once.
        """
        self._reports: deque[Callable[[], object]] = deque()
        self._reporting = False
        self._lock = threading.Lock()
        """Guards the reports."""

    def look(self) -> None:
        """Read the folder, and pass the commands on."""
        with self._looking:
            if self._over:
                return
            for command in self.take():
                if isinstance(command, str):
                    self._job._refuse(command)
                elif (report := self._job._obey(command)) is not None:
                    self._report(report)

    def end(self) -> None:
        """Stop reading; waits for a read in progress."""
        with self._looking:
            self._over = True

    def take(self) -> list[Command | str]:
        """The commands since the last call; for other files, why they are not commands."""
        commands = list(control.take(self._path))
        known, self._left_out = (
            self._left_out,
            {command for command in commands if isinstance(command, str)},
        )
        return [
            command for command in commands if not isinstance(command, str) or command not in known
        ]

    def _report(self, report: Callable[[], object]) -> None:
        with self._lock:
            self._reports.append(report)
            if self._reporting:
                return
            try:
                threading.Thread(target=self._report_all, name=WORKERS[2], daemon=True).start()
                self._reporting = True
            except RuntimeError as error:
                # the process ends, or has no thread left; the next command tries again
                self._job._refuse(f"listeners do not get a command now: {error}")

    def _report_all(self) -> None:
        while True:
            with self._lock:
                if not self._reports:
                    self._reporting = False
                    return
                report = self._reports.popleft()
            try:
                report()
            except Exception as error:  # noqa: BLE001  # the reports after it must still reach the listeners
                self._job._refuse(
                    f"a command of another process arrived, but could not be reported: {error!r}"
                )


_jobs: dict[AnyJob, _Listening] = {}
"""The jobs whose folders are read."""
_roots: set[Path] = set()
"""The roots that have a thread."""
_lock = threading.Lock()
"""Guards these two; no thread holds it while it reads a disk."""


def listen(job: AnyJob) -> None:
    """Start reading the commands in the job's folder, if it has one."""
    if job.folder is None:
        return
    # a cell may change the working directory
    listening = _Listening(job, job.folder.path.absolute())
    with _lock:
        if listening.root not in _roots:
            threading.Thread(
                target=_look_into, args=(listening.root,), name=WORKERS[2], daemon=True
            ).start()
            _roots.add(listening.root)
        _jobs[job] = listening


def leave(job: AnyJob) -> None:
    """Stop reading the commands in the job's folder, which another process now reads; waits for
    a read in progress.
    """
    _end(job)


def end(job: AnyJob) -> list[Command | str]:
    """Stop reading the commands in the job's folder; returns those since the last read, and for
    other files why they are not commands.
    """
    listening = _end(job)
    return [] if listening is None else listening.take()


def _end(job: AnyJob) -> _Listening | None:
    with _lock:
        listening = _jobs.pop(job, None)
    if listening is not None:
        listening.end()
    return listening


def _look_into(root: Path) -> None:
    """Read the folders of this root's jobs until it has no job."""
    while True:
        with _lock:
            jobs = [job for job in _jobs.values() if job.root == root]
            if not jobs:
                _roots.discard(root)
                return
        for job in jobs:
            job.look()
        time.sleep(_PERIOD)
