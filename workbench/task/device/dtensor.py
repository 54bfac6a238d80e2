"""Converts sharded tensors (DTensor): to this rank's part, to the whole tensor, and from a whole
one to shards.

A tensor that is not sharded is returned unchanged. Importing torch's DTensor takes seconds, so it
is imported only
where a process group exists. Source: torch.distributed.tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

_WHOLE = (Tensor, nn.Parameter, nn.Buffer)


def in_shards(tensor: object) -> TypeGuard[Any]:
    """Whether a rank has only a part of this tensor, whose shape is that of the whole."""
    if (
        type(tensor) in _WHOLE
        or not isinstance(tensor, Tensor)
        or not dist.is_available()
        or not dist.is_initialized()
    ):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, in the same memory, detached."""
    shard: Tensor = tensor.detach().to_local() if in_shards(tensor) else tensor
    return shard


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks into host memory; all ranks call it together."""
    if in_shards(tensor):
        gathered: Tensor = tensor.detach().full_tensor().cpu()
        return gathered
    return tensor


@dataclass(frozen=True)
class ShardPlace:
    """The place of this rank among those that have the shards of a tensor: rows of it."""

    index: int
    count: int
    copy: int
    """The number of this rank's copy of all shards; 0 unless each machine has one."""

    @classmethod
    def of(cls, tensor: Any) -> ShardPlace:
        """The place of this rank in a sharded tensor."""
        index, count, copy = 0, 1, 0
        for number, placement in enumerate(tensor.placements):
            coordinate = tensor.device_mesh.get_local_rank(number)
            if placement.is_shard():
                index, count = coordinate, tensor.device_mesh.size(number)
            else:
                copy = coordinate
        return cls(index, count, copy)

    def rows(self, length: int) -> tuple[int, int]:
        """The first row of this rank, and the row after its last, of a tensor with so many rows;
        `torch.chunk` divides so.
        """
        size = -(-length // self.count)
        return min(self.index * size, length), min((self.index + 1) * size, length)


def of_rows(rows: Tensor, shape: Sequence[int], other: Any) -> Tensor:
    """The tensor of this shape of which this rank has these rows, on the device and sharded as
    `other`. The rows are copied.
    """
    from torch.distributed.tensor import DTensor

    copy = rows.detach().to(local(other).device, copy=True, memory_format=torch.contiguous_format)
    stride = [math.prod(shape[number + 1 :]) for number in range(len(shape))]
    sharded: Tensor = DTensor.from_local(
        copy,
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
    return sharded


def like(value: Tensor, other: Tensor) -> Tensor:
    """A tensor with this value, sharded as `other` of the same shape is, or whole.

    All ranks call it together, since a sharded value becomes whole where `other` is.
    """
    if in_shards(value):
        return value if in_shards(other) else whole(value)
    if not in_shards(other):
        return value
    start, stop = ShardPlace.of(other).rows(len(value))
    return of_rows(value[start:stop], value.shape, other)
