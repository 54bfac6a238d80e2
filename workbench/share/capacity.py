"""Whether there is memory for a segment, and where it lies when there is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.share import segment

_SMALL = 1 << 20
_LEFT = 0.9
"""So much of what is free may be taken."""


class NotEnoughMemory(MemoryError):
    """Data that fit neither in memory nor on the disk beside the run."""


@dataclass(frozen=True)
class Capacity:
    """What is looked at before data are placed."""

    folder: Path
    """Where a file serves that memory is too small for."""
    free: Callable[[], int]
    """Bytes of memory that can be used now."""

    def for_size(self, size: int) -> tuple[Path | None, str | None]:
        """None for memory, else the folder, and what to tell of it; NoRoom where neither has room."""
        free = self.free() if size > _SMALL else size * 2
        if size <= free * _LEFT:
            return None, None
        lacking = f"{size / 1e6:,.0f} MB of data are to be shared, and {free / 1e6:,.0f} MB of memory are free"
        if not segment.MEMFD:
            raise NotEnoughMemory(f"{lacking}: close what else is in memory, or train on less data.")
        self.folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self.folder)
        on_disk = disk.f_bavail * disk.f_frsize
        if size > on_disk * _LEFT:
            raise NotEnoughMemory(
                f"{lacking}; the disk of {self.folder} has {on_disk / 1e6:,.0f} MB left, which is too little as well: free memory "
                "or disk space, or train on less data."
            )
        return self.folder, f"{lacking}: they lie in a file in {self.folder}, which is slower and is gone with the job."
