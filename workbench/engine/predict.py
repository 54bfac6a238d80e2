"""Prediction: the model's output for each batch, in evaluation mode, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from workbench.engine import rng
from workbench.engine.session import Modes, Session
from workbench.task.batch import to_device

_CPU = torch.device("cpu")


def predict(session: Session, batches: Iterable[Any]) -> list[Any]:
    """One entry a batch: what the task's `predict_step` returned, its tensors on the CPU."""
    modes = Modes.of(session.task)
    found = []
    with rng.kept(), torch.no_grad():
        for module in session.task.modules:
            module.eval()
        try:
            for number, batch in enumerate(batches):
                if batch is None:
                    continue
                with session.precision.autocast():
                    output = session.task.predict_step(to_device(batch, session.device), number)
                found.append(to_device(output, _CPU))
            if not session.on_cpu:
                torch.accelerator.synchronize(session.device)  # the copies are on their way
        finally:
            modes.restore()
    return found
