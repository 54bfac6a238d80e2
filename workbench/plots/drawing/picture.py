"""A matplotlib figure that shows itself in a notebook. Imports matplotlib: import it only to
draw.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_DPI = 200
"""Twice what is shown, for sharp text on dense screens."""


def closed_png(figure: Figure, side: int) -> bytes:
    """The PNG file of somebody else's figure, of at most `side` pixels a side. The figure is
    closed in pyplot, and drawn in any thread: a window's own canvas needs the main one.
    """
    FigureCanvasAgg(figure)
    dpi = min(figure.dpi, side / max(*figure.get_size_inches(), 1e-3))
    png = _png(figure, dpi)
    for _ in range(3):  # with savefig.bbox "tight", a legend outside makes it larger than it says
        largest = max(int.from_bytes(png[at : at + 4]) for at in (16, 20))
        if largest <= side:
            break
        dpi *= 0.99 * side / largest
        png = _png(figure, dpi)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    return png


def _png(figure: Figure, dpi: float) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


class Picture(Figure):
    """A Figure made without pyplot, so that any thread may draw one and no global list keeps it
    alive.

    Jupyter draws plain Figures only after pyplot was imported; this one brings its own PNG.
    """

    def save(self, path: str | Path) -> Path:
        """Write it into a file; its ending says how: ".png", ".svg", ".pdf", or another one that
        matplotlib knows; ".png" without one.
        """
        path = Path(path).expanduser()
        path = path if path.suffix else path.with_suffix(".png")
        self.savefig(path, dpi=_DPI)
        return path

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_DPI)
        width, height = self.get_size_inches() * _DPI / 2
        return file.getvalue(), {"width": round(width), "height": round(height)}
