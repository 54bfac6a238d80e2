"""The loss over a run: every update, the trend, the validation checks, and where a live change took hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.ranges import span, typical, wide
from workbench.plots.smooth import beta_for, ema

Changes = Sequence[tuple[int, Mapping[str, float | None]]]
"""Changes on the way: from which update on, and the new values."""
_SAY = {"gradient_clip_val": "clip", "batch_size": "batch size", "accumulate_grad_batches": "accumulated"}
_LETTER = 0.011
"""The width of a letter of a mark's label as a share of the axis, generously."""


def loss(
    step: Array,
    loss: Array,
    val_step: Array | None = None,
    val_loss: Array | None = None,
    changes: Changes = (),
    *,
    averaged: Array | None = None,
    parts: Mapping[str, Array] | None = None,
) -> Chart:
    """The chart of `loss` (rows,) at update `step` (rows,), with `val_loss` (checks,) after `val_step` updates.

    `averaged` (checks,) is that of the averaged weights, and `parts` (name: losses (rows,)) what each of several
    optimizers had, NaN where it had no turn. The y axis is logarithmic where the trend spans more than a factor of
    50, and is cut so that single outliers of the raw loss do not flatten the rest.
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
    log = wide(np.concatenate([*trends, checks])) and bool(np.nanmin(loss) > 0)
    return Chart(
        title="Loss",
        x=Axis("update"),
        y=Axis("loss", log=log, range=span(typical(loss), *trends, checks, log=log)),
        series=tuple(lines),
        marks=change_marks(changes, step),
        notes=() if len(step) else ("No updates were recorded.",),
    )


_TONES = (2, 4, 3, 1)
"""Of the optimizers: navy is their sum, orange the validation."""


def _updates(step: Array, loss: Array, parts: Mapping[str, Array]) -> list[Series]:
    """The raw loss and its trend, and each optimizer's trend. Where they take turns there is no sum, but a raw loss each."""
    turns = len(parts) > 1 and bool((np.isfinite(np.stack([*parts.values()])).sum(axis=0) <= 1).all())
    trend = Series("sum, smoothed" if parts else "smoothed", step, ema(loss, beta_for(len(loss))))
    lines = [] if turns else [Series("each update", step, loss, "faint"), trend]
    for i, (name, values) in enumerate(parts.items()):
        there = np.isfinite(values)
        tone = _TONES[i % len(_TONES)]
        if turns:
            lines.append(Series("", step[there], values[there], "faint", tone))
        lines.append(Series(name, step[there], ema(values[there], beta_for(int(there.sum()))), tone=tone))
    return lines


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
    if value is None:
        return "off"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
