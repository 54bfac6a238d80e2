"""The cache: what is the same in the next package is not placed again, and what is not is."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench.share.buffer_cache import BufferCache
from workbench.share.capacity import Capacity, NotEnoughMemory
from workbench.share.package import Package, pack, read_message, unpack, write_message
from workbench.share.segment import Segment

MB = 1 << 20


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all segments that are placed."""
    sizes: list[int] = []
    place = Segment.place.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, *args: Any) -> Segment:
        made: Segment = place(cls, *args)
        sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(Segment, "place", classmethod(noted))
    return sizes


def test_the_same_data_is_placed_once(cache: BufferCache, placed: list[int]) -> None:
    data = {"x": torch.randn(3 * MB), "y": np.arange(MB), "small": torch.ones(3)}
    for _ in range(3):
        with pack(data, cache=cache) as package:
            out = unpack(package)
        assert torch.equal(out["x"], data["x"])
        assert np.array_equal(out["y"], data["y"])
        assert out["small"].tolist() == [1, 1, 1]
        out["x"][:] = 0  # a copy's writes are its own
    assert sum(size > MB for size in placed) == 2


def test_one_changed_byte_is_seen(cache: BufferCache) -> None:
    data = torch.zeros(4 * MB, dtype=torch.uint8)
    pack(data, cache=cache).close()
    data[-1] = 1
    with pack(data, cache=cache) as package:
        assert unpack(package)[-1] == 1
    assert cache.nbytes == 4 * MB


def test_what_a_later_parcel_does_not_use_is_let_go(cache: BufferCache) -> None:
    a, b = torch.randn(3 * MB), torch.randn(3 * MB)
    with pack((a, b), cache=cache) as first:
        assert cache.nbytes == 24 * MB
        pack(b, cache=cache).close()
        assert cache.nbytes == 12 * MB
        out = unpack(first)  # a package that is open keeps its own
        assert torch.equal(out[0], a)
    pack("nothing", cache=cache).close()
    pack(torch.ones(2), cache=cache).close()
    assert cache.nbytes == 0


def test_many_middling_buffers_share_a_segment(cache: BufferCache, placed: list[int]) -> None:
    data = [torch.full((MB // 4,), float(i)) for i in range(10)]
    pack(data, cache=cache).close()
    for one in data[:3]:
        one += 100
    with pack(data, cache=cache) as package:
        assert [float(one[0]) for one in unpack(package)] == [float(one[0]) for one in data]
    assert [size // MB for size in placed if size > MB] == [10, 3]
    for one in data[3:9]:
        one += 100
    with pack(data, cache=cache) as package:
        assert [float(one[0]) for one in unpack(package)] == [float(one[0]) for one in data]
    assert cache.nbytes <= 20 * MB


def test_shared_memory_stays_shared_by_way_of_the_shelf(cache: BufferCache) -> None:
    base = torch.zeros(MB)
    a, b, c = unpack(pack((base, base[5:], base.numpy()), cache=cache))
    a[6] = 3
    assert (b[1], c[6]) == (3, 3)


def test_a_message_carries_all_segments(cache: BufferCache) -> None:
    data = {"x": torch.randn(3 * MB), "list": [{"i": i} for i in range(3000)]}
    with pack(data, lists=True, cache=cache) as package, pack([1, 2]) as other:
        cover, handles = write_message("hello", [package, other])
        import os

        message, (got, second) = read_message(
            [os.dup(handle) for handle in handles if isinstance(handle, int)]
        )
        cover.close()
    assert message == "hello"
    with got, second:
        out = unpack(got)
        assert unpack(second) == [1, 2]
    assert torch.equal(out["x"], data["x"])
    assert out["list"] == data["list"]


def kinds(package: Package) -> set[str]:
    """Where its segments lie."""
    return {
        Path(f"/proc/self/fd/{segment.handle}").readlink().as_posix()
        for segment in package.segments
    }


def test_short_of_memory_a_file_without_a_name_serves(cache: BufferCache, tmp_path: Path) -> None:
    data = torch.randn(3 * MB)
    capacity = Capacity(tmp_path / "spill", lambda: 10 * MB)
    with pack({"x": data, "y": data * 2}, cache=cache, capacity=capacity) as package:
        assert any(
            str(tmp_path) in where and where.endswith("(deleted)") for where in kinds(package)
        )
        assert not list((tmp_path / "spill").iterdir())
        out = unpack(package)
    assert torch.equal(out["y"], data * 2)
    out["x"][0] = 5
    assert package.note is not None
    assert "12.6 MB of data" in package.note
    assert "10.5 MB of memory are free" in package.note
    with pack(data, capacity=Capacity(tmp_path, lambda: 1 << 40)) as package:
        assert package.note is None
        assert not any(str(tmp_path) in where for where in kinds(package))


def test_a_disk_that_is_too_small_too_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr("workbench.share.capacity.os.statvfs", lambda path: Full)
    with pytest.raises(
        NotEnoughMemory,
        match=r"12.6 MB of data are to be shared, and 1.05 MB of memory are free; the disk of .* 410 kB left",
    ):
        pack(torch.zeros(3 * MB), capacity=Capacity(tmp_path, lambda: MB))
    assert issubclass(NotEnoughMemory, MemoryError)


def test_what_was_packed_is_still_the_users(cache: BufferCache) -> None:
    tensor = torch.zeros(MB)
    pack(tensor, cache=cache).close()
    tensor.resize_(MB + 1)  # what has been an array could not be
    assert pickle.loads(pickle.dumps(tensor)).shape == (MB + 1,)
