"""Moves the memory of a process that forks others into huge pages, when it is imported: the last import of such a process.

A fork copies the page tables, and the end of a forked process frees them: for half a gigabyte in small pages that takes 40 ms, in
huge ones 5. Where a system has no huge pages, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
SIZE = 2 << 20


def _move() -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in span.split("-"))
        start, end = -(-start // SIZE) * SIZE, end // SIZE * SIZE
        if access == "rw-p" and path in ([], ["[heap]"]) and start < end:
            for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
                madvise(start, end - start, advice)


if sys.platform == "linux":
    _move()
