"""The loss over a run: every update, the trend, the validation checks, and where a live change took hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.ranges import span, typical, wide
from workbench.plots.smooth import beta_for, ema

Changes = Sequence[tuple[int, Mapping[str, float | None]]]
"""Live changes: from which update on, and the new values."""
_SAY = {"gradient_clip_val": "clip"}
_LETTER = 0.011
"""The width of a letter of a mark's label as a share of the axis, generously."""


def loss(
    step: Array,
    loss: Array,
    val_step: Array | None = None,
    val_loss: Array | None = None,
    changes: Changes = (),
) -> Chart:
    """The chart of `loss` (rows,) at update `step` (rows,), with `val_loss` (checks,) after `val_step` updates.

    The y axis is logarithmic where the trend spans more than a factor of 50, and is cut so that single
    outliers of the raw loss do not flatten the rest.
    """
    trend = ema(loss, beta_for(len(loss)))
    series = [Series("each update", step, loss, "faint"), Series("smoothed", step, trend)]
    checks = np.empty(0)
    if val_step is not None and val_loss is not None and len(val_step):
        checks = val_loss
        series.append(Series("validation", val_step, val_loss, "points", 1))
    log = wide(np.concatenate([trend, checks])) and bool(np.nanmin(loss) > 0)
    return Chart(
        title="Loss",
        x=Axis("update"),
        y=Axis("loss", log=log, range=span(typical(loss), trend, checks, log=log)),
        series=tuple(series),
        marks=change_marks(changes, step),
        notes=() if len(step) else ("No updates were recorded.",),
    )


def change_marks(changes: Changes, step: Array) -> tuple[Mark, ...]:
    """A line for each change. Where labels would run into one another, several changes share the first one's."""
    length = max(1.0, float(step[-1] - step[0])) if len(step) else 1.0
    groups: list[list[tuple[int, str]]] = []
    for at, values in changes:
        text = ", ".join(f"{_SAY.get(name, name)} → {_value(value)}" for name, value in values.items())
        if groups:
            first = groups[-1][0][0]
            room = (at - first) / length / _LETTER
            if room < (len(_label(groups[-1])) + len(text)) / 2:
                groups[-1].append((at, text))
                continue
        groups.append([(at, text)])
    return tuple(mark for group in groups for mark in _marks(group))


def _label(group: list[tuple[int, str]]) -> str:
    return ", ".join(text for _, text in group) if len(group) <= 2 else f"{len(group)} changes"


def _marks(group: list[tuple[int, str]]) -> list[Mark]:
    why = "; ".join(f"from update {at}: {text}" for at, text in group)
    return [Mark(at, "" if i else _label(group), why=why) for i, (at, _) in enumerate(group)]


def _value(value: float | None) -> str:
    return "off" if value is None else f"{value:.3g}"
