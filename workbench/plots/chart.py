"""Defines `Chart`: a plot as plain data, before any library draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

Array = NDArray[Any]
Style = Literal["line", "thin", "points", "dots", "scatter", "faint", "bar", "limit"]
"""line: a trend; thin: a noisy line alone; points: diamonds joined by a dotted line; dots: circles
joined by a line; scatter: circles alone;
faint: drawn behind a line; limit: dashed steps.
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. `ticks` names the places 0, 1, 2 … of a categorical one; `range` is (low, high)
    in data units.
    """

    label: str
    unit: str = ""
    log: bool = False
    range: tuple[float, float] | None = None
    ticks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Points (x, y), both of shape (n,). `tone` is the place in the palette; equal tones belong
    together.

    Without a name it is not in the legend. `dash` is the place among the dashes of a line; 0 is
    drawn through.
    """

    name: str
    x: Array
    y: Array
    style: Style = "line"
    tone: int = 0
    dash: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at `x` (y None) or a point. `label` is short; `why` is read on hovering."""

    x: float
    label: str
    y: float | None = None
    emphasis: bool = False
    failed: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded range of x."""

    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """A heat map: `z` of shape (rows, columns), named `rows` from top to bottom, `x` of shape
    (columns,).

    Colours are logarithmic; NaN and what is not above zero stay blank. With a `centre` they part
    there, two decades to
    either side: what has a usual value.
    """

    x: Array
    rows: tuple[str, ...]
    z: Array
    label: str
    centre: float | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """The values at the ends of the colour scale; None: the least and the greatest value of
        the map.
        """
        return None if self.centre is None else (self.centre / 100, self.centre * 100)


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """One plot. `notes` are sentences to read under it."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    heat: Heat | None = None
    notes: tuple[str, ...] = ()

    @property
    def height(self) -> float:
        """The height that it needs, as a multiple of the height of a plain chart."""
        return 1.0 if self.heat is None else min(2.2, 0.5 + 0.06 * len(self.heat.rows))

    @property
    def has_bars(self) -> bool:
        """Whether its plain marks are words above bars, and no points."""
        return any(series.style == "bar" for series in self.series)
