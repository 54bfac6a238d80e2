"""Says whether the best trial is better than the bench's own settings, by fresh seeds of both.

The value that chose a trial never judges it: the best of many is the luckiest, too.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.runs.study.record import StudyRecord, TrialRecord
from workbench.tuners.study.boundary import at_boundary
from workbench.tuners.study.brackets import bracket_cost, candidates, size
from workbench.units import counted, number

PAIRS = 3
"""The pairs of fresh seeds that a verdict needs."""
_T = 1.886
"""Student's t at 10%, one-sided, for three pairs: with all three better, chance says "adopt" in
less than one of ten studies of settings that make no difference.
"""
_FITS = 12
"""Budgets of at least so many whole fits have room for a verdict."""
_LEAST = 3
"""The brackets after which a study may end by itself."""
_UNTRAINABLE, _UNTRAINABLE_BRACKETS = 9, 2
"""No more trials are proposed after so many in a row without a value, and so many brackets of
them: with one bracket, the next one has learnt where trials cannot be trained.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to adopt the best trial's settings."""

    text: str
    adopt: bool | None
    """None: there are too few pairs to say."""
    differences: tuple[float, ...] = ()
    """By how much the best is better than the baseline, a pair of fresh seeds each."""

    def __str__(self) -> str:
        return self.text


def judge(record: StudyRecord) -> Verdict:
    """Compare the best trial with the baseline, in the metric's own unit."""
    best, baseline = record.best, record.baseline
    if best is None:
        return Verdict("no trial has a value yet", None)
    if baseline is None or record.whole(baseline) is None:
        return Verdict("the baseline has no value: no trial can be compared with it", None)
    if best is baseline:
        return _of_present(record, baseline)
    differences, lost = paired(record, best, baseline)
    remedy = f"; study.seeds({best.number}, {PAIRS + lost}) gives a verdict"
    if differences and not any(map(math.isfinite, differences)):
        return _without_numbers(best, differences, remedy)
    pairs = _bounded(differences)
    if len(pairs) < 2:
        if pairs:
            text = f"is {_by(pairs[0])} with one fresh seed"
        else:
            text = f"was {_by(_chosen_by(record, best, baseline))} when it was chosen"
        text = f"trial {best.number} {text}, which may be luck{remedy}"
        return Verdict(text, None, pairs)
    mean, deviation = statistics.fmean(pairs), statistics.stdev(pairs)
    wins = sum(difference > 0 for difference in pairs)
    error = deviation / math.sqrt(len(pairs))
    if is_better(pairs):
        return Verdict(
            f"adopt trial {best.number}: it is better than the baseline in {wins} of"
            f" {len(pairs)} seeds, by {number(mean)} ± {number(error)}",
            True,
            pairs,
        )
    text = f"with {len(pairs)} fresh seeds trial {best.number} is {_by(mean)} on average"
    text += noise_text(record)
    if len(pairs) < PAIRS:
        return Verdict(f"too few seeds: {text}{remedy}", None, pairs)
    return Verdict(f"no evidence: {text}", False, pairs)


def _of_present(record: StudyRecord, baseline: TrialRecord) -> Verdict:
    """The verdict where no trial is better than the present settings."""
    others = [t for t in record.trials if t is not baseline and t.origin != "by hand"]
    ends = [[p.end.status for p in trial.pieces if p.end is not None] for trial in others]
    ended = [*filter(None, ends)]
    if not ended:
        return Verdict("no other trial has ended yet: nothing was compared with the baseline", None)
    lost = sum("completed" not in statuses for statuses in ended)
    failed = f", {lost} of which could not be trained" if lost else ""
    return Verdict(
        f"keep the present settings: none of {counted(len(ended), 'other trial')} was"
        f" better{failed}",
        False,
    )


def is_better(pairs: tuple[float, ...]) -> bool:
    """Whether differences between fresh seeds, at least two, are more than chance."""
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    return len(pairs) >= PAIRS and min(pairs) > 0 and statistics.fmean(pairs) > _T * error


def _chosen_by(record: StudyRecord, best: TrialRecord, baseline: TrialRecord) -> float:
    """By how much the best is better with the seed that has chosen it."""
    rung = record.last_rung
    return record.score_at(baseline, rung) - record.score_at(best, rung)


def _without_numbers(best: TrialRecord, differences: list[float], remedy: str) -> Verdict:
    """The verdict where in each pair one of the two cannot be trained."""
    pairs, wins = len(differences), sum(difference > 0 for difference in differences)
    trained = {f"trial {best.number}": wins, "the baseline": pairs - wins}
    seeds = counted(pairs, "fresh seed")
    text = " and ".join(
        f"with {count} of {seeds} only {name} could be trained"
        for name, count in trained.items()
        if count
    )
    if pairs < PAIRS:
        return Verdict(f"too few seeds: {text}{remedy}", None)
    if wins == pairs:
        return Verdict(f"adopt trial {best.number}: {text}", True)
    return Verdict(f"no evidence: {text}", False)


def _by(difference: float) -> str:
    if difference == 0:
        return "as good as the baseline"
    return f"{number(abs(difference))} {'better' if difference > 0 else 'worse'} than the baseline"


def paired(
    record: StudyRecord, best: TrialRecord, baseline: TrialRecord
) -> tuple[list[float], int]:
    """By how much the best is better, for each fresh seed with which both have ended; infinite
    where one of them cannot be trained. And the number of seeds that say nothing: one of the two
    failed or was stopped, or none of them can be trained.
    """
    rung = record.last_rung
    pieces = [p for p in (*best.pieces, *baseline.pieces) if p.seed > 0 and p.rung == rung]
    differences: list[float] = []
    lost = 0
    for seed in sorted({piece.seed for piece in pieces}):
        ends = best.end(rung, seed), baseline.end(rung, seed)
        if any(end is not None and end.status in ("failed", "stopped") for end in ends):
            lost += 1
        elif None not in ends:
            scores = record.score_at(baseline, rung, seed), record.score_at(best, rung, seed)
            if scores[0] != scores[1] or math.isfinite(scores[0]):
                differences.append(scores[0] - scores[1])
            else:
                lost += 1
    return differences, lost


def _bounded(differences: list[float]) -> tuple[float, ...]:
    """The differences, an infinite one as the largest of the others."""
    largest = max((abs(d) for d in differences if math.isfinite(d)), default=0.0)
    return tuple(min(max(d, -largest), largest) for d in differences)


def seed_noise(record: StudyRecord) -> float | None:
    """How much the value of a whole fit deviates from seed to seed, pooled over the trials with
    several; None: no trial has fresh seeds.
    """
    squares, freedom = 0.0, 0
    for trial in record.trials:
        values = [
            piece.end.value
            for piece in trial.pieces
            if piece.rung == record.last_rung
            and piece.end is not None
            and piece.end.status == "completed"
            and piece.end.value is not None
        ]
        if len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def noise_text(record: StudyRecord) -> str:
    """What is said of the noise of a seed behind a difference; "": it is unknown."""
    noise = seed_noise(record)
    if noise is None:
        return ""
    return f", and one seed differs from another by about {number(noise)}"


def pairs_wanted(record: StudyRecord, fits_left: float = math.inf) -> int:
    """How many pairs of fresh seeds the study means to train. fits_left: about how many whole fits
    a budget in time still holds.
    """
    fits = record.budget.get("fits", record.spent - record.by_hand + fits_left)
    return pairs_within(fits, record.head.seeds)


def pairs_within(fits: float, seeds: int | None) -> int:
    """How many pairs of fresh seeds a budget of so many fits trains. seeds: so many were asked
    for.
    """
    if seeds is not None:
        return seeds
    return PAIRS if fits >= _FITS else 0


def fresh_seeds(record: StudyRecord, pairs: int) -> Iterator[tuple[TrialRecord, int]]:
    """The pieces that a verdict by so many pairs needs; none where the baseline is the best."""
    best, baseline = record.best, record.baseline
    if best is None or baseline is None or best is baseline:
        return
    for seed in range(1, pairs + 1):
        yield best, seed
        yield baseline, seed


def enough(record: StudyRecord) -> str | None:
    """Why the study ends before its budget does; None: it does not, or a verdict is missing. One
    that compares values uses its budget.
    """
    if record.head.compare or not is_saturated(record):
        return None
    best, baseline = record.best, record.baseline
    if best is None or baseline is None:
        return None
    if best is not baseline and len(paired(record, best, baseline)[0]) < pairs_wanted(record):
        return None
    return (
        f"another {bracket_cost(record):.1f} fits would gain about {number(_gain(record))}, less"
        f" than one seed differs from another, {number(seed_noise(record) or 0.0)}"
    )


def untrainable(record: StudyRecord) -> str | None:
    """Why no more trials are proposed after many in a row without a value, which may have cost
    nothing; None: they are. Trials before the space or the budget was changed do not count.
    """
    since = max((c.after for c in record.changes if c.kind in ("space", "more")), default=0)
    causes: list[str] = []
    for trial in reversed(record.trials):
        ends = [piece.end for piece in trial.pieces if piece.end is not None]
        if trial.number <= since or any(end.value is not None for end in ends):
            break
        # what was stopped, or is being trained, might have one
        causes += [end.cause for end in ends if end.status in ("infeasible", "failed")][:1]
    if len(causes) < max(_UNTRAINABLE, _UNTRAINABLE_BRACKETS * size(record, 0)):
        return None
    cause, count = Counter(causes).most_common(1)[0]
    often = "" if count == len(causes) else f", {count} of them"
    return f"the last {len(causes)} trials have no value{often}: {cause or 'no cause is known'}"


def is_saturated(record: StudyRecord) -> bool:
    """Whether another bracket is expected to gain less than the noise of a seed, while the best
    values lie at no boundary.
    """
    noise = seed_noise(record)
    return (
        noise is not None and may_end(record) and _gain(record) < noise and not at_boundary(record)
    )


def _gain(record: StudyRecord) -> float:
    """What another bracket is expected to gain: with one of the brackets left out, whichever, the
    best of the others is worse by this on average.
    """
    winners = _winners(record)
    return (winners[1] - winners[0]) / len(winners)


def may_end(record: StudyRecord) -> bool:
    """Whether there were enough brackets for a study to end by itself."""
    least = _LEAST if record.last_rung else _LEAST * 3
    brackets = len(candidates(record)) // size(record, 0)
    return brackets >= least and len(_winners(record)) >= least


def _winners(record: StudyRecord) -> list[float]:
    """The scores of the candidates with a whole fit, the best first."""
    scores = [record.score_at(trial, record.last_rung) for trial in candidates(record)]
    return sorted(filter(math.isfinite, scores))
