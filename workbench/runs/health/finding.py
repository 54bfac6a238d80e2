"""Defines a finding, the base classes of rules, and functions that the rules share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench import units
from workbench.events import Event, RunStarted, StepsDone
from workbench.runs.printable import printable
from workbench.runs.record.series import column

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a run. `text` describes it, `advice` says what to do, `step` at or since which
    update it occurs (None: always).

    `remedy`: a line of code that carries out the advice, on a bench with the name `bench`
    (`bench.set(lr=0.003)`); "": no single line
    does. `trouble`: if the result of the run is in doubt, the reason in a word or two, which is
    shown next to its status.
    """

    level: Level
    text: str
    advice: str = ""
    step: int | None = None
    remedy: str = ""
    trouble: str = ""

    def __str__(self) -> str:
        return printable(f"{self.text}; {self.advice}" if self.advice else self.text)


class Rule(Protocol):
    """A rule of health: it gets the events of one fit, keeps little of them, and reports only
    where it is sure.
    """

    def on_event(self, event: Event) -> None:
        """Take the next event of the fit."""

    def findings(self) -> Iterator[Finding]:
        """Yield the present findings; usually there are none."""


class OneFinding(Rule):
    """A rule that reports at most one finding."""

    def __init__(self, start: RunStarted) -> None:
        self._found: Finding | None = None

    def findings(self) -> Iterator[Finding]:
        if self._found is not None:
            yield self._found


def taken(event: StepsDone) -> NDArray[np.bool_]:
    """For each row of a flush, whether its update was taken and had only finite values, shape
    (rows,).
    """
    good = ~(column(event, "skipped") > 0) & ~np.isinf(column(event, "grad_norm"))
    loss = column(event, "loss")
    # With several optimizers that take turns there is no common loss: its NaN does not mean a
    # non-finite value.
    finite: NDArray[np.bool_] = good & (
        np.isfinite(loss) if not several(event) else ~np.isinf(loss)
    )
    return finite


def in_a_line(error: str) -> str:
    """The line of a recorded error that names it: its first line, or the last one of a
    traceback.
    """
    lines = error.strip().splitlines() or ["no reason was given"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def several(event: StepsDone) -> bool:
    """Whether several optimizers took the updates."""
    return "loss.1" in event.columns or "lr.1" in event.columns


def warmup_of(start: RunStarted) -> int:
    """The updates over which the learning rate rises from zero."""
    warmup = start.settings.get("warmup", 0)
    if isinstance(warmup, float) and 0 <= warmup < 1:
        return int(warmup * (start.updates or 0))
    return int(warmup) if isinstance(warmup, float | int) and math.isfinite(warmup) else 0


def lower_rate(start: RunStarted, times: float) -> str:
    """The line of code that divides the learning rate of a run; "" where its record has no rate."""
    rate = start.settings.get("lr")
    if (
        not isinstance(rate, float | int)
        or isinstance(rate, bool)
        or not math.isfinite(rate)
        or rate <= 0
    ):
        return ""
    return f"bench.set(lr={units.rate(rate / times, 2)})"


def noise_of(losses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The median of the logarithms of positive losses, and half the width of the interval with 80%
    of them; for a table, of each row.
    """
    low, median, high = np.quantile(np.log(losses), (0.1, 0.5, 0.9), axis=-1)
    return median, (high - low) / 2


HEAVY = 1.0
"""With a larger spread of losses (`noise_of`), a single loss does not show the level at which a
fit began (batches of one or two samples).
"""
FIND_RATE = "bench.find_lr()"
