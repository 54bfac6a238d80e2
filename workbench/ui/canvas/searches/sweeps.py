"""Draws learning-rate sweeps on the canvas: the chosen optimizer's, and the two before it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workbench.events import CurveEnded, CurvePoint, RaceTrial, RunStarted, Suggestion
from workbench.ui import format, texts
from workbench.ui.canvas.transport.channels import Samples
from workbench.ui.canvas.transport.messages import Outbox, cut

POINTS = 2000
"""How many points the present curve has at most."""
EARLIER = 2
"""How many earlier curves are drawn in grey with the present one."""
EARLIER_POINTS = 400
"""How many points each of them has at most."""
OPTIMIZERS = 8
"""For how many optimizers curves are kept: those that were swept last."""
GROUPS = 32
RACED = 16
"""How many rates of a race are drawn."""
TEXT = 400
"""Bytes for a note or a reason, so that all of them fit into one message."""


@dataclass
class Curve:
    """One sweep, in bounded memory: its points as rows of (rate, loss, smoothed)."""

    optimizer: int
    swept: dict[str, Any]
    points: Samples = field(default_factory=lambda: Samples(3, POINTS))
    end: dict[str, Any] | None = None
    raced: list[dict[str, float | None]] = field(default_factory=list)
    """The rates that trained for a while, with their held-out losses (None: it is not finite)."""

    def smoothed(self) -> list[tuple[float, float]]:
        """The smoothed line as (rate, loss), at most `EARLIER_POINTS` points."""
        rows = self.points.rows(0, self.points.length)
        every = max(1, math.ceil(len(rows) / EARLIER_POINTS))
        return [(float(row[0]), float(row[2])) for row in rows[::every]]


class LRSweeps:
    """The learning-rate finder. Each optimizer's last curves are kept, and one optimizer's are
    shown.
    """

    def __init__(self, outbox: Outbox, curve: Samples, earlier: Samples) -> None:
        self._outbox, self._curve, self._earlier = outbox, curve, earlier
        self._kept: dict[int, list[Curve]] = {}
        """The curves of each optimizer, the newest last."""
        self._shown = 0
        self._going: Curve | None = None
        self._sweeps: Counter[str] = Counter()
        """The number of sweeps of each run; a fit may make several."""
        self.done = 0
        self.lr: float | None = None
        self.loss: float | None = None

    def start(self, event: RunStarted) -> None:
        """Begin a sweep: a job's, or one inside the fit that `event` started."""
        self._sweeps[event.run] += 1
        optimizer = int(event.request.get("optimizer", 0))
        self._going = Curve(optimizer, _swept(event, optimizer, self._sweeps[event.run]))
        before = [c for c in self._kept.pop(optimizer, []) if c.points.length > 1]
        self._kept[optimizer] = [*before[-EARLIER:], self._going]
        while len(self._kept) > OPTIMIZERS:
            del self._kept[next(iter(self._kept))]
        self.done, self.lr, self.loss = 0, None, None
        self.look_at(optimizer)

    def clear(self) -> None:
        """Begin without sweeps."""
        self._kept.clear()
        self._sweeps.clear()
        self._going, self.done, self.lr, self.loss = None, 0, None, None
        self.look_at(self._shown)

    def point(self, event: CurvePoint) -> None:
        """Add a point to the curve of the present sweep."""
        row = [event.lr, event.loss, event.smoothed]
        if self._going is not None:
            self._going.points.add(row)
            if self._going.optimizer == self._shown:
                self._curve.add(row)
        self.done, self.lr, self.loss = event.index + 1, event.lr, event.loss

    def raced(self, event: RaceTrial) -> None:
        """Add the loss of a rate that was raced."""
        if self._going is not None and len(self._going.raced) < RACED:
            self._going.raced.append(
                {"lr": event.lr, "loss": event.loss if math.isfinite(event.loss) else None}
            )
            if self._going.optimizer == self._shown:
                self._outbox.put("raced", list(self._going.raced))
        self.done, self.lr, self.loss = self.done + event.updates, event.lr, event.loss

    def ended(self, event: CurveEnded) -> None:
        """Show the result of the sweep."""
        if self._going is not None:
            self._going.end = _end(event)
            if self._going.optimizer == self._shown:
                self._outbox.put("curve", self._going.end)

    def look_at(self, optimizer: int) -> None:
        """Show this optimizer's curves."""
        self._shown = optimizer
        *earlier, last = self._kept.get(optimizer) or [Curve(optimizer, {"optimizer": optimizer})]
        self._curve.reset()
        for row in last.points.rows(0, last.points.length):
            self._curve.add([float(value) for value in row])
        self._earlier.reset()
        for number, curve in enumerate(earlier):
            for lr, loss in curve.smoothed():
                self._earlier.add([number, lr, loss])
        self._outbox.put("swept", last.swept)
        self._outbox.put("curve", last.end)
        self._outbox.put("raced", list(last.raced))
        self._outbox.put(
            "earlier_curves",
            [
                {
                    "run": curve.swept["run"],
                    "suggestion": None if curve.end is None else curve.end["suggestion"],
                }
                for curve in earlier
            ],
        )


def _swept(event: RunStarted, optimizer: int, count: int) -> dict[str, Any]:
    """The description of a curve. `groups`: each group's rate as a multiple of the setting lr."""
    groups = event.groups[optimizer] if optimizer < len(event.groups) else ()
    alone = event.request.get("group")
    groups = groups[:GROUPS] if alone is None else groups[int(alone) : int(alone) + 1]
    whose_rates = whose(optimizer, len(event.groups), groups[0][1] if groups else 1.0)
    if alone is not None:
        whose_rates = f"{whose_rates} {texts.group_alone(int(alone))}".strip()
    name = event.run.removesuffix("-find_lr")
    return {
        "run": cut(name if count == 1 else texts.sweep(name, count), 80),
        "optimizer": optimizer,
        "low": event.request.get("min_lr"),
        "high": event.request.get("max_lr"),
        "groups": [{"name": cut(group, 80), "ratio": ratio} for group, ratio in groups],
        "whose": whose_rates,
    }


def whose(optimizer: int, count: int, ratio: float) -> str:
    """A sentence, for several optimizers, about whose rates are shown and what the setting means
    for the others.
    """
    if count < 2:
        return ""
    if optimizer == 0:
        return texts.first_optimizer(count)
    return texts.other_optimizer(optimizer, count, format.rate(ratio))


def _end(event: CurveEnded) -> dict[str, Any]:
    return {
        "suggestion": event.suggestion,
        "diverged": event.diverged,
        "ended": event.ended[:200],
        "notes": [cut(note, TEXT) for note in event.notes[:8] if note not in event.doubts],
        "doubts": [cut(doubt, TEXT) for doubt in event.doubts[:8]],
        "suggestions": [
            {"name": s.name[:30], "lr": _rate(s), "why": cut(s.why, TEXT)}
            for s in event.suggestions[:16]
        ],
    }


def _rate(suggestion: Suggestion) -> float | None:
    lr = suggestion.lr
    return lr if lr is not None and math.isfinite(lr) and lr > 0 else None
