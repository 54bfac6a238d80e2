"""Proposes the next trial: evenly spread over the space, from the prior, or near a good trial.

Sources: PriorBand (Mallik et al., NeurIPS 2023) mixes these three, and weighs the prior against the
neighbourhood of the best by which of them explains the good trials; the even sequence is Roberts'
generalised golden ratio.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.runs.study.record import StudyRecord, TrialProposal, TrialRecord
from workbench.settings.space import TIMES_FOUND, Choice, Int, Space
from workbench.tuners.study.brackets import candidates, ranked
from workbench.tuners.study.priors import Prior
from workbench.units import rate

Array = NDArray[np.float64]
_EVEN = 1 / 5
"""The share of candidates spread over the whole space, whatever the prior says."""
_NEAR = 0.12
"""How far a trial near a good one is from it, in one dimension, as a share of the range."""
_WIDE = 0.2
"""The deviation of the neighbourhood of the best trial, in which other good trials may be."""
_GOOD = 3
"""How many of the best trials are good."""
_TRIES = 24
"""How many points are drawn for one trial, of which the first new and feasible one is taken."""
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
    known = candidates(record)
    if not any(trial.origin in ("found", "prior") for trial in record.trials):
        values = space.values(list(prior.mode))
        if all(values != trial.values for trial in record.trials):
            return TrialProposal(number, values, "prior", "the values that the searches found")
    origin, why, good = _origin(record, space, prior, random)
    drawn = sum(trial.origin.split()[0] == origin for trial in known)
    point = np.zeros(len(space.dimensions))
    for attempt in range(_TRIES):
        if origin == "near":
            assert good is not None
            point = _near(space, _points(space, [good])[0], prior, random)
        else:
            sequence = [record.head.seed, origin == "prior"]
            even = _even(len(point), sequence, drawn + attempt * 1000)
            point = prior.at(even) if origin == "prior" else even
        if _is_new(space, point, earlier, record):
            break
    else:
        if untried:
            weights = np.exp(prior.log_density(np.array(untried)))
            point = np.array(untried[int(random.choice(len(untried), p=weights / weights.sum()))])
            origin, why, good = "even", "one of the last settings that no trial has", None
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


def _origin(
    record: StudyRecord, space: Space, prior: Prior, random: np.random.Generator
) -> tuple[str, str, TrialRecord | None]:
    """Where the next trial comes from, why, and the good trial that it is near to."""
    if random.random() < _EVEN:
        return "even", "spread evenly over the space, whatever the searches found", None
    good = [t for t in ranked(record) if t.values][:_GOOD]
    if len(good) < _GOOD:
        return "prior", "from where the searches expect good values", None
    points = _points(space, good)
    weights = np.arange(len(good), 0, -1.0)
    by_prior = np.exp(prior.log_density(points))
    by_near = np.exp(_log_near(points))
    share = float(weights @ by_prior / (weights @ by_prior + weights @ by_near))
    if random.random() < share:
        return "prior", f"from where the searches expect good values, which has {share:.0%}", None
    return "near", "", good[int(random.choice(len(good), p=weights / weights.sum()))]


def _log_near(points: Array) -> Array:
    """The logarithm of the density of the neighbourhood of the best at the good points."""
    distances = np.nan_to_num(points - points[0])
    size = math.log(_WIDE * math.sqrt(2 * math.pi))
    logs: Array = -0.5 * np.sum((distances / _WIDE) ** 2, axis=1) - size * points.shape[1]
    return logs


def _points(space: Space, trials: Any) -> Array:
    """The points of trials, a row each; NaN where a trial has no value of a dimension."""
    rows = [[math.nan if u is None else u for u in space.units(t.values)] for t in trials]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(space.dimensions))


def _even(count: int, seed: list[int], index: int) -> Array:
    """A point of a sequence that fills the unit cube evenly, and begins anywhere in it."""
    golden = 2.0
    for _ in range(40):
        golden = (1 + golden) ** (1 / (count + 1))
    steps = golden ** -np.arange(1.0, count + 1)
    start = np.random.default_rng(seed).random(count)
    point: Array = (start + index * steps) % 1.0
    return point


def _near(space: Space, center: Array, prior: Prior, random: np.random.Generator) -> Array:
    """A point near a good one: each number moves a little, each choice may change."""
    point = np.where(np.isnan(center), prior.at(random.random(len(center))), center)
    moves = random.standard_normal(len(center)) * _NEAR
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
    units = [math.nan if u is None else u for u in space.units(space.values(list(point)))]
    differences = np.abs(earlier - np.array(units))
    # a dimension that only one of them has makes them different
    missing = np.isnan(earlier) != np.isnan(units)
    distances = np.max(np.where(missing, 1.0, np.nan_to_num(differences)), axis=1)
    if distances.min() < _SAME:
        return False
    return not record.trials[int(np.argmin(distances))].infeasible


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What a trial changes of another one, in words."""
    changed = [
        f"{name} {_text(before.get(name))} → {_text(value)}"
        for name, value in after.items()
        if before.get(name) != value
    ]
    return ", ".join(changed)


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and TIMES_FOUND in value:
        return f"{rate(value[TIMES_FOUND])}×"
    return rate(value) if isinstance(value, float) else str(value)
