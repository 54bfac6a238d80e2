"""Plots a race of recipes: the held-out loss of each recipe, for each length of stretches.

How to read it: lower is better. A recipe that is on the longest line was in the last round, whose
losses decide; the lines above it are those of shorter stretches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from workbench.plots.chart import Axis, Chart, Mark, Series
from workbench.plots.names import recipe_name


class RecipeTrialLike(Protocol):
    """The attributes of a trial that are drawn (`events.RecipeTrial` has them)."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def updates(self) -> int: ...
    @property
    def loss(self) -> float: ...


def recipe(trials: Sequence[RecipeTrialLike], best: Mapping[str, Any]) -> Chart:
    """The chart of the trials, by their recipe."""
    names = list(dict.fromkeys(recipe_name(trial.values) for trial in trials))
    losses = [trial.loss for trial in trials if np.isfinite(trial.loss)]
    highest = max(losses, default=0.0)
    series, marks = [], []
    for tone, updates in enumerate(dict.fromkeys(trial.updates for trial in trials)):
        of_round = [trial for trial in trials if trial.updates == updates]
        finite = sorted(
            (names.index(recipe_name(trial.values)), trial.loss)
            for trial in of_round
            if np.isfinite(trial.loss)
        )
        places = np.array([position for position, _ in finite], dtype=np.float64)
        values = np.array([loss for _, loss in finite], dtype=np.float64)
        series.append(Series(f"after {updates} updates", places, values, "dots", tone))
        for trial in of_round:
            if not np.isfinite(trial.loss):
                position = names.index(recipe_name(trial.values))
                marks.append(Mark(position, "diverged", highest, failed=True))
    last = next(
        (t for t in reversed(trials) if best and recipe_name(t.values) == recipe_name(best)), None
    )
    if last is not None and np.isfinite(last.loss):
        position = names.index(recipe_name(last.values))
        marks.append(Mark(position, "best", last.loss, emphasis=True))
    return Chart(
        "Recipes", Axis("recipe", ticks=tuple(names)), Axis("held-out loss"), tuple(series),
        tuple(marks),
    )  # fmt: skip
