"""Detects units that die during a sweep: from such a rate on, the loss says nothing about higher
rates.

A unit that is 0 for every sample (a ReLU far below 0) passes no gradient, so the gradient of its
bias is exactly 0. A model whose units have died gives the same output for all samples. Its loss
stays constant, and cannot diverge.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.tuners.learning_rate.lr_suggest import Died
from workbench.tuners.learning_rate.sweep import running_median

MOST = 2 / 3
"""A layer counts as dead if this share of its units that were alive at the start are dead."""
AROUND = 5
"""The share is averaged over this many updates, since some units are silent for a batch; a dead
layer must stay dead for as many.
"""

Counts = NDArray[np.int64]


class DeadUnits:
    """Context manager that notes, at each step of an optimizer, which units get a gradient, without
    waiting for the device.

    A unit is an entry of a parameter with one dimension: a bias, or a weight of a normalisation.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], ranks: ProcessGroup, opt: OptimizerHandle
    ) -> None:
        self._parameters, self._ranks, self._opt = parameters, ranks, opt
        self._layers: list[Tensor] = []
        self._sizes: list[int] = []
        self._lasts: Tensor | None = None
        self._alive: dict[int, Tensor] = {}
        """For each point the number of units of each layer that get a gradient."""
        self.point = 0
        """The number of the present point of the sweep."""

    def __enter__(self) -> Self:
        self._opt.before_step = self._note
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opt.before_step = None

    def _note(self) -> None:
        pairs = zip(self._opt.with_gradient(), self._opt.gradients(), strict=True)
        biases = [(p, gradient) for p, gradient in pairs if p.dim() == 1 and p.numel() > 1]
        if not biases:
            return
        layers = [p for p, _ in biases]
        if self._lasts is None:
            self._layers, self._sizes = layers, [len(gradient) for _, gradient in biases]
            self._lasts = torch.tensor(self._sizes, device=biases[0][1].device).cumsum(0) - 1
        if [id(p) for p in layers] == [id(p) for p in self._layers]:
            self._alive[self.point] = (torch.cat([gradient for _, gradient in biases]) != 0).cumsum(
                0
            )[self._lasts]

    def died(self) -> Died | None:
        """The first point from which on most units of a layer that were alive at the start are
        dead; None: no layer died.
        """
        counts = self._counts()
        if counts is None:
            return None
        points, alive, sizes = counts
        start = np.median(alive[:10], axis=0)
        share = 1 - running_median(alive, AROUND // 2) / np.maximum(start, 1)
        first = {
            layer: _for_good(share[:, layer] > MOST)
            for layer in map(int, np.flatnonzero((start > 0) & (sizes > 1)))
        }
        first = {layer: at for layer, at in first.items() if at <= len(points) - AROUND}
        if not first:
            return None
        layer = min(first, key=first.__getitem__)
        return Died(points[first[layer]], self._name(layer))

    def _counts(self) -> tuple[list[int], Counts, Counts] | None:
        """The points with gradients, the number of units of each layer that got one there, on
        all ranks, and the layers' sizes.
        """
        counts = _read(self._alive), self._sizes
        of_ranks = self._ranks.all_gather_object(counts)
        points = sorted(set.intersection(*(set(of_rank) for of_rank, _ in of_ranks)))
        if not points:
            return None
        alive = np.array(
            [sum(of_rank[point] for of_rank, _ in of_ranks) for point in points], dtype=np.int64
        )
        # If no unit gets a gradient, not even of the output, the loss itself has none, such as a
        # hinge loss when all is learned.
        kept = np.flatnonzero(alive.any(axis=1))
        if len(kept) < 2 * AROUND:
            return None
        return (
            [points[i] for i in kept],
            alive[kept],
            np.sum([sizes for _, sizes in of_ranks], axis=0),
        )

    def _name(self, layer: int) -> str:
        names = {id(p): name for name, p in self._parameters.items()}
        return names.get(id(self._layers[layer]), "").rpartition(".")[0]


def _read(alive: dict[int, Tensor]) -> dict[int, Counts]:
    """The counts of each layer by point; one copy from the device."""
    if not alive:
        return {}
    rows = torch.stack(list(alive.values())).cpu().numpy()
    return dict(zip(alive, np.diff(rows, axis=1, prepend=0), strict=True))


def _for_good(dead: NDArray[np.bool_]) -> int:
    """The first index from which on all values are true."""
    alive = np.flatnonzero(~dead)
    return int(alive[-1]) + 1 if len(alive) else 0
