"""Where good values of a dimension are expected: a density over the numbers from 0 to 1.

A prior is plain data in the study's record, by name of a dimension:
{"lr": {"center": 3e-3, "factor": 2.0, "edge": 0.3}}: log-normal around `center`, whose logarithm
deviates by that of `factor`; a tenth of the mass at most lies above `edge`, where training
diverges. A dimension without one has its density around the bench's own value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from workbench.settings.space import Choice, Dimension, Float, Int, Space, prior_of

Array = NDArray[np.float64]
GRID = 257
"""The points at which a density is known, from 0 to 1."""
_ABOVE = 0.1
"""The most mass above the edge of divergence."""
_FACTOR = 3.0
"""A decade around the bench's own value: most of the mass."""
_FOUND = 2.0
"""The factor around what a search has found."""
_WIDTH = 0.25
"""The deviation of a density on a linear scale, as a share of the range."""
_NARROWEST = 0.02
_PRESENT = 0.5
"""The share of the bench's own value among values without order."""
_POINTS = np.linspace(0.0, 1.0, GRID)


class Prior:
    """The densities of all dimensions of a space, independent of each other."""

    def __init__(self, space: Space, priors: Mapping[str, Any]) -> None:
        densities = [_density(d, prior_of(d, priors)) for d in space.dimensions]
        self.deviations = [_deviation_of(d, prior_of(d, priors)) for d in space.dimensions]
        """How far good values may be from the expected ones, by dimension."""
        self.densities = np.array(densities)
        self._centers = [_center(d, prior_of(d, priors)) for d in space.dimensions]
        steps = (self.densities[:, 1:] + self.densities[:, :-1]) / 2
        sums = np.concatenate([np.zeros((len(steps), 1)), np.cumsum(steps, axis=1)], axis=1)
        self._areas = sums[:, -1:] / (GRID - 1)
        self._cumulated = sums / sums[:, -1:]

    def at(self, point: Array) -> Array:
        """The point of the prior that has these shares of its mass below it, by dimension."""
        columns = [
            np.interp(share, cumulated, _POINTS)
            for share, cumulated in zip(point, self._cumulated, strict=True)
        ]
        return np.array(columns)

    @property
    def mode(self) -> Array:
        """The point of the highest density."""
        highest = _POINTS[np.argmax(self.densities, axis=1)]
        centers = zip(self._centers, highest, strict=True)
        return np.array([peak if center is None else center for center, peak in centers])

    def log_density(self, points: Array) -> Array:
        """The logarithm of the density at points, a row each; a dimension that is NaN is none."""
        heights = self.densities / self._areas
        logs = np.zeros(len(points))
        for column, height in zip(points.T, heights, strict=True):
            density = np.interp(np.nan_to_num(column), _POINTS, height)
            logs += np.where(np.isnan(column), 0.0, np.log(np.maximum(density, 1e-3)))
        return logs


def _center(dimension: Dimension, prior: Any) -> float | None:
    """The number from 0 to 1 of what was found, or else of the bench's own value, or else the
    middle.
    """
    center = prior.get("center") if isinstance(prior, Mapping) else None
    if isinstance(dimension, Choice):
        return dimension.unit(dimension.present if center is None else center)
    if isinstance(dimension, Float) and dimension.relative:
        return _clamped(dimension, 1.0)
    number = None if center is None else _number(prior, "center")
    if number is not None:
        return _clamped(dimension, number)
    present = dimension.present
    if dimension.has_present and type(present) in (int, float):
        return _clamped(dimension, present)
    return 0.5


def _density(dimension: Dimension, prior: Any) -> Array:
    if isinstance(prior, Mapping):
        center = _number(prior, "center")
        relative = isinstance(dimension, Float) and dimension.relative
        if center is not None and not relative and not isinstance(dimension, Choice):
            deviation = _deviation_of(dimension, prior)
            return _around(dimension, center, deviation, _number(prior, "edge"))
    if isinstance(dimension, Float) and dimension.relative:
        return _around(dimension, 1.0, _deviation_of(dimension, prior), None)
    if isinstance(dimension, Choice):
        center = prior.get("center") if isinstance(prior, Mapping) else None
        return _of_choice(dimension, dimension.present if center is None else center)
    present = dimension.unit(dimension.present) if dimension.has_present else None
    if present is None:
        return np.ones(GRID)
    return _normal(present, _deviation_of(dimension, prior))


def _number(prior: Mapping[str, Any], key: str) -> float | None:
    value = prior.get(key)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _around(dimension: Dimension, center: float, deviation: float, edge: float | None) -> Array:
    density = _normal(_clamped(dimension, center), deviation)
    if edge is not None:
        above = _clamped(dimension, edge) < _POINTS
        share = density[above].sum() / density.sum()
        if share > _ABOVE:
            density[above] *= _ABOVE / (1 - _ABOVE) * (1 - share) / share
    return density


def _clamped(dimension: Dimension, number: float) -> float:
    """The number from 0 to 1 of one that may lie outside the range."""
    assert isinstance(dimension, Float | Int)
    number = min(max(number, dimension.low), dimension.high)
    if dimension.log:
        return math.log(number / dimension.low) / math.log(dimension.high / dimension.low)
    return (number - dimension.low) / (dimension.high - dimension.low)


def _deviation_of(dimension: Dimension, prior: Any) -> float:
    """The deviation of the density, as a share of the range."""
    if isinstance(dimension, Choice) or not cast("Float | Int", dimension).log:
        return _WIDTH
    dimension = cast("Float | Int", dimension)
    factor = _FACTOR
    if isinstance(dimension, Float) and dimension.relative:
        factor = _FOUND
    elif isinstance(prior, Mapping) and _number(prior, "center") is not None:
        factor = _number(prior, "factor") or _FOUND
    deviation = math.log(max(factor, 1.1)) / math.log(dimension.high / dimension.low)
    return max(deviation, _NARROWEST)


def _normal(center: float, deviation: float) -> Array:
    """With a floor, so that no part of the range is impossible."""
    density: Array = np.exp(-0.5 * ((_POINTS - center) / deviation) ** 2)
    return density + 1e-3


def _of_choice(dimension: Choice, center: Any) -> Array:
    """Steps, one for each value: the center has the highest, and neighbours have more of the rest
    where the values have an order.
    """
    count = len(dimension.choices)
    unit = dimension.unit(center)
    weights = np.ones(count)
    if unit is not None and count > 1:
        k = int(unit * count)
        distances = np.abs(np.arange(count) - k)
        rest = np.where(distances > 0, 0.5**distances if dimension.ordered else 1.0, 0.0)
        weights = (1 - _PRESENT) * rest / rest.sum()
        weights[k] = _PRESENT
    return np.array(weights[np.minimum((_POINTS * count).astype(int), count - 1)])
