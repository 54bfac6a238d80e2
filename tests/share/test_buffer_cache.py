"""The shelf: what is the same in the next parcel is not placed again, and what is not is."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench.launch.process import message as letter
from workbench.share.buffer_cache import BufferCache
from workbench.share.capacity import Capacity, NotEnoughMemory
from workbench.share.package import Package, pack, unpack
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


def test_the_same_data_is_placed_once(shelf: BufferCache, placed: list[int]) -> None:
    data = {"x": torch.randn(3 * MB), "y": np.arange(MB), "small": torch.ones(3)}
    for _ in range(3):
        with pack(data, shelf=shelf) as parcel:
            out = unpack(parcel)
        assert torch.equal(out["x"], data["x"])
        assert np.array_equal(out["y"], data["y"])
        assert out["small"].tolist() == [1, 1, 1]
        out["x"][:] = 0  # a copy's writes are its own
    assert sum(size > MB for size in placed) == 2


def test_one_changed_byte_is_seen(shelf: BufferCache) -> None:
    data = torch.zeros(4 * MB, dtype=torch.uint8)
    pack(data, shelf=shelf).close()
    data[-1] = 1
    with pack(data, shelf=shelf) as parcel:
        assert unpack(parcel)[-1] == 1
    assert shelf.nbytes == 4 * MB


def test_what_a_later_parcel_does_not_use_is_let_go(shelf: BufferCache) -> None:
    a, b = torch.randn(3 * MB), torch.randn(3 * MB)
    with pack((a, b), shelf=shelf) as first:
        assert shelf.nbytes == 24 * MB
        pack(b, shelf=shelf).close()
        assert shelf.nbytes == 12 * MB
        out = unpack(first)  # a parcel that is open keeps its own
        assert torch.equal(out[0], a)
    pack("nothing", shelf=shelf).close()
    pack(torch.ones(2), shelf=shelf).close()
    assert shelf.nbytes == 0


def test_many_middling_buffers_share_a_segment(shelf: BufferCache, placed: list[int]) -> None:
    data = [torch.full((MB // 4,), float(i)) for i in range(10)]
    pack(data, shelf=shelf).close()
    for one in data[:3]:
        one += 100
    with pack(data, shelf=shelf) as parcel:
        assert [float(one[0]) for one in unpack(parcel)] == [float(one[0]) for one in data]
    assert [size // MB for size in placed if size > MB] == [10, 3]
    for one in data[3:9]:
        one += 100
    with pack(data, shelf=shelf) as parcel:
        assert [float(one[0]) for one in unpack(parcel)] == [float(one[0]) for one in data]
    assert shelf.nbytes <= 20 * MB


def test_shared_memory_stays_shared_by_way_of_the_shelf(shelf: BufferCache) -> None:
    base = torch.zeros(MB)
    a, b, c = unpack(pack((base, base[5:], base.numpy()), shelf=shelf))
    a[6] = 3
    assert (b[1], c[6]) == (3, 3)


def test_a_letter_carries_all_segments(shelf: BufferCache) -> None:
    data = {"x": torch.randn(3 * MB), "list": [{"i": i} for i in range(3000)]}
    with pack(data, lists=True, shelf=shelf) as parcel, pack([1, 2]) as other:
        cover, handles = letter.write("hello", [parcel, other])
        import os

        message, (got, second) = letter.read([os.dup(handle) for handle in handles if isinstance(handle, int)])
        cover.close()
    assert message == "hello"
    with got, second:
        out = unpack(got)
        assert unpack(second) == [1, 2]
    assert torch.equal(out["x"], data["x"])
    assert out["list"] == data["list"]


def kinds(parcel: Package) -> set[str]:
    """Where its segments lie."""
    return {Path(f"/proc/self/fd/{segment.handle}").readlink().as_posix() for segment in parcel.segments}


def test_short_of_memory_a_file_without_a_name_serves(shelf: BufferCache, tmp_path: Path) -> None:
    data = torch.randn(3 * MB)
    room = Capacity(tmp_path / "spill", lambda: 10 * MB)
    with pack({"x": data, "y": data * 2}, shelf=shelf, room=room) as parcel:
        assert any(str(tmp_path) in where and where.endswith("(deleted)") for where in kinds(parcel))
        assert not list((tmp_path / "spill").iterdir())
        out = unpack(parcel)
    assert torch.equal(out["y"], data * 2)
    out["x"][0] = 5
    assert parcel.note is not None
    assert "13 MB of data" in parcel.note
    assert "10 MB of memory are free" in parcel.note
    with pack(data, room=Capacity(tmp_path, lambda: 1 << 40)) as parcel:
        assert parcel.note is None
        assert not any(str(tmp_path) in where for where in kinds(parcel))


def test_a_disk_that_is_too_small_too_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr("workbench.share.capacity.os.statvfs", lambda path: Full)
    with pytest.raises(NotEnoughMemory, match=r"13 MB of data are to be shared, and 1 MB of memory are free; the disk of .* 0 MB left"):
        pack(torch.zeros(3 * MB), room=Capacity(tmp_path, lambda: MB))
    assert issubclass(NotEnoughMemory, MemoryError)


def test_what_was_packed_is_still_the_users(shelf: BufferCache) -> None:
    tensor = torch.zeros(MB)
    pack(tensor, shelf=shelf).close()
    tensor.resize_(MB + 1)  # what has been an array could not be
    assert pickle.loads(pickle.dumps(tensor)).shape == (MB + 1,)
