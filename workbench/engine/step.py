"""Takes one update: for each optimizer in turn backward over a window, norms, the check for NaN, clipping, step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import backward, hooked_step, nonfinite
from workbench.engine.optim import manual
from workbench.engine.optim.optimizer_handle import OptimizerHandle, load_state
from workbench.engine.session import Session
from workbench.instruments.finite import NonFiniteError
from workbench.instruments.grad_norm import total_norm
from workbench.task.hooks import Values
from workbench.techniques import clipping
from workbench.techniques.averaging import ema_due

Way = Callable[[Session, OptimizerHandle, Sequence[Any]], "tuple[Tensor | None, bool]"]


def update(session: Session, window: Sequence[Any]) -> Tensor | None:
    """Take one update with the gradient of `window`; returns its loss, a detached scalar on the device.

    With several optimizers the loss is the sum of theirs. None: the window was empty, and no update was taken. Raises
    `NonFiniteError` before the step where that can be seen without a sync (on CPU).
    """
    session.skipped, session.losses = False, {}
    lrs = session.lrs  # with manual optimization the task may step its schedules within the update
    if session.within:
        hooked_step.begin(session)
    nonfinite.remember(session, window)
    if session.ratios is not None and session.records:
        session.ratios.begin(session.optimizers if session.task.manual else session.turn())
    if session.task.manual:
        loss, taken = manual.update(session, window, take_step)
    else:
        loss, taken = _turns(session, window)
    nonfinite.note_randomness(session)
    backward.finish_window(session, window)
    records = loss is not None and session.records
    if session.ratios is not None:
        session.ratios.finish(taken, records)
    if loss is not None:
        session.precision.update()
        session.step += 1
        _follow_up(session, taken)
    if session.within:
        hooked_step.finish(session)
    logged = session.hooks.logged()
    if logged:
        session.noted.update(logged)
    if loss is not None and records:
        _record(session, lrs, loss, logged)
    return loss


def _record(session: Session, lrs: Sequence[float], loss: Tensor, logged: Values) -> None:
    """Write the update's row in the meter, with what the task logged for it."""
    _sum_up(session)
    if logged:
        session.meter.note(logged)
    session.meter.record(session.step - 1, lrs, loss, session.skipped)


def _turns(session: Session, window: Sequence[Any]) -> tuple[Tensor | None, list[OptimizerHandle]]:
    """Let each optimizer in turn step; returns the sum of their losses and the optimizers that stepped."""
    loss: Tensor | None = None
    taken: list[OptimizerHandle] = []
    if not session.several:  # the hot path
        opt = session.optimizers[0]
        loss, stepped = _way(session, opt)(session, opt, window)
        return loss, [opt] if stepped else []
    for opt in session.turn():
        with session.only(opt):
            own, stepped = _way(session, opt)(session, opt, window)
        if own is None:
            continue
        session.losses[opt.index] = own
        if session.records:
            session.meter.put_loss(1 + opt.index, own)
        loss = own if loss is None else loss + own
        if stepped:
            taken.append(opt)
    return loss, taken


def _way(session: Session, opt: OptimizerHandle) -> Way:
    if session.within:
        return _as_told
    return _by_closure if opt.needs_closure else _plainly


def _as_told(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> tuple[Tensor | None, bool]:
    """The update of a task with hooks within the update."""

    def take(evaluate: Callable[[], Tensor | None]) -> tuple[Tensor | None, bool]:
        if opt.needs_closure:
            return _by_closure(session, opt, window, evaluate)
        loss = evaluate()
        return loss, loss is not None and take_step(session, opt, window, loss)

    return hooked_step.turn(session, opt, window, take)


def _plainly(session: Session, opt: OptimizerHandle, window: Sequence[Any]) -> tuple[Tensor | None, bool]:
    loss = backward.backward(session, opt, window)
    return loss, loss is not None and take_step(session, opt, window, loss)


def _by_closure(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], own: Callable[[], Tensor | None] | None = None
) -> tuple[Tensor | None, bool]:
    """The update of an optimizer that evaluates the loss itself (LBFGS); each evaluation starts without gradients.
    own: the task's closure.
    """
    first: Tensor | None = None
    undo = _undo(opt) if session.on_cpu else _nothing

    def evaluate() -> Tensor:
        nonlocal first
        if own is None:
            opt.optimizer.zero_grad()
        loss = backward.backward(session, opt, window) if own is None else own()
        if loss is None:
            raise _NothingThere
        session.hooks.before_step(opt.index)
        with session.measuring_only(first is None):
            _ready(session, opt, window, loss)
        first = loss if first is None else first
        return loss

    try:
        opt.optimizer.step(evaluate, **opt.step_options)  # type: ignore[arg-type]
    except _NothingThere:
        return None, False
    except nonfinite.UpdateSkipped as left_out:
        undo()
        session.skipped = True
        return left_out.loss if first is None else first, False
    except NonFiniteError:
        undo()  # the optimizer has moved the weights before it met the bad values
        raise
    finally:
        if own is None:
            opt.optimizer.zero_grad()
    return first, True


def _undo(opt: OptimizerHandle) -> Callable[[], None]:
    """Return a function that restores the optimizer's weights and state."""
    trained = opt.trained
    weights, state = [p.detach().clone() for p in opt.trained], copy.deepcopy(opt.optimizer.state_dict())

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


def take_step(session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor) -> bool:
    """Clip the gradients and step; False: the step was skipped."""
    session.precision.unscale(opt.optimizer)
    if session.within:
        session.hooks.before_step(opt.index)
    try:
        total = _ready(session, opt, window, loss)
    except nonfinite.UpdateSkipped:
        session.skipped = True
        opt.zero_grad()
        return False
    if nonfinite.guards(session, opt):
        with nonfinite.guarded(session, opt, loss, total):
            opt.optimizer.step(**opt.step_options)
        taken = True
    else:
        taken = session.precision.step(opt.optimizer, **opt.step_options)
    session.skipped |= not taken
    if not session.within or session.task.manual:
        opt.zero_grad()
    return taken


def _ready(session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor) -> Tensor | None:
    """Measure, check and clip one optimizer's gradients; returns their total norm before clipping, if measured."""
    gradients = opt.gradients()
    measures = gradients and session.norm_order and session.records
    total = _measure(session, opt, gradients) if measures else None
    if session.on_cpu:
        nonfinite.check(session, opt, window, loss, gradients, total)
    if session.hooks.clips:
        session.hooks.clip(opt.index, session.clip_val, session.settings.gradient_clip_algorithm)
        _note_clipped(session, opt, gradients)
    elif opt.index in session.clip_next:
        session.clip(opt.index, *session.clip_next.pop(opt.index))
        _note_clipped(session, opt, gradients)
    elif session.clip_val is not None and gradients:
        _clip(session, opt, gradients, total, session.clip_val)
    return total


def _follow_up(session: Session, taken: Sequence[OptimizerHandle]) -> None:
    """After the step of these optimizers: their schedules, and the average of the weights."""
    for opt in taken:
        opt.taken += 1
        if session.scheduling:
            batches = session.batch_idx if session.tbptt is None else opt.taken
            opt.step_schedules("step", opt.taken, session.hooks, batches)
    ema = session.settings.weight_averaging == "ema" and session.scheduling
    if (
        taken
        and ema
        and session.average is not None
        and session.should_average(session.step, session.epoch, ema_due)
    ):
        session.average.update(session.averaged_parameters)


def _measure(session: Session, opt: OptimizerHandle, gradients: Sequence[Tensor]) -> Tensor:
    """Write the norms before clipping into the meter's row; returns their total."""
    assert session.norm_order is not None
    meter, row = session.meter, session.meter.row
    norms = session.layer_norms(opt, gradients, session.norm_order)
    total = total_norm(norms, session.norm_order)
    meter.total[session.column(opt)][row].copy_(total)
    if opt.late:  # only parameters that trained from the start have columns
        late = {id(p) for p in opt.late}
        norms = norms[meter.places(tuple(n for n, p in enumerate(opt.there()) if id(p) not in late))]
    if opt.whole and len(norms) == len(opt.parameters):
        meter.layers[row].copy_(norms)
    else:  # a parameter without a gradient has no norm; that is not a norm of zero
        there = {id(p) for p in opt.there()}
        has = tuple(n for n, p in zip(opt.places, opt.parameters, strict=True) if id(p) in there)
        meter.put_norms(has, norms)
    return total


def _clip(
    session: Session, opt: OptimizerHandle, gradients: Sequence[Tensor], total: Tensor | None, limit: float
) -> None:
    if session.settings.gradient_clip_algorithm == "norm":
        if total is None or session.norm_order != 2.0:
            total = session.total_norm(opt, gradients, 2.0)
        after = clipping.clip_norm(gradients, total, limit)
    else:
        clipping.clip_value(gradients, limit)
        _note_clipped(session, opt, gradients)
        return
    if session.records:
        session.meter.clipped[session.column(opt)][session.meter.row].copy_(after)


def _note_clipped(session: Session, opt: OptimizerHandle, gradients: Sequence[Tensor]) -> None:
    if session.records and gradients:
        after = session.total_norm(opt, gradients, 2.0)
        session.meter.clipped[session.column(opt)][session.meter.row].copy_(after)


def _sum_up(session: Session) -> None:
    """With several optimizers, the update's total norms are those over all that stepped."""
    if not session.several:
        return
    meter, row = session.meter, session.meter.row
    for column, order in ((meter.total, session.norm_order or 2.0), (meter.clipped, 2.0)):
        own = torch.stack([column[1 + opt.index][row] for opt in session.optimizers])
        there = ~torch.isnan(own)
        total = total_norm(torch.where(there, own, 0.0), order)
        column[0][row].copy_(torch.where(there.any(), total, float("nan")))
