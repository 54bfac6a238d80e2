"""One update: backward over a window of batches, measure, check, clip, step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from workbench.engine.session import Session
from workbench.instruments import finite
from workbench.instruments.grad_norm import layer_norms, total_norm
from workbench.task.batch import to_device
from workbench.task.protocol import TaskError
from workbench.techniques import clipping
from workbench.techniques.accumulation import shares


def update(session: Session, window: Sequence[Any]) -> Tensor:
    """Take one update with the gradient of `window`; returns its mean loss, a detached scalar on the device.

    Raises `NonFiniteError` before the step is taken, where that can be seen without a sync (on CPU).
    """
    loss = _backward(session, window)
    recorded = session.recording and session.meter.wants(session.step)
    gradients = [p.grad for p in session.parameters if p.grad is not None]
    total = _measure(session, gradients) if gradients and recorded and session.norm_order else None
    if session.on_cpu:
        _check(session, window, loss, gradients, total)
    if session.clip_val is not None and gradients:
        _clip(session, gradients, total, session.clip_val)
    if recorded:
        session.meter.record(session.step, session.lr, loss)
    session.optimizer.step()
    session.optimizer.zero_grad()
    session.step += 1
    for schedule in session.schedules:
        if schedule.interval == "step" and session.step % schedule.frequency == 0:
            schedule.scheduler.step()
    return loss


def _backward(session: Session, batches: Sequence[Any]) -> Tensor:
    task = session.task
    if len(batches) == 1:
        loss = _scalar(task.training_step(_there(session, batches[0]), session.batch_idx))
        session.batch_idx += 1
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    mean: Tensor | None = None
    for batch, share in zip(batches, shares([task.weight(b) for b in batches]), strict=True):
        part = _scalar(task.training_step(_there(session, batch), session.batch_idx)) * share
        session.batch_idx += 1
        part.backward()  # type: ignore[no-untyped-call]
        mean = part.detach() if mean is None else mean + part.detach()
    assert mean is not None
    return mean


def _there(session: Session, batch: Any) -> Any:
    """The batch on the session's device; of a window, one at a time is there."""
    return batch if session.on_cpu else to_device(batch, session.device)


def _scalar(loss: Tensor) -> Tensor:
    if loss.ndim == 0 or loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    raise TaskError(f"the loss has shape {tuple(loss.shape)}; it must be one number: take its mean.")


def _measure(session: Session, gradients: Sequence[Tensor]) -> Tensor:
    """Write the norms before clipping into the meter's row; returns their total."""
    assert session.norm_order is not None
    row = session.meter.row
    norms = layer_norms(gradients, session.norm_order)
    total = total_norm(norms, session.norm_order)
    session.meter.total[row].copy_(total)
    if len(gradients) == len(session.parameters):
        session.meter.layers[row].copy_(norms)
    else:  # a parameter without a gradient has no norm, which is not a norm of zero
        has = tuple(i for i, p in enumerate(session.parameters) if p.grad is not None)
        session.meter.layers[row][session.meter.places(has)] = norms.float()
    return total


def _clip(session: Session, gradients: Sequence[Tensor], total: Tensor | None, limit: float) -> None:
    row = session.meter.row
    recorded = session.recording and session.meter.wants(session.step)
    if session.settings.gradient_clip_algorithm == "norm":
        if total is None or session.norm_order != 2.0:
            total = total_norm(layer_norms(gradients, 2.0), 2.0)
        after = clipping.clip_norm(gradients, total, limit)
    else:
        clipping.clip_value(gradients, limit)
        if not recorded:
            return
        after = total_norm(layer_norms(gradients, 2.0), 2.0)
    if recorded:
        session.meter.clipped[row].copy_(after)


def _finite(gradients: Sequence[Tensor], total: Tensor | None) -> bool:
    if total is not None and math.isfinite(total.item()):
        return True
    # Not measured at this update, or a sum of powers that is too large for its type: the largest entry decides.
    return math.isfinite(total_norm(layer_norms(gradients, math.inf), math.inf).item())


def _check(
    session: Session, batches: Sequence[Any], loss: Tensor, gradients: Sequence[Tensor], total: Tensor | None
) -> None:
    value = loss.item()
    if math.isfinite(value) and (not gradients or _finite(gradients, total)):
        return
    raise finite.NonFiniteError(
        finite.explain(
            session.step,
            value,
            {n: p.grad for n, p in zip(session.names, session.parameters, strict=True) if p.grad is not None},
            batches,
            dict(session.task.model.named_parameters()),
        ),
        value,
    )
