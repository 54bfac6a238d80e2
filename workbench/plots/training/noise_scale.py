"""Plots the gradient noise scale of a fit: the batch size beyond which more samples in an update
gain little.

How to read it: it grows while the loss falls. A module whose line lies far above the others has the
noisiest gradient, and gains most from larger batches; where a line is missing, its mean gradient is
lost in noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Series
from workbench.plots.names import shorten
from workbench.plots.palette import TONES
from workbench.plots.ranges import span
from workbench.plots.training.changes import Changes, change_marks


def noise_scale(step: Array, lines: Mapping[str, Array], changes: Changes = ()) -> list[Chart]:
    """The chart of `lines` (name: noise scale in samples (rows,), NaN where it is not known);
    none without lines.
    """
    if not lines or not len(step):
        return []
    series = []
    for number, (name, values) in enumerate(lines.items()):
        finite = np.isfinite(values)
        series.append(
            Series(
                shorten(name),
                step[finite],
                values[finite],
                tone=number % len(TONES),
                dash=number // len(TONES),
            )
        )
    extent = span(*(line.y for line in series), log=True)
    axis = Axis("noise scale", "samples", log=True, range=extent)
    return [
        Chart(
            "Gradient noise scale",
            Axis("update"),
            axis,
            tuple(series),
            change_marks(changes, step[[0, -1]]),
        )
    ]
