"""Averages the weights of a session, validates with the average, and puts it into the model at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.swa_utils import SWALR

from workbench.engine.distributed.fsdp_forward import PaddingBatch
from workbench.engine.distributed.padding import run_padding
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.modules import Modes, kept_buffers
from workbench.task.optim.optimizer_factory import group_rates
from workbench.task.protocol import Averaging, Schedule
from workbench.techniques.averaging import (
    batch_norms,
    has_batch_norm,
    refreshing_batch_norm,
    swa_due,
    swa_first_epoch,
)
from workbench.techniques.tbptt import Piece, detached


def refuse_unused(session: Session) -> None:
    """Raise TaskError for an averaging function in a fit that averages nothing."""
    if session.settings.weight_averaging is None and session.task.averaging != Averaging():
        raise TaskError(
            "avg_fn= and should_update= belong to weight_averaging='ema' or 'swa', which is off: "
            "bench.set(weight_averaging='ema')."
        )


class OwnSWALR(SWALR):
    """The schedule of `swa_lrs`, as a class of its own, to tell it from one that the user made."""


def begin_epoch(session: Session) -> None:
    """At the first epoch of SWA its own schedule replaces the others, where `swa_lrs` is set."""
    if _has_rates(session.settings) and session.state.epoch >= swa_first_epoch(session.settings):
        for opt in session.optimizers:
            begin_rates(session.settings, opt)


def rates_begun(session: Session) -> bool:
    """Whether SWA's own schedule has begun, counting epochs that have begun."""
    return _has_rates(session.settings) and session.state.epoch + session.state.mid_epoch > swa_first_epoch(session.settings)


def begin_rates(settings: Settings, opt: OptimizerHandle) -> None:
    """Replace an optimizer's schedules by SWA's own, if that has not happened yet."""
    if in_swa(opt):
        return
    rates = [settings.swa_lrs if base else 0.0 for base in group_rates(opt.optimizer)]  # a group at 0 stays there
    schedule = OwnSWALR(opt.optimizer, rates, settings.annealing_epochs, settings.annealing_strategy)  # type: ignore[arg-type]
    opt.schedules = (Schedule(schedule, "epoch"),)


def in_swa(opt: OptimizerHandle) -> bool:
    """Whether this optimizer's rate follows SWA's own schedule."""
    return any(isinstance(schedule.scheduler, OwnSWALR) for schedule in opt.schedules)


def _has_rates(settings: Settings) -> bool:
    return settings.weight_averaging == "swa" and settings.swa_lrs is not None


def end_epoch(session: Session) -> None:
    """SWA averages the weights at the end of each of its epochs; `session.state.epoch` has just ended."""
    if session.average is None or session.settings.weight_averaging != "swa":
        return
    if session.should_average(
        session.state.step, session.state.epoch, lambda settings, _, epoch: swa_due(settings, epoch)
    ):
        session.average.update(session.weights.averaged)


@contextlib.contextmanager
def in_place(session: Session) -> Iterator[None]:
    """Context manager in which the model has the averaged weights and their BatchNorm statistics."""
    assert session.average is not None
    with session.average.swapped(session.weights.averaged), kept_buffers(session.task.modules):
        _refresh(session)
        yield


def copy_average(session: Session) -> None:
    """Give the model the averaged weights for good, if there are any yet; or those that its optimizer evaluates."""
    session.optimizer_modes.eval()
    if session.average is None or not session.average.count:
        return
    session.average.copy_to(session.weights.averaged)
    _refresh(session)


def _refresh(session: Session) -> None:
    """Compute BatchNorm statistics for the present weights in one pass over the training data, without a step."""
    if not has_batch_norm([session.task.model]):
        return
    modes = Modes.of(session.task.modules)
    with rng.preserved(), torch.no_grad(), session.hooks.discarding_logs():
        try:
            session.train_mode()
            with refreshing_batch_norm([session.task.model]):
                _pass(session)
                _mean_over_ranks(session)
        finally:
            session.weights.reshard()
            modes.restore()


def _mean_over_ranks(session: Session) -> None:
    """Average the statistics of all ranks, each of which has seen its share of the batches; all batches count alike."""
    if not session.ranks.several:
        return
    for layer in batch_norms([session.task.model]):
        if layer.momentum is not None or layer.num_batches_tracked is None:
            continue  # a module in evaluation mode keeps its statistics
        seen = float(layer.num_batches_tracked)
        whole = session.ranks.sums([seen])[0]
        for statistic in (layer.running_mean, layer.running_var):
            if statistic is not None and whole:
                statistic.mul_(seen / whole)
                session.ranks.all_reduce(statistic)
        layer.num_batches_tracked.fill_(round(whole))


def _pass(session: Session) -> None:
    hiddens = None
    items = session.data.again()
    for number, item in enumerate(session.ranks.rounds(items) if session.weights.sharded else items):
        extra: dict[str, Any] = {}
        if isinstance(item, PaddingBatch):
            again = {"hiddens": None} if session.plan.tbptt is not None else {}
            for opt in session.optimizers:
                run_padding(session, item.batch, "train", partial(session.weights.training_step, batch_idx=number, **opt.extra, **again))
            continue
        batch = item
        if isinstance(item, Piece):
            batch = item.batch
            hiddens = None if item.first else hiddens
            extra["hiddens"] = hiddens
        if batch is None:
            continue
        for opt in session.optimizers:
            with session.precision.autocast():
                result = session.weights.training_step(
                    session.to_device(batch), number, **opt.extra, **extra
                )
            if isinstance(item, Piece) and isinstance(result, dict):
                hiddens = detached(result.get("hiddens"))
