"""Describes a study as plain data of bounded size, from which its view is drawn.

A study's folder may come from a stranger: texts are cut, and of many trials only some are sent.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from workbench.plots.downsample import downsample
from workbench.plots.studies.study import Axis1D, StudyData, TrialPoint
from workbench.runs.printable import printable
from workbench.runs.study.record import StudyRecord, TrialRecord
from workbench.settings.space import TIMES_FOUND, Choice, Dimension, Float, Int, Space, text_of
from workbench.tuners.study.charts import curve, study_data
from workbench.tuners.study.compare import verdict
from workbench.tuners.study.verdict import seed_noise
from workbench.ui.canvas.study.calls import CALLS, is_call
from workbench.ui.canvas.transport.messages import cut

TRIALS = 300
"""The most trials that are sent, besides the best and the baseline: the newest."""
_CURVES = 100
"""The most of these whose curves are sent, besides the best and the baseline."""
_POINTS = 60
"""The most points of a curve."""
_NAMES, _DIMENSIONS, _CHOICES, _SENTENCES = 12, 16, 24, 12
"""The most columns of values, slices, values of a choice, and sentences."""
_CHOICE, _SHORT, _CODE, _LONG = 36, 60, 300, 1200
"""Bytes of a value of a choice, of another value, of a line of code, of a sentence."""
_LIVE, _ENDED = 1.0, 5.0
"""Seconds between two looks at the record of a study, and of one that has ended: another process
may let that go on.
"""
_SHARE, _LONGEST = 0.05, 10.0
"""The share of the time that the looks at a large study may take, and the most seconds between two
looks.
"""
_SLICE = 1.0
"""The seconds for which one look reads curves."""
Values = dict[str, Any]


class Study(Protocol):
    """The members of a study that its view uses; it also calls the methods of `calls.CALLS`."""

    @property
    def id(self) -> str: ...
    @property
    def record(self) -> StudyRecord: ...
    @property
    def status(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def why_idle(self) -> str: ...
    def words(self) -> list[tuple[str, str]]: ...


class Describer:
    """Describes one study again and again; what has not changed is not computed again."""

    def __init__(self, study: Study, calls: Collection[str] = CALLS) -> None:
        """calls: the methods of the study for which the view has buttons."""
        self._study, self._calls = study, calls
        self._before: object = None
        self._curves_due = 0.0
        self._unread: set[int] = set()
        """The trials whose curves the last look had no time for."""

    @property
    def reading(self) -> bool:
        """Whether the next look has more, though nothing has changed: curves take long to read."""
        return bool(self._unread)

    def present(self) -> Values:
        """What has changed since the last call may be among these values, by name."""
        study, record = self._study, self._study.record
        status, workers = study.status, study.workers
        pieces = [(p.state, p.run, p.end) for trial in record.trials for p in trial.pieces]
        now = status, workers, len(record.trials), len(record.changes), pieces
        values: Values = {"study_now": _now(record, status, workers)}
        changed = now != self._before
        if changed or self._unread or time.monotonic() >= self._curves_due:
            begin = time.thread_time()
            values |= self._curves(record, every=changed)
            self._curves_due = time.monotonic() + _rest(time.thread_time() - begin)
        if changed:
            values |= self._all(record, lives=workers > 0)
            self._before = now
        return values

    def _all(self, record: StudyRecord, *, lives: bool) -> Values:
        data = study_data(record, curves=False)
        judged = verdict(record)
        words = [word for word in self._study.words() if word[0] != judged.text]
        names = record.names[:_NAMES]
        space = Space.from_record(record.space, record.priors)
        points = {point.number: point for point in data.trials}
        sent = _sent(record, TRIALS)
        best, baseline = record.best, record.baseline
        values: Values = {
            "study": {
                "id": cut(printable(self._study.id), _SHORT),
                "monitor": cut(printable(record.head.monitor), _SHORT),
                "mode": record.head.mode,
                "rungs": [*record.head.rungs],
                "places": [_place(record, rung) for rung in range(record.last_rung + 1)],
                "names": [cut(printable(name), _SHORT) for name in names],
                "trials": [trial.number for trial in sent],
                "more": len(record.trials) - len(sent),
                "best": None if best is None else best.number,
                "best_value": _finite(None if best is None else record.whole(best)),
                "baseline": None if baseline is None else baseline.number,
                "baseline_value": _finite(None if baseline is None else record.whole(baseline)),
                "noise": _finite(seed_noise(record)),
                "repeats": sum(p.seed > 0 and p.end is not None for t in sent for p in t.pieces),
                "verdict": cut(judged.text, _LONG) if best is not None else "",
                "adopt": judged.adopt,
                "seeds": max([1, *(_fresh(t) for t in sent if t is best)]),
                "calls": [*self._calls],
            },
            "study_words": [
                {
                    "text": cut(printable(text), _LONG),
                    "code": cut(printable(code), _CODE),
                    "runs": is_call(code, self._calls),
                }
                for text, code in words[:_SENTENCES]
            ],
            "study_space": [
                _dimension(dimension, axis, edits="space" in self._calls)
                for dimension, axis in zip(space.dimensions, data.dimensions, strict=True)
            ][:_DIMENSIONS],
            "study_importance": [
                {"name": cut(printable(name), _SHORT), "low": low, "share": middle, "high": high}
                for name, (low, middle, high) in sorted(
                    data.importance.items(), key=lambda item: -item[1][1]
                )
            ][:_DIMENSIONS],
        }
        for trial in sent:
            point = points[trial.number]
            values[f"study_trial.{trial.number}"] = {
                "of": record.path.name,
                "value": _finite(point.value),
                "share": point.share,
                "spent": point.spent,
                "at": _places(space, data, trial, point),
                **_trial(record, trial, names, lives),
            }
        return values

    def _curves(self, record: StudyRecord, *, every: bool) -> Values:
        """The curves of trials, as many as can be read in a while; unless `every`, of those alone
        that train, or had no turn before.
        """
        values: Values = {}
        sent = _sent(record, _CURVES)
        due = {t.number for t in sent if every or any(p.end is None for p in t.pieces)}
        self._unread |= due
        until = time.monotonic() + _SLICE
        for trial in sent:
            if trial.number not in self._unread:
                continue
            if time.monotonic() > until:
                return values
            self._unread.discard(trial.number)
            steps, metric = curve(record, trial)
            if steps is None or metric is None or not len(steps):
                continue
            x, y = downsample(steps, metric, _POINTS)
            values[f"study_curve.{trial.number}"] = {
                "of": record.path.name,
                "x": [int(step) for step in x],
                "y": [_short(value) for value in y],
                "ends": _rung_ends(record, trial),
            }
        self._unread.clear()
        return values


def pause_after(spent: float, status: str) -> float:
    """The seconds until the next look at a study. spent: the seconds of this thread that the last
    look took, without the time in which others had the machine. status: of the study; "": it could
    not be read.
    """
    return max(_LIVE if status not in ("", "ended") else _ENDED, _rest(spent))


def _rest(spent: float) -> float:
    return min(spent / _SHARE, _LONGEST)


def _now(record: StudyRecord, status: str, workers: int) -> Values:
    """What changes while nothing ends: time, and what was spent."""
    ((unit, amount),) = record.budget.items()
    moment = time.time()
    lived = record.lived(moment)
    spent = record.spent - record.by_hand
    left: float | None = None
    if unit == "seconds":
        left = max(0.0, record.seconds_left(moment))
    elif status == "running" and record.spent > 0 and lived > 0:
        left = max(0.0, amount - spent) * lived / record.spent
    if record.ended and status in ("running", "paused"):
        status = "ending"
    return {
        "of": record.path.name,
        "status": status,
        "unit": unit,
        "budget": amount,
        "spent": round(spent if unit == "fits" else amount - (left or 0.0), 4),
        "fits": round(record.spent, 4),
        "by_hand": round(record.by_hand, 4),
        "elapsed": round(lived),
        "left": None if left is None or status == "ended" else round(left),
        "workers": workers,
        "paused": record.paused,
    }


def _sent(record: StudyRecord, most: int) -> list[TrialRecord]:
    """The newest trials, after the baseline and the best one where these are older."""
    newest = record.trials[-most:]
    marked = [trial for trial in (record.baseline, record.best) if trial is not None]
    numbers = {trial.number for trial in newest}
    return [*(trial for trial in marked if trial.number not in numbers), *newest]


def _trial(record: StudyRecord, trial: TrialRecord, names: Sequence[str], lives: bool) -> Values:
    ended = [p for p in trial.pieces if p.seed == 0 and p.end is not None]
    last = max(ended, key=lambda piece: piece.rung, default=None)
    end = None if last is None else last.end
    values = record.values_of(trial, end)
    state = trial.pieces[-1].status(lives) if trial.pieces else "waits"
    going = [p for p in trial.pieces if p.end is None]
    if going:
        state = going[-1].status(lives)
    fresh = [
        _short(piece.end.value)
        for piece in trial.pieces
        if piece.seed > 0 and piece.end is not None and piece.end.value is not None
    ]
    causes = [p.end.cause for p in trial.pieces if p.end is not None and p.end.cause]
    runs = [piece.run for piece in trial.pieces if piece.run]
    return {
        "number": trial.number,
        "from": cut(printable(trial.source), _SHORT),
        "why": cut(printable(trial.why), _CODE),
        "values": [
            cut(printable(text_of(values[name])), _SHORT) if name in values else ""
            for name in names
        ],
        "fresh": fresh[:8],
        "state": state,
        "seed": going[-1].seed if going else 0,
        "infeasible": trial.infeasible,
        "whole": record.whole(trial) is not None,
        "cause": cut(printable(" · ".join(dict.fromkeys(causes))), _LONG),
        "run": cut(runs[-1], _SHORT) if runs else "",
        "cost": round(sum(piece.spent for piece in trial.pieces), 4),
        "seconds": round(sum(p.end.seconds for p in trial.pieces if p.end is not None)),
    }


def _fresh(trial: TrialRecord) -> int:
    """The seeds with which a trial has a value, its own among them."""
    return len({piece.seed for piece in trial.pieces if piece.end is not None})


def _place(record: StudyRecord, rung: int) -> float | None:
    """The update at which trials halt at this rung; None: none has yet."""
    ends = [trial.end(rung) for trial in record.trials]
    steps = [end.step for end in ends if end is not None and end.step and end.value is not None]
    return float(statistics.median(steps)) if steps else None


def _rung_ends(record: StudyRecord, trial: TrialRecord) -> list[list[float | None]]:
    """The update and the value with which a trial ended at each rung."""
    ends = [(piece.rung, piece.end) for piece in trial.pieces if piece.seed == 0]
    return [
        [end.step, _short(end.value)]
        for _, end in sorted(ends, key=lambda pair: pair[0])
        if end is not None and end.value is not None
    ]


def _places(
    space: Space, data: StudyData, trial: TrialRecord, point: TrialPoint
) -> list[float | None]:
    """The place of a trial on each axis. A number outside of a range has one, too: the range may
    have been another one.
    """
    places = []
    for dimension, axis in zip(space.dimensions, data.dimensions, strict=True):
        value = point.values.get(axis.name)
        if value is None and not isinstance(dimension, Choice):
            value = trial.values.get(dimension.name)
            if isinstance(dimension, Float) and dimension.relative:
                value = value.get(TIMES_FOUND) if isinstance(value, Mapping) else None
        places.append(_finite(axis.at(value)))
    return places[:_DIMENSIONS]


def _dimension(dimension: Dimension, axis: Axis1D, *, edits: bool) -> Values:
    """One axis of the space. edits: whether the view changes ranges; `study.space` takes none of
    what has parts.
    """
    relative = isinstance(dimension, Float) and dimension.relative
    described: Values = {
        "name": cut(printable(dimension.name), _SHORT),
        "relative": relative,
        "edits": edits and dimension.name.isidentifier() and not relative,
        "log": axis.log,
        "low": _finite(axis.low),
        "high": _finite(axis.high),
        "whole": isinstance(dimension, Int),
        "choices": [cut(printable(text), _CHOICE) for text in axis.choices[:_CHOICES]],
        "codes": [],
    }
    if isinstance(dimension, Choice):
        described["codes"] = [cut(repr(c), _CHOICE) for c in dimension.choices[:_CHOICES]]
        complete = (
            len(axis.choices) <= _CHOICES
            and [*map(repr, dimension.choices)] == (described["codes"])
        )
        described["edits"] = described["edits"] and complete
    return described


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _short(value: float | None) -> float | None:
    """A value with six digits, which is more than a plot shows."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
