"""What a rank makes of its pieces where the others are not asked: tensors of the size that talking with them would give.

For the memory of a step that each rank tries by itself; what is in them is of no use. They stand in the place of the
collectives of FSDP. Source: torch.distributed.fsdp.FSDPModule.set_custom_all_gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Memory:
    """As torch takes it."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class PretendedGather(_Memory):
    """The pieces of all ranks are this one's."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        for number, place in enumerate(output_tensor.chunk(group.size())):
            if number != group.rank():  # where it lies already
                place.copy_(input_tensor)


class PretendedScatter(_Memory):
    """The sum over ranks is what this one has."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> None:
        output_tensor.copy_(input_tensor.view(-1)[: output_tensor.numel()].view_as(output_tensor))
