"""Measures the gradient noise scale during a fit, from the batches of which each update is made.

The first batch of an update gives the gradient of a small batch, the update itself that of a large one; their squared norms
tell the noise apart from the mean gradient, with no pass of its own. Both estimates are averaged over some hundred updates
before they are divided: a single update says nothing. All stays on the device.
Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DECAY = 0.99
"""The share that the averages keep at each update."""
FEWEST = 50
"""Updates before there is a number."""
NAME = "gradient_noise_scale"
"""Its column in the record."""


class RunningNoiseScale:
    """Takes the gradients of each update, and gives the noise scale in samples."""

    def __init__(self) -> None:
        self._small: Tensor | None = None
        """The squared norm of the first batch's mean gradient, in this update; None: the update has one batch."""
        self._sizes = (0.0, 0.0)
        """The samples of that batch, and of all."""
        self._square: Tensor | float = 0.0
        self._spread: Tensor | float = 0.0
        self._count = 0

    def begin(self) -> None:
        """An update begins."""
        self._small = None

    def first(self, gradients: Sequence[Tensor], share: float, weights: Sequence[float]) -> None:
        """The first of several batches went backward: `gradients` are its mean gradient times its `share` of the update.

        weights: the samples of each batch.
        """
        self._small = _squared_norm(gradients) / share**2
        self._sizes = weights[0], sum(weights)

    def whole(self, norm: Tensor) -> Tensor | None:
        """The 2-norm of the update's mean gradient; returns the noise scale, NaN where the mean gradient is lost in noise.

        None: it is not known yet.
        """
        if self._small is None:
            return None
        (small, large), large_square = self._sizes, norm.double() ** 2
        square = (large * large_square - small * self._small) / (large - small)
        spread = (self._small - large_square) / (1 / small - 1 / large)
        finite = torch.isfinite(square) & torch.isfinite(spread)
        self._square = DECAY * self._square + (1 - DECAY) * torch.where(finite, square, 0.0)
        self._spread = DECAY * self._spread + (1 - DECAY) * torch.where(finite, spread, 0.0)
        self._count += 1
        if self._count < FEWEST:
            return None
        known = (self._square > 0) & (self._spread > 0)
        return torch.where(known, self._spread / self._square, float("nan")).float()


def _squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm(list(gradients))
    square: Tensor = torch.stack([n.double() for n in norms]).square().sum()
    return square
