"""A table that is sent as a whole: curves that are complete at once, such as those of past runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.events import Floats
from workbench.ui.canvas.channels import Sent, Table


class StaticTable(Sent):
    """Rows of `columns` numbers, replaced together."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self._table: Table = np.empty((0, columns))
        self.view = 0
        """The number of the table: descriptions of its rows carry it."""

    def show(self, table: Table) -> None:
        """Replace the rows by these, shape (rows, columns)."""
        if table.shape == self._table.shape and np.array_equal(table, self._table, equal_nan=True):
            return
        self._table = table
        self.view += 1
        self.restart()

    @property
    def columns(self) -> int:
        return int(self._table.shape[1])

    @property
    def length(self) -> int:
        return len(self._table)

    def rows(self, start: int, stop: int) -> Floats:
        part: Floats = self._table[start:stop].astype("<f4")
        return part

    def head(self) -> dict[str, Any]:
        return {"view": self.view}
