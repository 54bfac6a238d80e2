"""Measures the gradient noise scale during a fit, from the parts of which each update is made.

The gradient of a part of an update is that of a small batch, the update's own that of a large one;
their squared norms tell the noise apart from the mean gradient, with no pass of its own. On several
ranks the parts are the ranks: of each, its gradient before the all-reduce. In one process the part
is the first of several batches. Both estimates are averaged over some hundred updates before they
are divided: a single update says nothing. All stays on the device.
Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workbench.instruments.grad_norm import Norms, as_tensor, entries

DECAY = 0.99
"""The share that the averages keep at each update."""
FEWEST = 50
"""Updates before there is a number."""
NAME = "gradient_noise_scale"
"""Its column in the record; that of a module is `gradient_noise_scale/encoder`."""


class RunningNoiseScale:
    """Takes the gradients of each update, and gives the noise scale in samples: of all parameters,
    and by module.

    Squared norms have the shape (1 + modules,), the first one for all parameters.
    """

    def __init__(self, parameters: Sequence[Tensor], modules: Mapping[str, Sequence[int]]) -> None:
        """modules: by name, the places of their parameters."""
        self._columns = (NAME, *(f"{NAME}/{name}" for name in modules))
        device = parameters[0].device
        self._wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        member = torch.zeros(len(parameters) + 1, len(self._columns), dtype=self._wide)
        member[:, 0] = 1.0
        for number, places in enumerate(modules.values(), 1):
            member[list(places), number] = 1.0
        *rows, self._of_no_module = member.to(device).unbind()
        self._member = {id(p): row for p, row in zip(parameters, rows, strict=True)}
        """By parameter, 1 where it belongs to a column. One that begins to train later belongs
        to the first alone.
        """
        self.measures = False
        """Whether the present update is measured."""
        self.weights_reported = False
        """Whether the task reported weights of its batches, which are not samples: then there is
        no noise scale.
        """
        self._own: list[tuple[Tensor, Tensor]] = []
        """Parameters of this rank with the norm of their gradient before the all-reduce."""
        self._small: Tensor | None = None
        """The squared norms of a part's mean gradient, in this update; None: the update has one
        part.
        """
        self._shares: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
        """The share of the noise of one sample that is in the part's gradient, and in the
        update's.
        """
        self._square: Tensor | float = 0.0
        self._spread: Tensor | float = 0.0
        self._count = 0

    def begin(self, measures: bool) -> None:
        """An update begins."""
        self.measures, self._small, self._own = measures, None, []

    def first(self, parameters: Sequence[Tensor], share: float, weights: Sequence[float]) -> None:
        """The first of several batches went backward: the gradients are its mean gradient times its
        `share` of the update.

        weights: the samples of each batch.
        """
        self.keep(parameters)
        self._small = self._own_squares() / share**2
        self._shares = 1 / weights[0], 1 / sum(weights)

    def keep(self, parameters: Sequence[Tensor]) -> None:
        """Measure the gradients that these parameters have at present."""
        with_gradient = [p for p in parameters if p.grad is not None]
        norms = torch._foreach_norm(entries(with_gradient)) if with_gradient else ()
        self._own += zip(with_gradient, norms, strict=True)

    def of_rank(self, weight: Tensor | float, unit: float) -> Tensor:
        """This rank's part in the sum for `ranks`: the squared norms of its mean gradient times its
        samples.

        weight: its samples. unit: what a sample's gradient was multiplied by.
        """
        if self.weights_reported or not self._own or not weight or not unit:
            return torch.zeros_like(self._of_no_module)
        return self._own_squares() / (unit**2 * weight)

    def ranks(self, summed: Tensor, total: Tensor, many: int) -> None:
        """The sum over so many ranks of `of_rank`, and of their samples.

        Each rank's squared norm holds that of the true mean gradient and the noise of one sample
        divided by the rank's samples; weighted by these, all ranks count alike.
        """
        self._small, self._shares = summed / total, (many / total, 1 / total)

    def whole(self, parameters: Sequence[Tensor], norms: Norms) -> dict[str, Tensor]:
        """The noise scales, by the name of their column, after an update whose mean gradient has
        these 2-norms.

        NaN where the mean gradient is lost in noise. Empty: they are not known yet.
        """
        if self._small is None or self.weights_reported:
            return {}
        large, (of_part, of_all) = self._squares(parameters, as_tensor(norms)), self._shares
        spread = (self._small - large) / (of_part - of_all)
        square = large - spread * of_all
        finite = torch.isfinite(square) & torch.isfinite(spread)
        self._square = DECAY * self._square + (1 - DECAY) * torch.where(finite, square, 0.0)
        self._spread = DECAY * self._spread + (1 - DECAY) * torch.where(finite, spread, 0.0)
        self._count += 1
        if self._count < FEWEST:
            return {}
        known = (self._square > 0) & (self._spread > 0)
        scales = torch.where(known, self._spread / self._square, float("nan")).float()
        return dict(zip(self._columns, scales.unbind(), strict=True))

    def _own_squares(self) -> Tensor:
        parameters, norms = zip(*self._own, strict=True)
        return self._squares(parameters, torch.stack(norms))

    def _squares(self, parameters: Sequence[Tensor], norms: Tensor) -> Tensor:
        """The sums of the squares of these parameters' norms, by column."""
        member = torch.stack([self._member.get(id(p), self._of_no_module) for p in parameters])
        squares: Tensor = norms.to(self._wide).square() @ member
        return squares
