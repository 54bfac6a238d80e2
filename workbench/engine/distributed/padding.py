"""Runs a step on a padding batch: a rank with sharded weights that has no batch left must still take part in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.engine.session import Session
from workbench.task import rng
from workbench.task.hooks import Stage
from workbench.task.modules import kept_state
from workbench.techniques.tbptt import Piece


def run_padding(session: Session, item: Any, stage: Stage, step: Callable[[Any], object]) -> None:
    """Run the step on it; buffers, attributes, random numbers and logged values are restored afterwards."""
    batch = item.batch if isinstance(item, Piece) else item
    with rng.preserved(), session.hooks.discarding_logs(), kept_state(session.task.modules), session.precision.autocast():
        step(session.to_device(batch, stage))
