"""A whole run in one picture: its loss above its gradient norms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Chart
from workbench.plots.grad_norm import grad_norm
from workbench.plots.loss import Changes, loss

_LAYER = "grad_norm/"


def run(
    history: Mapping[str, Array],
    validation: Mapping[str, Array],
    changes: Changes = (),
    clip: float | None = None,
    *,
    clips_norm: bool = True,
) -> list[Chart]:
    """The charts of a run, from its `history` and `validation` as `Run` has them.

    `clip` is the clip value that the run began with (None: off). It is drawn only where it limits the norm.
    """
    step = history["step"]
    charts = [loss(step, history["loss"], validation.get("step"), validation.get("val_loss"), changes)]
    layers = {name.removeprefix(_LAYER): v for name, v in history.items() if name.startswith(_LAYER)}
    total = history.get("grad_norm")
    if total is not None:
        limit = clip_line(step, clip, changes) if clips_norm else None
        charts += grad_norm(step, total, layers, limit, changes)
    return charts


def clip_line(step: Array, clip: float | None, changes: Changes) -> Array:
    """The clip value in force at each update, shape (rows,); NaN where it is off."""
    out = np.full(len(step), np.nan if clip is None else clip)
    for at, values in changes:
        if "gradient_clip_val" in values:
            value = values["gradient_clip_val"]
            out[step >= at] = value if value else np.nan
    return out
