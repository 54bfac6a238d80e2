"""Draws the user's metrics (`metrics=`, `self.log`) by update, with the best and the last value
of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import Logged, StepsDone, Validated
from workbench.metric_mode import known_mode
from workbench.runs.record.series import column
from workbench.runs.tables.brief import BestAndLast
from workbench.ui import format
from workbench.ui.canvas.transport.channels import Buckets
from workbench.ui.canvas.transport.messages import Outbox

MOST = 12
"""How many metrics are drawn: the first ones that come."""
BUCKETS = 400
NAME = 100
"""How many characters a metric's name may have; one with a longer name is not drawn."""
_LOSS = re.compile(r"(train_|val_)?loss(_epoch|_step|_averaged)?")
"""The metrics that the plot of the loss shows already."""


def is_loss(name: str) -> bool:
    """Whether a metric is the loss itself, of training or validation."""
    return _LOSS.fullmatch(name) is not None


class Metrics:
    """Collects metrics in one table with a column for each; for a new metric the table begins
    anew, with one more column.
    """

    def __init__(self, outbox: Outbox, channel: Buckets) -> None:
        self._outbox, self._channel = outbox, channel
        self._monitor: str | None = None
        self.start()

    def start(self) -> None:
        """Remove all metrics: a fit begins, or none is shown."""
        self._best: dict[str, BestAndLast] = {}
        self._of_epochs: set[str] = set()
        """The metrics by which checkpoints can be compared: those with a value for a validation
        or an epoch.
        """
        self._sent: list[str] = []
        self._channel.reset([("last", 1)])
        self._put()

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Take the settings of the next fit."""
        self._monitor = settings.get("monitor") or "val_loss"
        self._put()

    def steps(self, event: StepsDone) -> None:
        """Add the values that were logged for single updates."""
        logged = [name for name in event.logged if self._drawn(name)]
        if event.rows and logged:
            self._add(
                event.steps,
                event.every,
                {name: column(event, name).astype(np.float64) for name in logged},
            )

    def measured(self, event: Validated | Logged) -> None:
        """Add the values of a validation, or of an epoch."""
        values = {
            name: value
            for name, value in event.metrics.items()
            if self._drawn(name) and math.isfinite(value)
        }
        if values:
            self._of_epochs |= values.keys()
            self._add(
                np.array([max(0, event.step - 1)]),
                1,
                {name: np.array([value]) for name, value in values.items()},
                event.step,
            )

    def _drawn(self, name: str) -> bool:
        return (
            len(name) <= NAME
            and not is_loss(name)
            and (name in self._best or len(self._best) < MOST)
        )

    def _add(
        self,
        steps: NDArray[np.int64],
        every: int,
        columns: dict[str, NDArray[np.float64]],
        taken: int | None = None,
    ) -> None:
        """Add values at `steps`. taken: for values of a validation, the number of updates taken
        before it.
        """
        for name, values in columns.items():
            if name in self._best or len(self._best) < MOST:
                self._best.setdefault(name, BestAndLast(known_mode(name))).add(
                    steps if taken is None else np.array([taken]), values
                )
        names = list(self._best)
        if names != self._sent:
            before = self._channel.rows(0, self._channel.length)
            head, known = self._channel.head(), len(self._sent)
            self._sent = names
            self._channel.reset([("last", len(names))])
            if known:  # the old rows stay; the new metrics have no values in them
                wide = np.full((len(before), len(names)), np.nan)
                wide[:, :known] = before
                self._channel.add(
                    head["origin"] + head["width"] * np.arange(len(before)), head["width"], [wide]
                )
        table = np.column_stack([columns.get(name, np.full(len(steps), np.nan)) for name in names])
        self._channel.add(steps, every, [table])
        self._put()

    def _put(self) -> None:
        self._outbox.put(
            "metrics",
            {
                "monitor": self._monitor,
                "metrics": [
                    {
                        "name": name,
                        "mode": best.mode,
                        "judges": name in self._of_epochs,
                        "last": format.number(best.last if math.isfinite(best.last) else None),
                        "best": "" if best.value is None else format.number(best.value),
                        "at": best.step,
                    }
                    for name, best in self._best.items()
                ],
            },
        )
