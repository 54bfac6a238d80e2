"""Plots the losses of several runs together: smoothed training losses, and the validations.

How to read it: each run has its own colour and dash; diamonds in its colour are its validations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Series
from workbench.plots.ranges import span, wide

X = Literal["update", "epoch", "time"]
AXES: tuple[X, ...] = ("update", "epoch", "time")


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """One run: its loss at `x`, both of shape (n,), and its validations at `val_x`, both of
    shape (validations,).
    """

    name: str
    x: Array
    loss: Array
    val_x: Array
    val: Array


def are_losses(metrics: Collection[str]) -> bool:
    """Whether the metric of the validations can share the axis of the losses."""
    return bool(metrics) and all("loss" in name for name in metrics)


def compare_losses(runs: Sequence[Compared], x: X, metrics: Collection[str] = ()) -> Chart:
    """The chart of these runs. `metrics`: the metric of the validations, which are drawn where it
    is a loss, on the axis of the losses.

    The y axis is logarithmic where the losses span more than a factor of 50.
    """
    checked = are_losses(metrics)
    lines, seen = [], []
    for tone, run in enumerate(runs):
        lines.append(Series(run.name, run.x, run.loss, "line", tone, tone))
        seen.append(run.loss)
        if checked and len(run.val):
            lines.append(Series("", run.val_x, run.val, "points", tone))
            seen.append(run.val)
    log = wide(np.concatenate([np.empty(0), *seen]))
    notes = (
        [f"Lines: training loss, smoothed. Diamonds: {', '.join(sorted(metrics))}."]
        if checked
        else []
    )
    if not any(len(run.x) for run in runs):
        notes = ["No updates were recorded."]
    return Chart(
        title="Runs compared",
        x=Axis(x, "s" if x == "time" else ""),
        y=Axis("loss", log=log, range=span(*seen, log=log)),
        series=tuple(lines),
        notes=tuple(notes),
    )
