"""Measures how far an update moved each layer's weights, relative to the norm of the weights.

How to read it: about 1e-3 is usual for a model that learns well (Karpathy, "The spelled-out intro
to neural networks and
deep learning: Building makemore, part 3", 2022, and "A Recipe for Training Neural Networks", 2019).
A layer far below it, at 1e-5 say, hardly learns: its learning rate is too low, or its gradient
vanishes on the way. In a layer far above it, at 1e-1, the learning rate is too large, or the
weights are still near zero, as biases often are at the beginning. 0: the update did not move it.
The ratio includes momentum, weight decay and clipping, which a gradient norm does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copies(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the weights before an update, on their device."""
    return [weight.detach().clone() for weight in weights]


def update_ratios(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """Return ||after - before|| / ||before|| of each weight, shape (len(before),), float32, without
    a host sync; uses up `before`.

    NaN where the norm before was 0.
    """
    norms = _norms(before)
    torch._foreach_sub_(list(before), [weight.detach() for weight in after])
    return torch.where(norms > 0, _norms(before) / norms, float("nan"))


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    # Sums of 16-bit values are kept in 32 bits; torch takes no narrower type than a tensor's own,
    # and none for complex numbers.
    narrow = all(tensor.is_floating_point() and tensor.dtype.itemsize <= 4 for tensor in tensors)
    norms = torch._foreach_norm(list(tensors), 2.0, dtype=torch.float32 if narrow else None)
    return torch.stack([norm.float() for norm in norms])
