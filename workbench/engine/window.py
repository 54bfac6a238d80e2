"""Weights the batches of one accumulation window and sums up their losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from workbench.task.errors import TaskError
from workbench.task.metrics.step_output import loss_parts
from workbench.task.protocol import Task
from workbench.techniques.accumulation import samples_at
from workbench.techniques.tbptt import Piece
from workbench.values import shown


class Result(NamedTuple):
    """The result of a training step: the loss, its weight, the hidden state, the named parts of
    the loss.
    """

    loss: Tensor
    weight: Tensor | float | None
    hiddens: Any
    parts: Mapping[str, Tensor] = MappingProxyType({})


def read(result: Any) -> Result | None:
    """Read what a training step returned: a loss, a dict with "loss", or None."""
    if isinstance(result, Tensor):
        return Result(result if result.ndim == 0 else scalar(result), None, None)
    if result is None:
        return None
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return Result(
            scalar(result["loss"]), result.get("weight"), result.get("hiddens"), loss_parts(result)
        )
    got = (
        f"a dict with {sorted(map(str, result))}"
        if isinstance(result, Mapping)
        else f"{shown(result)}"
    )
    raise TaskError(
        f"training_step returned {got}: it must return the loss, a dict with 'loss', or None to"
        " leave a batch out."
    )


def scalar(loss: Tensor) -> Tensor:
    """The loss with shape (). Raises TaskError where it has more than one element."""
    if loss.ndim == 0 or loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    raise TaskError(
        f"the loss has shape {tuple(loss.shape)}; it must be one number: take its mean."
    )


def batch_in(item: Any) -> Any:
    """The batch of a window's item, which may be a piece of a batch in time."""
    return item.batch if isinstance(item, Piece) else item


def batch_weights(task: Task, window: Sequence[Any]) -> list[float | None]:
    """The weight of each batch, as known before its step; None: the batch is left out."""
    return [_weight(task, item, samples_at(window, number)) for number, item in enumerate(window)]


def sample_count(window: Sequence[Any]) -> int | None:
    """The number of samples in a window of this rank; None: unknown. A batch in pieces counts
    once.
    """
    total = 0
    for number, item in enumerate(window):
        if isinstance(item, Piece) and not item.first:
            continue
        here = samples_at(window, number)
        if here is None:
            return None
        total += here
    return total


def _weight(task: Task, item: Any, samples: int | None) -> float | None:
    """The weight of a batch, or of a piece of one, made of so many samples."""
    batch = batch_in(item)
    if batch is None:
        return None
    task.begin_batch(samples)
    weight = task.weight(batch)
    task.begin_batch(None)
    return weight * item.length if isinstance(item, Piece) else weight


class WindowPlan(NamedTuple):
    """The batches of a window that count, with their weights and shares, before its forward
    passes.
    """

    present: list[int]
    """The indices of the batches that are not None."""
    weights: list[float]
    """Their weights."""
    shares: list[float]
    """The factors by which their losses are multiplied."""

    @classmethod
    def of(
        cls, task: Task, window: Sequence[Any], shares_of: Callable[[list[float]], list[float]]
    ) -> WindowPlan:
        """The plan of a window: the weight of each batch, as the task counts it."""
        all_weights = batch_weights(task, window)
        present = [number for number, weight in enumerate(all_weights) if weight is not None]
        weights = [weight for weight in all_weights if weight is not None]
        return cls(present, weights, shares_of(weights) if weights else [])


class WeightedMeans:
    """The means of named scalars over the batches that have them, weighted by the batches'
    weights.
    """

    def __init__(self) -> None:
        self.means: dict[str, Tensor] = {}
        """The means so far, on their device."""
        self._weights: dict[str, Tensor | float] = {}

    def add(self, values: Mapping[str, Tensor], weight: Tensor | float) -> None:
        """Add the values of one batch."""
        for name, value in values.items():
            before = self.means.get(name)
            total = self._weights[name] = self._weights.get(name, 0.0) + weight
            known = isinstance(total, Tensor) or total > 0
            self.means[name] = (
                value
                if before is None or not known
                else before + (value - before) * (weight / total)
            )


class WindowLoss:
    """The sum of losses and weights over the batches of a window so far."""

    def __init__(self, plan: WindowPlan, unit: float, *, whole: bool) -> None:
        """unit: a loss with a reported weight is multiplied by that weight and by `unit`, until the
        sum of all reported weights is known, by which the gradients are divided at the end. whole:
        a single batch is the whole update, whatever its weight.
        """
        self._plan, self._unit = plan, unit
        self.single = whole and len(plan.present) == 1
        self.loss: Tensor | None = None
        """The sum of the losses times their shares, or times their reported weights, without a
        graph.
        """
        self.reported: list[Tensor | float] = []
        self.kept: list[float] = []
        """The shares of the batches that reported no weight."""
        self._weights: list[Tensor | float] = []
        self.parts = WeightedMeans()
        """The named parts of the losses, over this process's batches."""

    def take(self, place: int, found: Result) -> tuple[Tensor, bool]:
        """Add the batch at index `place` of the plan; returns the loss to run backward, and
        whether the batch is the first.
        """
        if found.parts:
            self.parts.add(
                found.parts, self._plan.weights[place] if found.weight is None else found.weight
            )
        if self.single:
            self.loss = found.loss.detach()
            return found.loss, True
        if bool(self.reported) != (found.weight is not None) and (self.reported or self.kept):
            raise TaskError(
                "training_step reports a 'weight' for some batches of a window and not for others."
            )
        share = self._plan.shares[place]
        if found.weight is not None:
            self.reported.append(found.weight)
            weighted_loss = (
                found.loss * found.weight
                if self._unit == 1.0
                else found.loss * found.weight * self._unit
            )
        else:
            self.kept.append(share)
            weighted_loss = found.loss if share == 1.0 else found.loss * share
        self._weights.append(self._plan.weights[place] if found.weight is None else found.weight)
        first = self.loss is None
        self.loss = (
            weighted_loss.detach() if self.loss is None else self.loss + weighted_loss.detach()
        )
        return weighted_loss, first

    @property
    def weight(self) -> Tensor | float:
        """The sum of their weights."""
        return sum(self._weights)

    @property
    def some_left_out(self) -> bool:
        """Whether batches were left out whose shares were counted."""
        return len(self.kept) < len(self._plan.present)


def refuse_no_weight(total: Tensor | float) -> None:
    """Raise TaskError where the reported weights of an update add up to 0. Call it on CPU only,
    since it reads the value.
    """
    if float(total) == 0.0:
        raise TaskError(
            "the weights that training_step reported for the batches of one update add up to 0, so"
            " they have no mean: return None for a batch without anything to learn from."
        )
