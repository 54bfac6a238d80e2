"""Measures gradient norms, per parameter tensor and in total, before clipping and without a host sync.

How to read them: a layer whose norm is orders of magnitude below the others hardly learns. A total that jumps by
orders of magnitude shows a batch or a learning rate that may break the run. They are measured after backward and
accumulation, so they are the norms of the gradient that the update uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def entries(parameter: Tensor) -> Tensor | None:
    """Return the entries of a parameter's gradient, in its own memory; None: it has no gradient.

    A sparse gradient (`nn.Embedding(sparse=True)`) is coalesced first, in place: it has the entries of the rows that were used,
    with the parts of a row added up. Where no row was used, the result is a single 0.
    """
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse:
        return gradient
    parameter.grad = gradient = gradient.coalesce()
    values = gradient.values()
    return values if values.numel() else values.new_zeros(1)


def layer_norms(gradients: Sequence[Tensor], p: float) -> Tensor:
    """Return the p-norm of each gradient, shape (len(gradients),), on their device."""
    return torch.stack(torch._foreach_norm(list(gradients), p))


def total_norm(norms: Tensor, p: float) -> Tensor:
    """Return the p-norm of all gradients as one vector, from their p-norms; a scalar."""
    total: Tensor = torch.linalg.vector_norm(norms, p)
    return total
