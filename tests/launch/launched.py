"""What the tests of launched jobs share: a bench in another process, things to wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests import warm


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has, too. In one look: it may end at any moment."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def kernel(code: str, *arguments: str, **environment: str) -> Iterator[warm.Script]:
    """Another process, as a kernel is: a session of its own, which is killed as a whole at the end."""
    process = warm.python().start(
        "-c", code, *arguments, environment=warm.environment() | environment
    )
    try:
        yield process
    finally:
        kill_all_of(process)
        print(process.said(), file=sys.stderr)


def kill_all_of(process: subprocess.Popen[str] | warm.Script) -> None:
    """As Jupyter kills a kernel: its whole process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not have come to have a group of its own
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def processes_of(run: Path) -> list[psutil.Process]:
    """The processes of this machine that were launched for a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if "workbench.launch.accelerate.worker" in line and str(run) in line:
                found.append(process)
    return found


@contextlib.contextmanager
def ended(root: Path) -> Iterator[None]:
    """Behind it, whatever was launched below `root` is gone, also where the test failed."""
    try:
        yield
    finally:
        for _ in range(10):  # a launcher may just have started one more
            left = [process for run in (root / "runs").glob("*") for process in processes_of(run)]
            if not left:
                break
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, 20)
