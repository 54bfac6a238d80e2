"""Brackets of short fits: nine candidates, of which the best three train on, and the best of these
to the end.

A bracket of rungs of 1/9, 1/3 and 1 of a fit costs 2.3 fits. Candidates of all brackets are
compared with each other, so that a good one of an earlier bracket can still be promoted. Sources:
successive halving (Jamieson and Talwalkar, 2016), ASHA (Li et al., 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.runs.study.record import StudyRecord, TrialRecord

_WHOLE = ("baseline", "found", "whole", "by hand")
_REDUCTION = 3
"""One of so many is promoted."""


def candidates(record: StudyRecord) -> list[TrialRecord]:
    """The trials that brackets compare: all but those that are trained whole at once."""
    return [t for t in record.trials if not trains_whole(t)]


def trains_whole(trial: TrialRecord) -> bool:
    """Whether a trial is trained to the end at once."""
    return trial.origin in ("baseline", "found", "whole", "by hand") or trial.origin.startswith(
        "repeat "
    )


def goes_on(record: StudyRecord, trial: TrialRecord) -> int | None:
    """The rung up to which a trial that trains whole is trained next, from where it is; None: it is
    trained up to the end, or no further, or waits to be promoted.
    """
    begun = [piece.rung for piece in trial.pieces if piece.seed == 0]
    if not begun or not trains_whole(trial) or _is_lost(record, trial):
        return None
    return max(begun) + 1 if max(begun) < record.last_rung else None


def size(record: StudyRecord, rung: int) -> int:
    """How many trials of one bracket are trained up to this rung."""
    return _size(record.last_rung - rung)


def piece_cost(rungs: Sequence[float], rung: int, begins_at: int | None) -> float:
    """The expected cost of a piece in whole fits. begins_at: the rung from which it continues;
    None: from the first update.
    """
    return rungs[rung] - (0.0 if begins_at is None else rungs[begins_at])


def bracket_cost(record: StudyRecord) -> float:
    """The expected cost of a whole bracket."""
    return _bracket_cost(record.head.rungs)


def trials_within(fits: float, rungs: Sequence[float]) -> int:
    """About how many trials a budget of so many whole fits trains, without fresh seeds."""
    if len(rungs) == 1:
        return max(int(fits), 1)
    cost = _bracket_cost(rungs)
    whole = 2 if fits - 2 >= cost else 1
    brackets = int(max(fits - whole, 0.0) / cost)
    rest = fits - whole - brackets * cost
    return whole + brackets * _size(len(rungs) - 1) + int(max(rest, 0.0))


def _bracket_cost(rungs: Sequence[float]) -> float:
    last = len(rungs) - 1
    return sum(
        _size(last - rung) * piece_cost(rungs, rung, rung - 1 if rung else None)
        for rung in range(last + 1)
    )


def _size(below: int) -> int:
    """How many trials of a bracket are trained so many rungs below a whole fit."""
    return int(_REDUCTION**below)


def begun_brackets(record: StudyRecord) -> int:
    """How many brackets have a candidate."""
    return math.ceil(len(candidates(record)) / size(record, 0))


def owed(record: StudyRecord) -> float:
    """The expected cost of the promotions that the brackets so far still have to make."""
    brackets = begun_brackets(record)
    cost = 0.0
    for rung in range(1, record.last_rung + 1):
        below = [t for t in candidates(record) if t.piece(rung) is None and not _is_lost(record, t)]
        missing = min(
            brackets * size(record, rung) - len(_begun(record, rung)),
            len(below) + open_places(record),
        )
        cost += max(missing, 0) * piece_cost(record.head.rungs, rung, rung - 1)
    return cost


def open_places(record: StudyRecord) -> int:
    """How many candidates the last bracket still lacks."""
    return -len(candidates(record)) % size(record, 0)


def promotion(record: StudyRecord) -> tuple[TrialRecord, int] | None:
    """The trial to train on now, and up to which rung, the highest one first; None: no bracket is
    complete at a rung from which none was promoted.
    """
    for rung in range(record.last_rung, 0, -1):
        below = _begun(record, rung - 1)
        ended = [t for t in below if _is_over(record, t, rung - 1)]
        brackets = len(ended) // size(record, rung - 1)
        if len(_begun(record, rung)) < brackets * size(record, rung):
            trial = next_at(record, rung)
            if trial is not None:
                return trial, rung
    return None


def next_at(record: StudyRecord, rung: int) -> TrialRecord | None:
    """The best trial that has ended at the rung below this one and was not promoted; None: there
    is none with a value.
    """
    waiting = [
        (record.score_at(trial, rung - 1), trial.number, trial)
        for trial in candidates(record)
        if trial.piece(rung) is None and trial.number not in record.stopped
    ]
    score, _, trial = min(waiting, default=(math.inf, 0, None))
    return trial if math.isfinite(score) else None


def ranked(record: StudyRecord) -> list[TrialRecord]:
    """The trials with a value, the best first: those of a higher rung before the others."""
    scored = []
    for trial in record.trials:
        for rung in range(record.last_rung, -1, -1):
            score = record.score_at(trial, rung)
            if math.isfinite(score):
                scored.append((-rung, score, trial.number, trial))
                break
    return [entry[3] for entry in sorted(scored)]


def _begun(record: StudyRecord, rung: int) -> list[TrialRecord]:
    """The candidates that are trained up to this rung, were, or will be."""
    if rung == 0:
        return candidates(record)
    return [t for t in candidates(record) if t.piece(rung) is not None]


def _is_over(record: StudyRecord, trial: TrialRecord, rung: int) -> bool:
    """Whether a trial tells no more about this rung."""
    return trial.end(rung) is not None or _is_lost(record, trial)


def _is_lost(record: StudyRecord, trial: TrialRecord) -> bool:
    """Whether a trial is trained no further: stopped by hand, or without a value somewhere."""
    ends = [piece.end for piece in trial.pieces if piece.end is not None and piece.seed == 0]
    return trial.number in record.stopped or any(end.status != "completed" for end in ends)
