"""A plotly figure that saves itself without a browser. Imports plotly: import it only to draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from plotly.graph_objects import Figure

from workbench.plots.chart import Chart
from workbench.plots.drawing import matplotlib

_PAGE = (".html", ".htm")


class Interactive(Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly Figure that knows the charts it was made of, so that matplotlib can draw them
    too.
    """

    _charts: Sequence[Chart] = ()

    @classmethod
    def of(cls, charts: Sequence[Chart]) -> Self:
        """Make an empty figure for these charts."""
        figure = cls()
        figure._charts = charts
        return figure

    def save(self, path: str | Path) -> Path:
        """Write it into a file: ".html" is this figure with all that it needs (5 MB); ".png",
        ".svg" and ".pdf" are pictures.

        matplotlib draws the pictures from the same data, so that no browser is needed; what you
        changed in this figure is not in them.
        """
        path = Path(path).expanduser()
        if path.suffix.lower() in _PAGE:
            self.write_html(path)
            return path
        if not self._charts:
            raise ValueError(
                f"{path.name}: a copy of a figure can only be saved as .html. Save the figure that"
                " .figure() has returned."
            )
        return matplotlib.figure(self._charts).save(path)
