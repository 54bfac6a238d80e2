"""Gradient norms, per parameter tensor and in total, measured before clipping and without a host sync.

How to read them: a layer that is orders of magnitude below the others hardly learns; a total that jumps up by as much
is a batch or a rate that is about to break the run. They are measured after backward and accumulation: they are the
norms of the gradient that the update uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def layer_norms(gradients: Sequence[Tensor], p: float) -> Tensor:
    """The p-norm of each gradient, shape (len(gradients),), on their device."""
    return torch.stack(torch._foreach_norm(list(gradients), p))


def total_norm(norms: Tensor, p: float) -> Tensor:
    """The p-norm of all gradients as one vector, from their own p-norms; a scalar."""
    total: Tensor = torch.linalg.vector_norm(norms, p)
    return total
