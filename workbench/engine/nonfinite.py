"""Handles losses and gradients that are not finite: on CPU before the step, on a device by a guarded step.

On a device nothing may wait for a value, so the numbers are checked when a flush arrives. Until then an optimizer with
a `found_inf` flag (`fused=True`) skips such steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import backward
from workbench.engine.distributed.dtensor import whole
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.state import ReplayPoint
from workbench.events import Message
from workbench.instruments import finite
from workbench.instruments.replay import replay
from workbench.task import rng
from workbench.task.device import xla
from workbench.task.errors import TaskError

TOLD = 3
"""The number of skipped updates that get a message each; the rest are counted."""


EXACT = (2.0, math.inf)
"""Norms that overflow only where the gradients are useless; sums of higher powers overflow long before."""


class UpdateSkipped(Exception):
    """This update is skipped, and the run continues."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__()
        self.loss = loss


def remember(session: Session, window: Sequence[Any]) -> None:
    """Keep what is needed to repeat this update: on CPU its random state, on a device all that the next flush will
    show.
    """
    replay, state = session.replay, session.state
    if state.searching:
        return
    if session.plan.skips_nonfinite:
        buffers = [buffer for module in session.task.modules for buffer in module.buffers()]
        replay.buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
    # Reading the random state costs more than the rest here, so a model without dropout is checked only now and then.
    replay.random = rng.device_state(session.device) if replay.draws or session.meter.row == 0 else None
    if not session.plan.on_cpu and state.records and session.device.type == "cuda":
        replay.recent.append(ReplayPoint(state.step, window, state.hiddens, replay.random))


def note_randomness(session: Session) -> None:
    """After the forward and backward of an update: note whether it drew random numbers."""
    replay = session.replay
    if replay.random is not None and not replay.draws:
        now = rng.device_state(session.device)
        replay.draws = now is not None and not torch.equal(replay.random, now)


def check(
    session: Session, opt: OptimizerHandle, window: Sequence[Any], loss: Tensor, gradients: Sequence[Tensor],
    norms: Sequence[float],
) -> None:  # fmt: skip
    """On CPU, before the step: raise `NonFiniteError`, or `UpdateSkipped` where the settings say so.

    norms: those of all gradients, of any order; empty: they are not measured.
    """
    value = loss.item()
    if math.isfinite(value + sum(norms)) and (norms or not gradients):
        return
    if math.isfinite(value) and (
        not gradients or session.precision.scaler is not None or _finite(session, opt, gradients)
    ):
        return
    if session.plan.skips_nonfinite and not session.state.searching:
        session.state.left_out += not session.state.skipped  # else another optimizer's step of this update has been skipped already
        if session.state.left_out <= TOLD:
            session.notes.append(Message(_words(session, opt, window, value), "warning", session.state.step))
        for buffer, before in session.replay.buffers:  # a forward pass over non-finite values spoils the statistics of BatchNorm for good
            buffer.copy_(before)
        raise UpdateSkipped(loss.detach())
    error = finite.NonFiniteError(_words(session, opt, window, value), value)
    error.own = session.parallel.own_loss_bad
    raise error


def _words(session: Session, opt: OptimizerHandle, window: Sequence[Any], value: float) -> str:
    trained = {id(p) for p in opt.trained}
    named = session.task.trained_parameters()
    # Ranks with sharded weights would have to repeat it together and to stop together.
    replays = not (session.state.searching or session.task.manual or session.weights.sharded)
    return finite.explain(
        session.state.step,
        value,
        _gradients(session.weights, {name: p for name, p in named.items() if id(p) in trained}),
        [item.batch for item in window] if session.plan.tbptt is not None else window,
        {name: whole(p) for name, p in named.items()},
        _replayed(session, opt, ReplayPoint(session.state.step, window, session.state.hiddens, session.replay.random)) if replays else None,
    )


def _gradients(weights: WholeWeights, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: gradient for name, gradient in weights.gradients().items() if name in trained}


def _replayed(session: Session, opt: OptimizerHandle, moment: ReplayPoint) -> str | None:
    """Repeat the window with its random numbers to find where the value came from; the session does not change."""
    carried = session.state.hiddens, session.state.next_hiddens
    with rng.preserved(), session.only(opt):
        try:
            session.state.hiddens, session.state.next_hiddens = {**moment.hiddens}, {}
            if moment.random is not None:
                rng.set_device_state(session.device, moment.random)
            return replay(lambda: backward.losses(session, opt, moment.window), session.task.model)
        except Exception as error:  # noqa: BLE001  # the explanation must not hide what it explains
            return f"somewhere that could not be found ({type(error).__name__} when the update was tried again)"
        finally:
            session.state.hiddens, session.state.next_hiddens = carried


def locate_on_device(session: Session, step: int) -> str | None:
    """On a device: find where update `step` went wrong by repeating it, if its window is still kept."""
    if session.task.manual or session.device.type != "cuda" or session.weights.sharded:
        return None
    moment = next((m for m in session.replay.recent if m.step == step), None)
    if moment is None or (moment.random is None and session.replay.draws):  # its random numbers are not known
        return None
    if not all(bool(torch.isfinite(p).all()) for p in session.trained):
        return None  # the weights are not finite either, so repeating the update would show nothing
    return _replayed(session, session.optimizers[0], moment)


def _finite(session: Session, opt: OptimizerHandle, gradients: Sequence[Tensor]) -> bool:
    # A sum of powers may overflow where every entry is finite. The largest entry cannot, but torch needs longer for it.
    return any(math.isfinite(session.total_norm(opt, gradients, order).item()) for order in (2.0, math.inf))


def can_guard(opt: OptimizerHandle) -> bool:
    """Whether the optimizer's kernel can skip a step by a flag on the device."""
    return bool(getattr(opt.optimizer, "_step_supports_amp_scaling", False))


def refuse_unguarded(session: Session) -> None:
    """Raise an error if `on_nonfinite="skip"` is set on a device and an optimizer cannot skip a step there."""
    if session.settings.on_nonfinite != "skip" or session.plan.on_cpu or session.precision.scaler is not None:
        return
    if xla.is_xla(session.device):
        raise TaskError("on_nonfinite='skip' on a TPU: no optimizer there can skip a step without waiting for the device; take 'stop'.")
    for opt in session.optimizers:
        if not can_guard(opt):
            kind = type(opt.optimizer).__name__
            raise TaskError(
                f"on_nonfinite='skip' on {session.device.type} needs an optimizer that can skip a step on the device, "
                f"and {kind} cannot: give functools.partial(torch.optim.AdamW, fused=True), or take 'stop'."
            )


@contextlib.contextmanager
def guarded(session: Session, opt: OptimizerHandle, loss: Tensor, total: Tensor | None) -> Iterator[None]:
    """Context manager in which a step with non-finite values is skipped on the device, without waiting for it."""
    optimizer: Any = opt.optimizer
    if total is None or session.meter.norm_order not in EXACT:
        gradients = opt.gradients()
        total = session.total_norm(opt, gradients, math.inf) if gradients else torch.zeros_like(loss)
    bad = ~torch.isfinite(total + loss)
    optimizer.grad_scale, optimizer.found_inf = None, bad.float().reshape(())
    for buffer, before in session.replay.buffers:
        buffer.copy_(torch.where(bad, before, buffer))
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
