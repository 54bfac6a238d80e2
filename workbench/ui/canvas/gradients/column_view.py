"""A view of a wide table in which each column is the largest of some of the table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.events import Floats
from workbench.ui.canvas.transport.channels import Buckets, Sent

Range = tuple[int, int]
"""The first column and the one after the last."""


class ColumnView(Sent):
    """A channel over `Buckets` that many views may share; its rows are computed when they are sent."""

    def __init__(self, source: Buckets) -> None:
        super().__init__()
        self._source, self._ranges = source, list[Range]()
        self._row: slice | None = None
        """The columns as a slice, where each is one of the table's, next to the one before."""
        self._known = source.generation
        self.view = 0
        """The number of the view of the rows: descriptions of the columns carry it."""

    def look(self, source: Buckets, ranges: Sequence[Range]) -> None:
        """Show the largest of each of these `ranges` of columns of `source` from now on; none: no rows."""
        self._source, self._ranges = source, list(ranges)
        self._row = _in_a_row(self._ranges)
        self._known = source.generation
        self.view += 1
        self.restart()

    def follow(self, source: Buckets, row: int) -> None:
        """Row `row` of `source` and those after it have changed, or all, if it has another numbering."""
        if source is not self._source or not self._ranges:
            return
        if source.generation != self._known:
            self._known = source.generation
            self.restart()
        else:
            self.touch(row)

    @property
    def columns(self) -> int:
        """How many columns are shown, at least one."""
        return max(1, len(self._ranges))

    @property
    def length(self) -> int:
        """How many rows it has."""
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
    if not ranges or any(end != first + 1 or first != ranges[0][0] + i for i, (first, end) in enumerate(ranges)):
        return None
    return slice(ranges[0][0], ranges[-1][1])
