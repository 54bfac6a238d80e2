"""Sends the canvas the epochs, samples, seconds and memory that belong to a fit's updates."""

from __future__ import annotations

import math

from workbench.events import Changed, RunStarted, StepsDone
from workbench.ui.canvas.transport.channels import Samples

COLUMNS = 5
"""Updates taken, epochs, samples, seconds, bytes; NaN: unknown. extensions/live/src/plot/axis.ts
reads them by this order.
"""
ROWS = 600
_LENGTHS = {"batch_size", "accumulate_grad_batches"}
"""Settings that change how many updates an epoch has."""


class Clock:
    """Adds a row for each flush that is drawn; plots interpolate updates between two rows."""

    def __init__(self, channel: Samples) -> None:
        self._channel = channel
        self.start(None)

    def start(self, event: RunStarted | None) -> None:
        """Begin a fit; None: no fit has begun."""
        self._channel.reset()
        self._run = event
        self._even = event is not None and bool(event.updates and event.epochs)
        """Whether all epochs have the same, known number of updates."""
        self._samples = 0.0
        self._seconds: float | None = None

    def changed(self, event: Changed) -> None:
        """Take a live change."""
        self._even = self._even and not _LENGTHS & event.values.keys()

    def steps(self, event: StepsDone) -> None:
        """Add one flush."""
        if self._seconds is None:  # the time before the first flush
            began = max(0.0, event.seconds) if event.step else 0.0
            self._channel.add(
                [float(event.step), self._epochs(event.step, event.epoch), 0.0, began, math.nan]
            )
        self._seconds = event.seconds
        self._samples = math.nan if event.samples is None else self._samples + event.samples
        memory = math.nan if event.memory is None else float(event.memory)
        self._channel.add(
            [
                float(event.done),
                self._epochs(event.done, event.epoch),
                self._samples,
                event.seconds,
                memory,
            ]
        )

    def _epochs(self, done: int, epoch: int) -> float:
        """The number of epochs of `done` updates: a fraction if an epoch's length is known, else
        the epochs that have begun.
        """
        if self._even and self._run is not None and self._run.updates and self._run.epochs:
            return done * self._run.epochs / self._run.updates
        return float(epoch + bool(done))
