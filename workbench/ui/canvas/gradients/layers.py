"""Keeps the history of each layer, in bounded memory, and selects the part that the canvas shows.

The history of every layer is kept, also of those that no row shows now, so that a module is drawn
from the first update on when it is opened. The shown rows, the open module and the layers with a
line are the same in every view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.events import Floats
from workbench.instruments import layer_groups
from workbench.instruments.layer_groups import Row
from workbench.ui.canvas.transport.channels import Buckets, Sent
from workbench.ui.canvas.transport.messages import cut

Range = tuple[int, int]
"""The first column and the one after the last."""
BUCKETS = 512
"""How many columns the heat map has at most."""
MOST_LAYERS = 4000
"""How many histories are kept: beyond that, neighbouring layers share one. 8 MB for each
quantity.
"""
PICKED = 5
"""How many layers have a line; when one more is picked, the one picked first is removed."""
_NAME = 120
"""Bytes for the name of a line."""
_ROW_NAME = 400
"""Bytes for the name of a row of the map, which the tooltip shows whole."""
Quantity = Literal["norm", "ratio"]


class ColumnView(Sent):
    """A channel that shows some columns of a `Buckets`; its rows are computed when they are
    sent.
    """

    def __init__(self, source: Buckets) -> None:
        super().__init__()
        self._source, self._ranges = source, list[Range]()
        self._row: slice | None = None
        """The columns as a slice, if they are adjacent single columns of the table."""
        self._known = source.generation
        self.view = 0
        """The number of the present view; descriptions of its columns contain it."""

    def look(self, source: Buckets, ranges: Sequence[Range]) -> None:
        """Show the maximum of each of these `ranges` of columns of `source` from now on; no
        ranges: no rows.
        """
        self._source, self._ranges = source, list(ranges)
        self._row = _in_a_row(self._ranges)
        self._known = source.generation
        self.view += 1
        self.restart()

    def follow(self, source: Buckets, row: int) -> None:
        """Note that rows of `source` from `row` on have changed; all, if they were renumbered."""
        if source is not self._source or not self._ranges:
            return
        if source.generation != self._known:
            self._known = source.generation
            self.restart()
        else:
            self.touch(row)

    @property
    def columns(self) -> int:
        """The number of columns shown, at least 1."""
        return max(1, len(self._ranges))

    @property
    def length(self) -> int:
        """The number of rows."""
        return self._source.length if self._ranges else 0

    def rows(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop`, each the largest values of its ranges of columns."""
        table = self._source.rows(start, stop)
        if self._row is not None:
            return table[:, self._row]
        largest = [np.fmax.reduce(table[:, first:end], axis=1) for first, end in self._ranges]
        out: Floats = np.column_stack(largest).astype("<f4") if largest else np.zeros((0, 1), "<f4")
        return out

    def head(self) -> dict[str, Any]:
        """The head of its source, and the number of this view."""
        return {**self._source.head(), "view": self.view}


def _in_a_row(ranges: Sequence[Range]) -> slice | None:
    if not ranges or any(
        end != first + 1 or first != ranges[0][0] + i for i, (first, end) in enumerate(ranges)
    ):
        return None
    return slice(ranges[0][0], ranges[-1][1])


class Layers:
    """Norms and update ratios by layer. `heat` and `picked` are the channels that draw them."""

    def __init__(self) -> None:
        self._norms = Buckets([("max", 1)], BUCKETS, np.float32)
        self._ratios = Buckets([("max", 1)], BUCKETS, np.float32)
        self.heat, self.picked = ColumnView(self._norms), ColumnView(self._norms)
        self._shown: Quantity = "norm"
        self._begin(())

    def _begin(self, layers: tuple[str, ...]) -> None:
        self._given = layers
        order = layer_groups.in_order(layers)
        self._order = None if order == list(range(len(layers))) else np.array(order)
        self._each = max(1, -(-len(layers) // MOST_LAYERS))
        self._starts = np.arange(0, len(layers), self._each)
        self._names = [
            _named([layers[i] for i in order[at : at + self._each]]) for at in self._starts
        ]
        self._path: list[Row] = []
        self._picks: dict[int, Row] = {}
        """By the stroke of their lines, which stays the same as long as they are picked; the
        last picked last.
        """
        self._rows = layer_groups.rows(self._names)

    def start(self, layers: tuple[str, ...]) -> None:
        """Begin a run. If the model has the same layers, open and picked rows are kept."""
        if layers != self._given:
            self._begin(layers)
        self._reset()
        self._look()

    def clear(self) -> None:
        """Begin without a run. Open and picked rows are kept for the next one."""
        self._reset()
        self._rows = []
        self.heat.look(self._norms, [])
        self.picked.look(self._norms, [])

    def _reset(self) -> None:
        self._norms.reset([("max", max(1, len(self._names)))])
        self._ratios.reset([("max", 1)])  # memory is allocated when they are measured
        self._last: Floats = np.full(len(self._given), np.nan, np.float32)
        self._held: Floats = self._last.copy()

    # -- events ------------------------------------------------------------------------------------

    def add_norms(self, steps: NDArray[np.int64], every: int, table: Floats) -> None:
        """Add norms, shape (rows, layers), of updates `steps`; a table with another number of
        layers is of another model and left out.
        """
        if table.shape[1] != len(self._given) or not self._given:
            return
        ordered = self._in_order(table)
        known = (
            ordered if not np.isnan(ordered[-1]).all() else ordered[~np.isnan(ordered).all(axis=1)]
        )
        if len(known):
            self._last = known[-1]
        self._add(self._norms, steps, every, ordered)

    def add_ratios(self, steps: NDArray[np.int64], every: int, table: Floats) -> None:
        """Add update ratios. They are measured every few updates; each is repeated until the
        next one of its layer.
        """
        if table.shape[1] != len(self._given) or not self._given:
            return
        first = not self._ratios.length
        if first:
            self._ratios.reset([("max", len(self._names))])
        ordered = np.vstack([self._held, self._in_order(table)])
        rows = np.where(np.isnan(ordered), 0, np.arange(len(ordered))[:, None])
        held = np.take_along_axis(ordered, np.maximum.accumulate(rows, axis=0), axis=0)[1:]
        self._held = held[-1].copy()
        self._add(self._ratios, steps, every, held)
        if first:
            self._look()

    def hold_ratios(self, steps: NDArray[np.int64], every: int) -> None:
        """Repeat the last ratios for updates between two measurements."""
        if self.measured:
            self._add(self._ratios, steps, every, np.tile(self._held, (len(steps), 1)))

    def no_ratios(self) -> None:
        """Drop the last ratios, since they are not measured any more."""
        if self.measured:
            self._held = np.full_like(self._held, np.nan)

    def _in_order(self, table: Floats) -> Floats:
        return table if self._order is None else table[:, self._order]

    def _add(self, source: Buckets, steps: NDArray[np.int64], every: int, table: Floats) -> None:
        """Add a table to the source; layers that share a column show the maximum."""
        merged = table if self._each == 1 else np.fmax.reduceat(table, self._starts, axis=1)
        source.add(steps, every, [merged])
        row, source.unsent = source.unsent, None
        if row is not None:
            self.heat.follow(source, row)
            self.picked.follow(source, row)

    # -- requests ----------------------------------------------------------------------------------

    def show(self, quantity: Quantity) -> None:
        """Show this quantity by layer from now on."""
        self._shown = quantity
        self._look()

    def open(self, first: int, end: int) -> None:
        """Open one row. A request for a row of an earlier view is ignored."""
        row = next((r for r in self._rows if (r.first, r.end) == (first, end)), None)
        if row is not None and row.layers > 1:
            self._path.append(row)
            self._look()

    def close(self, depth: int) -> None:
        """Go back to the level at which `depth` modules were open; 0: to all layers."""
        if 0 <= depth < len(self._path):
            del self._path[depth:]
            self._look()

    def pick(self, first: int, end: int) -> None:
        """Add a line for this row, or remove it."""
        known = next(
            (stroke for stroke, row in self._picks.items() if (row.first, row.end) == (first, end)),
            None,
        )
        row = next((row for row in self._rows if (row.first, row.end) == (first, end)), None)
        if known is not None:
            del self._picks[known]
        elif row is not None:
            if len(self._picks) == PICKED:
                del self._picks[next(iter(self._picks))]
            self._picks[min(set(range(PICKED)) - set(self._picks))] = row
        self._look_at_picks()

    def _look(self) -> None:
        within = self._path[-1] if self._path else Row("", 0, len(self._names))
        self._rows = layer_groups.rows(self._names, within.first, within.end)
        source = self._norms if self._shown == "norm" else self._ratios
        # Before the first ratio the table has neither a column for each layer nor rows.
        has_data = source is self._norms or source.length > 0
        self.heat.look(source, [(r.first, r.end) for r in self._rows] if has_data else [])
        self._look_at_picks()

    def _look_at_picks(self) -> None:
        self.picked.look(self._norms, [(r.first, r.end) for r in self._picks.values()])

    # -- descriptions ------------------------------------------------------------------------------

    @property
    def measured(self) -> bool:
        """Whether there are ratios."""
        return self._ratios.length > 0

    def map(self) -> dict[str, Any]:
        """The rows of the heat map: [name, first, end]; one of several layers can be opened."""
        return {
            "shown": self._shown,
            "view": self.heat.view,
            "rows": [_row_values(row) for row in self._rows],
            "path": [_row_values(row) for row in self._path],
            "merged": self._each,
        }

    def picks(self, total: float, order: float | None) -> list[dict[str, Any]]:
        """The picked rows, each with its last value (for a module, the maximum) and its share of
        the total.

        The total p-norm is (sum of norm**p) ** (1/p) over the layers; the share of a row is its
        part of that sum.
        """
        out = []
        for stroke, row in self._picks.items():
            here = self._last[row.first * self._each : row.end * self._each]
            # a layer without a gradient has no norm
            known = here[~np.isnan(here)].astype(np.float64)
            value = float(known.max()) if len(known) and np.isfinite(known).all() else None
            share = None
            if value is not None and order is not None and np.isfinite(total) and total > 0:
                share = min(1.0, float(((known / total) ** order).sum()))
            said = {
                "name": cut(row.name, _NAME),
                "first": row.first,
                "end": row.end,
                "stroke": stroke,
            }
            out.append({**said, "value": value, "share": share})
        return out

    def place(self, layer: int) -> int:
        """The column of the layer with this number in the model."""
        at = layer if self._order is None else int(np.flatnonzero(self._order == layer)[0])
        return at // self._each


def _named(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]}"


def _row_values(row: Row) -> list[Any]:
    return [cut(row.name, _ROW_NAME), row.first, row.end]
