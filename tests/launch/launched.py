"""What the tests of launched jobs share: a bench in another process, things to wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests import warm


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


@contextlib.contextmanager
def kernel(code: str, *arguments: str) -> Iterator[warm.Script]:
    """Another process, as a kernel is: a session of its own, which is killed as a whole at the end."""
    process = warm.python().start("-c", code, *arguments)
    try:
        yield process
    finally:
        kill_all_of(process)
        print(process.said(), file=sys.stderr)


def kill_all_of(process: subprocess.Popen[str] | warm.Script) -> None:
    """As Jupyter kills a kernel: its whole process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def processes_of(run: Path) -> list[psutil.Process]:
    """The processes of this machine that were launched for a run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if "workbench.launch.detached" in line and str(run) in line:
                found.append(process)
    return found


@contextlib.contextmanager
def ended(root: Path) -> Iterator[None]:
    """Behind it, whatever was launched below `root` is gone, also where the test failed."""
    try:
        yield
    finally:
        left = [process for run in (root / "runs").glob("*") for process in processes_of(run)]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, 10)
