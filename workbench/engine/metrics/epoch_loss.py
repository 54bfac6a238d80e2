"""Averages the losses of an epoch into a metric for monitors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.events import StepsDone


class EpochLoss:
    """The mean of the recorded losses of an epoch, reported to monitors as "train_loss"."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin an epoch."""
        self._sum, self._count = 0.0, 0

    def add(self, event: StepsDone) -> None:
        """Add losses from a flush; those that are not finite were skipped in training, and are
        skipped here.
        """
        # One by one, so that the sum does not depend on how many are in one event.
        for loss in event.array("loss").tolist():
            if math.isfinite(loss):
                self._sum += loss
                self._count += 1

    def state_dict(self) -> dict[str, Any]:
        """The sums of this epoch."""
        return {"sum": self._sum, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state in the middle of an epoch."""
        self._sum, self._count = state["sum"], state["count"]

    def metric(self) -> dict[str, float]:
        """{"train_loss": mean}; empty before the first update."""
        return {"train_loss": self._sum / self._count} if self._count else {}
