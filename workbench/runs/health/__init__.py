"""Finds what went wrong in a run, what slows it down, and the remedy, in words.

How to read it: no findings is the usual case. A rule reports only where it is sure; its thresholds are in its class,
each with its reason. Rules take events one by one and keep little of them, so that they can follow a run of any length
while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from workbench.events import Event, RunStarted
from workbench.runs.health.divergence import Divergence, Rate
from workbench.runs.health.finding import Finding as Finding
from workbench.runs.health.finding import Level, Rule
from workbench.runs.health.layers import Layers
from workbench.runs.health.loss import Overfitting, Standstill
from workbench.runs.health.metrics import Constant
from workbench.runs.health.norms import Clipping, Explosion
from workbench.runs.health.numbers import Broken, LeftOut
from workbench.runs.health.observed import EvaluationMode, SameOrder, SlowCalls
from workbench.runs.health.pace import Memory, Overhead, Waiting

ORDER: tuple[Level, ...] = ("error", "warning", "info")


class Health:
    """Hears a fit's events. Memory: a few hundred numbers, and a few for each layer."""

    def __init__(self) -> None:
        self._rules: tuple[Rule, ...] = ()

    def on_event(self, event: Event) -> None:
        """Take in one event; the start of a run forgets the one before."""
        if isinstance(event, RunStarted):
            fit = event.kind == "fit"
            self._rules = (
                Broken(event), LeftOut(event), Divergence(event), Explosion(event), Rate(event), EvaluationMode(event),
                SameOrder(event), SlowCalls(event), Layers(event), Overfitting(event), Standstill(event), Constant(event), Memory(event),
                Waiting(event), Overhead(event), Clipping(event),
            ) if fit else ()  # fmt: skip
        for rule in self._rules:
            rule.on_event(event)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The current findings, most severe first."""
        there = [finding for rule in self._rules for finding in rule.findings()]
        return tuple(sorted(there, key=lambda one: ORDER.index(one.level)))


def examine(events: Iterable[Event]) -> tuple[Finding, ...]:
    """The findings of a whole run."""
    health = Health()
    for event in events:
        health.on_event(event)
    return health.findings
