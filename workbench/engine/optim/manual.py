"""Runs manual optimization: the task calls backward and step, the engine accumulates, measures and
clips.

The gradient of a window is the sum over its batches, weighted by their shares. Steps that the task
requests are taken at the window's last batch, and measured and clipped like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.window import WeightedMeans, batch_weights
from workbench.task.errors import TaskError
from workbench.task.metrics.step_output import loss_parts
from workbench.techniques.accumulation import samples_at
from workbench.techniques.toggling import Toggle

TakeStep = Callable[[Session, OptimizerHandle, Sequence[Any], Tensor], bool]


class ManualOptimizers:
    """The `Handle` through which a task with manual optimization trains, for a whole session."""

    def __init__(self, session: Session, take_step: TakeStep) -> None:
        """take_step: measures and clips the gradients of an optimizer, steps, and returns
        whether it stepped.
        """
        self._session, self._take_step = session, take_step
        self._toggle = Toggle()
        self._window: Sequence[Any] = ()
        self._share, self._last = 1.0, True
        self.loss: Tensor | None = None
        self._since: Tensor | None = None
        self.optimizers_stepped: list[OptimizerHandle] = []
        self._stepped: set[int] = set()
        """The optimizers that stepped since the loss scale was last updated (16-mixed)."""
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """By optimizer: the gradients of a step that the task requested earlier in the window."""
        self._options: dict[int, dict[str, Any]] = {}
        """By optimizer: the further arguments of that step."""

    @property
    def scheduling(self) -> bool:
        """Whether schedulers may step now; in a search they may not."""
        return not self._session.state.searching

    def update(self, window: Sequence[Any]) -> tuple[Tensor | None, list[OptimizerHandle]]:
        """Give each batch of the window to the task; returns the sum of the losses that went
        backward, and the optimizers that stepped.
        """
        session = self._session
        self._window = window
        self.loss, self._since, self.optimizers_stepped = None, None, []
        self._stepped.clear()
        self._kept.clear()  # an error may have ended the window before
        present = [number for number, batch in enumerate(window) if batch is not None]
        batches = [window[number] for number in present]
        weights = [weight for weight in batch_weights(session.task, window) if weight is not None]
        returned: Tensor | None = None
        parts = WeightedMeans()
        session.state.loss_parts[0] = parts.means
        try:
            for number, share in enumerate(session.parallel.shares(weights) if batches else ()):
                self._share, self._last = share, number == len(batches) - 1
                session.timer.mark("workbench")
                batch = (
                    session.to_device(batches[number]) if session.plan.moves else batches[number]
                )
                session.timer.mark("transfer")
                index, samples = (
                    session.state.batch_idx + number,
                    samples_at(window, present[number]),
                )
                if not session.update_hooks.start_moved(batch, index, samples):
                    break
                session.task.begin_batch(samples)
                with session.precision.autocast():
                    result = session.task.training_step(batch, index)
                session.timer.mark("forward")
                session.update_hooks.end(result, batch, index, waits=True)
                parts.add(loss_parts(result), share)
                loss = result.get("loss") if isinstance(result, Mapping) else result
                if isinstance(loss, Tensor) and loss.numel() == 1:
                    weighted_loss = loss.detach().reshape(()) * share
                    returned = weighted_loss if returned is None else returned + weighted_loss
            self._finish()
        finally:
            self._toggle.untoggle()  # in case the task did not
        if not batches:
            return None, []
        loss = self.loss if self.loss is not None else returned
        loss = session.parallel.mean(loss)
        if loss is None and not self.optimizers_stepped:
            return None, []
        if loss is None:
            raise TaskError(
                "a manual training_step stepped an optimizer without a loss: use"
                " manual_backward(loss), or return the loss."
            )
        return loss, list(dict.fromkeys(self.optimizers_stepped))

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Run the backward pass of a loss, weighted by its batch's share of the window."""
        weighted_loss = loss if self._share == 1.0 else loss * self._share
        scaled = self._session.precision.scale(weighted_loss)
        self._session.timer.mark("forward")
        self._session.hooks.backward(scaled, **options)
        self._session.timer.mark("backward")
        self._session.hooks.after_backward()
        weighted_loss = weighted_loss.detach()
        self.loss = weighted_loss if self.loss is None else self.loss + weighted_loss
        self._since = weighted_loss if self._since is None else self._since + weighted_loss

    def step(self, optimizer: int = 0, **options: Any) -> None:
        """Take an optimizer's step, or set its gradients aside until the window's last batch."""
        opt = self._session.optimizers[optimizer]
        self._session.timer.mark("forward")
        self._add_kept(opt)
        if not self._last:
            # Set aside, since another network's backward may add gradients to these parameters,
            # which must not count.
            self._kept[optimizer] = [(p, p.grad) for p in opt.trained if p.grad is not None]
            self._options[optimizer] = options
            opt.zero_grad()
            return
        summed = self._since
        if summed is None:
            summed = torch.zeros((), device=self._session.device)
        summed = self._session.parallel.reduce(opt, summed)
        self._since = None
        self._session.state.losses[opt.index] = summed
        if self._session.state.records and self._session.plan.several_optimizers:
            self._session.meter.put_loss(opt.column, summed)
        # for the loss scaler, a second step in this window belongs to a new iteration
        if opt.index in self._stepped:
            self._session.precision.update()
            self._stepped.clear()
        self._stepped.add(opt.index)
        opt.step_options = options
        try:
            if self._take_step(self._session, opt, self._window, summed):
                self.optimizers_stepped.append(opt)
        finally:
            opt.step_options = {}

    def _finish(self) -> None:
        """Take the steps that the task asked for earlier in the window and not at its last
        batch.
        """
        for optimizer in list(self._kept):
            self.step(optimizer, **self._options[optimizer])

    def _add_kept(self, opt: OptimizerHandle) -> None:
        for parameter, kept in self._kept.pop(opt.index, ()):
            parameter.grad = kept if parameter.grad is None else parameter.grad + kept

    def clip(self, optimizer: int, clip_val: float, algorithm: str) -> None:
        """Clip an optimizer's gradients before its next step, by norm or by value (`algorithm`)."""
        self._session.state.clip_next[optimizer] = (clip_val, algorithm)

    def zero_grad(self, optimizer: int = 0, set_to_none: bool = True) -> None:
        """Remove an optimizer's gradients, or fill them with zeros."""
        opt = self._session.optimizers[optimizer]
        if set_to_none:
            opt.zero_grad()
        else:
            opt.optimizer.zero_grad(set_to_none=False)

    def toggle(self, optimizer: int) -> None:
        """Let only this optimizer's parameters require gradients."""
        self._toggle.toggle(
            self._session.optimizers.trained, self._session.optimizers[optimizer].trained
        )

    def untoggle(self, optimizer: int) -> None:
        """Let all parameters require gradients that did before `toggle`."""
        self._toggle.untoggle()


def update(
    session: Session, window: Sequence[Any], take_step: TakeStep
) -> tuple[Tensor | None, list[OptimizerHandle]]:
    """Take an update (`ManualOptimizers.update`); the first of a session gives the task its
    handle.
    """
    handle = session.handle
    if not isinstance(handle, ManualOptimizers):
        handle = ManualOptimizers(session, take_step)
        session.drive(handle)
    return handle.update(window)
