"""The two searches as the canvas shows them: the learning-rate sweep and the batch sizes that were tried."""

from __future__ import annotations

import math
from typing import Any

from workbench.events import CurveEnded, CurvePoint, SearchEnded, Trial
from workbench.ui import words
from workbench.ui.channels import Samples
from workbench.ui.wire import Outbox, cut

CURVE_POINTS = 2000
TRIALS = 60
"""Batch sizes shown; more than a search ever tries."""
TEXT = 400
"""Bytes for an error, a note or a reason: all of them together fit in one message."""


class Sweep:
    """The learning-rate finder."""

    def __init__(self, outbox: Outbox, curve: Samples) -> None:
        self._outbox, self._curve = outbox, curve
        self.done = 0
        self.lr: float | None = None
        self.loss: float | None = None

    def start(self) -> None:
        self._curve.reset()
        self.done, self.lr, self.loss = 0, None, None
        self._outbox.put("curve", None)

    def point(self, event: CurvePoint) -> None:
        self._curve.add([event.lr, event.loss, event.smoothed])
        self.done, self.lr, self.loss = event.index + 1, event.lr, event.loss

    def ended(self, event: CurveEnded) -> None:
        self._outbox.put("curve", {
            "suggestion": event.suggestion,
            "ended": event.ended[:200],
            "notes": [cut(note, TEXT) for note in event.notes[:8]],
            "suggestions": [
                {"name": s.name[:30], "lr": s.lr, "why": cut(s.why, TEXT)}
                for s in event.suggestions[:16]
                if s.lr is not None and math.isfinite(s.lr) and s.lr > 0
            ],
        })  # fmt: skip


class Sizes:
    """The batch-size search."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._trials: dict[int, dict[str, Any]] = {}
        self.over = True
        """Whether the next trial belongs to another search."""

    def start(self) -> None:
        self._trials, self.over = {}, False
        self._outbox.put("trials", [])
        self._outbox.put("search", None)

    @property
    def done(self) -> int:
        return len(self._trials)

    def trial(self, event: Trial) -> None:
        """A size tried twice shows its last outcome."""
        if event.size not in self._trials and len(self._trials) >= TRIALS:
            del self._trials[next(iter(self._trials))]
        self._trials[event.size] = {
            "size": event.size,
            "ok": event.ok,
            "rate": event.samples_per_second,
            "rate_words": "" if event.samples_per_second is None else words.count(event.samples_per_second),
            "peak": event.peak_bytes,
            "peak_words": "" if event.peak_bytes is None else words.size(event.peak_bytes),
            "error": None if event.error is None else cut(event.error, TEXT),
        }
        self._outbox.put("trials", sorted(self._trials.values(), key=lambda trial: int(trial["size"])))

    def ended(self, event: SearchEnded) -> None:
        self.over = True
        self._outbox.put("search", {"best": event.best, "largest": event.largest, "ended": event.ended[:200]})
