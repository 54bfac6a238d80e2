"""Plots gradient norms: each layer over time, and their total against the clip value.

How to read it: rows that go dark towards the top are layers that stop learning (vanishing); a
column that lights up in all rows is an explosion. Where the total is above the clip line, that
update was scaled down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Heat, Series
from workbench.plots.downsample import corners
from workbench.plots.ranges import span, wide
from workbench.plots.training.changes import Changes, change_marks
from workbench.values import first_names

_COLUMNS = 400
NOTHING = 1e-6
"""The share of the largest norm of its update that a layer's norm never exceeds where sums
cancel.
"""
_CANCELS = re.compile(r"(bias|weight_g|\.original0)$")


def cancels(layer: str) -> bool:
    """Whether a normalisation behind this parameter may remove its effect, so that its gradient is
    rounding noise: it is a bias, or a weight norm's scale.

    A bias before BatchNorm, or that of a key in attention (softmax), moves all that is normalised
    by the same amount.
    """
    return _CANCELS.search(layer) is not None


def grad_norm(
    step: Array,
    total: Array,
    layers: Mapping[str, Array],
    clip: Array | None = None,
    changes: Changes = (),
    share: float | None = None,
    layer_step: Array | None = None,
) -> list[Chart]:
    """The heat map of `layers` (name: norms (rows,), before clipping), where there are any, and the
    total's chart.

    `total` is before clipping and `clip` the clip value in force at each row (NaN: off), both of
    shape (rows,).
    `layer_step`: the updates that `layers` are of, where these are not all. `share` of the updates
    with clipping on was clipped; None: there were none.
    """
    charts = []
    marks = change_marks(changes, step)
    if layers and len(step):
        table = np.stack([np.asarray(v, np.float64) for v in layers.values()])
        noise = _rounding_noise(table, tuple(layers))
        table[noise] = np.nan
        noisy = [name for name, is_noise in zip(layers, noise, strict=True) if is_noise]
        charts.append(
            Chart(
                "Gradient norm by layer",
                Axis("update"),
                Axis("layer"),
                heat=_heat(step if layer_step is None else layer_step, table, tuple(layers)),
                notes=_of_noise(noisy),
            )
        )
    series = [Series("total, before clipping", step, total, "thin")]
    limit = np.full(len(step), np.nan) if clip is None else np.asarray(clip, np.float64)
    if np.isfinite(limit).any():
        kept = corners(limit)
        series.append(Series("clip value", step[kept], limit[kept], "limit", 1))
    # A spike of a few updates is what one looks for: it must stay in the picture, and not flatten
    # the rest.
    log = wide(np.concatenate([total, limit]), 10)
    return [
        *charts,
        Chart(
            "Total gradient norm",
            Axis("update"),
            Axis("gradient norm", log=log, range=span(total, limit, log=log)),
            tuple(series),
            marks,
            notes=_summary(total, share),
        ),
    ]


def _heat(step: Array, table: Array, names: tuple[str, ...]) -> Heat:
    """At most `_COLUMNS` columns; one for many updates shows the greatest, so a spike stays
    visible.
    """
    width = -(-len(step) // _COLUMNS)
    starts = np.arange(0, len(step), width)
    greatest = np.fmax.reduceat(table, starts, axis=1)
    blank = "" if (greatest > 0).all() else " (blank: none, zero or rounding noise)"
    return Heat(step[starts], names, greatest, f"gradient norm{blank}")


def _rounding_noise(table: Array, names: tuple[str, ...]) -> Array:
    """Which layers never have more than rounding noise; `table`: norms of shape (layers, rows)."""
    largest = np.where(np.isfinite(table), table, 0.0).max(axis=0)
    tiny = (table > 0).any(axis=1) & ~(table > NOTHING * largest).any(axis=1)
    noise: Array = np.array([cancels(name) for name in names], dtype=np.bool_) & tiny
    return noise


def _of_noise(names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    why = "A normalisation behind it removes its effect, which is harmless."
    return (f"Rounding noise: {first_names(names, 3)}. {why}",)


def _summary(total: Array, share: float | None) -> tuple[str, ...]:
    finite = total[np.isfinite(total)]
    if not finite.size:
        return ()
    p50, p95 = np.quantile(finite, [0.5, 0.95])
    text = f"p50 {p50:.3g}, p95 {p95:.3g}"
    return (
        text if share is None else f"clipped {share:.0%} of the updates with clipping on · {text}",
    )
