"""Packages: what comes out equals what went in, shares what it shared, and none of its bytes are in the pickle."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from workbench.share.package import PackageError, pack, unpack
from workbench.share.segment import Segment


def there_and_back(value: Any) -> Any:
    with pack(value) as package:
        return unpack(package)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(3))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)


def test_tensor_bytes_are_not_in_the_pickle() -> None:
    big = torch.arange(1_000_000)
    with pack({"x": big, "y": big.numpy(), "z": np.arange(500_000)}) as package:
        assert len(package.code) < 2_000
        assert package.segments
        assert package.nbytes < 8_000_000 + 4_000_000 + 1_000
        out = unpack(package)
    assert torch.equal(out["x"], big)
    assert np.array_equal(out["z"], np.arange(500_000))


def test_no_buffers_no_segment() -> None:
    with pack({"a": [1, "two"]}) as package:
        assert not package.segments
        assert unpack(package) == {"a": [1, "two"]}


def test_views_share_their_storage() -> None:
    base = torch.arange(12.0)
    a, b, c = there_and_back((base, base[2:5], base.view(3, 4).T))
    a[2] = 99
    assert b[0] == 99
    assert c.stride() == (1, 4)
    assert c[2, 0] == 99
    assert base[2] == 2  # the copy's writes are its own


def test_an_array_and_a_tensor_over_the_same_memory_stay_one() -> None:
    tensor = torch.zeros(1_000)
    a, b = there_and_back((tensor, tensor.numpy()))
    b[3] = 7
    assert a[3] == 7


def test_a_module_keeps_ties_parameters_and_flags() -> None:
    model = Tied()
    copy = there_and_back(model)
    assert copy.head.weight is copy.embed.weight
    assert isinstance(copy.embed.weight, nn.Parameter)
    assert copy.embed.weight.requires_grad
    assert not copy.frozen.requires_grad
    assert torch.equal(copy.embed.weight, model.embed.weight)
    copy.head(copy.embed(torch.tensor([1, 2]))).sum().backward()
    torch.optim.Adam(copy.parameters()).step()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor(3.5),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.eye(4).to_sparse(),
        torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8),
        torch.zeros(3, dtype=torch.uint16),
        torch.randn(3, requires_grad=True),
    ],
)
def test_kinds_of_tensors(tensor: torch.Tensor) -> None:
    out = there_and_back(tensor)
    assert out.dtype == tensor.dtype
    assert out.shape == tensor.shape
    assert out.requires_grad == tensor.requires_grad
    assert str(out) == str(tensor)


def test_arrays_keep_order_dtype_and_write_protection() -> None:
    fixed = np.arange(5)
    fixed.flags.writeable = False
    values = [
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(100_000)[::2],
        np.array(["a", None], dtype=object),
        np.zeros((0, 3)),
        np.array(2.5),
        fixed,
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ]
    with pack(values) as package:
        assert len(package.code) < 3_000
        out = unpack(package)
    for value, copy in zip(values, out, strict=True):
        assert np.array_equal(value, copy)
        assert value.dtype == copy.dtype
    assert out[0].flags.f_contiguous
    assert not out[5].flags.writeable
    out[1][0] = 5


def test_a_memory_mapped_file_is_opened_again_not_copied(tmp_path: Path) -> None:
    np.arange(100_000, dtype=np.int32).tofile(tmp_path / "x.bin")
    whole = np.memmap(tmp_path / "x.bin", dtype=np.int32, mode="r", offset=4096)
    with pack((whole, whole[500:900])) as package:
        assert not package.segments
        out, part = unpack(package)
    assert isinstance(part, np.memmap)
    assert np.array_equal(out, whole)
    assert np.array_equal(part, whole[500:900])
    private = np.memmap(tmp_path / "x.bin", dtype=np.int32, mode="c")
    private[0] = 77
    assert there_and_back(private)[0] == 77
    shared = np.memmap(tmp_path / "x.bin", dtype=np.int32, mode="r+")
    there_and_back(shared)[0] = 55
    assert shared[0] == 0


def test_a_class_of_the_notebook_comes_home_as_itself() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "count": 1}
    exec("class Local:\n    def value(self):\n        return count", namespace)
    local = namespace["Local"]
    out = there_and_back(local())
    assert type(out) is local
    namespace["count"] = 2
    assert out.value() == 2  # its methods still see the notebook's globals


class Holder:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class Reduced(Holder):
    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lock"}


class Hooked(nn.Module):
    """Hooks on a parameter, on one inside a parametrization and on a loose tensor, one with a handle."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        self.loose = torch.ones(3, requires_grad=True)
        self.same = False
        mask = torch.tensor([[0.0], [1.0]])
        self.handle = self.layer.bias.register_hook(lambda gradient: gradient * mask[:, 0])
        self.layer.parametrizations.weight.original1.register_post_accumulate_grad_hook(self.masked)
        self.loose.register_hook(lambda gradient: gradient * 0)
        self.optimizer = torch.optim.SGD([self.loose], lr=0.1)
        self.optimizer.register_step_post_hook(lambda optimizer, *_: self.loose.data.fill_(7))

    def masked(self, parameter: torch.Tensor) -> None:
        self.same = parameter is self.layer.parametrizations.weight.original1
        assert parameter.grad is not None
        parameter.grad[0] = 0


@pytest.mark.filterwarnings("error")
def test_hooks_on_tensors_and_optimizers_arrive() -> None:
    module = there_and_back(Hooked())
    (module.layer(torch.ones(1, 3)).sum() + module.loose.sum()).backward()
    direction = module.layer.parametrizations.weight.original1
    assert module.layer.bias.grad.tolist() == [0, 1]
    assert direction.grad[0].abs().max() == 0 < direction.grad[1].abs().max()
    assert module.same
    assert module.loose.grad.tolist() == [0, 0, 0]
    module.handle.remove()
    module.layer(torch.ones(1, 3)).sum().backward()
    assert module.layer.bias.grad.tolist() == [1, 2]
    module.optimizer.step()
    assert module.loose.tolist() == [7, 7, 7]


def test_an_error_names_the_hook() -> None:
    lock, layer = threading.Lock(), nn.Linear(3, 2)
    layer.weight.register_hook(lambda gradient: lock and gradient)
    with pytest.raises(
        PackageError, match=r"model.*\['weight'\] -> its hook -> lock cannot be sent"
    ):
        pack(layer, names={"model": layer})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (threading.Lock(), "__setstate__"),
        ((i for i in range(3)), "Give a list"),
        (open(__file__, "rb"), "Give the path"),  # noqa: SIM115
    ],
)
def test_an_error_names_the_part_and_the_remedy(part: Any, words: str) -> None:
    task = Holder(loader=Holder(steps=[1, {"inner": part}]))
    with pytest.raises(PackageError) as caught:
        pack((1, task), names={"size": 1, "task": task})
    text = str(caught.value)
    assert text.startswith("task.loader.steps[1]['inner'] cannot be sent to another process")
    assert words in text


def test_an_error_names_what_a_function_uses() -> None:
    lock = threading.Lock()
    guard = Reduced(lock=lock, other=1)
    there_and_back(lambda: guard)

    def locked() -> None:
        with lock:
            pass

    with pytest.raises(PackageError, match=r"task\.hook -> lock cannot be sent"):
        pack(Holder(hook=locked), names={"task": Holder(hook=locked)})


def test_cycles_do_not_hang_the_search_for_the_culprit() -> None:
    a, b = Holder(), Holder(lock=threading.Lock())
    a.b, b.a = b, a  # type: ignore[attr-defined]
    with pytest.raises(PackageError, match=r"the object\.b\.lock"):
        pack(a)


def test_a_storage_that_is_not_in_cpu_memory_is_copied_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No GPU here: a storage that says where it is and how to copy itself stands for one.
    class Elsewhere:
        _cdata = 1
        device = torch.device("cuda:0")

        def cpu(self) -> torch.UntypedStorage:
            return torch.arange(4.0).untyped_storage()

    from workbench.share import pickling as module

    pickler = module.Pickler(__import__("io").BytesIO(), lambda buffer: None)
    here = pickler._one(Elsewhere())  # type: ignore[arg-type]
    assert here.device.type == "cpu"
    assert pickler._one(Elsewhere()) is here  # type: ignore[arg-type]
    assert pickler.devices == {"cuda:0"}


@pytest.mark.parametrize("memfd", [True, False])
def test_segment(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.share.segment.MEMFD", memfd)
    big = np.random.default_rng(0).integers(0, 255, 3_000_001, dtype=np.uint8)
    with Segment.place([b"abc", big, b"", big]) as segment:
        handle, views = segment.handle, segment.views()
        again = segment.views()
    assert bytes(views[0]) == b"abc"
    assert bytes(views[2]) == b""
    assert all(np.frombuffer(v, np.uint8).ctypes.data % 64 == 0 for v in views if v)
    views[1][0] ^= 1
    assert views[3][0] == views[1][0]  # given twice, placed once
    # copy-on-write: not seen by another mapping
    assert np.array_equal(np.frombuffer(again[1], np.uint8), big)
    with pytest.raises(ValueError, match="closed"):
        segment.handle
    assert memfd or not (Path("/dev/shm") / str(handle)).exists()
