"""Writes tables of runs: as text for a terminal, as HTML for a notebook, as a data frame; and a
series of numbers as a sparkline.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench.runs.printable import printable

if TYPE_CHECKING:
    from pandas import DataFrame

BLOCKS = "▁▂▃▄▅▆▇█"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines of text with aligned columns; the first row is the head."""
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def html_table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    """The rows as an HTML table, all text escaped; the first row and the first column are heads."""
    head, *body = rows
    lines = [
        f"<tr>{_cell('th', first)}{''.join(_cell('td', text) for text in rest)}</tr>"
        for first, *rest in body
    ]
    columns = "".join(_cell("th", name) for name in head)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def data_frame(columns: Mapping[Any, Any]) -> DataFrame:
    """Make a pandas data frame of these columns; only this function imports pandas. Raises
    ImportError if it is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "to_pandas() needs pandas, which is not installed: pip install pandas"
        ) from None
    return pandas.DataFrame(dict(columns))


def _cell(tag: str, text: str) -> str:
    return f"<{tag} style='text-align:left'>{html.escape(text)}</{tag}>"


def sparkline(values: NDArray[np.float64]) -> str:
    """Draw the values, shape (n,), as bars, scaled from the lowest to the highest; a space for a
    value that is not finite.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return ""
    low, high = values[finite].min(), values[finite].max()
    scale = max(abs(low), abs(high)) or 1.0  # the difference of two huge losses could overflow
    span = (high / scale - low / scale) or 1.0
    heights = np.rint((len(BLOCKS) - 1) * (values / scale - low / scale) / span)
    return "".join(
        BLOCKS[int(height)] if known else " " for height, known in zip(heights, finite, strict=True)
    )
