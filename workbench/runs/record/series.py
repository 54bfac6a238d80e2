"""Makes arrays for results, tables and plots from events, and joins those of a run into one
table.
"""

from __future__ import annotations

import csv
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import BY_LAYER, Event, Logged, RunStarted, StepsDone, Validated
from workbench.runs.printable import printable
from workbench.runs.record.sequence import stream

PICTURED = 400
"""Into how many parts a picture by layer divides a run at most."""
EMPTY, _SPREAD = 1 << 22, 8
"""How many cells of a table may lack a value, and how many times as many as have one there may
be besides.
"""
_PICTURE, _THINNED = 1 << 24, 64
"""The most numbers of a picture by layer, and how many times the record's size the history by
layer may have.
"""
Series = dict[str, NDArray[Any]]
_BY_LAYER = {"layer_norms": "grad_norm", "update_ratios": "update_ratio"}
"""The columns of a flush with one number for each layer, and their names in a history."""
_FORMULA = ("=", "+", "-", "@", "\t")
_log = logging.getLogger("workbench.runs")


def scalars(events: Iterable[Event]) -> Series:
    """The history without the columns by layer."""
    flushes = [event for event in events if isinstance(event, StepsDone) and event.rows]
    rows = [e.rows for e in flushes]
    out: Series = {
        "step": np.concatenate([np.empty(0, np.int64), *(e.steps for e in flushes)]),
        "epoch": np.repeat(np.array([e.epoch for e in flushes], dtype=np.int64), rows),
    }
    measured: Counter[str] = Counter()
    for event in flushes:
        measured.update(
            dict.fromkeys(event.columns.keys() - _BY_LAYER.keys() - out.keys(), event.rows)
        )
    names = dict.fromkeys(["loss", "lr"])
    for event in flushes:
        names |= dict.fromkeys(name for name in event.columns if name in measured)
    for name in _that_fit(names, measured, sum(rows)):
        out[name] = np.concatenate([np.empty(0, np.float32), *(column(e, name) for e in flushes)])
    return out


def _that_fit(names: Iterable[str], measured: Mapping[str, int], rows: int) -> Iterator[str]:
    """Yield the names of the columns of a table, until it would be empty for the most part.
    measured: how many values each has.
    """
    left, wide = EMPTY + _SPREAD * sum(measured.values()), 0
    for name in names:
        empty = max(0, rows - measured.get(name, 0))
        if empty <= left:
            left -= empty
            yield name
        else:
            wide += 1
    if wide:
        _log.warning(
            "%d of the values that were logged are left out: each is in a few updates alone, and"
            " the table would be too large.",
            wide,
        )


def layer_history(events: Iterable[Event], rows: int, room: float = math.inf) -> Series:
    """The columns by layer of this many recorded updates. Only the result and one flush at a time
    are in memory.

    room: the bytes of the record; a table that is much larger, since most of it was thinned out, is
    left out with a warning.
    """
    tables: dict[str, NDArray[np.float32]] = {}
    layers: tuple[str, ...] = ()
    row = 0
    for event in stream(events, BY_LAYER):
        if isinstance(event, RunStarted):
            layers = event.layers
        elif isinstance(event, StepsDone) and event.rows:
            first, row = row, row + event.rows
            for name in _BY_LAYER:
                if name in event.columns:
                    table = event.array(name)
                    if name not in tables:
                        numbers = table.shape[1] * rows
                        tables[name] = np.full(
                            (
                                table.shape[1] if numbers <= _PICTURE + _THINNED * room / 4 else 0,
                                rows,
                            ),
                            np.nan,
                            np.float32,
                        )
                        if numbers and not len(tables[name]):
                            _log.warning(
                                "The history leaves out %s: %d updates of %d layers would take %.0f"
                                " GB, and most were thinned out. run.plot('grad_norm') draws them.",
                                _BY_LAYER[name],
                                rows,
                                table.shape[1],
                                numbers / 2.5e8,
                            )
                    if len(tables[name]) == table.shape[1]:
                        tables[name][:, first:row] = table.T
    columns: Series = {}
    for name, quantity in _BY_LAYER.items():
        if name in tables:
            for layer, values in zip(_names(layers, len(tables[name])), tables[name], strict=True):
                columns[f"{quantity}/{layer}"] = values
    return columns


def _names(layers: Sequence[str], width: int) -> Sequence[str]:
    # A record without its first line has no names of layers; then they are numbers.
    return layers if len(layers) == width else [*map(str, range(width))]


def column(event: StepsDone, name: str) -> NDArray[Any]:
    """Column `name`, shape (rows,); NaN if the flush lacks it, or has a table with that name."""
    if name == "skipped" and name not in event.columns:
        # a flush has this column only if an update was left out
        return np.zeros(event.rows, np.float32)
    values = event.array(name) if name in event.columns else np.empty(0, np.float32)
    return values if len(values) == event.rows else np.full(event.rows, np.nan, np.float32)


def norm_columns(event: StepsDone) -> Series:
    """The norms before clipping, each of shape (rows,): "grad_norm"; of several optimizers, also
    "grad_norm.0" and so on.
    """
    apart = [name for name in event.columns if name.removeprefix("grad_norm.").isdigit()]
    return {name: column(event, name) for name in ("grad_norm", *apart)}


def by_layer(
    events: Iterable[Event], quantity: str, steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Series]:
    """The data for a picture of "grad_norm" or "update_ratio" by layer, in memory that does not
    grow with the run.

    Norms: the maximum of each layer in each of 400 parts of the run (`steps` has all recorded
    updates). Ratios: all updates in which they were measured. Returns the updates, shape (n,), and
    for each layer the values, shape (n,), NaN: no value.
    """
    column = next(name for name, called in _BY_LAYER.items() if called == quantity)
    layers: tuple[str, ...] = ()
    width, row = max(1, -(-len(steps) // PICTURED)), 0
    greatest: NDArray[np.float32] | None = None
    measured: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
    for event in stream(events, (column,)):
        if isinstance(event, RunStarted):
            layers = event.layers
        elif isinstance(event, StepsDone) and event.rows:
            first, row = row, row + event.rows
            if not event.columns.get(column):
                continue
            table = event.array(column)
            if greatest is None:
                width = max(width, -(-len(steps) * table.shape[1] // _PICTURE))
                greatest = np.full((-(-len(steps) // width), table.shape[1]), np.nan, np.float32)
            if table.shape[1] != greatest.shape[1]:
                continue
            if quantity == "update_ratio":
                measured_rows = ~np.isnan(table).all(axis=1)
                measured.append((event.steps[measured_rows], table[measured_rows]))
                continue
            index = np.arange(first, row) // width
            starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
            bins = index[starts]
            greatest[bins] = np.fmax(greatest[bins], np.fmax.reduceat(table, starts, axis=0))
    if greatest is None:
        return steps[:0], {}
    at = (
        np.concatenate([steps[:0], *(measured_steps for measured_steps, _ in measured)])
        if quantity == "update_ratio"
        else steps[::width]
    )
    rows = (
        np.concatenate([greatest[:0], *(table for _, table in measured)])
        if quantity == "update_ratio"
        else greatest
    )
    return at, {name: rows[:, i] for i, name in enumerate(_names(layers, rows.shape[1]))}


def validation(events: Iterable[Event]) -> Series:
    """Arrays with one row for each validation, shape (validations,).

    "step" (updates taken before it) and "epoch" are int64; each metric is float64, NaN where a
    validation lacks it: "val_loss", …, and with averaged weights also "val_loss_averaged", ….
    """
    return _table(events, Validated)


def logged(events: Iterable[Event]) -> Series:
    """Arrays with one row for each epoch for which the model logged values in training, shape
    (epochs,).

    "step" (updates taken) and "epoch" are int64; each value is float64, NaN where an epoch lacks
    it.
    """
    return _table(events, Logged)


def _table(events: Iterable[Event], kind: type[Validated | Logged]) -> Series:
    """The events of one kind as a table, one row for each."""
    rows = [e for e in events if isinstance(e, kind)]
    out: Series = {
        "step": np.array([e.step for e in rows], dtype=np.int64),
        "epoch": np.array([e.epoch for e in rows], dtype=np.int64),
    }
    measured: Counter[str] = Counter()
    for event in rows:
        measured.update(name for name in event.metrics if name not in out)
    values = {
        name: np.full(len(rows), np.nan, np.float64)
        for name in _that_fit(measured, measured, len(rows))
    }
    for at, event in enumerate(rows):
        for name in event.metrics.keys() & values.keys():
            values[name][at] = event.metrics[name]
    return {**out, **values}


def write_csv(file: IO[str], history: Series, logged: Series, validation: Series) -> None:
    """Write the joined table as CSV; an empty cell means no value."""
    table = joined(history, logged, validation)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(as_text, table))
    # str of a numpy scalar is the shortest text that reads back as the same number.
    writer.writerows([_cell(v) for v in row] for row in zip(*table.values(), strict=True))


def as_text(name: str) -> str:
    """Return a name for a cell of a CSV file: a spreadsheet would take `=…` for a formula, so it
    gets an apostrophe in front.
    """
    text = printable(name, lines=True)  # a carriage return would end the row
    return f"'{text}" if text.startswith(_FORMULA) else text


def joined(history: Series, logged: Series, validation: Series) -> Series:
    """Join the tables by update (an outer join). In a history, "step" is the index of an update,
    from 0; the other tables count updates taken.

    Values after n updates are in the row of update n - 1 and its epoch; values before the first
    update in a row -1.
    """
    tables = {"": history, " (epoch)": _by_update(logged), " (validation)": _by_update(validation)}
    steps = np.unique(np.concatenate([table["step"] for table in tables.values()]))
    out: Series = {"step": steps, "epoch": np.zeros_like(steps)}
    # if several tables have an epoch, that of the update counts
    for table in reversed(tables.values()):
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
    """The series with the index of the last update in place of the number of updates taken."""
    return {**series, "step": series["step"] - 1}


def _cell(value: Any) -> str:
    return "" if value != value else str(value)
