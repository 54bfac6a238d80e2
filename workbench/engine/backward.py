"""Computes the gradient of one accumulation window: forward and backward over its batches, weighted by their
samples.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine.batch_steps import WindowForward, forward, loss_in, scalar
from workbench.engine.data.sample_count import note_count
from workbench.engine.distributed.ddp import DDP
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.window import WindowLoss, WindowPlan
from workbench.task.errors import TaskError
from workbench.techniques.accumulation import normalized_weights, samples_at

Work = Generator[None, None, "Tensor | None"]
"""The backward of a window as a generator. It stops once, before the last batch goes forward, and returns the mean
loss.
"""


def backward(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor | None:
    """Add the window's gradient to the parameters of `opt`; returns the mean loss, detached, or None for an empty
    window.
    """
    if len(window) == 1 and session.tbptt is None and not session.within and session.together is None:
        session.task.drawn = samples_at(window, 0)
        result = forward(session, opt, window[0], session.batch_idx, {})
        loss = scalar(result) if isinstance(result, Tensor) else loss_in(result)
        if loss is None:
            return None
        session.precision.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    return finish(weighted(session, opt, window))


def finish(work: Work) -> Tensor | None:
    """Run the rest of a window's backward and return its mean loss."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            loss: Tensor | None = end.value
            return loss


def weighted(session: Session, opt: OptimizerHandle, window: Sequence[Any], *, anew: bool = False) -> Work:
    """Backward over a window in which each batch counts by its weight: known before, or reported by the step.

    anew: this update has gone through the window before, so the task has had the end of each batch already.
    """
    if session.together is None:
        return _alone(session, opt, window, anew)
    return _in_ranks(session, session.together, opt, window, anew)


def _alone(session: Session, opt: OptimizerHandle, window: Sequence[Any], anew: bool) -> Work:
    """The window of a single process."""
    planned = WindowPlan.of(session, window, normalized_weights)
    passing, held = WindowForward(session, opt, window), WindowLoss(planned, 1.0, single=len(planned.there) == 1)
    for number in planned.there:
        going_on = passing.start(number)
        if number == planned.last if going_on else number != planned.there[0]:
            yield
        if not going_on:
            break
        found = passing.forward(number)
        if found is not None:
            part, fresh = held.take(number, found)
            if found.weight is None and not held.single and session.tbptt is None:
                note_count(session, "train", window[number], planned.weights[number])
            _back(session, opt, part, fresh=fresh)
            if session.within:
                session.hooks.after_backward()
        passing.end(number, found, last=number == planned.last, anew=anew)
    passing.leave()
    return _mean(session, opt, held)


def _in_ranks(session: Session, together: DDP, opt: OptimizerHandle, window: Sequence[Any], anew: bool) -> Work:
    """The window of one of several ranks. After its last backward, gradients and loss are those of all ranks."""
    planned, last = WindowPlan.of(session, window, together.shares), None
    if not together.borrowed:
        last = planned.last
    passing, held = WindowForward(session, opt, window, last), WindowLoss(planned, together.unit)
    halted = going_on = False
    for number in planned.there:
        going_on = together.starts(passing.start(number))
        if number == planned.last if going_on else number != planned.there[0]:
            halted = True
            yield
        if not going_on:
            break
        found = together.formed(passing.forward(number))
        if found is None:
            passing.end(number, None, last=number == planned.last, anew=anew)
            continue
        part, fresh = held.take(number, found)
        if found.weight is None and session.tbptt is None:
            note_count(session, "train", window[number], planned.weights[number])
        if number == last and together.synced:
            together.tell(held.loss, held.weight)  # the all-reduce runs during the backward
        _back(session, opt, part, fresh=fresh)
        # The hooks after the last backward see the gradients of all ranks.
        loss = together.settle(opt, held.loss, held.weight, back=True) if number == last else None
        if session.within:
            session.hooks.after_backward()
        passing.end(number, found, last=number == planned.last, anew=anew)
        if number == last:
            passing.leave()
            return loss
    passing.leave()
    if not halted:  # this rank has no batch of its own, but takes the step
        yield
    if held.loss is None and session.within:
        _drop(session, opt)
    if going_on or not planned.there:
        together.pass_borrowed(opt, held.loss, held.weight)
    # Its last batch was left out, or it had none: it still takes part in the update of all ranks.
    loss = together.settle(opt, held.loss, held.weight, back=False)
    if session.within and loss is not None:  # all ranks must change the gradients alike
        session.hooks.after_backward()
    return loss


def _mean(session: Session, opt: OptimizerHandle, held: WindowLoss) -> Tensor | None:
    """Divide a single process's loss and gradients by the window's weight; None if the window was empty."""
    if held.loss is None or held.single:
        return held.loss
    if held.reported:
        total = sum(held.reported)
        if session.on_cpu and float(total) == 0.0:
            raise TaskError(
                "the weights that training_step reported for the batches of one update add up to 0, so they have no "
                "mean: return None for a batch without anything to learn from."
            )
        return _divided(opt, held.loss, total)
    if held.some_left_out:  # a step returned None: the other batches make up the whole window
        return _divided(opt, held.loss, sum(held.kept))
    return held.loss


def _back(session: Session, opt: OptimizerHandle, part: Tensor, *, fresh: bool) -> None:
    """Backward of one batch's part of the loss. `fresh`: it is the first of the window, so old gradients are dropped
    before.
    """
    scaled = session.precision.scale(part)
    if not session.within:
        scaled.backward()  # type: ignore[no-untyped-call]
        return
    if fresh:
        _drop(session, opt)
    session.hooks.backward(scaled)


def _drop(session: Session, opt: OptimizerHandle) -> None:
    """Drop the gradients of the update before, by the task's own zero_grad where it has one; on ranks without a
    batch too.
    """
    session.hooks.zero_grad(opt.index, session.batch_idx)
    if not session.hooks.zeroes:
        opt.zero_grad()


def _divided(opt: OptimizerHandle, summed: Tensor, total: Tensor | float) -> Tensor:
    gradients = opt.gradients()
    divisor = total.to(summed) if isinstance(total, Tensor) else total
    if gradients:
        torch._foreach_div_(gradients, divisor)
    return summed / divisor


def losses(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor:
    """The sum of the window's losses with their graph, to find out where a non-finite value came from."""
    passing = WindowForward(session, opt, window)
    found = [passing.forward(number) for number in range(len(window))]
    passing.leave()
    return torch.stack([one.loss for one in found if one is not None]).sum()


def finish_window(session: Session, window: Sequence[Any]) -> None:
    """Advance the batch counters after a window."""
    session.ready = {}
    if session.together is not None:
        session.together.waiting = 0
    if session.tbptt is None:
        session.batch_idx += len(window) if session.together is None else session.together.size
    elif window:
        session.batch_idx += sum(piece.first for piece in window)
        since = [piece.first for piece in window][::-1]
        session.pieces = since.index(True) + 1 if True in since else session.pieces + len(window)
        session.pieces = 0 if window[-1].last else session.pieces
        # An optimizer without a turn continues from the state that the others have reached.
        last = next(reversed(session.next_hiddens.values()), None)
        session.hiddens = {opt.index: session.next_hiddens.get(opt.index, last) for opt in session.optimizers}
        session.next_hiddens = {}
