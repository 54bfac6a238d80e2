"""Plots update ratios: how far each update moved a layer's weights, relative to the weights.

How to read it: about 1e-3 is usual (Karpathy, 2022); a row far below hardly learns, one far above
is moved too fast for its rate. The whole step counts, with momentum, weight decay and clipping.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Heat
from workbench.plots.names import shorten
from workbench.plots.training.changes import Changes, change_marks

USUAL = 1e-3
_COLUMNS = 400


def update_ratio(
    step: Array, layers: Mapping[str, Array], changes: Changes = (), layer_step: Array | None = None
) -> list[Chart]:
    """The heat map of `layers` (name: ratios (rows,), NaN between two measurements); none where
    nothing was measured.

    `layer_step`: the updates that `layers` are of, where these are not all of `step`.
    """
    at = step if layer_step is None else layer_step
    if not layers or not len(step):
        return []
    measured_anywhere = np.zeros(len(at), dtype=np.bool_)
    for values in layers.values():
        measured_anywhere |= ~np.isnan(values)
    measured = np.flatnonzero(measured_anywhere)  # one in thousands, of a long run
    if not len(measured):
        return []
    held = _held(np.stack([np.asarray(values[measured], np.float64) for values in layers.values()]))
    width = -(-len(measured) // _COLUMNS)
    starts = np.arange(0, len(measured), width)
    heat = Heat(
        at[measured[starts]],
        tuple(layers),
        np.fmax.reduceat(held, starts, axis=1),
        "update ratio",
        USUAL,
    )
    return [
        Chart(
            "How far an update moves each layer, relative to its weights",
            Axis("update"),
            Axis("layer"),
            heat=heat,
            marks=change_marks(changes, step),
            notes=_notes(tuple(layers), held[:, -1]),
        )
    ]


def _held(table: Array) -> Array:
    """The ratios, each held until the next one of its layer: several optimizers are not measured
    at the same updates.
    """
    latest = np.maximum.accumulate(np.where(np.isnan(table), 0, np.arange(table.shape[1])), axis=1)
    return np.take_along_axis(table, latest, axis=1)


def _notes(names: tuple[str, ...], last: Array) -> tuple[str, ...]:
    usual = (
        "About 1e-3 is usual; far below, a layer hardly learns, far above, it is moved too fast."
    )
    finite = np.flatnonzero(np.isfinite(last))
    if not len(finite):
        return (usual,)
    low, high = finite[np.argmin(last[finite])], finite[np.argmax(last[finite])]
    ends = f"{last[low]:.2g} ({shorten(names[low])}) to {last[high]:.2g} ({shorten(names[high])})"
    return (usual, f"At the last measurement: {ends}.")
