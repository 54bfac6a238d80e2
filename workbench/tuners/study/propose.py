"""Proposes the next trial: of points from the whole space, from the prior and near good trials, the
one that may gain most.

Sources: PriorBand (Mallik et al., NeurIPS 2023) draws from these three, and weighs the prior
against the neighbourhood of the best by which of them explains the good trials. `model` chooses
among what was drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.runs.study.record import StudyRecord, TrialProposal, TrialRecord
from workbench.settings.space import Choice, Int, Space, text_of
from workbench.tuners.study.brackets import ranked
from workbench.tuners.study.model import expected_gains
from workbench.tuners.study.priors import Prior

Array = NDArray[np.float64]
_EVEN = 1 / 5
"""The share of points from the whole space, whatever the prior says."""
_NEAR = 0.6
"""How far a point near a good trial is from it, in deviations of the prior."""
_WIDE = 0.2
"""The deviation of the neighbourhood of the best trial, in which other good trials may be."""
_GOOD = 3
"""The best third of the trials is good, and so many at most."""
_DRAWS, _TRIES = 24, 96
"""Of how many points one trial is the best, and how many are drawn to have so many that are new and
not beside one that cannot be trained.
"""
_FEW = 400
"""The most settings of a space that are all counted."""
_SAME = 0.01
"""Points closer than this in all dimensions are the same."""


def propose_found(record: StudyRecord) -> TrialProposal | None:
    """The trial of the values that the searches found; None: there is one, or they are the bench's
    own.
    """
    space = Space.from_record(record.space, record.priors)
    values = space.values(list(Prior(space, record.priors).mode))
    if any(t.values == values or t.origin in ("found", "prior") for t in record.trials):
        return None
    number = record.next_number
    return TrialProposal(number, values, "found", "the values that the searches found")


def propose(record: StudyRecord) -> TrialProposal | None:
    """The next trial of a study: a pure function of its record, seeded by it and the number. None:
    all settings of the space were tried.
    """
    space = Space.from_record(record.space, record.priors)
    untried = _untried(space, record)
    if untried == []:
        return None
    prior = Prior(space, record.priors)
    number = record.next_number
    random = np.random.default_rng([record.head.seed, number])
    earlier = _points(space, record.trials)
    if not any(trial.origin in ("found", "prior") for trial in record.trials):
        values = space.values(list(prior.mode))
        if all(values != trial.values for trial in record.trials):
            return TrialProposal(number, values, "prior", "the values that the searches found")
    sources = _Sources(record, space, prior, random)
    draws = [sources.draw() for _ in range(_TRIES)]
    new = [draw for draw in draws if _is_new(space, draw[0], earlier, record)][:_DRAWS]
    if untried and not new:
        weights = np.exp(prior.log_density(np.array(untried)))
        point = np.array(untried[int(random.choice(len(untried), p=weights / weights.sum()))])
        origin, why, good = "even", "one of the last settings that no trial has", None
    else:
        draws = new or draws[:1]
        points = np.array([_units(space, point) for point, _, _ in draws])
        gains = expected_gains(record, space, prior, earlier, points)
        point, origin, good = draws[0 if gains is None else int(np.argmax(gains))]
        why = sources.why(origin)
    values = space.values(list(point))
    if good is not None:
        origin, why = f"near {good.number}", _difference(good.values, values)
    return TrialProposal(number, values, origin, why)


def all_tried(record: StudyRecord) -> bool:
    """Whether the space has settings to choose from alone, and trials have all of them."""
    return _untried(Space.from_record(record.space, record.priors), record) == []


def _untried(space: Space, record: StudyRecord) -> list[list[float]] | None:
    """The points of all settings that no trial has; None: they are not few, or cannot be counted.
    A dimension that belongs to another choice has any value.
    """
    steps: list[list[float | None]] = []
    for dimension in space.dimensions:
        if isinstance(dimension, Choice):
            steps.append([dimension.unit(choice) for choice in dimension.choices])
        elif isinstance(dimension, Int) and dimension.high - dimension.low < _FEW:
            steps.append([dimension.unit(k) for k in range(dimension.low, dimension.high + 1)])
        else:
            return None
    if math.prod(map(len, steps)) > _FEW:
        return None
    tried = {tuple(space.units(trial.values)) for trial in record.trials}
    untried = []
    for point in itertools.product(*steps):
        units = [0.5 if unit is None else unit for unit in point]
        known = tuple(space.units(space.values(units)))
        if known not in tried:
            tried.add(known)
            untried.append(units)
    return untried


class _Sources:
    """Where points are drawn from."""

    def __init__(
        self, record: StudyRecord, space: Space, prior: Prior, random: np.random.Generator
    ) -> None:
        self._space, self._prior, self._random = space, prior, random
        best = [trial for trial in ranked(record) if trial.values]
        self._good = best[: min(_GOOD, math.ceil(len(best) / 3))]
        self._points = _points(space, self._good)
        weights = np.arange(len(self._good), 0, -1.0)
        self._weights = weights / weights.sum()
        self._share = 1.0
        """Of the prior, beside the neighbourhood of good trials."""
        if self._good:
            by_prior = weights @ np.exp(prior.log_density(self._points))
            by_near = weights @ np.exp(_log_near(self._points))
            self._share = float(by_prior / (by_prior + by_near))

    def draw(self) -> tuple[Array, str, TrialRecord | None]:
        """A point, where it comes from, and the good trial that it is near to."""
        random, count = self._random, len(self._space.dimensions)
        if random.random() < _EVEN:
            return random.random(count), "even", None
        if random.random() < self._share:
            return self._prior.at(random.random(count)), "prior", None
        k = int(random.choice(len(self._good), p=self._weights))
        point = _near(self._space, self._points[k], self._prior, random)
        return point, "near", self._good[k]

    def why(self, origin: str) -> str:
        """What is said of a trial from there."""
        if origin == "even":
            return "from the whole space, whatever the searches found"
        share = "" if self._share == 1 else f", which has {self._share:.0%}"
        return f"from where the searches expect good values{share}"


def _log_near(points: Array) -> Array:
    """The logarithm of the density of the neighbourhood of the best at the good points."""
    distances = np.nan_to_num(points - points[0])
    size = math.log(_WIDE * math.sqrt(2 * math.pi))
    logs: Array = -0.5 * np.sum((distances / _WIDE) ** 2, axis=1) - size * points.shape[1]
    return logs


def _units(space: Space, point: Array) -> Array:
    """The point of what a trial there has; NaN where it has no value of a dimension."""
    units = space.units(space.values(list(point)))
    return np.array([math.nan if unit is None else unit for unit in units])


def _points(space: Space, trials: Any) -> Array:
    """The points of trials, a row each; NaN where a trial has no value of a dimension."""
    rows = [[math.nan if u is None else u for u in space.units(t.values)] for t in trials]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(space.dimensions))


def _near(space: Space, center: Array, prior: Prior, random: np.random.Generator) -> Array:
    """A point near a good one: each number moves a little, each choice may change."""
    point = np.where(np.isnan(center), prior.at(random.random(len(center))), center)
    moves = random.standard_normal(len(center)) * _NEAR * np.array(prior.deviations)
    changes = random.random(len(center)) < 1 / max(len(center), 2)
    fresh = prior.at(random.random(len(center)))
    for k, dimension in enumerate(space.dimensions):
        if isinstance(dimension, Choice):
            point[k] = fresh[k] if changes[k] else point[k]
        else:
            point[k] = abs(point[k] + moves[k])  # reflected at the ends
            point[k] = 2 - point[k] if point[k] > 1 else point[k]
    return np.clip(point, 0.0, 1.0)


def _is_new(space: Space, point: Array, earlier: Array, record: StudyRecord) -> bool:
    """Whether no trial was there, and the nearest one, if it was infeasible, is not too near."""
    if not len(earlier):
        return True
    units = _units(space, point)
    differences = np.abs(earlier - units)
    # a dimension that only one of them has makes them different
    missing = np.isnan(earlier) != np.isnan(units)
    distances = np.max(np.where(missing, 1.0, np.nan_to_num(differences)), axis=1)
    if distances.min() < _SAME:
        return False
    return not record.trials[int(np.argmin(distances))].infeasible


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What a trial changes of another one, in words."""
    changed = [
        f"{name} {text_of(before.get(name))} → {text_of(value)}"
        for name, value in after.items()
        if before.get(name) != value
    ]
    return ", ".join(changed)
