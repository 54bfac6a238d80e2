"""Computes the gradient of one update: forward and backward over a window of batches.

The loss of each batch is multiplied by the batch's share of the window, which follows from its
number of samples or from the weight that the training step returns. `of_one_batch` is the short way
for an update of a single batch in one process.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine.data.sample_count import note_count
from workbench.engine.hooks.called import zero_grad
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.window import Result, WindowLoss, batch_in, batch_weights, read
from workbench.events import Message
from workbench.techniques.accumulation import samples_at
from workbench.techniques.tbptt import detached


class WindowBackward:
    """Computes the gradient of one window for the parameters of one optimizer.

    `accumulate` runs all batches but the last, and `finish` runs the last one. The task's hook for
    the optimizer's step (`Hooks.step`) begins between them, as in Lightning. After `finish`,
    gradients and loss are averaged over all ranks.
    """

    def __init__(
        self, session: Session, opt: OptimizerHandle, window: Sequence[Any], *, anew: bool = False
    ) -> None:
        """anew: the optimizer evaluates the window again within one update; the hooks after each
        batch are not called again.
        """
        self._session, self._opt, self._window, self._anew = session, opt, window, anew
        self._plan = session.parallel.plan(window)
        self._loss = session.parallel.window_loss(self._plan)
        self._forward = WindowForward(session, opt, window)
        self._final = len(self._plan.present) - 1
        self._ready = False
        """False once a hook has asked to leave out the rest of the epoch."""
        if session.noise_scale is not None:
            session.noise_scale.begin(session.state.records)
        if opt.needs_closure:
            session.task.begin_evaluation(again=anew)

    def accumulate(self) -> bool:
        """Run all batches but the last; returns whether a step follows. False: every batch was
        left out.
        """
        hooks, parallel = self._session.update_hooks, self._session.parallel
        for index, number in enumerate(self._plan.present):
            self._ready = hooks.continues(self._forward.start(number))
            if not self._ready:
                return index > 0 or parallel.several
            if index < self._final:
                self._run(index)
        # a rank without a batch of its own takes the step with the others
        return self._ready or parallel.several

    def finish(self) -> Tensor | None:
        """Run the last batch; returns the mean loss of the window, detached. None: every batch
        was left out.
        """
        loss, complete = self._run(self._final) if self._ready else (None, False)
        self._forward.leave()
        return loss if complete else self._finish_without_batch()

    def _run(self, place: int) -> tuple[Tensor | None, bool]:
        """Run one batch forward and backward; returns the window's loss, and whether it is
        complete.
        """
        session, opt, plan = self._session, self._opt, self._plan
        parallel, hooks, mark = session.parallel, session.hooks, session.timer.mark
        number, final = plan.present[place], place == self._final
        last = final and not parallel.padding_batches
        result = parallel.after_forward(self._forward.run(number, last=last))
        loss: Tensor | None = None
        if result is not None:
            weighted_loss, first = self._loss.take(place, result)
            if result.parts:
                # of the first evaluation, as the loss
                session.state.loss_parts.setdefault(opt.index, self._loss.parts.means)
            if not self._loss.single and result.weight is None and session.plan.tbptt is None:
                note_count(session, "train", self._window[number], plan.weights[place])
            if last and parallel.synced:
                parallel.begin_reduce(self._loss)  # the all-reduce runs during the backward
            if first:
                session.update_hooks.zero_before_backward(opt)
            hooks.backward(session.precision.scale(weighted_loss))
            mark("backward")
            if session.noise_scale is not None:
                self._note_noise(session.noise_scale, place, result, first=first)
            if last:  # the hooks after the last backward see the gradients of all ranks
                loss = parallel.finish_reduce(opt, self._loss, back=True)
            hooks.after_backward()
        if final or not self._anew:
            self._forward.end(number, result, waits=final)
        return loss, last and result is not None

    def _note_noise(
        self, noise: RunningNoiseScale, place: int, found: Result, *, first: bool
    ) -> None:
        """Measure, after its backward, the gradient of the window's first batch for the noise
        scale, where it can be used.
        """
        session, plan = self._session, self._plan
        if found.weight is None:
            if noise.measures and first and len(plan.present) > 1:
                session.parallel.measure_first(noise, self._opt, plan, place)
        elif not noise.weights_reported:
            noise.weights_reported = True
            text = (
                "track_noise_scale: the gradient noise scale is not measured, since training_step"
                " reports a 'weight' other than samples."
            )
            session.notes.append(Message(text, "warning", session.state.step))

    def _finish_without_batch(self) -> Tensor | None:
        """Finish a window whose last batch was left out, or that has no batch.

        This rank still takes part in the all-reduce, and runs padding batches while other ranks run
        theirs. The hooks after the backward are called after the all-reduce, so that they change
        the gradients alike on all ranks.
        """
        session, parallel = self._session, self._session.parallel
        if not parallel.several:
            return parallel.finish_reduce(self._opt, self._loss, back=False)
        if self._loss.loss is None:
            session.update_hooks.zero_before_backward(self._opt)
        if self._ready or not self._plan.present:
            _run_padding(session, self._opt, self._loss)
        loss = parallel.finish_reduce(self._opt, self._loss, back=False)
        if loss is not None:
            session.hooks.after_backward()
        return loss


def of_one_batch(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor | None:
    """Run the only batch of an update forward and backward, where `session.plan.direct` holds;
    returns its loss. None: it is left out.
    """
    state, mark, batch = session.state, session.timer.mark, window[0]
    if batch is None:
        return None
    mark("workbench")
    if session.plan.moves:
        batch = session.to_device(batch)
        mark("transfer")
    session.task.begin_batch(samples_at(window, 0))
    result = read(session.plan.training_step(batch, state.batch_idx, **opt.extra))
    mark("forward")
    if result is None:
        return None
    if result.parts:
        state.loss_parts[opt.index] = result.parts
    session.precision.scale(result.loss).backward()  # type: ignore[no-untyped-call]
    mark("backward")
    return result.loss.detach()


class WindowForward:
    """Runs the forward passes of one optimizer over a window, with batch numbers, hooks and
    hidden state.
    """

    def __init__(self, session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> None:
        self._session, self._opt, self._window = session, opt, window
        first = session.state.batch_idx
        self._indices: Sequence[int] = range(first, first + len(window))
        self._hiddens: Any = None
        if session.plan.tbptt is not None:
            self._hiddens = session.state.hiddens.get(opt.index)
            self._indices = [
                first - 1 + begun for begun in itertools.accumulate(item.first for item in window)
            ]

    def start(self, number: int) -> bool:
        """Call the hooks before a batch. False: a hook asked to leave out the rest of the epoch."""
        return self._session.update_hooks.start(self._window, number, self._indices[number])

    def run(self, number: int, *, last: bool = False) -> Result | None:
        """Run the training step of one batch; None: it left the batch out. last: it is the last
        step of this update.
        """
        session, item, mark = self._session, self._window[number], self._session.timer.mark
        batch = session.update_hooks.ready.get(number)
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
            # a new batch in time begins without state, also where the step leaves its first piece
            # out
            self._hiddens = None if item.first else self._hiddens
            extra = {**extra, "hiddens": self._hiddens}
        session.task.begin_batch(samples_at(self._window, number))
        mark("workbench")
        with session.precision.autocast():
            result = read(
                session.parallel.training_step(batch, self._indices[number], last=last, **extra)
            )
        mark("forward")
        if result is not None and session.plan.tbptt is not None:
            self._hiddens = detached(result.hiddens)
        return result

    def end(self, number: int, result: Result | None, *, waits: bool) -> None:
        """Call the hook after a batch, after its last optimizer. waits: it comes after the
        update.
        """
        hooks = self._session.update_hooks
        if self._opt is self._session.optimizers.turn(self._session.state.step)[-1] and getattr(
            self._window[number], "last", True
        ):
            hooks.end(result, hooks.ready.get(number), self._indices[number], waits=waits)

    def leave(self) -> None:
        """Store the hidden state for the next piece of the batch."""
        if self._session.plan.tbptt is not None:
            self._session.state.next_hiddens[self._opt.index] = self._hiddens


def _run_padding(session: Session, opt: OptimizerHandle, window_loss: WindowLoss) -> None:
    """Run, with weight 0, the steps for which other ranks have a batch and this one has none."""
    parallel = session.parallel
    extra: dict[str, Any] = (
        {**opt.extra} if session.plan.tbptt is None else {**opt.extra, "hiddens": None}
    )
    for left in reversed(range(parallel.padding_batches)):
        if not session.update_hooks.continues(True):
            return

        def step(batch: Any, *, last: bool = not left) -> None:
            result = parallel.after_forward(
                read(parallel.training_step(batch, session.state.batch_idx, last=last, **extra))
            )
            if result is None:
                return
            if last:  # at the point where ranks with a batch call theirs
                parallel.begin_reduce(window_loss)
            (result.loss * 0.0).backward()  # type: ignore[no-untyped-call]

        session.run_padding(parallel.padding_batch, "train", step)


def losses(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> Tensor:
    """The sum of the window's losses with their graph, in which the origin of a non-finite value
    is searched.
    """
    forward = WindowForward(session, opt, window)
    results = [forward.run(number) for number in range(len(window))]
    forward.leave()
    return torch.stack([result.loss for result in results if result is not None]).sum()


def batch_gradient(
    session: Session, opt: OptimizerHandle, window: Sequence[Any]
) -> Tensor | float | None:
    """Compute the gradient of a single batch, without an update; returns the batch's weight. None:
    it was left out.

    In one process only: no other rank takes part.
    """
    session.update_hooks.begin_update()
    session.state.begin_update(records=False)
    weight = batch_weights(session.task, window)[0]
    forward = WindowForward(session, opt, window)
    if weight is None or not forward.start(0):
        return None
    result = forward.run(0)
    if result is not None:
        zero_grad(session.hooks, opt, session.state.batch_idx)
        session.hooks.backward(session.precision.scale(result.loss))
        session.hooks.after_backward()
        session.precision.unscale(opt.optimizer)
        session.precision.update()
    forward.end(0, result, waits=False)
    finish_window(session, window)
    if result is None:
        return None
    return weight if result.weight is None else result.weight


def finish_window(session: Session, window: Sequence[Any]) -> None:
    """Advance the batch counters after a window."""
    state = session.state
    session.update_hooks.release()
    batches = session.parallel.batches(window)
    session.parallel.end_window()
    if session.plan.tbptt is None:
        state.batch_idx += batches
    elif window:
        state.end_pieces(
            [piece.first for piece in window],
            ends=window[-1].last,
            optimizers=[opt.index for opt in session.optimizers],
        )
