"""A table that is sent as a whole: curves that are complete at once, such as those of past runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.ui.canvas.transport.channels import SentTable, Table


class StaticTable(SentTable):
    """Rows of `columns` numbers, replaced together."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self._table = np.empty((0, columns))
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
    def length(self) -> int:
        """The number of rows."""
        return len(self._table)

    def head(self) -> dict[str, Any]:
        """The number of the view that the rows show."""
        return {"view": self.view}
