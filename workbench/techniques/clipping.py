"""Clips gradients by total norm or by value, on the device and without a host sync.

Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (2013); the
arithmetic is that of `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, so a plain loop with
those gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def clip_norm(gradients: Sequence[Tensor], total: Tensor, limit: float) -> Tensor:
    """Scale all gradients so that their total 2-norm is at most `limit`; return the total after
    clipping (a scalar).
    """
    factor = torch.clamp(limit / (total + 1e-6), max=1.0)
    torch._foreach_mul_(list(gradients), factor)
    return total * factor


def clip_value(gradients: Sequence[Tensor], limit: float) -> None:
    """Clamp every entry of every gradient to [-limit, limit]."""
    torch._foreach_clamp_min_(list(gradients), -limit)
    torch._foreach_clamp_max_(list(gradients), limit)
