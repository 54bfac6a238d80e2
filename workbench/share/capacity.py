"""Decides whether a segment fits into memory, or goes into a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench import units
from workbench.share import segment

_SMALL = 1 << 20
_LEFT = 0.9
"""The share of the free memory that may be used."""


class NotEnoughMemory(MemoryError):
    """Raised for data that fit neither into memory nor on the disk of the run."""


@dataclass(frozen=True)
class Capacity:
    """The limits that are checked before data are placed."""

    folder: Path
    """The folder for a file where memory is too small."""
    free: Callable[[], int]
    """Bytes of memory that can be used now."""

    def for_size(self, size: int) -> tuple[Path | None, str | None]:
        """Decide where `size` bytes go: None for memory, else the folder for a file and a message
        about it.

        Raises NotEnoughMemory where neither has room.
        """
        free = self.free() if size > _SMALL else size * 2
        if size <= free * _LEFT:
            return None, None
        lacking = (
            f"{units.size(size)} of data are to be shared, and {units.size(free)} of memory are"
            " free"
        )
        if not segment.MEMFD:
            raise NotEnoughMemory(
                f"{lacking}: close what else is in memory, or train on less data."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self.folder)
        on_disk = disk.f_bavail * disk.f_frsize
        if size > on_disk * _LEFT:
            raise NotEnoughMemory(
                f"{lacking}; the disk of {self.folder} has {units.size(on_disk)} left, which is too"
                " little as well: free memory or disk space, or train on less data."
            )
        return (
            self.folder,
            (
                f"{lacking}: they are in a file in {self.folder}, which is slower and is gone with"
                " the job."
            ),
        )
