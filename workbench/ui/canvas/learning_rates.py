"""Draws the learning rate of each optimizer over a fit, in the strip below the loss."""

from __future__ import annotations

import numpy as np

from workbench.events import StepsDone
from workbench.runs.record.series import column
from workbench.ui import texts
from workbench.ui.canvas.transport.channels import Buckets
from workbench.ui.canvas.transport.messages import Outbox

BUCKETS = 500
MOST = 5
"""How many optimizers have a line: the first ones."""


class Rates:
    """Folds the rates into buckets, a column for each optimizer of the first flush."""

    def __init__(self, outbox: Outbox, channel: Buckets) -> None:
        self._outbox, self._channel = outbox, channel
        self._names: list[str] = []

    def start(self) -> None:
        """Begin a fit."""
        self._names = []
        self._channel.reset([("last", 1)])
        self._outbox.put("rates", [])

    def steps(self, event: StepsDone) -> None:
        """Add one flush."""
        if not event.rows:
            return
        if not self._names:
            several = [
                name for name in event.columns if name.startswith("lr.") and name[3:].isdigit()
            ]
            self._names = sorted(several, key=lambda name: int(name[3:]))[:MOST] or ["lr"]
            self._channel.reset([("last", len(self._names))])
            self._outbox.put(
                "rates", [texts.optimizer(name[3:]) for name in self._names] if several else ["lr"]
            )
        rates = np.array([column(event, name) for name in self._names], np.float64).T
        self._channel.add(event.steps, event.every, [rates])
