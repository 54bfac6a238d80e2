"""Compares the values of one setting, of which each is tuned with an equal share of the budget.

Each value has a *view* of the record: a study of its own, with the trials that have the value, and
the rest of the space. The plan asks the view that has used least. A value whose trials cannot be
trained leaves its share to the others. In the end fresh seeds of the best trial of each value are
compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from workbench.runs.study.record import Change, PieceRecord, StudyRecord, TrialRecord
from workbench.settings.space import Choice, Space
from workbench.tuners.study.brackets import piece_cost
from workbench.tuners.study.verdict import (
    PAIRS,
    Verdict,
    is_better,
    judge,
    noise_text,
    paired,
    untrainable,
)
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
    untrainable: str | None
    """Why no more trials of it are proposed: the last ones have no value; None: they are."""


def compared(record: StudyRecord) -> list[Compared]:
    """The values that are compared, the best one first."""
    space = Space.from_record(record.space, record.priors)
    values = []
    for value, trials in _trials_by_choice(record, space):
        best = _best(record, trials)
        ends = [p.end for t in trials for p in t.pieces if p.end is not None and p.seed == 0]
        why = untrainable(replace(record, trials=tuple(trials)))
        values.append(Compared(value, best, sum(end.cost for end in ends), why))
    return sorted(values, key=lambda entry: _score(record, entry.best))


def views(record: StudyRecord, fits_left: float) -> list[StudyRecord]:
    """A study for each value, with its share of the budget; those that have used least come first.

    fits_left: of the whole study. A value whose baseline is missing (`StudyRecord.baseline`) has no
    trial yet. One that cannot be trained has no study, and what it used is not shared.
    """
    space = Space.from_record(record.space, record.priors)
    tuned = [
        (value, trials)
        for value, trials in _trials_by_choice(record, space)
        if untrainable(replace(record, trials=tuple(trials))) is None
    ]
    used = [sum(_costs(record, trials)) for _, trials in tuned]
    fits = fits_left + sum(used) - len(missing_seeds(record, fits_left))
    shown = [
        _view(record, space.only(record.head.compare, value), trials, fits / len(tuned))
        for value, trials in tuned
    ]
    return [shown[k] for k in sorted(range(len(shown)), key=lambda k: (used[k], k))]


def why_untrainable(record: StudyRecord) -> str | None:
    """Why no more trials are proposed, since they cannot be trained; None: they are. Of values that
    are compared, those of each one cannot.
    """
    if not record.head.compare:
        return untrainable(record)
    entries = compared(record)
    whys = [f"{_label(record, e.value)}: {e.untrainable}" for e in entries if e.untrainable]
    return "; ".join(whys) if len(whys) == len(entries) else None


def missing_seeds(record: StudyRecord, fits_left: float) -> list[tuple[TrialRecord | None, int]]:
    """The pieces that the verdict still needs, a seed of all values after the other; None: a trial
    of a value that has none yet. fits_left: of the whole study. None are missing where all values
    but one cannot be trained.
    """
    bests = [e.best for e in compared(record) if e.best is not None or not e.untrainable]
    if len(bests) < 2:
        return []
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
    entries = compared(record)
    bests = [(_label(record, entry.value), entry.best) for entry in entries]
    tuned = [(label, best) for label, best in bests if best is not None]
    if len(tuned) < 2:
        lost = [f"; {_label(record, e.value)} cannot be trained" for e in entries if e.untrainable]
        text = f"fewer than two values of {record.head.compare} were trained to the end yet"
        return Verdict(text + "".join(lost), None)
    (label, best), *others = tuned
    against = [_between(record, label, best, other, trial) for other, trial in others]
    facts = ", ".join(
        f"{known} {number(record.whole(trial) or 0.0)} (trial {trial.number})"
        for known, trial in tuned
    )
    missing = [f"study.seeds({trial.number}, {PAIRS})" for _, trial in tuned]
    remedy = f"; {', '.join(missing)} give a verdict"
    if not any(pair.text for pair in against):
        return Verdict(f"no verdict yet, their order may be luck: {facts}{remedy}", None)
    text = f"{facts}: {'; '.join(pair.text for pair in against if pair.text)}"
    if all(pair.adopt for pair in against):
        return Verdict(text, True, against[0].differences)
    unknown = any(pair.adopt is None for pair in against)
    verdict = None if unknown else False
    return Verdict(text + remedy if unknown else text, verdict, against[0].differences)


def _label(record: StudyRecord, value: Any) -> str:
    return value if isinstance(value, str) else f"{record.head.compare}={value}"


def _between(
    record: StudyRecord, value: str, best: TrialRecord, other: str, trial: TrialRecord
) -> Verdict:
    """The verdict on two values by fresh seeds of their best trials, without a text where they have
    none.
    """
    differences, _ = paired(record, best, trial)
    pairs = tuple(filter(math.isfinite, differences))
    if not differences:
        return Verdict("", None)
    wins = sum(difference > 0 for difference in differences)
    if len(pairs) < 2:
        text = f"{value} is better than {other} in {wins} of {counted(len(differences), 'seed')}"
        enough = len(differences) >= PAIRS
        return Verdict(text, wins == len(differences) if enough else None, pairs)
    mean, error = statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))
    if is_better(pairs) and wins == len(differences):
        text = (
            f"{value} is better than {other} in {wins} of {len(differences)} seeds, by"
            f" {number(mean)} ± {number(error)}"
        )
        return Verdict(text, True, pairs)
    which = "better" if mean > 0 else "worse"
    is_known = len(differences) >= PAIRS
    judged = "no evidence" if is_known else "too few seeds"
    text = (
        f"{judged}: with {counted(len(differences), 'fresh seed')} {value} is {number(abs(mean))}"
        f" {which} than {other} on average{noise_text(record)}"
    )
    return Verdict(text, False if is_known else None, pairs)


def _seeds_wanted(fits: float, values: int, seeds: int | None) -> int:
    """With how many fresh seeds the best trial of each value is trained."""
    if seeds is not None:
        return seeds
    return PAIRS if fits >= _FITS * values else 0


def _trials_by_choice(record: StudyRecord, space: Space) -> list[tuple[Any, list[TrialRecord]]]:
    """The values that are compared, each with its trials."""
    dimension = space.dimension(record.head.compare)
    assert isinstance(dimension, Choice)
    trials = record.trials_by_value(space)
    return [(choice, trials.get(dimension.unit(choice), [])) for choice in dimension.choices]


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
    """A study of these trials alone. The first one that is trained whole is its baseline.

    Its space and budget are what they are now; of their changes it has only when they were made.
    """
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
        changes=tuple(
            change if change.kind == "stop" else Change("more", after=change.after)
            for change in record.changes
            if change.kind in ("stop", "space", "more")
        ),
        unread=record.next_number - 1,
    )


def _of_first_seed(trial: TrialRecord) -> tuple[PieceRecord, ...]:
    return tuple(piece for piece in trial.pieces if piece.seed == 0)
