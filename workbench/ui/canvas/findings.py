"""Lists the findings of a run's health (`runs/health`) for the canvas."""

from __future__ import annotations

from workbench.events import Event, RunStarted, StepsDone
from workbench.runs.health import Health
from workbench.runs.record.stream import joined
from workbench.ui.canvas.messages import Outbox, cut

MOST = 12
TEXT = 700
"""Bytes of a finding, and of its remedy."""
EVERY = 1.0
"""Seconds of the run between two examinations."""


class Findings:
    """Takes a fit's events, and examines them about once a second, and at the fit's end.

    The updates of that second are passed on together: the rules cost by the event, and training waits for them.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._health = Health()
        self._held: list[Event] = []
        self._looked = 0.0

    def clear(self) -> None:
        """Begin without a fit."""
        self._health, self._held, self._looked = Health(), [], 0.0
        self._outbox.put("health", None)

    def on_event(self, event: Event) -> None:
        self._held.append(event)
        if isinstance(event, StepsDone):
            if 0 <= event.seconds - self._looked < EVERY:
                return
            self._looked = event.seconds
        elif isinstance(event, RunStarted):
            self._looked = -EVERY  # its first updates are examined by themselves: rules measure from there on
        held, self._held = self._held, []
        for one in joined(held, across_epochs=True):
            self._health.on_event(one)
        self._outbox.put("health", [
            {"level": found.level, "text": cut(found.text, TEXT), "remedy": cut(found.remedy, TEXT)}
            for found in self._health.findings[:MOST]
        ])  # fmt: skip
