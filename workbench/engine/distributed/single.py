"""Takes the updates of one process; `DDP` and `FSDP` take them on several ranks.

A session has one of the three. `several` says whether other ranks take part; callers need no other
distinction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.window import (
    Result,
    WindowLoss,
    WindowPlan,
    batch_in,
    refuse_no_weight,
    sample_count,
)
from workbench.task.protocol import Task
from workbench.techniques.accumulation import normalized_weights


class Single:
    """Takes the updates of one process."""

    several = False
    whole = True
    """Whether every rank has at least one batch to learn from in this update."""
    own_loss_bad = True
    """On CPU, after the loss is known and not finite: whether this rank's own part of it is not
    finite.
    """
    dropped_batches = False
    """Whether batches were left out since not all ranks had a part of them."""
    waiting = 0
    """How many batches this rank has read for an update that is not taken yet; used where each
    rank counts its own batches.
    """
    unit = 1.0
    """The share of a batch of weight 1: with several ranks, their number divided by the sum of the
    weights known before.
    """
    padding_batches = 0
    """How many padding batches (weight 0) this rank runs after its own, so that no other rank
    waits for it.
    """
    padding_batch: Any = None
    """The padding batch: this rank's latest, or that of another rank."""
    reduce_buffers_ready = True
    """Whether averaging the gradients needs no memory beyond what the session has allocated."""
    synced = False
    """Whether gradients are averaged during the backward of the window's last batch."""

    def __init__(self, task: Task, weights: WholeWeights, on_cpu: bool) -> None:
        self._task, self._weights, self._on_cpu = task, weights, on_cpu

    # -- windows

    def refresh(self) -> None:
        """Follow, between two updates, changes of which parameters train."""

    def rounds(self, windows: Iterable[Sequence[Any]], sure: int = 0) -> Iterator[Sequence[Any]]:
        """Yield this rank's windows in step with the other ranks; empty ones while only others have
        any.

        sure: for how many rounds all ranks are known to have a full window.
        """
        return iter(windows)

    def shares(self, weights: Sequence[float]) -> list[float]:
        """The share of each batch of a window in its update."""
        return normalized_weights(weights)

    def plan(self, window: Sequence[Any]) -> WindowPlan:
        """The plan of a window before its forward passes: which batches count, and their shares."""
        # a single batch is the whole update, whatever its weight
        if len(window) == 1 and not self.several:
            return _NOTHING if batch_in(window[0]) is None else _ONE
        return WindowPlan.of(self._task, window, self.shares)

    def window_loss(self, plan: WindowPlan) -> WindowLoss:
        """Return an empty sum of the window's losses."""
        return WindowLoss(plan, self.unit, whole=not self.several)

    def batches(self, window: Sequence[Any]) -> int:
        """The number of batches by which this window advances the run."""
        return len(window)

    def samples(self, window: Sequence[Any]) -> int | None:
        """The number of samples of the update that was taken with this window, on all ranks;
        None: unknown.
        """
        return sample_count(window)

    def end_window(self) -> None:
        """Note that the update with the batches of `rounds` is taken."""
        self.waiting = 0

    # -- one window

    def continues(self, ready: bool) -> bool:
        """Whether this rank continues with the next batch of its window."""
        return ready

    def training_step(self, batch: Any, batch_idx: int, *, last: bool, **extra: Any) -> Any:
        """Call the task's training_step. last: it is the last call of this update."""
        return self._weights.training_step(batch, batch_idx, **extra)

    def after_forward(self, found: Result | None) -> Result | None:
        """Called between a step and its backward; returns what the step returned."""
        return found

    def begin_reduce(self, window_loss: WindowLoss) -> None:
        """Begin, before the last backward, to sum up the losses over ranks."""

    def measure_first(
        self, noise: RunningNoiseScale, opt: OptimizerHandle, plan: WindowPlan, place: int
    ) -> None:
        """Measure the gradient of the first of several batches after its backward: it has more
        noise than that of the update.
        """
        noise.first(opt.trained, plan.shares[place], plan.weights[place:])

    def finish_reduce(
        self, opt: OptimizerHandle, window_loss: WindowLoss, *, back: bool
    ) -> Tensor | None:
        """Give `opt`, after the last backward, the gradients of the whole update and return its
        mean loss.

        back: whether the last forward has had its backward. None: every batch was left out.
        """
        if window_loss.loss is None or window_loss.single:
            return window_loss.loss
        if window_loss.reported:
            total = sum(window_loss.reported)
            if self._on_cpu:
                refuse_no_weight(total)
            return _divided(opt, window_loss.loss, total)
        # a step returned None: the other batches make up the whole window
        if window_loss.some_left_out:
            return _divided(opt, window_loss.loss, sum(window_loss.kept))
        return window_loss.loss

    # -- manual optimization

    def reduce(self, opt: OptimizerHandle, loss: Tensor) -> Tensor:
        """Average gradients and loss over the ranks, before a step of a task with manual
        optimization.
        """
        return loss

    def mean(self, loss: Tensor | None) -> Tensor | None:
        """The mean of a loss over ranks; either all ranks have one, or none (None)."""
        return loss


_ONE, _NOTHING = WindowPlan([0], [1.0], [1.0]), WindowPlan([], [], [])


def _divided(opt: OptimizerHandle, summed: Tensor, total: Tensor | float) -> Tensor:
    gradients = opt.gradients()
    divisor = total.to(summed) if isinstance(total, Tensor) else total
    if gradients:
        torch._foreach_div_(gradients, divisor)
    return summed / divisor
