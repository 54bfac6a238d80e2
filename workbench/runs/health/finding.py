"""Defines a finding, and what the rules share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.events import Event, StepsDone
from workbench.runs.printable import printable
from workbench.runs.record.series import column

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` says what, `remedy` what to do, `step` at or since which update (None: all along)."""

    level: Level
    text: str
    remedy: str = ""
    step: int | None = None

    def __str__(self) -> str:
        return printable(f"{self.text}; {self.remedy}" if self.remedy else self.text)


class Rule(Protocol):
    """Hears the events of one fit, keeps little of them, and speaks only where it is right."""

    def on_event(self, event: Event) -> None: ...

    def findings(self) -> Iterator[Finding]: ...


def taken(event: StepsDone) -> NDArray[np.bool_]:
    """The rows of a flush whose updates were taken and met finite numbers alone, shape (rows,)."""
    good = ~(column(event, "skipped") > 0) & ~np.isinf(column(event, "grad_norm"))
    loss = column(event, "loss")
    # Of several optimizers that take turns there is no loss of all together: NaN there is not a number gone wrong.
    there: NDArray[np.bool_] = good & (np.isfinite(loss) if not several(event) else ~np.isinf(loss))
    return there


def several(event: StepsDone) -> bool:
    """Whether several optimizers did it."""
    return "loss.1" in event.columns or "lr.1" in event.columns
