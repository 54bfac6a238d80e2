"""The mean loss of an epoch's updates, as a metric that monitors can watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.events import StepsDone


class EpochLoss:
    """The mean of the recorded losses of an epoch, reported to monitors as "train_loss"."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new epoch."""
        self._sum, self._count = 0.0, 0

    def add(self, event: StepsDone) -> None:
        """Losses that have landed; those that are not finite were left out of training, and are here."""
        losses = event.array("loss")
        finite = losses[np.isfinite(losses)]
        # One after another, so that the sum does not depend on how many are in one event.
        self._sum = float(np.cumsum([self._sum, *finite], dtype=np.float64)[-1])
        self._count += len(finite)

    def state_dict(self) -> dict[str, Any]:
        """What it has added up in this epoch."""
        return {"sum": self._sum, "count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the middle of an epoch."""
        self._sum, self._count = state["sum"], state["count"]

    def metric(self) -> dict[str, float]:
        """{"train_loss": mean}; empty before the first update."""
        return {"train_loss": self._sum / self._count} if self._count else {}
