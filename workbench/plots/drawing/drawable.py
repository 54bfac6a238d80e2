"""Defines `Drawable`: a result that draws its charts with plotly or matplotlib."""

from __future__ import annotations

import base64
import html
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

    def _repr_html_(self) -> str:
        """Its charts and its words, as the last line of a notebook's cell shows them."""
        from workbench.plots.drawing import matplotlib

        charts = self._charts()
        png = matplotlib.small_png(matplotlib.figure(charts)) if charts else b""
        return with_picture(
            png, f"<pre style='white-space:pre-wrap'>{html.escape(repr(self))}</pre>"
        )


def with_picture(png: bytes, words: str) -> str:
    """A page of a picture (b"": there is none) with its words below."""
    encoded = base64.b64encode(png).decode("ascii")
    picture = f"<img alt='charts' src='data:image/png;base64,{encoded}'/>" if png else ""
    return f"<div>{picture}{words}</div>"
