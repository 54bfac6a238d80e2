"""Draws a `Chart` with plotly: results to explore with the mouse, not live traces."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots import palette
from workbench.plots.chart import Axis, Band, Chart, Heat, Mark, Series
from workbench.plots.downsample import downsample
from workbench.plots.names import fold, shorten

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from workbench.plots.drawing.interactive import Interactive

_ROW = 300
_ABOVE, _BELOW = 50, 60
_ROW_NAMES = 24


def figure(charts: Chart | Sequence[Chart]) -> Interactive:
    """A new figure with one chart, or several above one another that zoom together where their x
    is the same.
    """
    from plotly.subplots import make_subplots

    from workbench.plots.drawing.interactive import Interactive

    charts = [charts] if isinstance(charts, Chart) else list(charts)
    heights = [chart.height for chart in charts]
    inner = _ROW * sum(heights)
    between = 85 + 16 * max((len(_wrapped(chart)) for chart in charts[:-1]), default=0)
    gap = between / inner if len(charts) > 1 else 0.0
    fig: Interactive = make_subplots(
        rows=len(charts),
        cols=1,
        row_heights=heights,
        vertical_spacing=gap,
        figure=Interactive.of(charts),
    )
    notes = 16 * len(_wrapped(charts[-1]))
    fig.update_layout(
        template="plotly_white",
        height=inner + _ABOVE + _BELOW + notes,
        margin={"l": 70, "r": 30, "t": _ABOVE, "b": _BELOW + notes},
        font={"color": palette.INK, "size": 12},
        hovermode="closest",
    )
    for row, chart in enumerate(charts, 1):
        _draw(chart, fig, row)
    if len({chart.x for chart in charts}) == 1:
        fig.update_xaxes(matches="x")
    return fig


def _draw(chart: Chart, fig: Figure, row: int) -> None:
    legend = "legend" if row == 1 else f"legend{row}"
    top = fig.get_subplot(row, 1).yaxis.domain[1]
    fig.update_layout({legend: {"x": 1.01, "y": top, "yanchor": "top", "xanchor": "left"}})
    if chart.heat is not None:
        _heat(chart.heat, fig, row)
    for series in chart.series:
        _series(series, fig, row, legend)
    for band in chart.bands:  # after the traces: plotly leaves shapes out of empty subplots
        _band(band, fig, row, legend)
    symbols = cycle(palette.SYMBOLS)
    for mark in chart.marks:
        if mark.y is None:
            _line(mark, fig, row)
        else:
            plain = not mark.failed and not mark.emphasis
            if plain and chart.has_bars:
                _over_bar(mark, mark.y, fig, row)
            else:
                symbol = next(symbols)[1] if plain else ""
                _point(mark, mark.y, fig, row, legend, symbol, centred=bool(chart.x.ticks))
    fig.update_xaxes(_axis(chart.x), row=row, col=1)
    if chart.heat is None:
        fig.update_yaxes(_axis(chart.y), row=row, col=1)
    if any(s.style == "bar" for s in chart.series):
        fig.update_yaxes(rangemode="tozero", row=row, col=1)
    _text(chart, fig, row)


def _series(series: Series, fig: Figure, row: int, legend: str) -> None:
    import plotly.graph_objects as go

    color = palette.TONES[series.tone % len(palette.TONES)]
    common: dict[str, Any] = {
        "name": series.name and html.escape(series.name),
        "legend": legend,
        "showlegend": None if series.name else False,
    }
    if series.style == "bar":
        fig.add_trace(
            go.Bar(x=series.x, y=series.y, marker_color=color, width=0.7, **common), row=row, col=1
        )
        return
    line: dict[str, Any] = {"color": color, "width": 2}
    if series.style == "limit":
        x, y = series.x, series.y
        line.update(dash="dash", shape="hv")
    else:
        x, y = downsample(series.x, series.y, palette.POINTS)
    if series.style == "faint":
        common["opacity"] = palette.FAINT
        line["width"] = 1
    if series.style == "thin":
        line["width"] = 1.2
    if dash := palette.DASHES[series.dash % len(palette.DASHES)]:
        line["dash"] = " ".join(f"{2 * length}px" for length in dash)
    if series.style == "points":
        common.update(mode="lines+markers", marker={"symbol": "diamond", "size": 8, "color": color})
        line.update(width=1, dash="dot")
    elif series.style in ("dots", "scatter"):
        mode = "lines+markers" if series.style == "dots" else "markers"
        common.update(mode=mode, marker={"symbol": "circle", "size": 7, "color": color})
        line.update(width=1.3)
    else:
        common["mode"] = "lines+markers" if len(x) == 1 else "lines"
    fig.add_trace(go.Scatter(x=x, y=y, line=line, **common), row=row, col=1)


def _line(mark: Mark, fig: Figure, row: int) -> None:
    fig.add_vline(mark.x, line={"color": palette.INK, "width": 1, "dash": "dot"}, row=row, col=1)
    if mark.label:
        axis = fig.get_subplot(row, 1)
        fig.add_annotation(
            x=mark.x,
            xref=axis.xaxis.plotly_name.replace("axis", ""),
            y=axis.yaxis.domain[1],
            yref="paper",
            yanchor="bottom",
            text=html.escape(mark.label),
            hovertext=html.escape(mark.why),
            showarrow=False,
            font={"size": 10},
        )


def _over_bar(mark: Mark, y: float, fig: Figure, row: int) -> None:
    fig.add_annotation(
        x=mark.x,
        y=y,
        yanchor="bottom",
        text=html.escape(mark.label),
        hovertext=html.escape(mark.why),
        showarrow=False,
        font={"size": 10},
        row=row,
        col=1,
    )


def _point(
    mark: Mark, y: float, fig: Figure, row: int, legend: str, symbol: str, *, centred: bool
) -> None:
    import plotly.graph_objects as go

    style: dict[str, Any] = {
        "symbol": symbol,
        "size": 10,
        "color": "white",
        "line": {"color": palette.INK, "width": 2},
    }
    if mark.failed:
        style.update(symbol="x-thin", size=11, line={"color": palette.ACCENT, "width": 3})
    if mark.emphasis:
        style.update(
            symbol="diamond", size=16, color=palette.ACCENT, line={"color": "white", "width": 2}
        )
    text = html.escape(mark.label)
    why = "<br>".join(textwrap.wrap(html.escape(mark.why), 60))
    trace = go.Scatter(
        x=[mark.x],
        y=[y],
        name=text,
        mode="markers+text" if mark.emphasis else "markers",
        text=[f"<b>{text}</b>"],
        textposition="top center" if centred else "top right",
        textfont={"color": palette.ACCENT},
        marker=style,
        legend=legend,
        cliponaxis=False,
        hovertemplate=f"<b>{text}</b><br>{why}<extra></extra>",
    )
    fig.add_trace(trace, row=row, col=1)


def _band(band: Band, fig: Figure, row: int, legend: str) -> None:
    fig.add_vrect(
        band.low,
        band.high,
        fillcolor=palette.BAND,
        opacity=0.13,
        line_width=0,
        layer="below",
        name=html.escape(band.label),
        showlegend=True,
        legend=legend,
        row=row,
        col=1,
    )


def _heat(heat: Heat, fig: Figure, row: int) -> None:
    import plotly.graph_objects as go

    rows = list(map(html.escape, heat.rows))  # the text of what hovers over a cell
    shown = np.where(np.isfinite(heat.z) & (heat.z > 0), heat.z, np.nan)
    log = np.log10(shown)
    bottom, top = fig.get_subplot(row, 1).yaxis.domain
    finite = log[np.isfinite(log)]
    ends = np.log10(heat.span) if heat.span is not None else finite
    decades = np.arange(np.floor(ends.min()), np.ceil(ends.max()) + 1) if ends.size else np.zeros(1)
    trace = go.Heatmap(
        x=heat.x,
        y=rows,
        z=log,
        customdata=heat.z,
        colorscale=palette.HEAT if heat.span is None else palette.AROUND,
        zmin=None if heat.span is None else np.log10(heat.span[0]),
        zmax=None if heat.span is None else np.log10(heat.span[1]),
        hoverongaps=False,
        hovertemplate="%{y}<br>update %{x}: %{customdata:.3g}<extra></extra>",
        colorbar={
            "title": {"text": html.escape(heat.label), "side": "right"},
            "len": top - bottom,
            "y": (top + bottom) / 2,
            "x": 1.01,
            "xanchor": "left",
            "thickness": 14,
            "tickvals": decades,
            "ticktext": [f"{10.0**d:g}" for d in decades],
        },
    )
    fig.add_trace(trace, row=row, col=1)
    every = -(-len(heat.rows) // _ROW_NAMES)
    labels, pattern = fold(heat.rows)
    fig.update_yaxes(
        title={"text": html.escape(shorten(pattern)), "standoff": 4},
        type="category",
        autorange="reversed",
        tickvals=rows[::every],
        ticktext=[html.escape(label) for label in labels[::every]],
        row=row,
        col=1,
    )


def _axis(axis: Axis) -> dict[str, Any]:
    out: dict[str, Any] = {
        "title": {"text": html.escape(axis.text), "standoff": 8},
        "gridcolor": palette.GRID,
        "zeroline": False,
    }
    if axis.ticks:
        places = list(range(len(axis.ticks)))
        return out | {
            "tickvals": places,
            "ticktext": list(map(html.escape, axis.ticks)),
            "range": [-0.6, len(places) - 0.4],
        }
    if axis.log:
        out.update(type="log", exponentformat="e", minor={"showgrid": False})
        # 1, 2, 5
        out["dtick"] = 1 if axis.range is None or axis.range[1] / axis.range[0] > 300 else "D2"
    if axis.range is not None:
        out["range"] = [float(v) for v in (np.log10(axis.range) if axis.log else axis.range)]
    return out


def _text(chart: Chart, fig: Figure, row: int) -> None:
    """The title above the chart and the notes below it, at the left."""
    bottom, top = fig.get_subplot(row, 1).yaxis.domain
    shift = 14 if any(m.y is None and m.label for m in chart.marks) else 2
    left: dict[str, Any] = {
        "x": 0,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "showarrow": False,
    }
    title = f"<b>{html.escape(chart.title)}</b>"
    fig.add_annotation(text=title, y=top, yanchor="bottom", yshift=shift, font={"size": 14}, **left)
    lines = _wrapped(chart)
    if lines:
        text = "<br>".join(map(html.escape, lines))
        fig.add_annotation(
            text=text, y=bottom, yanchor="top", yshift=-42, align="left", font={"size": 11}, **left
        )


def _wrapped(chart: Chart) -> list[str]:
    return [line for note in chart.notes for line in textwrap.wrap(note, 110)]
