"""Joins a run's series into one table (updates, epochs, validations), and writes it as CSV."""

from __future__ import annotations

import csv
from typing import IO, Any

import numpy as np

from workbench.runs.record.series import Series


def write_csv(file: IO[str], history: Series, logged: Series, validation: Series) -> None:
    """The table as CSV; an empty cell: no value."""
    table = joined(history, logged, validation)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    # str of a numpy scalar is the shortest text that reads back as the same number.
    writer.writerows([_cell(v) for v in row] for row in zip(*table.values(), strict=True))


def joined(history: Series, logged: Series, validation: Series) -> Series:
    """An outer join by update. A history's "step" is the number of an update, from 0; the other tables count updates taken.

    What follows n updates is in the row of update n - 1, and of its epoch; before the first update, in a row -1.
    """
    tables = {"": history, " (epoch)": _by_update(logged), " (validation)": _by_update(validation)}
    steps = np.unique(np.concatenate([table["step"] for table in tables.values()]))
    out: Series = {"step": steps, "epoch": np.zeros_like(steps)}
    for table in reversed(tables.values()):  # where several have an epoch, the update's holds
        out["epoch"][np.searchsorted(steps, table["step"])] = table["epoch"]
    for kind, table in tables.items():
        at = np.searchsorted(steps, table["step"])
        for name, values in table.items():
            if name in ("step", "epoch"):
                continue
            column = name if name not in out else f"{name}{kind}"
            out[column] = np.full(len(steps), np.nan, values.dtype)
            out[column][at] = values
    return out


def _by_update(series: Series) -> Series:
    """The series with the number of the last update in place of how many were taken."""
    return {**series, "step": series["step"] - 1}


def _cell(value: Any) -> str:
    return "" if value != value else str(value)
