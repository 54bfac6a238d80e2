"""Finds out whether the process that writes a run folder still lives.

There is no lock file, since locks are unreliable on network file systems. The header names the
writer instead: machine, boot, PID namespace, PID, and the time at which the process began, since
PIDs are reused.
* Same machine, boot and PID namespace: the process table has the exact answer.
* Anything else (another machine or container, an earlier boot, a header of a version without
namespaces): unknown. The run then counts as running, however long it writes nothing, since a
process may be suspended for days.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import psutil

Liveness = Literal["alive", "gone", "unknown"]


def identity(pid: int | None = None) -> dict[str, Any]:
    """The header keys that name a process of this PID namespace as the writer; default: the
    present one.
    """
    pid = os.getpid() if pid is None else pid
    return {
        "host": platform.node(),
        "boot": _boot(),
        "pid_namespace": _pid_namespace(),
        "pid": pid,
        "pid_started": started(pid),
    }


def liveness(header: Mapping[str, Any]) -> Liveness:
    """Whether the writer named in `header` lives; "unknown" if this machine cannot find out."""
    pid, born = header.get("pid"), header.get("pid_started")
    if type(pid) is not int or not isinstance(born, int | float):
        return "unknown"
    namespace = _pid_namespace()
    here = (platform.node(), _boot(), namespace)
    # Headers of an earlier version lack the namespace; they are sufficient if the system has no
    # namespaces.
    if namespace is None or here != (
        header.get("host"),
        header.get("boot"),
        header.get("pid_namespace", ""),
    ):
        return "unknown"
    now = started(pid)
    return "alive" if now is not None and now - 0.1 < born < now + 0.1 else "gone"


def is_alive(header: Mapping[str, Any]) -> bool:
    """Whether the writer named in `header` may still write; True where it cannot be known."""
    return liveness(header) != "gone"


def started(pid: int) -> float | None:
    """When process `pid` began, by a clock that is not changed while the machine runs; None: no
    such process.

    A zombie has ended and counts as gone.
    """
    return _by_proc(pid) if Path("/proc/self/stat").exists() else _by_psutil(pid)


def _by_proc(pid: int) -> float | None:
    """Seconds since boot. (psutil adds the boot time by the wall clock, which changes when the
    clock is set.)
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18]) / os.sysconf("SC_CLK_TCK")


def _by_psutil(pid: int) -> float | None:
    """Seconds since 1970, as the system recorded them when the process began (macOS, Windows)."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:  # it has ended, or belongs to another user: it is not the writer
        return None


@functools.cache
def _boot() -> str:
    """This boot of the machine; empty where the system has no name for it (start times are
    absolute there).
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str | None:
    """The id of this process's PID namespace, of which each container has its own.

    "" if the system has no namespaces (macOS, Windows); None if /proc does not show this process's
    own. The id of a namespace may be reused, but only after all its processes have ended.
    """
    if not sys.platform.startswith("linux"):
        return ""
    try:
        # else /proc was mounted by another namespace
        own_proc = os.readlink("/proc/self") == str(os.getpid())
        return os.readlink("/proc/self/ns/pid") if own_proc else None
    except OSError:
        return None
