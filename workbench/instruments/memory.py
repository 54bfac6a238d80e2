"""Measures memory: how much is free, how much a process needed, and whether an error means that
it ran out.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from workbench.share.segment import NAME

if sys.platform != "win32":
    import resource

_OUT_OF_MEMORY = (
    "cannot allocate memory",  # the system's message, as torch and the loaders repeat it
    "can't allocate memory",  # CPU, with DefaultCPUAllocator before it
    "defaultcpuallocator: not enough memory",  # CPU on Windows
    "not enough memory: you tried to allocate",
    "std::bad_alloc",
    "out of memory",  # CUDA and HIP errors that have no type of their own, MPS, XPU
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "rocblas_status_memory_error",
    "hipblas_status_alloc_failed",
    "miopenstatusallocfailed",
    "out_of_device_memory",  # XPU: UR_RESULT_ERROR_… and PI_ERROR_…
    "out_of_host_memory",
    "out_of_resources",
    "resource_exhausted",  # XLA
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, on any device, by its type or its message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # Only errors that a backend raises: a user's ValueError about memory is a ValueError.
    if not isinstance(error, RuntimeError | OSError):
        return False
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY)


def explain_out_of_memory(error: BaseException, batch_size: int | None) -> str:
    """The remedy where memory ran out on a batch; "": it is another error. batch_size: None
    where the data make their own batches.
    """
    if not is_out_of_memory(error):
        return ""
    if batch_size is None:
        return (
            "Memory ran out on a batch that the data make themselves: make smaller ones there, or"
            " take precision='bf16-mixed'."
        )
    return (
        f"Memory ran out at batch_size={batch_size}: take a smaller one (find_batch_size() finds"
        " the largest that fits training, and accumulate_grad_batches keeps the samples of an"
        " update), or precision='bf16-mixed'."
    )


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be used now: those of the system, or of this process's container if
    they are fewer.

    Cached pages of files, which the system can drop at once, count as free.
    """
    left = [psutil.virtual_memory().available]
    for folder, limit, usage, cache in _cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # "max", or a level that shows no limit
            most = int((folder / limit).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(most - int((folder / usage).read_text()) + int(stat.get(cache, 0)))
    return max(0, min(left))


def total_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes of a device; for the CPU those of the machine, or its container's limit
    if that is less. None: unknown.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    if device.type != "cpu":
        return None
    most = [int(psutil.virtual_memory().total)]
    for folder, limit, *_ in _cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # "max", or a level that shows no limit
            most.append(int((folder / limit).read_text()))
    return min(most)


def memory_in_use(device: torch.device) -> int | None:
    """Return the bytes that this process uses on a device (CPU: its resident memory). None:
    unknown.

    Loader processes do not count: the memory that they share with this one would count for each of
    them.
    """
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.current_allocated_memory())
    return _resident() if device.type == "cpu" else None


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(_process(os.getpid()).memory_info().rss)


@functools.cache
def _process(number: int) -> psutil.Process:
    # it reads when the process began, which takes longer than its memory
    return psutil.Process(number)


def _cgroups(root: Path) -> list[tuple[Path, str, str, str]]:
    """Return the cgroup folders whose limits apply to this process, with the names of their
    files. All levels count.
    """
    folders = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        below = top / path.lstrip("/")
        # In a container the path may be the host's: then only the top exists here, and it is the
        # container's.
        levels = [below, *below.parents]
        folders += [(level, *names) for level in levels[: levels.index(top) + 1]]
    return folders


@dataclass
class _Idle:
    resident: int = 0
    files: int = 0


_idle = _Idle()


def reset_peak() -> None:
    """Begin to measure `peak_bytes`: the memory that this process uses now is its idle memory."""
    with contextlib.suppress(OSError):  # not Linux: the peak is then the whole process's
        Path("/proc/self/clear_refs").write_text("5")
    _idle.resident = _status().get("VmRSS") or _resident()
    _idle.files = _file_pages()


def peak_bytes() -> int:
    """Return the most memory that this process used since `reset_peak`, above its idle memory.

    Pages of files and of packages in shared memory that were first read meanwhile do not count:
    libraries and data exist once for all processes.
    """
    peak = _status().get("VmHWM")
    if peak is None:
        peak = getattr(_process(os.getpid()).memory_info(), "peak_wset", 0) or _most_resident()
    return max(0, peak - _idle.resident - max(0, _file_pages() - _idle.files))


def data_bytes() -> int:
    """Return this process's private writable memory, which RLIMIT_DATA limits. 0 where the
    system does not report it.
    """
    return _status().get("VmData", 0)


@contextlib.contextmanager
def limited(memory: int | None) -> Iterator[None]:
    """Context manager in which this process can allocate at most `memory` bytes of new private
    memory.
    """
    if memory is None:
        yield
        return
    held = data_bytes()
    if sys.platform == "win32" or not held:
        print(
            "memory_limit: this system cannot limit a process's memory; the trial runs without a"
            " limit.",
            file=sys.stderr,
        )
        yield
        return
    # starts the threads: their stacks are not the function's
    torch.ones(torch.get_num_threads() << 15).mul_(2)
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [
        data_bytes() + memory,
        *(old for old in (soft, hard) if old != resource.RLIM_INFINITY),
    ]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status() -> dict[str, int]:
    """Return the sizes in /proc/self/status, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {
        row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"
    }


def _file_pages() -> int:
    """Return the bytes of resident pages of files and shared-memory segments that this process
    has not written to.
    """
    total = _status().get("RssFile", 0)
    try:
        if f"/memfd:{NAME}" not in Path("/proc/self/maps").read_text():
            # for smaps the system counts all pages of the process, for many milliseconds
            return total
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return total
    ours = False
    for line in lines:
        key, *rest = line.split()
        if not key.endswith(":"):
            ours = f"/memfd:{NAME}" in line
        elif ours and key in ("Rss:", "Anonymous:"):
            total += int(rest[0]) * 1024 * (1 if key == "Rss:" else -1)
    return total


def _most_resident() -> int:
    if sys.platform == "win32":
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if psutil.MACOS else most * 1024
