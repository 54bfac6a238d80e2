"""Compares the values of one setting, of which each is tuned with an equal share of the budget.

Each value has a *view* of the record: a study of its own, with the trials that have the value, and
the rest of the space. The plan asks the view that has used least. In the end fresh seeds of the
best trial of each value are compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from workbench.runs.study.record import PieceRecord, StudyRecord, TrialRecord
from workbench.settings.space import Choice, Space
from workbench.tuners.study.brackets import piece_cost
from workbench.tuners.study.verdict import PAIRS, Verdict, is_better, judge, paired, seed_noise
from workbench.units import counted, number

_FITS = 9
"""With so many whole fits for each value, a budget has room for a verdict."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a study knows of one value of the setting that it compares."""

    value: Any
    best: TrialRecord | None
    """None: no trial with this value has a whole fit yet."""
    fits: float
    """What its trials cost, without fresh seeds."""


def compared(record: StudyRecord) -> list[Compared]:
    """The values that are compared, the best one first."""
    space = Space.from_record(record.space, record.priors)
    values = []
    for value in _choices(record, space):
        trials = _with_value(record, space, value)
        best = _best(record, trials)
        ends = [p.end for t in trials for p in t.pieces if p.end is not None and p.seed == 0]
        values.append(Compared(value, best, sum(end.cost for end in ends)))
    return sorted(values, key=lambda entry: _score(record, entry.best))


def views(record: StudyRecord, fits_left: float) -> list[StudyRecord]:
    """A study for each value, with its share of the budget; those that have used least come first.

    fits_left: of the whole study. A value whose baseline is missing (`StudyRecord.baseline`) has no
    trial yet.
    """
    space = Space.from_record(record.space, record.priors)
    choices = _choices(record, space)
    trials = [_with_value(record, space, value) for value in choices]
    used = [sum(_costs(record, of_value)) for of_value in trials]
    share = (fits_left + sum(used) - len(missing_seeds(record, fits_left))) / len(choices)
    shown = [
        _view(record, space.only(record.head.compare, value), of_value, share)
        for value, of_value in zip(choices, trials, strict=True)
    ]
    return [shown[k] for k in sorted(range(len(shown)), key=lambda k: (used[k], k))]


def share_of(fits: float, values: int, seeds: int | None) -> float:
    """The whole fits in which one of so many values is tuned, of a budget of `fits`. seeds: with
    how many fresh seeds each best trial is trained; None: what the budget allows.
    """
    return fits / values - _seeds_wanted(fits, values, seeds)


def missing_seeds(record: StudyRecord, fits_left: float) -> list[tuple[TrialRecord | None, int]]:
    """The pieces that the verdict still needs, a seed of all values after the other; None: a trial
    of a value that has none yet. fits_left: of the whole study.
    """
    bests = [entry.best for entry in compared(record)]
    fits = record.budget.get("fits", record.spent - record.by_hand + fits_left)
    return [
        (best, seed)
        for seed in range(1, _seeds_wanted(fits, len(bests), record.head.seeds) + 1)
        for best in bests
        if best is None or best.piece(record.last_rung, seed) is None
    ]


def verdict(record: StudyRecord) -> Verdict:
    """Whether the best trial is better: than the bench's own settings, or, where a study compares
    values of a setting, than the best trial of each other value.
    """
    if not record.head.compare:
        return judge(record)
    bests = [(_label(record, entry.value), entry.best) for entry in compared(record)]
    tuned = [(label, best) for label, best in bests if best is not None]
    if len(tuned) < 2:
        return Verdict(f"fewer than two values of {record.head.compare} have a whole fit yet", None)
    (label, best), *others = tuned
    against = [_between(record, label, best, other, trial) for other, trial in others]
    facts = [
        f"{known} {number(record.whole(trial) or 0.0)} (trial {trial.number})"
        for known, trial in tuned
    ]
    text = f"{', '.join(facts)}: {'; '.join(pair.text for pair in against)}"
    if all(pair.adopt for pair in against):
        return Verdict(text, True, against[0].differences)
    unknown = any(pair.adopt is None for pair in against)
    missing = [f"study.seeds({trial.number}, {PAIRS})" for _, trial in tuned]
    remedy = f"; {', '.join(missing)} give a verdict" if unknown else ""
    return Verdict(text + remedy, None if unknown else False, against[0].differences)


def _label(record: StudyRecord, value: Any) -> str:
    return value if isinstance(value, str) else f"{record.head.compare}={value}"


def _between(
    record: StudyRecord, value: str, best: TrialRecord, other: str, trial: TrialRecord
) -> Verdict:
    """The verdict on two values by fresh seeds of their best trials."""
    differences, _ = paired(record, best, trial)
    pairs = tuple(filter(math.isfinite, differences))
    if not differences:
        return Verdict(f"no fresh seeds of {value} and {other} yet", None)
    wins = sum(difference > 0 for difference in differences)
    if len(pairs) < 2:
        text = f"{value} is better than {other} in {wins} of {counted(len(differences), 'pair')}"
        enough = len(differences) >= PAIRS
        return Verdict(text, wins == len(differences) if enough else None, pairs)
    mean, error = statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))
    if is_better(pairs) and wins == len(differences):
        text = (
            f"{value} is better than {other} in {wins} of {len(differences)} seeds, by"
            f" {number(mean)} ± {number(error)}"
        )
        return Verdict(text, True, pairs)
    noise = seed_noise(record)
    against = "" if noise is None else f", noise of a seed {number(noise)}"
    which = "better" if mean > 0 else "worse"
    text = (
        f"no evidence: {value} is {number(abs(mean))} {which} than {other} in"
        f" {counted(len(differences), 'pair')}{against}"
    )
    return Verdict(text, False if len(differences) >= PAIRS else None, pairs)


def _seeds_wanted(fits: float, values: int, seeds: int | None) -> int:
    """With how many fresh seeds the best trial of each value is trained."""
    if seeds is not None:
        return seeds
    return PAIRS if fits >= _FITS * values else 0


def _choices(record: StudyRecord, space: Space) -> tuple[Any, ...]:
    dimension = space.dimension(record.head.compare)
    assert isinstance(dimension, Choice)
    return dimension.choices


def _with_value(record: StudyRecord, space: Space, value: Any) -> list[TrialRecord]:
    """The trials with this value of the compared setting."""
    index = space.names.index(record.head.compare)
    unit = space.dimensions[index].unit(value)
    return [trial for trial in record.trials if space.units(trial.values)[index] == unit]


def _best(record: StudyRecord, trials: list[TrialRecord]) -> TrialRecord | None:
    scores = [(_score(record, trial), trial.number, trial) for trial in trials]
    score, _, best = min(scores, default=(math.inf, 0, None))
    return best if math.isfinite(score) else None


def _score(record: StudyRecord, trial: TrialRecord | None) -> float:
    return math.inf if trial is None else record.score_at(trial, record.last_rung)


def _costs(record: StudyRecord, trials: list[TrialRecord]) -> Iterator[float]:
    """What the pieces of trials have cost or will, without those that a user asked for."""
    for trial in trials:
        begun = [p for p in trial.pieces if p.seed == 0 and not record.is_by_hand(trial, p)]
        for k, piece in enumerate(begun):
            if piece.end is not None:
                yield piece.end.cost
            elif trial.number not in record.stopped:
                rungs = [other.rung for other in begun[:k] if other.end is not None]
                yield piece_cost(record.head.rungs, piece.rung, max(rungs, default=None))


def _view(
    record: StudyRecord, space: Space, trials: list[TrialRecord], share: float
) -> StudyRecord:
    """A study of these trials alone. The first one that is trained whole is its baseline."""
    head = replace(
        record.head,
        compare="",
        space=space.to_record(),
        priors=record.priors,
        spent=0.0,
        seeds=0,
        budget={"fits": share},
    )
    first = next((t for t in trials if t.origin in ("baseline", "found")), None)
    return replace(
        record,
        head=head,
        trials=tuple(
            replace(
                trial,
                origin="baseline" if trial is first else trial.origin,
                pieces=_of_first_seed(trial),
            )
            for trial in trials
        ),
        changes=tuple(change for change in record.changes if change.kind == "stop"),
        unread=record.next_number - 1,
    )


def _of_first_seed(trial: TrialRecord) -> tuple[PieceRecord, ...]:
    return tuple(piece for piece in trial.pieces if piece.seed == 0)
