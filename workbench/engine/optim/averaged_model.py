"""Puts the averaged weights into the model, for a validation or permanently, and computes their
BatchNorm statistics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from workbench.engine.distributed.fsdp_forward import PaddingBatch
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.session import Session
from workbench.events import Message
from workbench.task import rng
from workbench.task.modules import Modes, kept_buffers
from workbench.techniques.averaging import batch_norms, has_batch_norm, refreshing_batch_norm
from workbench.techniques.tbptt import Piece, detached


@contextlib.contextmanager
def in_place(session: Session) -> Iterator[None]:
    """Context manager in which the model has the averaged weights and their BatchNorm
    statistics.
    """
    assert session.average is not None
    with session.average.swapped(), kept_buffers(session.task.modules):
        _refresh(session)
        yield


def copy_average(session: Session) -> None:
    """Give the model the averaged weights permanently."""
    assert session.average is not None
    session.average.copy_to_model()
    _refresh(session)


def _refresh(session: Session) -> None:
    """Compute BatchNorm statistics for the present weights in one pass over the training data,
    without a step.
    """
    if not has_batch_norm([session.task.model]):
        return
    modes = Modes.of(session.task.modules)
    with rng.preserved(), torch.no_grad(), session.hooks.discarding_logs():
        try:
            session.train_mode()
            with refreshing_batch_norm([session.task.model]):
                _pass(session)
                _mean_over_ranks(session.task.model, session.ranks)
        finally:
            session.weights.reshard()
            modes.restore()


def _mean_over_ranks(model: nn.Module, ranks: ProcessGroup) -> None:
    """Average the statistics of all ranks, each of which has seen its share of the batches; all
    batches count alike.
    """
    if not ranks.several:
        return
    for layer in batch_norms([model]):
        if layer.momentum is not None or layer.num_batches_tracked is None:
            continue  # a module in evaluation mode keeps its statistics
        seen = float(layer.num_batches_tracked)
        whole = ranks.sums([seen])[0]
        for statistic in (layer.running_mean, layer.running_var):
            if statistic is not None and whole:
                statistic.mul_(seen / whole)
                ranks.all_reduce(statistic)
        layer.num_batches_tracked.fill_(round(whole))


def _pass(session: Session) -> None:
    hiddens = None
    lost: list[str] = []
    items = session.data.again(lost)
    for number, item in enumerate(
        session.ranks.rounds(items) if session.weights.sharded else items
    ):
        extra: dict[str, Any] = {}
        if isinstance(item, PaddingBatch):
            again = {"hiddens": None} if session.plan.tbptt is not None else {}
            for opt in session.optimizers:
                session.run_padding(
                    item.batch,
                    "train",
                    partial(session.weights.training_step, batch_idx=number, **opt.extra, **again),
                )
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
    session.notes += [
        Message(
            f"the rest of this epoch may not be as it would have been: {message}.",
            "warning",
            session.state.step,
        )
        for message in lost
    ]
