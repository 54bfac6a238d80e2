"""Collects the charts of a study from its record and its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.plots.chart import Array
from workbench.plots.downsample import downsample
from workbench.plots.studies.study import Axis1D, StudyData, TrialPoint
from workbench.runs.folder.ids import is_id
from workbench.runs.read import RECORD, RUNS
from workbench.runs.run import Run
from workbench.runs.study.record import StudyRecord, TrialRecord
from workbench.settings.space import Choice, Dimension, Float, Int, Space
from workbench.tuners.study.importance import importance
from workbench.values import shown

_CURVES = 100
"""The most trials whose runs are read for their curves, the newest ones."""
_POINTS, _KEPT = 600, 300
"""The most points of a curve, and how many curves are kept, so that the end of one trial does not
cause the runs of all others to be read again.
"""
_LARGEST = 1 << 27
"""The most bytes of a record that is read for a curve."""


def study_data(record: StudyRecord, *, curves: bool = True) -> StudyData:
    """The trials of a study as plain numbers. curves: read the validations of their runs, too."""
    space = Space.from_record(record.space, record.priors)
    newest = {trial.number for trial in record.trials[-_CURVES:]} if curves else set()
    baseline, points = record.baseline, []
    spent = record.spent - sum(piece.spent for t in record.trials for piece in t.pieces)
    for trial in record.trials:
        # fresh seeds are trained at the end
        spent += sum(piece.spent for piece in trial.pieces if piece.seed == 0)
        steps, values = curve(record, trial) if trial.number in newest else (None, None)
        points.append(
            TrialPoint(
                trial.number,
                _values(space, trial),
                _value(record, trial),
                spent,
                _share(record, trial),
                trial.infeasible,
                trial is baseline,
                steps,
                values,
            )
        )
    shares = {name: (s.low, s.share, s.high) for name, s in importance(record).items()}
    axes = [_axis(dimension) for dimension in space.dimensions]
    return StudyData(record.head.monitor, record.head.mode, axes, points, shares)


def _axis(dimension: Dimension) -> Axis1D:
    if isinstance(dimension, Choice):
        return Axis1D(dimension.name, choices=tuple(map(_text, dimension.choices)))
    assert isinstance(dimension, Float | Int)
    name = dimension.name
    if isinstance(dimension, Float) and dimension.relative:
        name = f"{name} (times what a search finds)"
    return Axis1D(name, float(dimension.low), float(dimension.high), dimension.log)


def _values(space: Space, trial: TrialRecord) -> Mapping[str, Any]:
    """The values of a trial by the names of the axes."""
    return {
        _axis(dimension).name: _text(value) if isinstance(dimension, Choice) else value
        for dimension, value in space.placed(trial.values)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _longest(record: StudyRecord, trial: TrialRecord) -> int | None:
    """The highest rung at which a trial has a value."""
    rungs = [
        rung
        for rung in range(record.last_rung + 1)
        if (end := trial.end(rung)) is not None and end.value is not None
    ]
    return max(rungs, default=None)


def _value(record: StudyRecord, trial: TrialRecord) -> float | None:
    rung = _longest(record, trial)
    end = None if rung is None else trial.end(rung)
    return None if end is None else end.value


def _share(record: StudyRecord, trial: TrialRecord) -> float:
    rung = _longest(record, trial)
    return 0.0 if rung is None else record.head.rungs[rung]


def curve(record: StudyRecord, trial: TrialRecord) -> tuple[Array | None, Array | None]:
    """The validations of the run that trained a trial furthest with its first seed: updates, and
    the metric at these, thinned to the points that a plot can show. None: it has none, or its
    record is too large to be read for a plot.
    """
    runs = record.path.parents[1] / RUNS
    first = [piece for piece in trial.pieces if piece.seed == 0]
    ids = [piece.run for piece in first if piece.run]
    if not ids:
        return None, None
    has_ended = all(piece.end is not None for piece in first)
    read = _kept_curve if has_ended else _read_curve  # one that grows would take the others' place
    try:
        if not is_id(ids[-1]):  # the folder may be a stranger's
            return None, None
        stat = os.stat(runs / ids[-1] / RECORD)
        if stat.st_size > _LARGEST:
            return None, None
        return read(runs / ids[-1], record.head.monitor, (stat.st_mtime_ns, stat.st_size))
    except (OSError, ValueError):  # it is being written, or is broken: the table says so
        return None, None


def _read_curve(
    folder: Path, monitor: str, stamp: tuple[int, int]
) -> tuple[Array | None, Array | None]:
    """The curve of a record, which is read again where its stamp differs."""
    validation = Run.open(folder).validation
    values = validation.get(monitor)
    if values is None:
        return None, None
    return downsample(validation["step"], np.asarray(values, np.float64), _POINTS)


_kept_curve = lru_cache(_KEPT)(_read_curve)
