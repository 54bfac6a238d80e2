"""Takes one update: for each optimizer in turn backward over a window, norms, the check for NaN, clipping, step.

The order is that of Lightning's loop, and `Hooks` has a method for each place where a task can take part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import backward, nonfinite
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.optim import manual
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.instruments.finite import NonFiniteError
from workbench.instruments.grad_norm import Norms, as_floats, as_tensor, total_norm
from workbench.instruments.memory import explain_out_of_memory
from workbench.task.batch import describe
from workbench.task.hints import explain_batch_error, explain_step_error
from workbench.task.lightning.logging.aggregate import recorded_name
from workbench.task.optim.optimizer_state import load_state, state_of
from workbench.techniques import clipping
from workbench.techniques.accumulation import samples_at
from workbench.techniques.averaging import ema_due
from workbench.techniques.toggling import toggled


def train_step(session: Session, window: Sequence[Any]) -> Tensor | None:
    """Take one update (`take_update`); an error gets a note with its place and batch, and the remedy where it is known."""
    try:
        return take_update(session, window)
    except Exception as error:
        batch = window[0].batch if session.plan.tbptt is not None else window[0]
        error.add_note(f"at update {session.state.step}, epoch {session.state.epoch}, on {describe(batch)}")
        remedy = explain_out_of_memory(error, session.data.batch_size("train")) or explain_step_error(error) or explain_batch_error(error, batch)
        if remedy:
            error.add_note(remedy)
        raise


def take_update(session: Session, window: Sequence[Any]) -> Tensor | None:
    """Take one update with the gradient of `window`; returns its loss, a detached scalar on the device.

    With several optimizers the loss is the sum of theirs. None: the window was empty, and no update was taken. Raises
    `NonFiniteError` before the step where that can be seen without a sync (on CPU).
    """
    state, meter, plan, ratios = session.state, session.meter, session.plan, session.ratios
    state.begin_update(records=not state.searching and state.step % meter.every == 0)
    lrs = session.lrs if state.records else []  # with manual optimization the task may step its schedules within the update
    nonfinite.remember(session, window)
    if ratios is not None and state.records:
        ratios.begin(session.optimizers if session.task.manual else session.turn())
    if session.task.manual:
        loss, stepped = manual.update(session, window, clip_and_step)
    elif plan.several:
        loss, stepped = _step_in_turn(session, window)
    else:
        loss, taken = _step_optimizer(session, session.optimizers[0], window)
        stepped = session.optimizers if taken else []
    if session.replay.random is not None:
        nonfinite.note_randomness(session)
    backward.finish_window(session, window)
    if ratios is not None:
        ratios.finish(stepped, loss is not None and state.records)
    if loss is not None:
        if session.precision.scaler is not None:
            session.precision.update()
        state.step += 1
        if meter.samples is not None:
            meter.count(_samples(session, window))
        _step_schedules(session, stepped)
    if session.hooks.within:
        _end_batch(session)
    logged = session.hooks.logged()
    if logged:
        state.step_logs.update(logged)
    if loss is not None and state.records:
        if plan.several:
            _sum_up(session)
        for parts in state.loss_parts.values():
            meter.note({recorded_name(name): value for name, value in parts.items()})
        if logged:
            meter.note(logged)
        meter.record(state.step - 1, lrs, loss, state.skipped)
    if plan.lazy:
        session.sync_device()
    session.timer.mark("workbench")
    return loss


def _samples(session: Session, window: Sequence[Any]) -> int | None:
    """How many samples all ranks took in this update, each as many as this one; None: unknown. A batch in pieces counts once."""
    total = 0
    for number, item in enumerate(window):
        if session.plan.tbptt is not None and not item.first:
            continue
        here = samples_at(window, number)
        if here is None:
            return None
        total += here
    return total * session.ranks.world


def _step_in_turn(session: Session, window: Sequence[Any]) -> tuple[Tensor | None, list[OptimizerHandle]]:
    """Let each of several optimizers step if it has its turn; returns the sum of their losses and those that stepped."""
    total: Tensor | None = None
    stepped: list[OptimizerHandle] = []
    for opt in session.turn():
        with toggled(session.trained, opt.trained):
            loss, taken = _step_optimizer(session, opt, window)
        if loss is None:
            continue
        total = loss if total is None else total + loss
        session.state.losses[opt.index] = loss
        if session.state.records:
            session.meter.put_loss(1 + opt.index, loss)
        if taken:
            stepped.append(opt)
    return total, stepped


def _step_optimizer(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> tuple[Tensor | None, bool]:
    """One optimizer's part of an update: its loss (None: there was nothing to learn from) and whether it stepped.

    All batches but the last go forward and backward first. The task then evaluates the last one and steps in its own
    way (`Hooks.step`).
    """
    if session.plan.direct and len(window) == 1:
        found = backward.of_one_batch(session, opt, window)
        return found, found is not None and clip_and_step(session, opt, window, found)
    # The task may set rates by hand, for a warm-up: while a search sets the rates, that must have no effect.
    rates = opt.group_lrs() if session.state.searching else None
    work = backward.backward(session, opt, window)
    try:
        next(work)
    except StopIteration as nothing:
        loss: Tensor | None = nothing.value
        return loss, False
    evaluated: list[Tensor | None] = []
    stepped = False

    def closure() -> Tensor | None:
        nonlocal work
        if evaluated:  # LBFGS or the task calls it again: go through the whole window again
            if not session.hooks.within:
                opt.zero_grad()
            work = backward.backward(session, opt, window, anew=True)
        evaluated.append(backward.finish(work))
        return evaluated[-1]

    def take(evaluate: Callable[[], Tensor | None], **options: Any) -> Tensor | None:
        nonlocal stepped
        if rates is not None:
            opt.restore_lrs(rates)
        opt.step_options = options
        try:
            if opt.needs_closure:
                loss, taken = _step_with_closure(session, opt, window, evaluate)
            else:
                loss = evaluate()
                taken = loss is not None and clip_and_step(session, opt, window, loss)
        finally:
            opt.step_options = {}
        stepped |= taken
        return loss

    # A rank without batches steps with the others, with rank 0's batch number.
    batches = len(window) or session.parallel.batches(window)
    session.hooks.step(opt.index, session.state.batch_idx + batches - 1, closure, take)
    return (evaluated[0] if evaluated else None), stepped


def clip_and_step(session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor) -> bool:
    """Measure, check and clip the gradients, and step; False: the step was skipped."""
    mark, scaler = session.timer.mark, session.precision.scaler
    if scaler is not None:
        session.precision.unscale(opt.optimizer)
    session.hooks.before_step(opt.index)
    try:
        total = _measure_and_clip(session, opt, window, loss, records=session.state.records)
    except nonfinite.UpdateSkipped:
        session.state.skipped = True
        opt.zero_grad()
        return False
    mark("workbench")
    taken = True
    if scaler is not None:
        taken = session.precision.step(opt.optimizer, **opt.step_options)
    elif session.plan.on_cpu or not nonfinite.can_guard(opt):
        opt.step(**opt.step_options)
    else:
        with nonfinite.guarded(session, opt, loss, total):
            opt.step(**opt.step_options)
    if not taken:
        session.state.skipped = True
    if not session.hooks.within or session.task.manual:  # else hooks can look at them until the next backward
        opt.zero_grad()
    mark("optimizer")
    return taken


def _step_with_closure(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], evaluate: Callable[[], Tensor | None]
) -> tuple[Tensor | None, bool]:
    """The step of an optimizer that evaluates the loss itself, several times (LBFGS), or again beside the weights (SAM). Of the
    evaluations of one update, the first counts.
    """
    first: Tensor | None = None
    undo = _undo(opt) if session.plan.on_cpu else _nothing

    def closure() -> Tensor:
        nonlocal first
        session.timer.mark("optimizer")
        loss = evaluate()
        if loss is None:
            raise _NothingThere
        session.hooks.before_step(opt.index)
        _measure_and_clip(session, opt, window, loss, records=session.state.records and first is None)
        first = loss if first is None else first
        return loss

    try:
        if opt.closure_use == "after gradients":
            closure()
        opt.optimizer.step(closure, **opt.step_options)  # type: ignore[arg-type]
    except _NothingThere:
        return None, False
    except nonfinite.UpdateSkipped as left_out:
        undo()
        session.state.skipped = True
        return left_out.loss if first is None else first, False
    except NonFiniteError:
        undo()  # the optimizer has moved the weights before it met the bad values
        raise
    finally:
        if not session.hooks.within:
            opt.zero_grad()
    session.timer.mark("optimizer")
    return first, True


def _undo(opt: OptimizerHandle) -> Callable[[], None]:
    """Return a function that restores the optimizer's weights and state."""
    trained = opt.trained
    weights, state = [p.detach().clone() for p in opt.trained], copy.deepcopy(state_of(opt.optimizer))

    def undo() -> None:
        with torch.no_grad():
            for parameter, value in zip(trained, weights, strict=True):
                parameter.copy_(value)
        load_state(opt.optimizer, state)

    return undo


def _nothing() -> None:
    """On a device, a non-finite value is seen too late to restore anything."""


class _NothingThere(Exception):
    """All batches of the window were left out."""


def _measure_and_clip(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor, *, records: bool
) -> Tensor | None:
    """Measure, check and clip one optimizer's gradients; returns their total norm before clipping, if that is known by now."""
    state, weights, order = session.state, session.weights, session.meter.norm_order
    gradients = weights.gradients_of(opt.trained)
    norms: Norms | None = None
    total: Tensor | None = None
    numbers: list[float] = []
    if records and gradients and order:
        norms = weights.layer_norms(session.ranks, opt.trained, gradients, order)
        numbers = as_floats(norms) if session.plan.on_cpu else []  # on a device that would wait
        total = _put_norms(session, opt, gradients, norms, numbers)
    if session.plan.on_cpu:
        nonfinite.check(session, opt, window, loss, gradients, numbers)
    if session.noise_scale is not None and records and gradients:
        _note_noise_scale(session, session.noise_scale, opt, gradients)
    clip_val = state.clip_val
    clipped: Tensor | None = None
    if session.hooks.clips:
        session.hooks.clip(opt.index, clip_val, session.settings.gradient_clip_algorithm)
    elif opt.index in state.clip_next:
        session.clip(opt.index, *state.clip_next.pop(opt.index))
    elif clip_val is None or not gradients:
        return total
    elif session.settings.gradient_clip_algorithm == "value":
        clipping.clip_value(gradients, clip_val)
    else:
        if norms is None or order != 2.0:
            norm = session.total_norm(opt, gradients, 2.0)
        else:
            norm = total_norm(norms, 2.0) if total is None else total
        clipped = clipping.clip_norm(gradients, norm, clip_val)
    if records and gradients:
        clipped = session.total_norm(opt, gradients, 2.0) if clipped is None else clipped
        session.meter.put_clipped(session.column(opt), clipped)
    return total


def _note_noise_scale(session: Session, noise: RunningNoiseScale, opt: OptimizerHandle, gradients: Sequence[Tensor]) -> None:
    """Write the gradient noise scale after this update's gradient into the meter's row."""
    session.meter.note(noise.whole(opt.there(), session.layer_norms(opt, gradients, 2.0)))


def _step_schedules(session: Session, taken: Sequence[OptimizerHandle]) -> None:
    """After the step of these optimizers: their schedules, and the average of the weights."""
    for opt in taken:
        opt.taken += 1
        if opt.schedules and not session.state.searching:
            batches = session.state.batch_idx if session.plan.tbptt is None else opt.taken
            opt.step_schedules("step", opt.taken, session.hooks, batches)
    if session.average is None or not taken or session.state.searching or session.settings.weight_averaging != "ema":
        return
    if session.should_average(session.state.step, session.state.epoch, ema_due):
        session.average.update(session.weights.averaged)


def _end_batch(session: Session) -> None:
    """After an update of a task with hooks within it: end the epoch's schedules and the last batch, as Lightning does."""
    state = session.state
    if not state.searching and state.batch_idx == session.data.batches and not state.pieces:
        session.step_epoch_schedules()
    ending, state.batch_end_args = state.batch_end_args, None
    session.timer.mark("workbench")
    if ending is not None:
        session.hooks.batch_ended(*ending)
    session.timer.mark("hooks")
    if not session.parallel.whole:
        # Hooks may move weights (a teacher's), and ranks without a batch have not called them.
        session.ranks.broadcast([t for module in session.task.modules for t in (*module.parameters(), *module.buffers())])


def _put_norms(session: Session, opt: OptimizerHandle, gradients: Sequence[Tensor], norms: Norms, numbers: list[float]) -> Tensor | None:
    """Put the norms before clipping into the meter's row; returns their total. None: a flush computes it.

    numbers: on CPU, the norms as numbers; elsewhere none.
    """
    meter = session.meter
    all_there = opt.whole and not opt.late and len(gradients) == len(opt.parameters)
    if all_there and meter.adds_up:
        meter.put_numbers(numbers)
        return None
    assert meter.norm_order is not None
    norms = as_tensor(norms)
    total = total_norm(norms, meter.norm_order)
    column = session.column(opt)
    if all_there:
        meter.put_norms(column, total, norms)
        return total
    if opt.late:  # only parameters that trained from the start have columns
        late = {id(p) for p in opt.late}
        norms = norms[meter.places(tuple(n for n, p in enumerate(opt.there()) if id(p) not in late))]
    # A parameter without a gradient has no norm; that is not a norm of zero.
    there = {id(p) for p in opt.there()}
    meter.put_norms(column, total, norms, tuple(n for n, p in zip(opt.places, opt.parameters, strict=True) if id(p) in there))
    return total


def _sum_up(session: Session) -> None:
    """With several optimizers, the update's total norms are those over all that stepped."""
    meter, row = session.meter, session.meter.row
    for column, order in ((meter.total, session.meter.norm_order or 2.0), (meter.clipped, 2.0)):
        own = torch.stack([column[1 + opt.index][row] for opt in session.optimizers])
        there = ~torch.isnan(own)
        total = total_norm(torch.where(there, own, 0.0), order)
        column[0][row].copy_(torch.where(there.any(), total, float("nan")))
