"""Brings the commands that come into the folders of this process's jobs (`control/`) to the jobs, as long as they wait or run.

One thread looks for all jobs. It ends when there are none, and it is not one that listeners or a disk may hold up.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from workbench.launch.job import AnyJob
from workbench.runs.folder import control

_PERIOD = 0.2
"""Seconds between two looks."""

_jobs: dict[AnyJob, Path] = {}
"""The jobs whose folders are looked into."""
_lock = threading.Lock()
"""Held while folders are read: a job that was taken out of `_jobs` has no command taken any more."""
_thread: threading.Thread | None = None


def listen(job: AnyJob) -> None:
    """From now on the job gets the commands in its folder, if it has one."""
    global _thread
    if job.folder is None:
        return
    with _lock:
        _jobs[job] = job.folder.path.absolute()  # a cell may change the working directory
        if _thread is None:
            thread = threading.Thread(target=_run, name="workbench-control", daemon=True)
            thread.start()
            _thread = thread


def leave(job: AnyJob) -> None:
    """The job gets none any more. When this returns, no look is under way."""
    with _lock:
        _jobs.pop(job, None)


def _run() -> None:
    while _look():
        time.sleep(_PERIOD)


def _look() -> bool:
    """Hand on what has come; False: there is no job any more."""
    global _thread
    with _lock:
        if not _jobs:
            _thread = None
            return False
        found = [(job, command) for job, path in _jobs.items() for command in control.take(path)]
    for job, command in found:
        job._obey(command)
    return True
