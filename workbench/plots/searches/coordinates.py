"""Plots the sizes of layers' outputs, or of their changes, against the width of the model.

How to read it: flat lines follow the width. A layer whose line rises is drawn as a thick line: its
change breaks a wide model. One whose line falls, too: it learns less in a wide model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.plots.chart import Axis, Chart, Series, Style


def coordinates(
    title: str,
    widths: Sequence[int],
    layers: Sequence[tuple[str, NDArray[np.float64], bool]],
) -> Chart:
    """The chart of the layers: (name, sizes by width, whether it does not follow)."""
    places = np.array(widths, np.float64)
    series = []
    for tone, (name, sizes, is_off) in enumerate(layers):
        style: Style = "dots"
        if is_off:
            style = "line"
        shown = np.isfinite(sizes) & (sizes > 0)
        series.append(Series(name, places[shown], sizes[shown], style, tone))
    return Chart(title, Axis("width", log=True), Axis("mean |x|", log=True), tuple(series))
