"""Finds problems in a run and what slows it down, each with advice.

How to read it: usually there are no findings. A rule reports a problem only when it is sure; its
thresholds are in its class, each with its reason. Rules take events one by one and keep little
data, so that they can follow a run of any length while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from workbench.events import Event, RunStarted
from workbench.runs.health.divergence import Divergence, Rate, Rebound
from workbench.runs.health.finding import Finding as Finding
from workbench.runs.health.finding import Level, Rule
from workbench.runs.health.layers import Layers
from workbench.runs.health.loss import Behind, Overfitting, Standstill
from workbench.runs.health.metrics import Constant
from workbench.runs.health.norms import Clipping, Explosion
from workbench.runs.health.numbers import (
    Failed,
    NonFinite,
    NonFiniteValidation,
    SkippedUpdates,
    Spikes,
)
from workbench.runs.health.numbers import replaces_message as replaces_message
from workbench.runs.health.observed import EvaluationMode, SameOrder, SlowCalls, Unstored
from workbench.runs.health.pace import Memory, Overhead, Waiting

ORDER: tuple[Level, ...] = ("error", "warning", "info")


class Health:
    """Applies the rules to a fit's events. It keeps a few hundred numbers, and a few for each
    layer.
    """

    def __init__(self) -> None:
        self._rules: tuple[Rule, ...] = ()
        self._causes: tuple[Rule, ...] = ()
        """Groups of rules that may report the same problem, the most specific rule first."""

    def on_event(self, event: Event) -> None:
        """Take one event; the start of a run resets all rules."""
        if isinstance(event, RunStarted):
            fit = event.kind == "fit"
            self._causes = (
                (
                    NonFinite(event),
                    Divergence(event),
                    Layers(event),
                    Rebound(event),
                    Explosion(event),
                    Rate(event),
                    Standstill(event),
                    Constant(event),
                    Overfitting(event),
                    Spikes(event),
                )
                if fit
                else ()
            )
            self._rules = (
                (
                    *self._causes,
                    Failed(event),
                    NonFiniteValidation(event),
                    SkippedUpdates(event),
                    EvaluationMode(event),
                    SameOrder(event),
                    Unstored(event),
                    SlowCalls(event),
                    Memory(event),
                    Behind(event),
                    Waiting(event),
                    Overhead(event),
                    Clipping(event),
                )
                if fit
                else ()
            )
        for rule in self._rules:
            rule.on_event(event)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The present findings, the most severe first; for each problem its cause, without its
        consequences.
        """
        findings: list[Finding] = []
        known = False
        for rule in self._rules:
            if not (known and rule in self._causes):
                of_rule = list(rule.findings())
                findings += of_rule
                known |= any(finding.trouble for finding in of_rule)
        return tuple(sorted(findings, key=lambda finding: ORDER.index(finding.level)))

    @property
    def trouble(self) -> Finding | None:
        """The finding that puts the result of the run in doubt; None: none does, or its status
        says it (failed).
        """
        return in_doubt(self.findings)


def in_doubt(findings: Iterable[Finding]) -> Finding | None:
    """The finding that puts the result of a run in doubt; None: none does, or its status says
    it (failed).
    """
    return next((finding for finding in findings if finding.trouble not in ("", "failed")), None)


def examine(events: Iterable[Event]) -> tuple[Finding, ...]:
    """The findings of a whole run."""
    health = Health()
    for event in events:
        health.on_event(event)
    return health.findings
