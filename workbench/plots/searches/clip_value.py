"""Plots which share of the updates each clip value would cut: of a clip search, and of a run's
recorded norms.

How to read it: lines that lie apart mean that norms change while it trains, so no single value cuts
the same share all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.units import rate


def clip_value(norms: Sequence[Array], suggestion: float | None = None) -> Chart:
    """The chart of the shares, of the first, the middle and the last third of the updates.

    `norms`: before clipping, shape (rows,) for each optimizer.
    """
    series: list[Series] = []
    for tone, (name, third) in enumerate(
        (("first third", 0), ("middle third", 1), ("last third", 2))
    ):
        thirds = [np.array_split(np.asarray(norm, np.float64), 3)[third] for norm in norms]
        known = np.sort(
            np.concatenate(
                [norm[np.isfinite(norm) & (norm > 0)] for norm in thirds] or [np.empty(0)]
            )
        )
        if len(known):
            series.append(
                Series(
                    name, known, 100 * (1 - np.arange(1, len(known) + 1) / len(known)), "line", tone
                )
            )
    why = "at most a tenth of the norms exceed it"
    marks = (
        ()
        if suggestion is None
        else (Mark(suggestion, rate(suggestion), None, emphasis=True, why=why),)
    )
    return Chart(
        "Share of updates that a clip value would cut",
        Axis("clip value", log=True),
        Axis("clipped", "%", range=(-4, 104)),
        tuple(series),
        marks,
    )
