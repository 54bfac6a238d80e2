"""Draws losses of recorded runs on the canvas: the previous runs in grey, and the compared ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from workbench.runs.read import OVER
from workbench.runs.tables.brief import DRAWN, RunBrief
from workbench.runs.tables.compare import differences, names
from workbench.ui import format, texts
from workbench.ui.canvas.transport.channels import SentTable, Table
from workbench.ui.canvas.transport.messages import Outbox, cut
from workbench.units import duration

PREVIOUS = 3
"""How many previous runs are drawn with the present one; more would hide it."""
NAME, VALUE = 40, 120
"""Bytes of a name, and of a value in a table, at most."""
ROWS = 40
"""How many settings and metrics of compared runs are shown: the first ones."""


class StaticTable(SentTable):
    """A table that is sent as a whole: rows of `columns` numbers, replaced together."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self._table = np.empty((0, columns))
        self.view = 0
        """The number of the table; descriptions of its rows contain it."""

    def show(self, table: Table) -> None:
        """Replace the rows by these, shape (rows, columns)."""
        if table.shape == self._table.shape and np.array_equal(table, self._table, equal_nan=True):
            return
        self._table = table
        self.view += 1
        self.restart()

    @property
    def length(self) -> int:
        """The number of rows."""
        return len(self._table)

    def head(self) -> dict[str, Any]:
        """The number of the view that the rows show."""
        return {"view": self.view}


class PastCurves:
    """Two static tables: "past" with columns (which, updates, epochs, seconds, loss), "compared"
    with (which, kind, updates, epochs, seconds, value).

    `which` is the index of the run's name; kind 0 is the smoothed training loss, kind k the k-th
    of the metrics in "compared".
    """

    def __init__(self) -> None:
        self.past, self.compared = StaticTable(5), StaticTable(6)

    def draw_previous(self, outbox: Outbox, briefs: Sequence[RunBrief]) -> None:
        """Draw the losses of these runs in grey, the newest first."""
        outbox.put(
            "past", [{"run": cut(brief.id, NAME), "words": _ending(brief)} for brief in briefs]
        )
        parts = [
            np.column_stack([np.full(len(brief.curve), i), brief.curve])
            for i, brief in enumerate(briefs)
        ]
        self.past.show(_stack(parts, 5))

    def over_one_another(self, outbox: Outbox, briefs: Sequence[RunBrief]) -> None:
        """Compare these fits; none: end the comparison."""
        drawn = dict.fromkeys(name for brief in briefs for name in brief.history)
        metrics = [*drawn][:DRAWN]
        parts = []
        for i, brief in enumerate(briefs):
            lines = [brief.curve, *(brief.history.get(name) for name in metrics)]
            for kind, rows in enumerate(lines):
                if rows is not None:
                    parts.append(
                        np.column_stack([np.full(len(rows), i), np.full(len(rows), kind), rows])
                    )
        self.compared.show(_stack(parts, 6))
        marks = [
            [i, step, cut(text, NAME)]
            for i, brief in enumerate(briefs)
            for step, text in brief.marks
        ]
        outbox.put("compared_marks", marks)
        table = None
        if briefs:
            named = [cut(name, NAME) for name in metrics]
            table = _compared(briefs) | {"view": self.compared.view, "metrics": named}
        outbox.put("compared", table)


def _compared(briefs: Sequence[RunBrief]) -> dict[str, Any]:
    """The table below the curves: names, whether each run is over, the settings that differ, the
    last values; a cell for each run.
    """
    endings = [brief.ending for brief in briefs]
    rows = [[texts.STATUS, *(brief.shown_status for brief in briefs)]]
    differ = differences([brief.settings for brief in briefs], [brief.changes for brief in briefs])
    rows += [[name, *values] for name, values in differ.items()]
    rows += [
        [name, *(format.number(ending.get(name)) for ending in endings)]
        for name in dict.fromkeys(chain(*endings))
    ]
    rows.append([texts.UPDATES, *(str(brief.step) for brief in briefs)])
    rows.append([texts.TIME, *(duration(brief.seconds) for brief in briefs)])
    return {
        "runs": [cut(name, NAME) for name in names(briefs)],
        "over": [brief.status in OVER for brief in briefs],
        "rows": [[cut(cell, VALUE) for cell in row] for row in rows[:ROWS]],
    }


def _ending(brief: RunBrief) -> str:
    """The run's last value of its monitor, besides the loss of its curve: 'last val_loss 0.45'."""
    return (
        ""
        if brief.last_value is None
        else texts.last_value(cut(brief.monitor, NAME), format.number(brief.last_value))
    )


def _stack(parts: Sequence[Table], columns: int) -> Table:
    return np.concatenate([np.empty((0, columns)), *parts])
