"""Takes one update, in the order of Lightning's loop.

For each optimizer in turn: forward and backward over a window of batches, norms, the check for NaN,
clipping, the optimizer's step, zero_grad; then schedules and averages. Hooks are calls on `Hooks`
and `UpdateHooks`, which do nothing for a task that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from workbench.engine import backward, nonfinite
from workbench.engine.backward import WindowBackward
from workbench.engine.optim import manual
from workbench.engine.optim.closure_step import step_with_closure
from workbench.engine.optim.gradients import measure_and_clip, sum_up
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.events.columns import recorded_name
from workbench.instruments.memory import explain_out_of_memory
from workbench.task.batch import describe
from workbench.task.hints import add_remedy, explain_batch_error, explain_step_error


def train_step(session: Session, window: Sequence[Any]) -> Tensor | None:
    """Take one update (`take_update`); an error gets notes with the update, the batch and, where
    one is known, the remedy.
    """
    try:
        return take_update(session, window)
    except Exception as error:
        first = window[0] if window else None  # a rank without a batch steps with the others
        batch = first.batch if first is not None and session.plan.tbptt is not None else first
        error.add_note(
            f"at update {session.state.step}, epoch {session.state.epoch}, on"
            f" {describe(batch) if window else 'no batch'}"
        )
        remedy = explain_out_of_memory(
            error, session.data.batch_size("train")
        ) or explain_step_error(error)
        if remedy:
            error.add_note(remedy)
        else:
            add_remedy(error, explain_batch_error(error, batch))
        raise


def take_update(session: Session, window: Sequence[Any]) -> Tensor | None:
    """Take one update with the gradient of `window`; returns its loss, a detached scalar on the
    device.

    With several optimizers the loss is the sum of theirs. None: the window was empty, and no update
    was taken. On CPU it raises `NonFiniteError` before the step; on a device a flush finds
    non-finite values.
    """
    state, meter, ratios = session.state, session.meter, session.ratios
    state.begin_update(records=not state.searching and state.step % meter.every == 0)
    session.update_hooks.begin_update()
    for opt in session.optimizers:
        opt.watch_rate()
    session.replay.remember(state, window, look=meter.row == 0)
    if ratios is not None and state.records:
        ratios.begin(
            session.optimizers if session.task.manual else session.optimizers.turn(state.step)
        )
    if session.task.manual:
        loss, stepped = manual.update(session, window, clip_and_step)
    else:
        loss, stepped = _step_optimizers(session, window)
    session.replay.note_randomness()
    backward.finish_window(session, window)
    if ratios is not None:
        ratios.finish(stepped, loss is not None and state.records)
    if loss is not None:
        session.precision.update()
        state.step += 1
        if not state.searching:
            samples = session.parallel.samples(window)
            meter.count(samples)
            if session.spikes is not None and state.records:
                session.spikes.note(state.step - 1, window, samples)
        _step_schedules_and_average(session, stepped)
    session.update_hooks.end_update()
    _record(session, loss)
    session.sync_device()
    session.timer.mark("workbench")
    return loss


def _step_optimizers(
    session: Session, window: Sequence[Any]
) -> tuple[Tensor | None, list[OptimizerHandle]]:
    """Let each optimizer that has its turn step; returns the sum of their losses and those that
    stepped.
    """
    total: Tensor | None = None
    stepped: list[OptimizerHandle] = []
    optimizers = session.optimizers
    for opt in optimizers.turn(session.state.step):
        with optimizers.only(opt):
            loss, has_stepped = _step_optimizer(session, opt, window)
        if loss is None:
            continue
        total = loss if total is None else total + loss
        session.state.losses[opt.index] = loss
        if session.plan.several_optimizers and session.state.records:
            session.meter.put_loss(opt.column, loss)
        if has_stepped:
            stepped.append(opt)
    return total, stepped


def _step_optimizer(
    session: Session, opt: OptimizerHandle, window: Sequence[Any]
) -> tuple[Tensor | None, bool]:
    """Take one optimizer's part of an update; returns its loss (None: every batch was left out)
    and whether it stepped.
    """
    if session.plan.direct and len(window) == 1:
        # No other ranks, hooks, closures or batches take part. The objects for them would make the
        # update of a tiny model a tenth slower.
        loss = backward.of_one_batch(session, opt, window)
        return loss, loss is not None and clip_and_step(session, opt, window, loss)
    step = OptimizerStep(session, opt, window)
    step.run()
    return step.loss, step.stepped


class OptimizerStep:
    """Takes one optimizer's part of an update, in the order of Lightning: all batches but the last
    go forward and backward; then the task's optimizer_step hook evaluates the last one (`closure`)
    and steps (`take`), each as often as it wants.
    """

    def __init__(self, session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> None:
        self._session, self._opt, self._window = session, opt, window
        self._backward = WindowBackward(session, opt, window)
        self._evaluated = False
        self.loss: Tensor | None = None
        """The mean loss of the window at its first evaluation."""
        self.stepped = False
        """Whether the optimizer stepped."""

    def run(self) -> None:
        """Evaluate the window and step."""
        session, window = self._session, self._window
        if not self._backward.accumulate():
            self._backward.finish()
            return
        # A rank without batches steps with the others and uses rank 0's batch number.
        batches = len(window) or session.parallel.batches(window)
        session.hooks.step(
            self._opt.index, session.state.batch_idx + batches - 1, self.closure, self.take
        )

    def closure(self) -> Tensor | None:
        """Compute the window's gradient and return its loss. Called again (by LBFGS, or the
        task), it goes through the whole window.
        """
        if self._evaluated:
            self._session.update_hooks.zero_after_step(self._opt)
            self._backward = WindowBackward(self._session, self._opt, self._window, anew=True)
            self._backward.accumulate()
        loss = self._backward.finish()
        if not self._evaluated:
            self.loss, self._evaluated = loss, True
        return loss

    def take(self, evaluate: Callable[[], Tensor | None], **options: Any) -> Tensor | None:
        """Step with the gradients that `evaluate` computes; returns its loss. options: further
        arguments of the optimizer's step.
        """
        session, opt, window = self._session, self._opt, self._window
        opt.step_options = options
        try:
            if opt.needs_closure:
                loss, stepped = step_with_closure(session, opt, window, evaluate)
            else:
                loss = evaluate()
                stepped = loss is not None and clip_and_step(session, opt, window, loss)
        finally:
            opt.step_options = {}
        self.stepped |= stepped
        return loss


def clip_and_step(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor
) -> bool:
    """Measure, check and clip the gradients, and step; False: the step was skipped."""
    session.precision.unscale(opt.optimizer)
    session.hooks.before_step(opt.index)
    try:
        total = measure_and_clip(session, opt, window, loss, records=session.state.records)
    except nonfinite.UpdateSkipped:
        session.state.skipped = True
        opt.zero_grad()
        return False
    if opt.held is not None:
        opt.put_held_lrs()
    if opt.before_step is not None:
        opt.before_step()
    session.timer.mark("workbench")
    if session.warms_up(opt):
        with opt.warming_up():
            stepped = _step(session, opt, loss, total)
    else:
        stepped = _step(session, opt, loss, total)
    if opt.held is not None:
        opt.check_held_lrs()
    session.state.skipped |= not stepped
    session.update_hooks.zero_after_step(opt)
    session.timer.mark("optimizer")
    return stepped


def _step(session: Session, opt: OptimizerHandle, loss: Tensor, total: Tensor | None) -> bool:
    """Step with the gradients that exist, whose norm is `total`; False: 16-mixed left it out."""
    stepped = True
    if session.precision.scaler is not None:
        stepped = session.precision.step(opt.optimizer, **opt.step_options)
    elif session.plan.on_cpu or not nonfinite.can_guard(opt):
        opt.step(**opt.step_options)
    else:
        exact = session.meter.norm_order in nonfinite.EXACT
        with nonfinite.guarded(opt, loss, total if exact else None, session.replay):
            opt.step(**opt.step_options)
    opt.watch_rate()
    return stepped


def _step_schedules_and_average(session: Session, stepped: Sequence[OptimizerHandle]) -> None:
    """Step the schedules of the optimizers that stepped, and average the weights."""
    for opt in stepped:
        opt.steps += 1
        if opt.schedules and not session.state.searching:
            batches = session.state.batch_idx if session.plan.tbptt is None else opt.steps
            opt.step_schedules("step", opt.steps, session.hooks, batches)
    if session.average is not None and stepped and not session.state.searching:
        session.average.after_update(session.state)


def _record(session: Session, loss: Tensor | None) -> None:
    """Write the measurements of the update into the meter's row, if the update is recorded."""
    state, meter = session.state, session.meter
    session.note_rate_set_by_code()
    logged = session.hooks.logged()
    state.step_logs.update(logged)
    if loss is None or not state.records:
        return
    if session.plan.several_optimizers:
        sum_up(meter, session.optimizers)
    for parts in state.loss_parts.values():
        meter.note({recorded_name(name): value for name, value in parts.items()})
    if logged:
        meter.note(logged)
    meter.record(state.step - 1, [opt.rate for opt in session.optimizers], loss, state.skipped)
