"""Converts sharded tensors (DTensor): to this rank's part, to the whole tensor, and from a whole
one to shards.

A tensor that is not sharded is returned unchanged. Importing torch's DTensor takes seconds, so it
is imported only
where a process group exists. Source: torch.distributed.tensor.
"""

from __future__ import annotations

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


def like(value: Tensor, other: Tensor) -> Tensor:
    """This rank's part of a whole tensor, on the device and sharded as `other` of the same
    shape.
    """
    if not in_shards(other) or in_shards(value):
        return value
    from torch.distributed.tensor import DTensor

    shard = value.detach()
    for number, placement in enumerate(other.placements):
        if placement.is_shard():
            parts, mine = (
                shard.chunk(other.device_mesh.size(number), placement.dim),
                other.device_mesh.get_local_rank(number),
            )
            # too few rows for all ranks
            shard = parts[mine] if mine < len(parts) else shard.narrow(placement.dim, 0, 0)
    shard = shard.to(local(other).device, copy=True, memory_format=torch.contiguous_format)
    return DTensor.from_local(
        shard,
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=value.shape,
        stride=value.contiguous().stride(),
    )


def whole_of(value: Any, *, wanted: bool = True) -> Any:
    """A value of nested containers with all its tensors whole. wanted=False: with None in place of
    sharded ones.

    All ranks call it together with values of the same structure.
    """
    if in_shards(value):
        gathered = whole(value)
        return gathered if wanted else None
    if isinstance(value, dict):
        return type(value)((key, whole_of(entry, wanted=wanted)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)([whole_of(entry, wanted=wanted) for entry in value])
    return value
