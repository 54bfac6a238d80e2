"""Validation: the metrics of one pass over held-out data, weighted by samples, moving no training state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.engine import rng
from workbench.engine.session import Modes, Session
from workbench.task.batch import to_device


def validate(
    session: Session, batches: Iterable[Any], stage: Literal["val", "test"] = "val"
) -> dict[str, float]:
    """Each metric's mean over the samples of `batches`, in evaluation mode; one host sync at the end."""
    sums: dict[str, list[Tensor | float]] = {}
    weights: dict[str, list[float]] = {}
    with evaluating(session):
        for number, batch in enumerate(batches):
            if batch is None:
                continue
            with session.precision.autocast():
                scores = session.task.validation_step(to_device(batch, session.device), number, stage)
            for name, value in scores.values.items():
                sums.setdefault(name, []).append(value)
                weights.setdefault(name, []).append(scores.weight)
    return {name: _mean(values, weights[name]) for name, values in sums.items()}


@contextlib.contextmanager
def evaluating(session: Session) -> Iterator[None]:
    """Inside, all modules are in evaluation mode and nothing is learned; modes and random numbers come back."""
    modes = Modes.of(session.task)
    with rng.kept(), torch.no_grad():
        for module in session.task.modules:
            module.eval()
        try:
            yield
        finally:
            modes.restore()


def _mean(values: list[Tensor | float], weights: list[float]) -> float:
    if all(isinstance(v, Tensor) for v in values):
        # On the device until the end: one copy to the host for the whole pass.
        column = torch.stack([v.detach().float().mean() for v in values if isinstance(v, Tensor)]).cpu()
    else:
        column = torch.tensor([float(v) for v in values], dtype=torch.float64)
    share = torch.tensor(weights, dtype=torch.float64)
    return float((column.double() * share).sum() / share.sum())
