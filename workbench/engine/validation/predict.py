"""Predicts: the model's output for each batch, in evaluation mode, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from workbench.engine.distributed.fsdp_forward import PaddingBatch
from workbench.engine.session import Session
from workbench.engine.validation.validate import evaluating
from workbench.task.batch import to_device

_CPU = torch.device("cpu")


def predict(session: Session, batches: Iterable[Any]) -> list[tuple[int, Any]]:
    """One entry for each batch that is not None: its number, and what `predict_step` returned, its
    tensors on the CPU.
    """
    outputs = []
    with evaluating(session, "predict"):
        for number, batch in enumerate(batches):
            if batch is None:
                continue
            if isinstance(batch, PaddingBatch):
                session.run_padding(
                    batch.batch, "predict", partial(session.weights.predict_step, batch_idx=number)
                )
                continue
            moved = session.to_device(batch, "predict")
            session.hooks.evaluation_batch_started("predict", moved, number)
            with session.precision.autocast():
                output = session.weights.predict_step(moved, number)
            session.hooks.evaluation_batch_ended("predict", output, moved, number)
            outputs.append((number, to_device(output, _CPU)))
    return outputs
