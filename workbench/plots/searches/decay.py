"""Plots a search for a weight decay: the held-out loss of each value.

How to read it: lower is better. A clear dip above the present value means that the model overfits
without that much decay; a flat line, that decay matters little here, or only later than the search
has looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from workbench.plots.chart import Axis, Chart, Mark, Series
from workbench.units import rate


class DecayTrialLike(Protocol):
    """The attributes of a trial that are drawn (`events.DecayTrial` has them)."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def loss(self) -> float: ...


def decay(trials: Sequence[DecayTrialLike], suggestion: float | None) -> Chart:
    """The chart of the trials, by their value; the first one's is the present value."""
    inorder = sorted(trials, key=lambda t: t.weight_decay)
    losses = np.array([t.loss for t in inorder], dtype=np.float64)
    finite = np.flatnonzero(np.isfinite(losses))
    highest = float(losses[finite].max()) if len(finite) else 0.0
    marks = []
    for index, trial in enumerate(inorder):
        if not np.isfinite(trial.loss):
            marks.append(Mark(index, "diverged", highest, failed=True))
        elif trial.weight_decay == suggestion:
            marks.append(Mark(index, "suggestion", trial.loss, emphasis=True))
        elif trial is trials[0]:
            marks.append(Mark(index, "present", trial.loss))
    ticks = tuple(rate(t.weight_decay) for t in inorder)
    series = (Series("held-out loss", finite, losses[finite], "dots"),)
    return Chart(
        "Weight decay",
        Axis("weight_decay", ticks=ticks),
        Axis("held-out loss"),
        series,
        tuple(marks),
    )
