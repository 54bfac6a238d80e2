"""Finds the ranges at an end of which the best trials of a study lie."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from workbench.runs.study.record import StudyRecord
from workbench.settings.space import Choice, Dimension, Float, Int, Space
from workbench.tuners.study.brackets import ranked

_EDGE, _OUTER = 0.06, 0.2
"""The best trial is at a boundary within the first share of a range, if the median of the best
three is within the second.
"""
_GOOD = 3
_KNOWN = 9
"""The trials with a value that are needed to say so."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A dimension at one end of which the best trials lie."""

    dimension: Dimension
    upper: bool


def at_boundary(record: StudyRecord) -> list[Boundary]:
    """The ranges at an end of which the best trials lie, so that better ones may lie beyond."""
    space = Space.from_record(record.space, record.priors)
    best = ranked(record)
    if len(best) < _KNOWN:
        return []
    points = [space.units(trial.values) for trial in best[:_GOOD]]
    boundaries = []
    for k, dimension in enumerate(space.dimensions):
        units = [point[k] for point in points]
        if any(unit is None for unit in units) or not _has_ends(dimension):
            continue
        numbers = [unit for unit in units if unit is not None]
        step = 1 / len(dimension.choices) if isinstance(dimension, Choice) else 0.0
        for upper in (False, True):
            inner = [1 - unit if upper else unit for unit in numbers]
            at_end = inner[0] <= max(_EDGE, step)
            near = at_end and statistics.median(inner) <= max(_OUTER, step)
            if near and (upper or not _is_zero(dimension)):
                boundaries.append(Boundary(dimension, upper))
    return boundaries


def _has_ends(dimension: Dimension) -> bool:
    if isinstance(dimension, Choice):
        numbers = [choice for choice in dimension.choices if choice is not None]
        return dimension.ordered and len(numbers) > 2
    return True


def _is_zero(dimension: Dimension) -> bool:
    """Whether its range begins at 0, below which there is nothing."""
    if isinstance(dimension, Choice):
        return any(choice in (0, None) for choice in dimension.choices)
    return isinstance(dimension, Float | Int) and dimension.low <= 0
