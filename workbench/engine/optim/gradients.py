"""Measures, checks and clips the gradients of one optimizer before its step, and records their
norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import nonfinite
from workbench.engine.metrics.meter import Meter
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.instruments.grad_norm import Norms, as_floats, as_tensor, total_norm
from workbench.techniques import clipping


def measure_and_clip(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor, *, records: bool
) -> Tensor | None:
    """Measure, check and clip one optimizer's gradients; returns their total norm before
    clipping; None: only a flush computes it.
    """
    state, meter, order = session.state, session.meter, session.meter.norm_order
    gradients = opt.gradients()
    norms: Norms | None = None
    total: Tensor | None = None
    numbers: list[float] = []
    if records and gradients and order:
        norms = opt.layer_norms(gradients, order)
        # on a device this would wait for it
        numbers = as_floats(norms) if session.plan.on_cpu else []
        total = _put_norms(session, opt, gradients, loss, norms, numbers)
    if session.plan.on_cpu:
        nonfinite.check(session, opt, window, loss, gradients, numbers)
    if session.spikes is not None and session.spikes.decides and not state.searching:
        _leave_out_spike(session, opt, window, loss, gradients, numbers)
    if session.noise_scale is not None and records and gradients:
        meter.note(session.noise_scale.whole(opt.with_gradient(), opt.layer_norms(gradients, 2.0)))
    clip_val = state.clip_val
    clipped: Tensor | None = None
    if session.hooks.clips:
        session.hooks.clip(opt.index, clip_val, session.settings.gradient_clip_algorithm)
    elif opt.index in state.clip_next:
        opt.clip(*state.clip_next.pop(opt.index))
    elif clip_val is None or not gradients:
        return total
    elif session.settings.gradient_clip_algorithm == "value":
        clipping.clip_value(gradients, clip_val)
    else:
        if norms is None or order != 2.0:
            norm = opt.total_norm(gradients, 2.0)
        else:
            norm = total_norm(norms, 2.0) if total is None else total
        clipped = clipping.clip_norm(gradients, norm, clip_val)
    if records and gradients:
        clipped = opt.total_norm(gradients, 2.0) if clipped is None else clipped
        meter.put_clipped(opt.column, clipped)
    return total


def _leave_out_spike(
    session: Session,
    opt: OptimizerHandle,
    window: Sequence[Any],
    loss: Tensor,
    gradients: Sequence[Tensor],
    numbers: list[float],
) -> None:
    """Raise `UpdateSkipped` where the update spikes, which "rollback" follows by earlier weights.

    numbers: on CPU, the norms of all layers, where they are measured. On a device it waits for the
    loss and the norm.
    """
    assert session.spikes is not None
    if numbers and session.meter.norm_order == 2.0:
        loss_value, norm = loss.item(), math.hypot(*numbers)
    elif gradients:
        both = torch.stack([loss.double(), opt.total_norm(gradients, 2.0).double()])
        loss_value, norm = both.tolist()
    else:
        loss_value, norm = loss.item(), 0.0
    samples = session.parallel.samples(window)
    if session.spikes.is_left_out(
        session.state, window, samples, loss_value, norm, session.task, opt, session.average
    ):
        raise nonfinite.UpdateSkipped(loss.detach())


def _put_norms(
    session: Session,
    opt: OptimizerHandle,
    gradients: Sequence[Tensor],
    loss: Tensor,
    norms: Norms,
    numbers: list[float],
) -> Tensor | None:
    """Put the norms before clipping into the meter's row; returns their total. None: a flush
    computes it.

    numbers: on CPU, the norms as numbers; elsewhere none.
    """
    meter = session.meter
    all_there = opt.whole and not opt.late and len(gradients) == len(opt.parameters)
    # a guarded step reads the total
    if all_there and meter.adds_up and (session.plan.on_cpu or not nonfinite.can_guard(opt)):
        if session.plan.on_cpu:
            meter.put_numbers(numbers)
        else:
            meter.put_update(loss, norms)
        return None
    assert meter.norm_order is not None
    norms = as_tensor(norms)
    total = total_norm(norms, meter.norm_order)
    if all_there:
        meter.put_norms(opt.column, total, norms)
        return total
    if opt.late:  # only parameters that trained from the start have columns
        late = {id(p) for p in opt.late}
        norms = norms[
            meter.places(tuple(n for n, p in enumerate(opt.with_gradient()) if id(p) not in late))
        ]
    # A parameter without a gradient has no norm; that is not a norm of zero.
    with_gradient = {id(p) for p in opt.with_gradient()}
    meter.put_norms(
        opt.column,
        total,
        norms,
        tuple(n for n, p in zip(opt.places, opt.parameters, strict=True) if id(p) in with_gradient),
    )
    return total


def sum_up(meter: Meter, optimizers: Sequence[OptimizerHandle]) -> None:
    """Write the update's total norms over all of several optimizers that stepped."""
    row = meter.row
    for column, order in ((meter.total, meter.norm_order or 2.0), (meter.clipped, 2.0)):
        totals = torch.stack([column[opt.column][row] for opt in optimizers])
        measured = ~torch.isnan(totals)
        total = total_norm(torch.where(measured, totals, 0.0), order)
        column[0][row].copy_(torch.where(measured.any(), total, float("nan")))
