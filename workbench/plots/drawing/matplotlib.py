"""Draws a `Chart` with matplotlib, without pyplot or changed rcParams: both are global, and jobs
draw from threads.

For the same reason, and because a layer's name may hold a `$`, no text is parsed as mathematics.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots import palette
from workbench.plots.chart import Array, Axis, Band, Chart, Heat, Mark, Series
from workbench.plots.downsample import downsample
from workbench.plots.names import fold, shorten
from workbench.values import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from workbench.plots.drawing.picture import Picture

_WIDTH, _HEIGHT = 9.0, 3.0
_OVERVIEW = 7.0
_SMALL, _PLAIN, _TITLE = 8, 9, 11
_ROW_NAMES = 24
_TICK_CHARACTERS = 110
"""Of all names at a categorical axis, beside one another."""


def figure(charts: Chart | Sequence[Chart]) -> Picture:
    """A new figure with one chart, or several above one another. It shows itself in a notebook."""
    from workbench.plots.drawing.picture import Picture

    charts = [charts] if isinstance(charts, Chart) else list(charts)
    heights = [chart.height for chart in charts]
    fig = Picture(
        figsize=(_WIDTH, _HEIGHT * sum(heights) + 0.3), layout="constrained", facecolor="white"
    )
    shared = len({chart.x for chart in charts}) == 1
    axes = fig.subplots(len(charts), 1, squeeze=False, sharex=shared, height_ratios=heights)[:, 0]
    for chart, ax in zip(charts, axes, strict=True):
        above = shared and ax is not axes[-1]
        _draw(chart, ax, beside=True, above=above)
        if above:
            ax.set_xlabel("")
    return fig


def overview(columns: Sequence[Sequence[Chart]]) -> Picture:
    """A new figure with charts of several jobs: columns side by side, each from the top down,
    one legend a chart.
    """
    from workbench.plots.drawing.picture import Picture

    filled = [charts for charts in columns if charts]
    heights = [sum(chart.height for chart in charts) for charts in filled]
    size = (_OVERVIEW * len(filled), _HEIGHT * max(heights) + 0.3)
    fig = Picture(figsize=size, layout="constrained", facecolor="white")
    parts = fig.subfigures(1, len(filled), wspace=0.03, squeeze=False)[0]
    for subfigure, charts, height in zip(parts, filled, heights, strict=True):
        spare = max(heights) - height
        rows = [*(chart.height for chart in charts), *([spare] if spare else [])]
        axes = subfigure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
        for chart, ax in zip(charts, axes, strict=False):
            _draw(chart, ax, beside=False)
        for ax in axes[len(charts) :]:
            ax.set_axis_off()
    return fig


def small_png(figure: Figure, dpi: float = 100) -> bytes:
    """A figure as a PNG of a third of the usual bytes, by a palette of 256 colours."""
    from PIL import Image  # matplotlib needs it, too

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def draw(chart: Chart, ax: Axes) -> Axes:
    """Draw into axes that the user made, and return them. Raises TypeError for anything else."""
    from matplotlib.axes import Axes as MatplotlibAxes

    if not isinstance(ax, MatplotlibAxes):
        raise TypeError(
            f"plot(ax={shown(ax)}): give axes of matplotlib, those of plt.subplots(), say. A call"
            " draws one plot: run.plot('lr'). bench.compare('0011-fit', '0012-fit').plot() draws"
            " several runs."
        )
    _draw(chart, ax, beside=False)
    return ax


def _draw(chart: Chart, ax: Axes, *, beside: bool, above: bool = False) -> None:
    """`beside`: its legend is put beside the axes; `above`: the axis of x is named by another
    chart below.
    """
    from matplotlib.text import Text

    for band in chart.bands:
        _band(band, ax)
    if chart.heat is not None:
        _heat(chart.heat, ax)
    for series in chart.series:
        _series(series, ax)
    symbols = cycle(palette.SYMBOLS)
    for mark in chart.marks:
        plain = mark.y is not None and not mark.failed and not mark.emphasis
        if plain and chart.has_bars:
            _over_bar(mark, ax)
        else:
            _mark(mark, ax, next(symbols)[0] if plain else "", centred=bool(chart.x.ticks))
    _frame(chart, ax, above)
    _legend(ax, beside)
    for text in ax.findobj(Text):
        text.set_parse_math(False)


def _series(series: Series, ax: Axes) -> None:
    color = palette.TONES[series.tone % len(palette.TONES)]
    name = series.name
    if series.style == "bar":
        ax.bar(series.x, series.y, width=0.7, color=color, label=name, zorder=2)
        return
    if series.style == "limit":
        ax.plot(
            series.x,
            series.y,
            drawstyle="steps-post",
            ls="--",
            lw=1.6,
            color=color,
            label=name,
            zorder=3,
        )
        return
    x, y = downsample(series.x, series.y, palette.POINTS)
    if series.style == "faint":
        ax.plot(
            x, y, lw=0.9, marker=_dot(x), color=color, alpha=palette.FAINT, label=name, zorder=2
        )
    elif series.style == "points":
        ax.plot(
            x,
            y,
            marker="D",
            ms=4.5,
            lw=1.0,
            ls=":",
            color=color,
            mec="white",
            mew=0.6,
            label=name,
            zorder=4,
        )
    elif series.style in ("dots", "scatter"):
        ax.plot(
            x,
            y,
            marker="o",
            ms=4.5,
            lw=1.3 if series.style == "dots" else 0.0,
            color=color,
            mec="white",
            mew=0.6,
            label=name,
            zorder=4,
        )
    else:
        width = 1.0 if series.style == "thin" else 1.7
        dash = palette.DASHES[series.dash % len(palette.DASHES)]
        ax.plot(
            x, y, lw=width, ls=(0, dash or None), marker=_dot(x), color=color, label=name, zorder=3
        )


def _mark(mark: Mark, ax: Axes, symbol: str, *, centred: bool) -> None:
    if mark.y is None:
        ax.axvline(mark.x, color=palette.INK, lw=1.0, ls=(0, (2, 2)), zorder=1)
        # Above the axes, where there is no data to cover.
        coordinates = ("data", "axes fraction")
        ax.annotate(
            mark.label,
            (mark.x, 1.015),
            xycoords=coordinates,
            ha="center",
            fontsize=_SMALL,
            color=palette.INK,
        )
        return
    style: dict[str, Any] = {
        "marker": symbol,
        "ms": 7,
        "mfc": "white",
        "mec": palette.INK,
        "mew": 1.3,
    }
    if mark.failed:
        style.update(marker="x", ms=8, mec=palette.ACCENT, mew=2.2, clip_on=False)
    if mark.emphasis:
        style.update(marker="D", ms=11, mfc=palette.ACCENT, mec="white", mew=1.5)
        ax.annotate(
            mark.label,
            (mark.x, mark.y),
            xytext=(0, 10) if centred else (8, 7),
            textcoords="offset points",
            ha="center" if centred else "left",  # a curve falls to the right: free space there
            fontsize=_PLAIN,
            fontweight="bold",
            color=palette.ACCENT,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75},
            zorder=6,
        )
    ax.plot([mark.x], [mark.y], ls="none", label=mark.label, zorder=5, **style)


def _over_bar(mark: Mark, ax: Axes) -> None:
    assert mark.y is not None
    ax.annotate(
        mark.label,
        (mark.x, mark.y),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=_SMALL,
        color=palette.INK,
    )


def _band(band: Band, ax: Axes) -> None:
    ax.axvspan(
        band.low, band.high, color=palette.BAND, alpha=0.13, lw=0, label=band.label, zorder=0
    )


def _heat(heat: Heat, ax: Axes) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator

    shown = np.where(np.isfinite(heat.z) & (heat.z > 0), heat.z, np.nan)
    low, high = heat.span or _limits(shown)
    edges = np.arange(len(heat.rows) + 1) - 0.5
    mesh = ax.pcolormesh(
        _edges(heat.x),
        edges,
        shown,
        cmap=palette.HEAT if heat.centre is None else palette.AROUND,
        norm=LogNorm(low, high),
        rasterized=True,
    )
    # Beside the axes, where the other charts have their legend, without taking width from them.
    bar = ax.figure.colorbar(
        mesh, cax=ax.inset_axes((1.015, 0, 0.02, 1)), ticks=LogLocator(numticks=6)
    )
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_number))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=_SMALL, colors=palette.INK)
    bar.outline.set_visible(False)
    bar.set_label(heat.label, fontsize=_SMALL, color=palette.INK)
    every = -(-len(heat.rows) // _ROW_NAMES)
    names, pattern = fold(heat.rows)
    ax.set_ylabel(shorten(pattern), fontsize=_SMALL, color=palette.INK)
    ax.set_yticks(range(0, len(names), every), names[::every])
    ax.set_ylim(len(names) - 0.5, -0.5)


def _frame(chart: Chart, ax: Axes, above: bool) -> None:
    room = 16 if any(m.y is None and m.label for m in chart.marks) else 6
    ax.set_title(
        chart.title, loc="left", fontsize=_TITLE, fontweight="bold", color=palette.INK, pad=room
    )
    _axis(chart.x, ax, "x")
    if chart.heat is None:
        _axis(chart.y, ax, "y")
        ax.grid(True, color=palette.GRID, lw=0.8)
    ax.use_sticky_edges = False  # or a heat map would cut the other charts' last points
    ax.margins(x=0.01)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=_SMALL, colors=palette.INK)
    if any(s.style == "bar" for s in chart.series):
        ax.margins(y=0.2)
        ax.set_ylim(bottom=0)
    if chart.notes:
        text = "\n".join(line for note in chart.notes for line in textwrap.wrap(note, 110))
        below = -32 if chart.x.text else -20
        ax.annotate(
            text,
            (0, 0),
            xycoords="axes fraction",
            xytext=(0, -9 if above else below),
            textcoords="offset points",
            va="top",
            fontsize=_SMALL,
            color=palette.INK,
            annotation_clip=False,
        )


def _axis(axis: Axis, ax: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(ax, f"set_{which}label")(axis.text, fontsize=_PLAIN, color=palette.INK)
    scale = getattr(ax, f"{which}axis")
    if axis.ticks:
        room = max(8, _TICK_CHARACTERS // len(axis.ticks))
        scale.set_ticks(range(len(axis.ticks)), [textwrap.fill(tick, room) for tick in axis.ticks])
        getattr(ax, f"set_{which}lim")(-0.6, len(axis.ticks) - 0.4)
        return
    if axis.log:
        getattr(ax, f"set_{which}scale")("log")
        short = axis.range is not None and axis.range[1] / axis.range[0] < 300
        scale.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,), numticks=12))
        scale.set_minor_formatter(NullFormatter())
    if axis.range is not None:
        getattr(ax, f"set_{which}lim")(*axis.range)
    scale.set_major_formatter(FuncFormatter(_number))


def _legend(ax: Axes, beside: bool) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    placement: dict[str, Any] = (
        {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)} if beside else {"loc": "best"}
    )
    ax.legend(
        handles, labels, fontsize=_SMALL, frameon=not beside, labelcolor=palette.INK, **placement
    )


def _dot(x: Array) -> str:
    """A line of one point is seen only as a dot."""
    return "o" if len(x) == 1 else ""


def _edges(x: Array) -> Array:
    """The borders of columns that begin at x, shape (n + 1,)."""
    x = np.asarray(x, np.float64)
    width = x[-1] - x[-2] if len(x) > 1 else 1.0
    return np.append(x, x[-1] + width)


def _limits(z: Array) -> tuple[float, float]:
    finite = z[np.isfinite(z)]
    if not finite.size:
        return 0.1, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low / 2, high * 2)


def _number(value: float, _place: Any = None) -> str:
    """ "1e-4" rather than "0.0001", "10,000" rather than "1e4"."""
    return (
        f"{value:.0e}".replace("e-0", "e-") if 0 < value < 1e-3 and _round(value) else f"{value:,g}"
    )


def _round(value: float) -> bool:
    return abs(float(f"{value:.0e}") / value - 1) < 1e-6
