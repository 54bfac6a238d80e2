"""Defines `LRCurve`, the result of the LR finder: the measured curve, and the suggestion of each
rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.events import CurveEnded, CurvePoint, RaceTrial, Suggestion
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.lr_curve import lr_curve
from workbench.runs.printable import printable
from workbench.runs.tables.render import data_frame
from workbench.settings.spellings import with_hints
from workbench.units import rate

if TYPE_CHECKING:
    from pandas import DataFrame

NOT_ENDED = "not ended"
SWA_LRS = (0.05, 0.5)
"""The lowest and the highest rate for SWA, as shares of the suggestion: well within the range in
which SWA works equally well (`tests/benchmarks/swa_regret.py`).
"""


@with_hints("curve")
@dataclass(frozen=True, eq=False)
class LRCurve(Drawable):
    """One sweep of learning rates.

    `lrs` (of the swept optimizer's first parameter group), `losses` (that optimizer's, raw, one per
    update) and
    `smoothed`: float64 arrays, shape (points,), read-only.
    `suggestions`: each rule's `Suggestion` by name; `suggestion`: the recommended rate
    (`landmarks`), None if none can
    be trusted. `ended`: why the sweep ended; `notes`: what to know before trusting it; `diverged`:
    the first rate whose loss diverged or was not finite, None if there was none. `race`: the rates
    that trained for a while (`find_lr(race=True)`), in their order; `suggestion` is then derived
    from them. `figure()` and `plot()` draw the curve, the suggestions and the notes.
    """

    lrs: NDArray[np.float64]
    losses: NDArray[np.float64]
    smoothed: NDArray[np.float64]
    suggestions: Mapping[str, Suggestion]
    suggestion: float | None
    ended: str
    notes: tuple[str, ...] = ()
    diverged: float | None = None
    race: tuple[RaceTrial, ...] = ()

    def __post_init__(self) -> None:
        for name in ("lrs", "losses", "smoothed"):
            object.__setattr__(self, name, _column(getattr(self, name)))
        object.__setattr__(self, "suggestions", dict(self.suggestions))

    @property
    def swa_lrs(self) -> tuple[float, float] | None:
        """The lowest and the highest rate for the setting `swa_lrs`, derived from the
        suggestion; None: there is no suggestion.
        """
        return (
            None
            if self.suggestion is None
            else (SWA_LRS[0] * self.suggestion, SWA_LRS[1] * self.suggestion)
        )

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> LRCurve:
        """Make it from the events of a run or a record: the last sweep among them, complete or
        not.
        """
        points: list[CurvePoint] = []
        race: list[RaceTrial] = []
        last: CurveEnded | None = None
        for event in events:
            if isinstance(event, CurvePoint):
                # another sweep, at the start of a later epoch
                if event.index == 0 or last is not None:
                    points, race, last = [], [], None
                points.append(event)
            elif isinstance(event, RaceTrial):
                race.append(event)
            elif isinstance(event, CurveEnded):
                last = event
        return cls._of(points, race, last if last is not None else CurveEnded(NOT_ENDED, (), None))

    @classmethod
    def _of(cls, points: list[CurvePoint], race: list[RaceTrial], end: CurveEnded) -> LRCurve:
        return cls(
            lrs=_column([p.lr for p in points]),
            losses=_column([p.loss for p in points]),
            smoothed=_column([p.smoothed for p in points]),
            suggestions={s.name: s for s in end.suggestions},
            suggestion=end.suggestion,
            ended=end.ended,
            notes=end.notes,
            diverged=end.diverged,
            race=tuple(race),
        )

    def to_pandas(self) -> DataFrame:
        """Return a pandas data frame with a row for each update: "lr", "loss" and "smoothed"."""
        return data_frame({"lr": self.lrs, "loss": self.losses, "smoothed": self.smoothed})

    def _charts(self) -> list[Chart]:
        return [
            lr_curve(
                self.lrs,
                self.losses,
                self.smoothed,
                self.suggestions,
                self.suggestion,
                self.notes,
                self.race,
            )
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LRCurve):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not len(self.lrs):
            return printable(f"LRCurve: no points ({self.ended})")
        span = f"{len(self.lrs)} points from {rate(self.lrs[0])} to {rate(self.lrs[-1])}"
        rules = [self._row(s) for s in self.suggestions.values()]
        lines = [
            f"LRCurve: suggestion {_spoken(self.suggestion)} ({span}; {self.ended})",
            *(f"  - {note}" for note in self.notes),
            *([f"  {'rule':<10}{'lr':>9}  why"] if rules else []),
            *rules,
        ]
        return "\n".join(map(printable, lines))

    def _row(self, s: Suggestion) -> str:
        return f"  {s.name:<10}{_spoken(s.lr):>9}  {s.why}"


def _column(values: ArrayLike) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)  # a copy, since the original is writable
    array.flags.writeable = False
    return array


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


def _spoken(lr: float | None) -> str:
    return "none" if lr is None or math.isnan(lr) else rate(lr)
