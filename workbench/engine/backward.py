"""Computes the gradient of one window of batches: forward and backward, each batch weighted by its samples."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine.data.sample_count import note_count
from workbench.engine.distributed.padding import run_padding
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.window import Result, WindowLoss, batch_in, batch_weights, read
from workbench.events import Message
from workbench.techniques.accumulation import samples_at
from workbench.techniques.tbptt import Piece, detached

Work = Generator[None, None, "Tensor | None"]
"""The backward of a window. It stops once, before the last batch goes forward, and returns the mean loss, detached."""


def backward(session: Session, opt: OptimizerHandle, window: Sequence[Any], *, anew: bool = False) -> Work:
    """Add the window's gradient to the parameters of `opt`. Each batch counts by its weight: known before, or
    reported by the step. After the last backward, gradients and loss are those of all ranks.

    The work ends before it stops if there is nothing to learn from. anew: this update has gone through the window
    before, so the task has had the end of each batch already.
    """
    parallel, hooks, mark = session.parallel, session.hooks, session.timer.mark
    plan = parallel.plan(window)
    window_loss = WindowLoss(plan, parallel.unit, whole=not parallel.several)
    forward = WindowForward(session, opt, window)
    noise = session.noise_scale
    if noise is not None:
        noise.begin(session.state.records)
    final = plan.there[-1] if plan.there else None
    stopped = ready = False
    loss: Tensor | None = None
    for place, number in enumerate(plan.there):
        ready = parallel.continues(forward.start(number))
        if number == final if ready else place:
            stopped = True
            yield
        if not ready:
            break
        last = number == final and not parallel.padding_batches
        found = parallel.after_forward(forward.run(number, last=last))
        if found is not None:
            part, first = window_loss.take(place, found)
            if found.parts:
                session.state.loss_parts.setdefault(opt.index, window_loss.parts.means)  # of the first evaluation, as the loss
            if not window_loss.single and found.weight is None and session.plan.tbptt is None:
                note_count(session, "train", window[number], plan.weights[place])
            if last and parallel.synced:
                parallel.begin_reduce(window_loss)  # the all-reduce runs during the backward
            if first and hooks.within:
                drop_gradients(session, opt)
            hooks.backward(session.precision.scale(part))
            mark("backward")
            if noise is not None and found.weight is not None:
                _end_noise_scale(session, noise)
            elif noise is not None and noise.measures and first and len(plan.there) > 1 and not parallel.several:
                noise.first(opt.trained, plan.shares[place], plan.weights[place:])
            if last:  # the hooks after the last backward see the gradients of all ranks
                loss = parallel.finish_reduce(opt, window_loss, back=True)
                if parallel.several:
                    mark("sync")
            hooks.after_backward()
        forward.end(number, found, final=number == final, anew=anew)
        if last and found is not None:
            forward.leave()
            return loss
    forward.leave()
    if parallel.several and not stopped:  # this rank has no batch of its own, but takes the step
        yield
    return _finish_without_batch(session, opt, window_loss, padded=ready or not plan.there)


def of_one_batch(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor | None:
    """`backward` for a window of one batch where `session.plan.direct` holds: the gradient of its loss is that of the update."""
    state, mark, batch = session.state, session.timer.mark, window[0]
    if batch is None:
        return None
    mark("workbench")
    if session.plan.moves:
        batch = session.to_device(batch)
        mark("transfer")
    session.task.drawn = samples_at(window, 0)
    found = read(session.plan.training_step(batch, state.batch_idx, **opt.extra))
    mark("forward")
    if found is None:
        return None
    if found.parts:
        state.loss_parts[opt.index] = found.parts
    session.precision.scale(found.loss).backward()  # type: ignore[no-untyped-call]
    mark("backward")
    return found.loss.detach()


def _finish_without_batch(session: Session, opt: OptimizerHandle, window_loss: WindowLoss, *, padded: bool) -> Tensor | None:
    """End the backward of a window whose last batch was left out, or that has none; returns the mean loss.

    A rank still takes part in the update of all: `padded`, also in the steps that others take.
    """
    parallel, hooks = session.parallel, session.hooks
    if parallel.several:
        if window_loss.loss is None and hooks.within:
            drop_gradients(session, opt)
        if padded:
            _run_padding(session, opt, window_loss)
    loss = parallel.finish_reduce(opt, window_loss, back=False)
    if parallel.several and loss is not None:  # all ranks must change the gradients alike
        hooks.after_backward()
    return loss


def _end_noise_scale(session: Session, noise: RunningNoiseScale) -> None:
    """Warn, once, that there is no gradient noise scale in samples for a task that reports other weights."""
    if not noise.weights_reported:
        noise.weights_reported = True
        text = "track_noise_scale: the gradient noise scale is not measured, since training_step reports a 'weight' other than samples."
        session.notes.append(Message(text, "warning", session.state.step))


def finish(work: Work) -> Tensor | None:
    """Run the rest of a window's backward and return its mean loss."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            loss: Tensor | None = end.value
            return loss


class WindowForward:
    """The forward passes of one optimizer over a window: batch numbers, hooks of the batches, hidden state."""

    def __init__(self, session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> None:
        self._session, self._opt, self._window = session, opt, window
        first = session.state.batch_idx
        self._indices: Sequence[int] = range(first, first + len(window))
        self._hiddens: Any = None
        if session.plan.tbptt is not None:
            self._hiddens = session.state.hiddens.get(opt.index)
            self._indices = [first - 1 + begun for begun in itertools.accumulate(item.first for item in window)]

    def start(self, number: int) -> bool:
        """Call the hooks before a batch, once an update. False: a hook asked to leave out the rest of the epoch."""
        session, state = self._session, self._session.state
        if not session.hooks.within or number in state.ready:
            return True
        if state.cut_short:
            return False
        item, mark = self._window[number], session.timer.mark
        mark("workbench")
        batch = session.to_device(batch_in(item))
        mark("transfer")
        session.task.drawn = samples_at(self._window, number)
        begins = not isinstance(item, Piece) or item.first
        if begins and not session.hooks.batch_started(batch, self._indices[number]):
            state.cut_short = True
            return False
        mark("hooks")
        session.add_new_parameters()
        state.ready[number] = batch
        return True

    def run(self, number: int, *, last: bool = False) -> Result | None:
        """Run the training step of one batch; None: it returned nothing to learn from. last: no other of this update
        follows.
        """
        session, item, mark = self._session, self._window[number], self._session.timer.mark
        batch = session.state.ready.get(number)
        if batch is None:
            batch = batch_in(item)
            if batch is None:
                return None
            if session.plan.moves:  # only one batch of a window is on the device at a time
                mark("workbench")
                batch = session.to_device(batch)
                mark("transfer")
        extra: Mapping[str, Any] = self._opt.extra
        if session.plan.tbptt is not None:
            self._hiddens = None if item.first else self._hiddens  # also where the step leaves the first piece out
            extra = {**extra, "hiddens": self._hiddens}
        session.task.drawn = samples_at(self._window, number)
        mark("workbench")
        with session.precision.autocast():
            found = read(session.parallel.training_step(batch, self._indices[number], last=last, **extra))
        mark("forward")
        if found is not None and session.plan.tbptt is not None:
            self._hiddens = detached(found.hiddens)
        return found

    def end(self, number: int, result: Result | None, *, final: bool, anew: bool) -> None:
        """Call the hook after a batch, once, after its last optimizer. For the window's `final` batch it is called
        after the update.
        """
        session, item = self._session, self._window[number]
        if not session.hooks.within or self._opt is not session.turn()[-1] or not getattr(item, "last", True):
            return
        ending = (result, session.state.ready[number], self._indices[number])
        if final:
            session.state.batch_end_args = ending
        elif not anew:
            session.hooks.batch_ended(*ending)

    def leave(self) -> None:
        """Keep the hidden state for the next piece."""
        if self._session.plan.tbptt is not None:
            self._session.state.next_hiddens[self._opt.index] = self._hiddens


def drop_gradients(session: Session, opt: OptimizerHandle) -> None:
    """Drop the gradients of the update before, by the task's own zero_grad where it has one; on ranks without a
    batch too.
    """
    session.hooks.zero_grad(opt.index, session.state.batch_idx)
    if not session.hooks.zeroes:
        opt.zero_grad()


def _run_padding(session: Session, opt: OptimizerHandle, window_loss: WindowLoss) -> None:
    """Run the steps that other ranks take and this one has no batch for, at no weight."""
    parallel = session.parallel
    extra: dict[str, Any] = {**opt.extra} if session.plan.tbptt is None else {**opt.extra, "hiddens": None}
    for left in reversed(range(parallel.padding_batches)):
        if not parallel.continues(True):
            return

        def step(batch: Any, *, last: bool = not left) -> None:
            found = parallel.after_forward(read(parallel.training_step(batch, session.state.batch_idx, last=last, **extra)))
            if found is None:
                return
            if last:  # where those that have a batch call theirs
                parallel.begin_reduce(window_loss)
            (found.loss * 0.0).backward()  # type: ignore[no-untyped-call]

        run_padding(session, parallel.padding_batch, "train", step)


def losses(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor:
    """The sum of the window's losses with their graph, to find out where a non-finite value came from."""
    forward = WindowForward(session, opt, window)
    found = [forward.run(number) for number in range(len(window))]
    forward.leave()
    return torch.stack([one.loss for one in found if one is not None]).sum()


def batch_gradient(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor | float | None:
    """Compute the gradient of a single batch, without an update; returns the batch's weight. None: it was left out.

    In one process only: no other rank takes part.
    """
    session.state.begin_update(records=False)
    weight = batch_weights(session.task, window)[0]
    forward = WindowForward(session, opt, window)
    if weight is None or not forward.start(0):
        return None
    found = forward.run(0)
    if found is not None:
        drop_gradients(session, opt)
        session.hooks.backward(session.precision.scale(found.loss))
        session.hooks.after_backward()
        session.precision.unscale(opt.optimizer)
        session.precision.update()
    forward.end(0, found, final=False, anew=False)
    finish_window(session, window)
    if found is None:
        return None
    return weight if found.weight is None else found.weight


def finish_window(session: Session, window: Sequence[Any]) -> None:
    """Advance the batch counters after a window."""
    state = session.state
    state.ready = {}
    parallel = session.parallel
    batches = parallel.batches(window) if parallel.several else len(window)
    parallel.waiting = 0
    if session.plan.tbptt is None:
        state.batch_idx += batches
    elif window:
        state.batch_idx += sum(piece.first for piece in window)
        since = [piece.first for piece in window][::-1]
        state.pieces = since.index(True) + 1 if True in since else state.pieces + len(window)
        state.pieces = 0 if window[-1].last else state.pieces
        # An optimizer without a turn continues from the state that the others have reached.
        last = next(reversed(state.next_hiddens.values()), None)
        state.hiddens = {opt.index: state.next_hiddens.get(opt.index, last) for opt in session.optimizers}
        state.next_hiddens = {}
