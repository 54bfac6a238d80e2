"""Plots one value that the model logged, or one metric: by update, over epochs, and on the
validation data.

How to read it: the point of an epoch is after the epoch's last update, and so is a validation's.
"""

from __future__ import annotations

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.names import shorten
from workbench.plots.ranges import span, typical, wide
from workbench.plots.smooth import beta_for, ema
from workbench.plots.training.changes import Changes, change_marks

Points = tuple[Array, Array]
"""Numbers of updates, and the value at each; both of shape (n,)."""


def logged(
    name: str,
    updates: Points | None = None,
    epochs: Points | None = None,
    checks: Points | None = None,
    averaged: Points | None = None,
    changes: Changes = (),
    marks: tuple[Mark, ...] = (),
) -> Chart:
    """The chart of `name`: its values for single updates, over epochs, and of the validations (raw,
    and of averaged weights).

    The axis is logarithmic where what is drawn spans more than a factor of 50. `marks` are drawn
    beside the changes'.
    """
    lines: list[Series] = []
    extent = [_known(points) for points in (epochs, checks, averaged)]
    y = np.empty(0)
    if updates is not None:
        x, y = (column[np.isfinite(updates[1])] for column in updates)
        trend = ema(y, beta_for(len(y)))
        lines += [Series("each update", x, y, "faint"), Series("smoothed", x, trend)]
        extent += [trend, typical(y)]
    if epochs is not None:
        lines.append(Series("over the epoch", *epochs, "dots", 2))
    if checks is not None:
        lines.append(
            Series("validation" if averaged is None else "validation, raw", *checks, "points", 1)
        )
    if averaged is not None:
        lines.append(Series("validation, averaged", *averaged, "dots", 3))
    log = wide(np.concatenate(extent)) and bool((y > 0).all())
    drawn = np.concatenate([line.x for line in lines]) if lines else np.empty(0)
    ends = np.array([drawn.min(), drawn.max()]) if len(drawn) else np.empty(0)
    return Chart(
        title=shorten(name, 60),
        x=Axis("update"),
        y=Axis(shorten(name, 28), log=log, range=span(*extent, log=log)),
        series=tuple(lines),
        marks=(*change_marks(changes, ends), *marks),
    )


def _known(points: Points | None) -> Array:
    return np.empty(0) if points is None else np.asarray(points[1], np.float64)
