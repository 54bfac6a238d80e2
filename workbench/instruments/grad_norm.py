"""Measures gradient norms, per parameter tensor and in total, before clipping and without a host
sync.

How to read them: a layer whose norm is orders of magnitude below the others hardly learns. A total
that jumps by orders of magnitude shows a batch or a learning rate that may break the run. They are
measured after backward and accumulation, so they are the norms of the gradient that the update
uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Norms = Sequence[Tensor] | Tensor
"""Norms, one by one as scalars, or as a tensor of one dimension."""


def entries(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the entries of each gradient of these parameters that exists, in its own memory.

    A sparse gradient (`nn.Embedding(sparse=True)`) is coalesced first, in place: it has the entries
    of the rows that were used, with the parts of a row added up. Where no row was used, the result
    is a single 0.
    """
    return [
        _coalesced(p, gradient) if gradient.is_sparse else gradient
        for p in parameters
        if (gradient := p.grad) is not None
    ]


def _coalesced(parameter: Tensor, gradient: Tensor) -> Tensor:
    parameter.grad = gradient = gradient.coalesce()
    values = gradient.values()
    return values if values.numel() else values.new_zeros(1)


def layer_norms(gradients: Sequence[Tensor], p: float) -> Sequence[Tensor]:
    """Return the p-norm of each gradient, as scalars on their device."""
    norms: Sequence[Tensor] = torch._foreach_norm(list(gradients), p)
    return norms


def total_norm(norms: Norms, p: float) -> Tensor:
    """Return the p-norm of all gradients as one vector, from their p-norms; a scalar."""
    total: Tensor = torch.linalg.vector_norm(as_tensor(norms), p)
    return total


def total_norms(norms: Tensor, p: float) -> Tensor:
    """Return `total_norm` of each row of `norms`, shape (len(norms),), on the CPU with the same
    bits.
    """
    totals: Tensor = torch.linalg.vector_norm(norms, p, dim=1)
    return totals


def as_tensor(norms: Norms) -> Tensor:
    """Return the norms with the shape (len(norms),)."""
    return norms if isinstance(norms, Tensor) else torch.stack(tuple(norms))


def as_floats(norms: Norms) -> list[float]:
    """Return the norms as numbers, which waits for their device."""
    return norms.tolist() if isinstance(norms, Tensor) else [norm.item() for norm in norms]
