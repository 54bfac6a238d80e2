"""Finds metrics that never change."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.events import Event, RunStarted, StepsDone, Validated
from workbench.runs.health.finding import Finding, Rule, several
from workbench.runs.record.series import column

_MEASURES = re.compile(
    r"(?i)(?<![a-z])(loss|acc\w*|err\w*|f1|f_?beta|au(?:ro|pr)?c|iou|dice|precision|recall|r2|score|perplexity|ppl|bleu"
    r"|rouge|wer|cer|psnr|ssim|map|ap|kappa|mcc|corr\w*)(?![a-z])|(mse|mae|mape)(?![a-z])"
)
"""Words in the names of measured values; under another name a module may log a setting, which
may be constant.
"""
_BAD = re.compile(r"(?i)loss|err|mse|mae|mape|wer|cer|perplexity|ppl")
"""Words in the names of metrics that are better when lower."""


def better(name: str) -> float:
    """1 if higher is better, by the name of the metric; -1 if lower is better; 0: unknown. A
    part of a loss may rise for good reasons.
    """
    word = _MEASURES.search(name.removeprefix("val_"))
    if word is None or word[0].lower() == "loss":
        return 0.0
    return -1.0 if _BAD.search(word[0]) else 1.0


@dataclass
class _Series:
    """The value that a metric had at all validations so far."""

    value: float
    validations: int = 1
    same: bool = True


class Constant(Rule):
    """Finds a metric that has exactly the same value at all validations."""

    VALIDATIONS = 5
    """The number of validations for a metric: a small validation set may give the same share two
    or three times.
    """
    LOSSES = 3
    """The number for the validation loss, which has many digits. It counts only while the
    training loss has not fallen: a fit that has reached its minimum, to the last digit, has
    fallen before.
    """
    MOVED = 0.01
    METRICS = 500
    """How many metrics are looked at: the first ones, since all are looked at after each
    validation.
    """

    def __init__(self, start: RunStarted) -> None:
        self._series: dict[str, _Series] = {}
        self._step = 0
        self._first, self._lowest = math.nan, math.inf
        self._trains = True

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._trains &= not several(event)
            loss = column(event, "loss")
            known = loss[~(loss != loss)]
            if len(known):
                self._first = float(known[0]) if math.isnan(self._first) else self._first
                self._lowest = min(self._lowest, float(known.min()))
        elif isinstance(event, Validated) and event.step > self._step and not event.asked:
            self._step = event.step
            for name, value in event.metrics.items():
                if name not in self._series and len(self._series) >= self.METRICS:
                    continue
                series = self._series.setdefault(name, _Series(value, 0))
                series.validations += 1
                series.same = series.same and value == series.value

    def findings(self) -> Iterator[Finding]:
        for name, series in self._series.items():
            if not series.same or not math.isfinite(series.value) or name.endswith("_averaged"):
                continue
            if name == "val_loss":
                fell = self._lowest < self._first - self.MOVED * abs(self._first)
                if series.validations >= self.LOSSES and series.value and self._trains and not fell:
                    text = (
                        f"val_loss was {series.value:.6g} at all {series.validations} validations"
                    )
                    yield Finding(
                        "warning",
                        text,
                        "do the weights that it is computed from train, and is the learning rate"
                        " high enough?",
                    )
            elif series.validations >= self.VALIDATIONS and self._is_measured(name, series.value):
                text = f"{name} was {series.value:.6g} at all {series.validations} validations"
                yield Finding(
                    "info",
                    text,
                    "is it computed from the outputs? A model that gives one class to all samples"
                    " looks so too",
                )

    def _is_measured(self, name: str, value: float) -> bool:
        best = 0.0 if _BAD.search(name) else 1.0
        if value == best:
            return False  # an easy task is solved at the first validation
        return _MEASURES.search(name.removeprefix("val_")) is not None or value != float(
            f"{value:.3g}"
        )
