"""Memory: which errors mean that it ran out, and how much is left."""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from workbench.instruments.memory import (
    available_memory,
    is_out_of_memory,
    peak_bytes,
    reset_peak,
    total_memory,
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((3,), np.dtype("f4")),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("XPU out of memory. Tried to allocate"),
        RuntimeError("HIP out of memory. Tried to allocate"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_out_of_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        ValueError("a sketch of what to do when out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def cgroup(root: Path, lines: str, folder: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(lines)
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / folder / name).write_text(text)


def test_a_container_with_version_2(tmp_path: Path) -> None:
    files = {
        "memory.max": "5000000",
        "memory.current": "3000000",
        "memory.stat": "anon 1\ninactive_file 400000\n",
    }
    cgroup(tmp_path, "0::/user/job\n", "sys/fs/cgroup/user/job", files)
    assert available_memory(tmp_path) == 2_400_000
    assert total_memory(torch.device("cpu"), tmp_path) == 5_000_000
    # A level above has less left, and the lowest has no limit.
    (tmp_path / "sys/fs/cgroup/user/job/memory.max").write_text("max")
    cgroup(tmp_path, "0::/user/job\n", "sys/fs/cgroup/user", {**files, "memory.current": "4900000"})
    assert available_memory(tmp_path) == 500_000
    assert total_memory(torch.device("cpu"), tmp_path) == 5_000_000


def test_a_container_with_version_1_whose_path_is_the_hosts(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": "5000000",
        "memory.usage_in_bytes": "6000000",
        "memory.stat": "total_inactive_file 0\n",
    }
    cgroup(tmp_path, "3:cpu:/\n4:memory:/docker/abc\n0::/\n", "sys/fs/cgroup/memory", files)
    assert available_memory(tmp_path) == 0
    assert total_memory(torch.device("cpu"), tmp_path) == 5_000_000


def test_without_a_limit_it_is_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = psutil.virtual_memory()
    # other processes take and give back meanwhile
    monkeypatch.setattr(psutil, "virtual_memory", lambda: now)
    assert available_memory(tmp_path) == now.available
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert total_memory(torch.device("cpu"), tmp_path) == psutil.virtual_memory().total


def test_the_peak_counts_from_its_reset() -> None:
    gc.collect()  # what other tests have left would go in the middle, and make room

    def counts() -> bool:
        held = torch.ones(10_000_000)
        reset_peak()
        del held
        reset_peak()
        torch.ones(20_000_000).sum()
        peak = peak_bytes()
        reset_peak()
        return 70e6 < peak < 110e6 and peak_bytes() < 10e6

    assert any(counts() for _ in range(5)), (
        "the system may take pages of files from the process in between, but not each time"
    )
