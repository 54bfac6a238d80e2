"""Defines `Drawable`: a result that draws its charts with plotly or matplotlib."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, overload

from workbench.plots.chart import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from workbench.plots.drawing.interactive import Interactive
    from workbench.plots.drawing.picture import Picture


class Drawable:
    """A result with charts. `figure` and `plot` load plotly and matplotlib when they are called."""

    @abstractmethod
    def _charts(self) -> list[Chart]:
        """The charts to draw, the most important one first."""

    def figure(self) -> Interactive:
        """All charts of the result, as an interactive plotly figure."""
        from workbench.plots.drawing import plotly

        return plotly.figure(self._charts())

    @overload
    def plot(self, ax: None = None) -> Picture: ...
    @overload
    def plot(self, ax: Axes) -> Axes: ...

    def plot(self, ax: Axes | None = None) -> Picture | Axes:
        """All charts of the result, as a matplotlib figure; with `ax`, the first is drawn there
        and `ax` is returned.
        """
        from workbench.plots.drawing import matplotlib

        return (
            matplotlib.figure(self._charts())
            if ax is None
            else matplotlib.draw(self._charts()[0], ax)
        )
