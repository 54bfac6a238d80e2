"""What processes hold of memory, from /proc/PID/smaps_rollup and the segments that they have open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MIB = 2**20


@dataclass
class Held:
    """MiB of one process. Proportional: a page that n processes have counts 1/n for each.

    Pages of files (libraries) are left out there: how many processes have them hangs on what else the machine does.
    """

    proportional: float = 0.0
    private: float = 0.0
    shared_memory: float = 0.0
    segments: dict[int, float] = field(default_factory=dict)
    """By their inode; also pages that nobody has looked at yet."""


def held(pid: int) -> Held:
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        found[name] = int(value.split()[0]) / 1024
    private = found["Private_Clean"] + found["Private_Dirty"] + found["Private_Hugetlb"]
    return Held(found["Pss_Anon"] + found["Pss_Shmem"], private, found["Pss_Shmem"], _segments(pid))


def _segments(pid: int) -> dict[int, float]:
    found = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(fd).startswith(("/memfd:", "/dev/shm/")):
                about = os.stat(fd)
                found[about.st_ino] = about.st_blocks * 512 / MIB
    return found


def family(pid: int) -> list[int]:
    """The process and all that it started, directly or not."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def of(pids: Iterable[int]) -> dict[int, Held]:
    """What each holds; a process that has just ended holds nothing."""
    found = {}
    for pid in pids:
        with suppress(OSError, KeyError):
            found[pid] = held(pid)
    return found


def in_all(processes: Iterable[Held]) -> float:
    """MiB of all together, with the pages of segments that are in memory and mapped by nobody."""
    them = list(processes)
    segments: dict[int, float] = {}
    for one in them:
        segments |= one.segments
    unseen = max(0.0, sum(segments.values()) - sum(one.shared_memory for one in them))
    return sum(one.proportional for one in them) + unseen
