"""Plots the learning rate over a run: warm-up, schedule, and live changes.

How to read it: the rate is that of the optimizer's first parameter group at each update.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Series
from workbench.plots.ranges import span
from workbench.plots.training.changes import Changes, change_marks

_LEAST, _MOST = 10.0, 1e4
"""The least and the most that the axis spans: the last updates of a schedule that falls to zero
would flatten the rest.
"""
_ZEROS = 0.05
"""The share of updates without any rate that a logarithmic axis may leave out."""


def schedule(step: Array, rates: Mapping[str, Array], changes: Changes = ()) -> Chart:
    """The chart of `rates` (name: learning rates of shape (rows,)) at update `step` (rows,).

    The axis is logarithmic, and leaves out the zeros at which schedules end, unless there are many
    of them.
    """
    log = not len(step) or float(np.mean([values == 0 for values in rates.values()])) <= _ZEROS
    series = [
        Series(name, *_own_updates(step, values, log), tone=i)
        for i, (name, values) in enumerate(rates.items())
    ]
    limits = _readable(span(*rates.values(), log=True)) if log else span(*rates.values())
    return Chart(
        "Learning rate",
        Axis("update"),
        Axis("learning rate", log=log and limits is not None, range=limits),
        tuple(series),
        change_marks(changes, step),
        notes=() if len(step) else ("No updates were recorded.",),
    )


def _own_updates(step: Array, values: Array, log: bool) -> tuple[Array, Array]:
    """Return updates and values without the updates at which this optimizer did not step: they
    would interrupt its line.
    """
    finite = np.isfinite(values) & ((values > 0) | (not log))
    return step[finite], values[finite]


def _readable(limits: tuple[float, float] | None) -> tuple[float, float] | None:
    """A range of at least a decade, since a constant rate would have no tick otherwise; if there
    are many decades, the upper ones.
    """
    if limits is None:
        return None
    low, high = max(limits[0], limits[1] / _MOST), limits[1]
    missing = max(1.0, _LEAST / (high / low)) ** 0.5
    return low / missing, high * missing
