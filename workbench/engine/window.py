"""Accumulates the weighted loss of one accumulation window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from workbench.engine.distributed.ddp import batch_weights
from workbench.task.errors import TaskError

if TYPE_CHECKING:
    from workbench.engine.batch_steps import Result
    from workbench.engine.session import Session


class WindowPlan(NamedTuple):
    """What is known of a window before its forward passes."""

    there: list[int]
    """The numbers of the batches that are not None."""
    weights: dict[int, float]
    shares: dict[int, float]

    @classmethod
    def of(cls, session: Session, window: Sequence[Any], shares_of: Callable[[list[float]], list[float]]) -> WindowPlan:
        weights = {number: weight for number, weight in enumerate(batch_weights(session, window)) if weight is not None}
        found = shares_of([*weights.values()]) if weights else []
        return cls([*weights], weights, dict(zip(weights, found, strict=True)))

    @property
    def last(self) -> int | None:
        return self.there[-1] if self.there else None


class WindowLoss:
    """The sums over the batches of a window that have gone forward."""

    def __init__(self, planned: WindowPlan, unit: float, *, single: bool = False) -> None:
        """unit: the share of a weight of 1. single: the window has one batch, which is all of it whatever its
        weight.
        """
        self._planned, self._unit, self.single = planned, unit, single
        self.loss: Tensor | None = None
        """The sum of the losses times their shares, or times their reported weights, without a graph."""
        self.reported: list[Tensor | float] = []
        self.kept: list[float] = []
        """The shares of the batches that reported no weight."""
        self._weights: list[Tensor | float] = []

    def take(self, number: int, found: Result) -> tuple[Tensor, bool]:
        """Add one batch; returns the part of the loss to go backward, and whether it is the first."""
        if bool(self.reported) != (found.weight is not None) and (self.reported or self.kept):
            raise TaskError("training_step reports a 'weight' for some batches of a window and not for others.")
        share = self._planned.shares[number]
        if found.weight is not None and not self.single:
            self.reported.append(found.weight)
            part = found.loss * found.weight if self._unit == 1.0 else found.loss * found.weight * self._unit
        else:
            self.kept.append(share)
            part = found.loss if self.single or share == 1.0 else found.loss * share
        self._weights.append(self._planned.weights[number] if found.weight is None else found.weight)
        first = self.loss is None
        self.loss = part.detach() if self.loss is None else self.loss + part.detach()
        return part, first

    @property
    def weight(self) -> Tensor | float:
        """The sum of their weights."""
        return sum(self._weights)

    @property
    def some_left_out(self) -> bool:
        """Whether batches were left out whose shares were counted."""
        return len(self.kept) < len(self._planned.there)
