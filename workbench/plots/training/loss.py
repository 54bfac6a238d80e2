"""Plots the loss over a run: every update, the trend, the validations, and the live changes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.ranges import span, typical, wide
from workbench.plots.smooth import beta_for, ema
from workbench.plots.training.changes import Changes, change_marks


def loss(
    step: Array,
    loss: Array,
    val_step: Array | None = None,
    val_loss: Array | None = None,
    changes: Changes = (),
    *,
    averaged: Array | None = None,
    sets: Mapping[str, Array] | None = None,
    parts: Mapping[str, Array] | None = None,
    marks: tuple[Mark, ...] = (),
) -> Chart:
    """The chart of `loss` (rows,) at update `step` (rows,), with `val_loss` (validations,) after
    `val_step` updates.

    `averaged` (validations,) is that of the averaged weights, `sets` (name: losses (validations,))
    are those of several validation sets, and `parts` (name: losses (rows,)) what each of several
    optimizers had, NaN where it had no turn; `marks` are drawn beside those of the changes. The y
    axis is logarithmic where the trend spans more than a factor of 50, and is cut so that single
    outliers of the raw loss do not flatten the rest.
    """
    lines = _updates(step, loss, parts or {})
    trends = [line.y for line in lines if line.style == "line"]
    checks = np.empty(0) if val_step is None or val_loss is None else np.asarray(val_loss)
    if val_step is not None and len(checks):
        raw = "validation" if averaged is None else "validation, raw"
        lines.append(Series(raw, val_step, checks, "points", 1))
    if val_step is not None and averaged is not None:
        lines.append(Series("validation, averaged", val_step, averaged, "dots", 3))
        checks = np.concatenate([checks, averaged])
    if val_step is not None and sets:
        lines += [
            Series(name, val_step, of, "points", _OF_SETS[n % len(_OF_SETS)])
            for n, (name, of) in enumerate(sets.items())
        ]
        checks = np.concatenate([checks, *sets.values()])
    log = wide(np.concatenate([*trends, checks])) and bool(np.nanmin(loss) > 0)
    return Chart(
        title="Loss",
        x=Axis("update"),
        y=Axis("loss", log=log, range=span(typical(loss), *trends, checks, log=log)),
        series=tuple(lines),
        marks=(*change_marks(changes, step), *marks),
        notes=() if len(step) else ("No updates were recorded.",),
    )


_OF_SETS = (1, 3, 2, 4)
_TONES = (2, 4, 3, 1)
"""The colours of the optimizers: navy is their sum, orange the validation."""


def _updates(step: Array, loss: Array, parts: Mapping[str, Array]) -> list[Series]:
    """The raw loss and its trend, and each optimizer's trend. Where they take turns there is no
    sum, but a raw loss each.
    """
    turns = len(parts) > 1 and bool(
        (np.isfinite(np.stack([*parts.values()])).sum(axis=0) <= 1).all()
    )
    trend = Series("sum, smoothed" if parts else "smoothed", step, ema(loss, beta_for(len(loss))))
    lines = [] if turns else [Series("each update", step, loss, "faint"), trend]
    for i, (name, values) in enumerate(parts.items()):
        finite = np.isfinite(values)
        tone = _TONES[i % len(_TONES)]
        if turns:
            lines.append(Series("", step[finite], values[finite], "faint", tone))
        lines.append(
            Series(name, step[finite], ema(values[finite], beta_for(int(finite.sum()))), tone=tone)
        )
    return lines
