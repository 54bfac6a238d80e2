"""Handles losses and gradients that are not finite: on CPU before the step, on a device by a
guarded step.

On a device the loop must not wait for a value, so the values are checked when a flush copies them
to the host. Until then an optimizer with a `found_inf` flag (`fused=True`) skips such steps itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import backward
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.replay import Replay, ReplayPoint
from workbench.engine.session import Session
from workbench.events import Message
from workbench.instruments import finite
from workbench.instruments.grad_norm import as_floats
from workbench.instruments.replay import began_in_training, replay
from workbench.task import rng
from workbench.task.device import xla
from workbench.task.device.dtensor import whole
from workbench.task.errors import TaskError

TOLD = 3
"""How many skipped updates get a message each; further ones are only counted."""


EXACT = (2.0, math.inf)
"""The orders of norms that overflow only where the gradients are useless anyway; sums of higher
powers overflow much earlier.
"""


class UpdateSkipped(Exception):
    """Raised to skip an update; the run continues."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__()
        self.loss = loss


def check(
    session: Session,
    opt: OptimizerHandle,
    window: Sequence[Any],
    loss: Tensor,
    gradients: Sequence[Tensor],
    norms: Sequence[float],
) -> None:
    """Check loss and gradients before the step, on CPU: raise `NonFiniteError`, or `UpdateSkipped`
    if on_nonfinite="skip".

    norms: of all gradients, of any order; empty: they are not measured.
    """
    value = loss.item()
    if math.isfinite(value + sum(norms)) and (norms or not gradients):
        return
    if math.isfinite(value) and (
        not gradients or session.precision.scaler is not None or _finite(opt, gradients)
    ):
        return
    if session.plan.skips_nonfinite and not session.state.searching:
        # not if another optimizer's step of this update was skipped already
        session.state.left_out += not session.state.skipped
        if session.state.left_out <= TOLD:
            session.notes.append(
                Message(str(_error(session, opt, window, value)), "warning", session.state.step)
            )
        # a forward pass over non-finite values spoils the statistics of BatchNorm for good
        session.replay.restore_buffers()
        raise UpdateSkipped(loss.detach())
    error = _error(session, opt, window, value)
    error.own = session.parallel.own_loss_bad
    raise error


def _error(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], value: float
) -> finite.NonFiniteError:
    batches = [item.batch for item in window] if session.plan.tbptt is not None else window
    bad_inputs = finite.bad_values(batches)
    trained = {id(p) for p in opt.trained}
    named = session.task.trained_parameters()
    # Ranks with sharded weights could repeat the update only together, and not every rank gets
    # here.
    replays = not (session.task.manual or session.weights.sharded)
    # A search goes on after a rate that is too high, and needs no place. Where the batch holds such
    # values on purpose (targets that the loss leaves out), the replay tells whose fault it is.
    replays &= bool(bad_inputs) or not session.state.searching
    point = session.replay.here(session.state, window)
    began = _replayed(session, opt, point) if replays else None
    text = finite.explain(
        session.state.step,
        value,
        _gradients(session.weights, {name: p for name, p in named.items() if id(p) in trained}),
        bad_inputs,
        {name: whole(p) for name, p in named.items()},
        began,
    )
    of_batch = bool(bad_inputs) and not math.isfinite(value) and not began_in_training(began)
    return finite.NonFiniteError(text, value, of_batch=of_batch)


def _gradients(weights: WholeWeights, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    gradients = weights.gradients().items()
    return {name: whole(gradient) for name, gradient in gradients if name in trained}


def _replayed(session: Session, opt: OptimizerHandle, moment: ReplayPoint) -> str | None:
    """Repeat the window with its random numbers to find the origin of the value; the session
    does not change.
    """
    carried = session.state.hiddens, session.state.next_hiddens
    with rng.preserved(), session.optimizers.only(opt):
        try:
            session.state.hiddens, session.state.next_hiddens = {**moment.hiddens}, {}
            if moment.random is not None:
                rng.set_device_state(session.device, moment.random)
            return replay(lambda: backward.losses(session, opt, moment.window), session.task.model)
        except Exception as error:  # noqa: BLE001  # an error here must not replace the one that is being explained
            return (
                f"somewhere that could not be found ({type(error).__name__} when the update was"
                " tried again)"
            )
        finally:
            session.state.hiddens, session.state.next_hiddens = carried


def locate_on_device(session: Session, step: int) -> str | None:
    """Find, on a device, the origin of the non-finite value of update `step` by repeating it, if
    its window is still kept.
    """
    if session.task.manual or session.device.type != "cuda" or session.weights.sharded:
        return None
    moment = session.replay.at(step)
    if moment is None or not all(bool(torch.isfinite(p).all()) for p in session.optimizers.trained):
        return None  # the weights are not finite either, so repeating the update would show nothing
    return _replayed(session, session.optimizers[0], moment)


def _finite(opt: OptimizerHandle, gradients: Sequence[Tensor]) -> bool:
    # A sum of powers may overflow where every entry is finite. The largest entry cannot, but torch
    # needs longer for it.
    return any(
        all(map(math.isfinite, as_floats(opt.layer_norms(gradients, order)))) for order in EXACT
    )


def can_guard(opt: OptimizerHandle) -> bool:
    """Whether the optimizer's kernel can skip a step by a flag on the device."""
    return bool(getattr(opt.optimizer, "_step_supports_amp_scaling", False))


def refuse_unguarded(session: Session) -> None:
    """Raise TaskError if `on_nonfinite="skip"` is set on a device and an optimizer cannot skip a
    step there.
    """
    if (
        session.settings.on_nonfinite != "skip"
        or session.plan.on_cpu
        or session.precision.scaler is not None
    ):
        return
    if xla.is_xla(session.device):
        raise TaskError(
            "on_nonfinite='skip' on a TPU: no optimizer there can skip a step without waiting for"
            " the device; take 'stop'."
        )
    for opt in session.optimizers:
        if not can_guard(opt):
            kind = type(opt.optimizer).__name__
            raise TaskError(
                f"on_nonfinite='skip' on {session.device.type} needs an optimizer that can skip a"
                f" step on the device, and {kind} cannot: give functools.partial(torch.optim.AdamW,"
                " fused=True), or take 'stop'."
            )


@contextlib.contextmanager
def guarded(
    opt: OptimizerHandle, loss: Tensor, total: Tensor | None, replay: Replay
) -> Iterator[None]:
    """Context manager in which a step with non-finite values is skipped on the device, without
    waiting for it.

    total: the norm of all gradients, of an order in `EXACT`; None: it is not known.
    """
    optimizer: Any = opt.optimizer
    if total is None:
        gradients = opt.gradients()
        total = opt.total_norm(gradients, math.inf) if gradients else torch.zeros_like(loss)
    bad = ~torch.isfinite(total + loss)
    optimizer.grad_scale, optimizer.found_inf = None, bad.float().reshape(())
    replay.restore_buffers(where=bad)
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
