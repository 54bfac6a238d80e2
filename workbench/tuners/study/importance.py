"""Estimates how much each dimension of a space matters, from the trials of a study."""

from __future__ import annotations

import math

import numpy as np

from workbench.runs.study.record import StudyRecord
from workbench.runs.tables.importance import Factor, Importance, importances
from workbench.settings.space import Choice, Space


def importance(record: StudyRecord) -> dict[str, Importance]:
    """The share of each dimension, at the rung at which most trials have a value; empty where
    these are fewer than nine. What two dimensions explain together alone belongs to neither.
    """
    space = Space.from_record(record.space, record.priors)
    by_rung: list[list[tuple[float, list[float | None]]]] = [[] for _ in record.head.rungs]
    for trial in record.trials:
        for rung in range(len(by_rung)):
            score = record.score_at(trial, rung)
            end = trial.end(rung)
            if end is not None and (math.isfinite(score) or end.status == "infeasible"):
                by_rung[rung].append((score, space.units(trial.values)))
    rows = max(by_rung, key=len)
    factors = {
        dimension.name: Factor(
            np.array([math.nan if units[k] is None else units[k] for _, units in rows]),
            isinstance(dimension, Choice),
        )
        for k, dimension in enumerate(space.dimensions)
    }
    return importances(np.array([score for score, _ in rows]), factors, record.head.seed)
