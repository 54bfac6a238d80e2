"""Tensors whose memory is given up for the segment's: only where nobody else leads to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from workbench.share.buffer_cache import BufferCache
from workbench.share.package import pack, unpack
from workbench.share.rebind import may_move, rebind

MB = 1 << 20


def sent(value: Any, cache: BufferCache) -> tuple[int, Any]:
    """Pack and rebind, as before a job; what was saved, and what a rank sees."""
    with pack(value, cache=cache) as package:
        return rebind(package.tensors, cache), unpack(package)


def own_bytes() -> int:
    """This process's memory that is no segment's: a page of a segment counts as private where only one maps it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def test_one_copy_is_left(cache: BufferCache) -> None:
    tensor = torch.randn(16 * MB)
    expected = tensor.sum()
    before = own_bytes()
    saved, _ = sent({"x": tensor}, cache)
    assert saved == 64 * MB
    assert own_bytes() < before - 50 * MB
    assert tensor.sum() == expected


def test_it_is_known_again_and_changes_in_place_are_seen(cache: BufferCache) -> None:
    tensor = torch.zeros(2 * MB)
    assert sent(tensor, cache)[0] == 8 * MB
    address = tensor.data_ptr()
    assert sent(tensor, cache)[0] == 0  # it lies there already
    assert tensor.data_ptr() == address
    tensor[5] = 7
    _, out = sent(tensor, cache)
    assert out[5] == 7
    tensor[6] = 8
    assert out[6] == 0
    assert sent(tensor, cache)[1][5:7].tolist() == [7, 8]


def test_shape_and_strides_stay(cache: BufferCache) -> None:
    tensor = torch.empty_strided((2, MB), (1, 2)).normal_()
    copy = tensor.clone()
    assert sent(tensor, cache)[0] == 8 * MB
    assert torch.equal(tensor, copy)
    assert tensor.stride() == (1, 2)


def a_view(tensor: torch.Tensor) -> Any:
    return tensor[3:]


def a_graph(tensor: torch.Tensor) -> Any:
    return (nn.Parameter(torch.ones(1)) * tensor).sum()


ALIASES: list[Callable[[torch.Tensor], Any]] = [
    a_view,
    a_graph,
    lambda tensor: tensor.numpy(),
    lambda tensor: np.asarray(tensor),
    lambda tensor: np.from_dlpack(tensor),
    lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    lambda tensor: torch.from_dlpack(tensor),
    lambda tensor: tensor.data,
    lambda tensor: tensor.detach(),
    lambda tensor: tensor.view(-1),
    lambda tensor: tensor.untyped_storage(),
    lambda tensor: tensor.storage(),
    lambda tensor: torch.as_strided(tensor, (2,), (1,)),
    lambda tensor: nn.Parameter(tensor),
    lambda tensor: torch.utils.data.TensorDataset(tensor[:]),
    lambda tensor: iter(tensor),
]


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_somebody_else_leads_to_stays(
    alias: Callable[[torch.Tensor], Any], cache: BufferCache
) -> None:
    tensor = torch.zeros(MB)
    held = alias(tensor)
    address = tensor.data_ptr()
    assert sent({"x": tensor}, cache)[0] == 0
    assert tensor.data_ptr() == address
    assert held is not None


def test_an_array_that_is_gone_counts_as_one_that_may_be_there() -> None:
    tensor = torch.zeros(MB)
    assert may_move(tensor)
    tensor.numpy()
    assert not may_move(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.from_numpy(np.zeros(MB)),
        torch.frombuffer(bytearray(MB), dtype=torch.uint8),
        torch.zeros(MB).share_memory_(),
        torch.zeros(MB, requires_grad=True),
        nn.Parameter(torch.zeros(MB)),
        torch.zeros(MB, requires_grad=True) * 2,
        torch.zeros(100),
        torch.zeros(MB, device="meta"),
        torch.eye(1500).to_sparse(),
        torch.zeros(MB, dtype=torch.complex64).conj(),
        torch.zeros(2 * MB)[MB:],
    ],
)
def test_kinds_that_stay(tensor: torch.Tensor) -> None:
    assert not may_move(tensor)


def test_memory_of_inference_mode_stays() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(MB)
    assert not may_move(tensor)


def test_what_changed_since_it_was_packed_stays(cache: BufferCache) -> None:
    tensor = torch.zeros(MB)
    with pack(tensor, cache=cache) as package:
        tensor[3] = 1
        assert rebind(package.tensors, cache) == 0
    assert tensor[3] == 1
