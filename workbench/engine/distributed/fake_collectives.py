"""Replaces FSDP's collectives while each rank tries a step alone.

They give tensors of the right size with no useful contents.

They serve to measure the memory of a step. Source: torch.distributed.fsdp.FSDPModule.set_custom_all_gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Memory:
    """Allocates memory as torch does."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class FakeAllGather(_Memory):
    """An all-gather that copies this rank's piece for every rank."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        for number, place in enumerate(output_tensor.chunk(group.size())):
            if number != group.rank():  # where it is already
                place.copy_(input_tensor)


class FakeReduceScatter(_Memory):
    """A reduce-scatter that returns this rank's own values."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> None:
        output_tensor.copy_(input_tensor.view(-1)[: output_tensor.numel()].view_as(output_tensor))
