"""Whether the process that writes a run folder still lives.

No lock file: locks are unreliable on network homes. A header names the writer instead: machine, boot,
process number and when that process began, since numbers are used again.

* Same machine, same boot: the process table is asked; the answer is exact.
* Same machine name, another boot: dead, once the folder has been silent for ten minutes (two machines may
  share a name and a home).
* Another machine: its processes cannot be asked. It counts as alive until silent for a week.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_SAME_NAME_SILENCE = 600.0
_OTHER_HOST_SILENCE = 7 * 86400.0


def identity(pid: int | None = None) -> dict[str, Any]:
    """The header keys that name the present process, or another one of this machine, as the writer."""
    pid = os.getpid() if pid is None else pid
    return {"host": platform.node(), "boot": _boot(), "pid": pid, "pid_started": started(pid)}


def is_alive(header: Mapping[str, Any], folder: Path) -> bool:
    """Whether the writer named in `header` may still write to `folder`; True where it cannot be known."""
    pid, born = header.get("pid"), header.get("pid_started")
    if not isinstance(pid, int) or not isinstance(born, (int, float)):
        return True
    if header.get("host") != platform.node():
        return _silence(folder) < _OTHER_HOST_SILENCE
    if header.get("boot") != _boot():
        return _silence(folder) < _SAME_NAME_SILENCE
    now = started(pid)
    return now is not None and abs(now - born) < 0.1


def started(pid: int) -> float | None:
    """When process `pid` began, on a clock that does not move while the machine is up; None: no such process.

    A zombie has ended and counts as gone.
    """
    return _by_proc(pid) if Path("/proc/self/stat").exists() else _by_psutil(pid)


def _by_proc(pid: int) -> float | None:
    """Seconds since boot. psutil adds the wall clock's idea of the boot time, which jumps when the clock is set."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18]) / os.sysconf("SC_CLK_TCK")


def _by_psutil(pid: int) -> float | None:
    """Seconds since 1970, as the system wrote them down when the process began (macOS, Windows)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:  # gone, or another user's: a process of ours it is not
        return None


@functools.cache
def _boot() -> str:
    """This boot of the machine; empty where the system has no name for it (start times are absolute there)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _silence(folder: Path) -> float:
    """Seconds since the folder's files were last written."""
    last = 0.0
    for name in ("run.json", "metrics.jsonl"):
        try:
            last = max(last, (folder / name).stat().st_mtime)
        except OSError:
            continue
    return time.time() - last
