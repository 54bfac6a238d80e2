"""Estimates the gradient noise scale: the batch size beyond which a larger batch teaches little more.

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training" (2018), the simple noise scale: the
trace of the covariance of single samples' gradients, divided by the squared norm of the mean gradient. How to read it:
with batches well below it, twice the batch halves the updates; with batches well above it, it saves hardly any. It grows
while the loss falls, often tenfold in a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class NoiseScale(NamedTuple):
    """A noise scale in samples, and half the width of its 95% interval as a share of it."""

    samples: float
    uncertainty: float


class NoiseScaleEstimator:
    """Takes the gradients of independent batches of `size` samples at the same weights, one batch at a time.

    It keeps one sum of gradients. The squared norm of the mean gradient comes from the products of each batch's gradient with
    the sum of those before, which noise does not bias.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._sum: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._products: list[Tensor] = []

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add the gradient of the mean loss of one more batch; always of the same parameters."""
        own = [gradient.detach() for gradient in gradients]
        if not self._sum:
            self._sum = [gradient.clone() for gradient in own]
        else:
            self._products.append(_product(own, self._sum))
            torch._foreach_add_(self._sum, own)
        self._squares.append(_product(own, own))

    def estimate(self) -> NoiseScale | None:
        """The noise scale; None where the batches are too few, or too noisy to tell the mean gradient from 0."""
        count = len(self._squares)
        if count < 4:
            return None
        squares, products = torch.stack(self._squares).double().cpu(), torch.stack(self._products).double().cpu()
        before = torch.arange(1, count, dtype=torch.float64)  # the batches in the sum that a product is with
        signal = float(products.sum() / before.sum())
        spread = float((products - before * signal).square().sum().sqrt() / before.sum())
        if not (math.isfinite(signal) and signal > 2 * spread):
            return None
        noise = self._size * (float(squares.mean()) - signal)
        return NoiseScale(max(0.0, noise / signal), 1.96 * spread / signal)


def _product(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """The product of two gradients as vectors; a scalar on their device."""
    return torch.stack([torch.dot(a.flatten(), b.flatten()).double() for a, b in zip(one, other, strict=True)]).sum()
