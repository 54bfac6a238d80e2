"""Decides what a worker of a study does next: a pure, seeded function of the study's record.

The first trial is the bench as it is, trained to the end, and the second one what the searches
found, where the budget holds a bracket beside it. They halt at the rungs on their way, so that the
proposals know what short fits tell of whole ones. Then come brackets (`brackets`), as many as the
budget holds beside the fits for a verdict. Then fresh seeds judge the best trial
(`verdict`). What is left of the budget trains the next best candidates to the end. Where trials
have all settings of a space, they train to the end, and fresh seeds have the rest. Several workers
ask at once: pieces that others train count as begun, and nobody waits for a bracket to be complete
while the budget holds another one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.runs.study.record import PieceRecord, StudyRecord, TrialProposal, TrialRecord
from workbench.settings.space import Space
from workbench.tuners.study.brackets import (
    begun_brackets,
    bracket_cost,
    goes_on,
    next_at,
    open_places,
    owed,
    piece_cost,
    promotion,
)
from workbench.tuners.study.budget import budget_text
from workbench.tuners.study.compare import missing_seeds, views, why_untrainable
from workbench.tuners.study.propose import all_tried, propose, propose_found
from workbench.tuners.study.verdict import (
    PAIRS,
    enough,
    fresh_seeds,
    is_saturated,
    may_end,
    pairs_wanted,
    seed_noise,
)

_SLACK = 0.05
"""Fits by which a budget may be exceeded, since the cost of a piece is expected."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """Make this trial, and train its first piece."""

    proposal: TrialProposal
    seed: int
    rung: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train a piece of a trial that exists."""

    trial: int
    values: Mapping[str, Any]
    seed: int
    rung: int
    continues: str | None = None
    """The run of the trial's last piece, which it continues; None: it begins at the first update,
    or where an earlier worker of the same piece left it.
    """


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done until a piece of another worker ends, or a user continues."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The study has ended."""

    why: str


Action = NewTrial | Train | Wait | Ended


def plan(record: StudyRecord, elapsed: float = 0.0) -> Action:
    """What a worker that is free does now.

    elapsed: seconds since the study was made, for a budget in time.
    """
    if (why := _why_over(record, elapsed)) is not None:
        return Ended(why)
    if record.paused:
        return Wait("the study is paused")
    fits_left = _fits_left(record, elapsed)
    action = next(_actions(record, fits_left), None)
    if action is not None:
        return action
    if _pending(record):
        return Wait("what is next depends on trials that other workers train")
    why = why_untrainable(record) or enough(record)
    if why is None and all_tried(record) and fits_left >= 1 - _SLACK:
        why = "all settings of the space were tried"
    if why is None and record.head.compare and fits_left >= 1 - _SLACK:
        why = f"the {fits_left:.1f} fits that are left are too few for one more fit of each value"
    return Ended(why or f"the budget of {budget_text(record.budget)} is used")


def plan_now(record: StudyRecord) -> Action:
    """What a free worker would do at this moment."""
    return plan(record, elapsed=time.time() - record.head.created)


def _why_over(record: StudyRecord, elapsed: float) -> str | None:
    if record.ended:
        return "it was ended by hand"
    if record.seconds_left(record.head.created + elapsed) <= 0:
        return f"the budget of {budget_text(record.budget)} is used"
    causes = Counter(
        piece.end.cause
        for trial in record.trials
        for piece in trial.pieces
        if piece.end is not None and piece.end.status == "failed" and piece.end.cause
    )
    twice = [cause for cause, count in causes.items() if count >= 2]
    if twice:
        return f"two trials failed with the same error, so no setting is its cause: {twice[0]}"
    return None


def _actions(record: StudyRecord, fits_left: float) -> Iterator[Action]:
    """What could be done, the most urgent first."""
    yield from _interrupted(record)
    if record.baseline is None:
        space = Space.from_record(record.space, record.priors)
        number = record.next_number
        proposal = TrialProposal(number, space.present, "baseline", "the bench as it is")
        yield NewTrial(proposal, 0, 0)
    yield from _asked_for(record)
    if why_untrainable(record) is not None or enough(record) is not None:
        return
    if record.head.compare:
        yield from _of_values(record, fits_left)
        return
    # a short fit may misjudge what the searches found
    answer = propose_found(record)
    if answer is not None and fits_left - 1 >= bracket_cost(record) - _SLACK:
        yield NewTrial(answer, 0, 0)
    promoted = promotion(record)
    if promoted is not None and fits_left >= _cost_of(record, *promoted) - _SLACK:
        yield _train_on(record, *promoted)
    exhausted = all_tried(record)
    # a bracket that no trial completes promotes none
    free = fits_left if exhausted else fits_left - owed(record)
    bracket, pairs = bracket_cost(record), pairs_wanted(record, fits_left)
    if _decides_whether_to_end(record, free):
        yield from _for_verdict(record, free, pairs)
        if is_saturated(record):
            return
    missing = _missing_seeds(record, pairs)
    # a verdict takes no fits from the first two brackets
    first = max(2 - begun_brackets(record), 0)
    reserve = min(missing, max(0.0, free - first * bracket) // 2 * 2) if first else missing
    begins = open_places(record) or free - reserve >= bracket - _SLACK
    affords = fits_left >= piece_cost(record.head.rungs, 0, None) - _SLACK
    if begins and affords and (candidate := propose(record)) is not None:
        yield NewTrial(candidate, 0, 0)
    if not begun_brackets(record):
        yield from _whole(record, free - reserve)
    # a new best trial after a verdict would need its own
    yield from _leftovers(record, free - (missing or float(pairs)))
    yield from _for_verdict(record, free, pairs)
    if exhausted:
        yield from _leftovers(record, free)
        yield from _for_verdict(record, free, PAIRS if record.head.seeds is None else pairs)
    elif record.best is record.baseline and not _pending(record):
        # nothing is to be judged, so the fits for fresh seeds are free
        yield from _leftovers(record, free)
        yield from _whole(record, free)


def _of_values(record: StudyRecord, fits_left: float) -> Iterator[Action]:
    """What tunes the values of the setting that is compared, and then the fresh seeds of each."""
    for view in views(record, fits_left):
        left = _fits_left(view, 0.0)
        if view.baseline is None:
            answer = propose_found(view) if left >= 1 - _SLACK else None
            if answer is not None:
                yield NewTrial(answer, 0, 0)
            continue
        yield from _actions(view, left)
        yield from _whole(view, left - owed(view))
    missing = missing_seeds(record, fits_left)
    for trial, seed in missing:
        if trial is not None and fits_left >= sum(s == seed for _, s in missing) - _SLACK:
            yield _with_seed(record, trial, seed)


def _whole(record: StudyRecord, fits_left: float) -> Iterator[Action]:
    """A candidate that is trained whole at once, for a budget that holds no bracket."""
    candidate = propose(record) if fits_left >= 1 - _SLACK else None
    if candidate is not None:
        why = f"{candidate.origin}: {candidate.why}"
        yield NewTrial(replace(candidate, origin="whole", why=why), 0, 0)


def _missing_seeds(record: StudyRecord, pairs: int) -> float:
    """The whole fits that a verdict by so many pairs still needs."""
    best, baseline = record.best, record.baseline
    if best is None or best is baseline:
        return 2.0 * pairs
    pieces = fresh_seeds(record, pairs)
    return float(sum(trial.piece(record.last_rung, seed) is None for trial, seed in pieces))


def _decides_whether_to_end(record: StudyRecord, free: float) -> bool:
    """Whether the noise of a seed should be known now, since much budget is left that more
    brackets may not be worth.
    """
    if not may_end(record) or free < 2 * bracket_cost(record):
        return False
    return seed_noise(record) is None or is_saturated(record)


def _interrupted(record: StudyRecord) -> Iterator[Action]:
    """Pieces that a worker gave back, trials of which nobody has begun the first piece, and those
    that train whole and have halted at a rung.
    """
    for trial in record.trials:
        if trial.number in record.stopped:
            continue
        for piece in trial.pieces:
            if piece.state == "open":
                continues = _run_before(trial, piece.rung, piece.seed)
                yield Train(trial.number, trial.values, piece.seed, piece.rung, continues)
        if not trial.pieces:
            yield Train(trial.number, trial.values, 0, 0)
        elif (rung := goes_on(record, trial)) is not None and trial.end(rung - 1) is not None:
            yield _train_on(record, trial, rung)


def _asked_for(record: StudyRecord) -> Iterator[Action]:
    """Trials and repetitions that a user has asked for, in their order, beyond the budget."""
    number = record.next_number
    added = sum(trial.origin == "by hand" for trial in record.trials)
    repeats = Counter(t.origin for t in record.trials if t.origin.startswith("repeat "))
    for change in record.changes:
        if change.kind == "add":
            added -= 1
            if added < 0:
                proposal = TrialProposal(number, change.values["values"], "by hand", "asked for")
                yield NewTrial(proposal, 0, 0)
        elif change.kind == "repeat":
            origin = f"repeat {change.values['trial']}"
            repeats[origin] -= 1
            trial = record.trial(change.values["trial"])
            if repeats[origin] < 0 and trial is not None:
                why = "the same values with the same seed"
                proposal = TrialProposal(number, trial.values, origin, why)
                yield NewTrial(proposal, 0, 0)
        elif change.kind == "seeds":
            # differences between pairs say more than two means
            asked = [record.trial(change.values["trial"]), record.baseline]
            for seed in range(1, change.values["n"] + 1):
                for trial in asked:
                    if trial is not None and trial.piece(record.last_rung, seed) is None:
                        yield _with_seed(record, trial, seed)


def _for_verdict(record: StudyRecord, fits_left: float, pairs: int) -> Iterator[Action]:
    """So many fresh seeds of the best trial and of the baseline, a pair after the other."""
    missing = [
        (trial, seed)
        for trial, seed in fresh_seeds(record, pairs)
        if trial.piece(record.last_rung, seed) is None
    ]
    for trial, seed in missing:
        # one of a pair tells nothing
        if fits_left >= sum(other == seed for _, other in missing) - _SLACK:
            yield _with_seed(record, trial, seed)


def _leftovers(record: StudyRecord, fits_left: float) -> Iterator[Action]:
    """The next best candidate, one rung on, where the budget holds that and no bracket."""
    for rung in range(record.last_rung, 0, -1):
        trial = next_at(record, rung)
        if trial is None:
            continue
        # what is begun should have a whole fit, or it tells nothing
        cost = sum(
            piece_cost(record.head.rungs, r, r - 1) for r in range(rung, record.last_rung + 1)
        )
        if fits_left >= cost - _SLACK:
            yield _train_on(record, trial, rung)


def _train_on(record: StudyRecord, trial: TrialRecord, rung: int) -> Train:
    return Train(trial.number, trial.values, 0, rung, _run_before(trial, rung, 0))


def _with_seed(record: StudyRecord, trial: TrialRecord, seed: int) -> Train:
    return Train(trial.number, trial.values, seed, record.last_rung)


def _run_before(trial: TrialRecord, rung: int, seed: int) -> str | None:
    """The run of the trial's piece below this rung."""
    ends = [trial.end(below, seed) for below in range(rung - 1, -1, -1)]
    return next((end.run for end in ends if end is not None and end.run), None)


def _pending(record: StudyRecord) -> list[tuple[TrialRecord, PieceRecord]]:
    """The pieces that workers train now."""
    return [
        (trial, piece)
        for trial in record.trials
        for piece in trial.pieces
        if piece.state == "claimed" and trial.number not in record.stopped
    ]


def _cost_of(record: StudyRecord, trial: TrialRecord, rung: int, seed: int = 0) -> float:
    """The expected cost of a piece, from where the trial is."""
    below = [r for r in range(rung) if trial.end(r, seed) is not None]
    return piece_cost(record.head.rungs, rung, max(below, default=None))


def _fits_left(record: StudyRecord, elapsed: float) -> float:
    """What is left of the budget in whole fits, without what is promised to pieces in training, and
    to trials that go on to the end. What a user asked for is beyond a budget in fits.
    """
    fits = record.budget.get("fits")
    promised = _promised(record, by_hand=fits is None)
    if fits is not None:
        return fits - (record.spent - record.by_hand) - promised
    ends = [p.end for t in record.trials for p in t.pieces if p.end is not None and p.end.cost > 0]
    seconds, cost = sum(end.seconds for end in ends), sum(end.cost for end in ends)
    if not seconds or not cost:
        # until a piece has ended nobody knows how long a fit takes
        return 1 + bracket_cost(record) - promised
    workers = len(_pending(record)) + 1
    rest = record.seconds_left(record.head.created + elapsed)
    return rest * workers / (seconds / cost) - promised


def _promised(record: StudyRecord, *, by_hand: bool) -> float:
    """The expected cost of what is trained now and of what follows it in any case.

    by_hand: with what a user asked for.
    """
    rungs = record.head.rungs
    cost = 0.0
    for trial, piece in _pending(record):
        if by_hand or not record.is_by_hand(trial, piece):
            cost += _cost_of(record, trial, piece.rung, piece.seed)
    for trial in record.trials:
        rung = goes_on(record, trial)
        if rung is not None and (by_hand or not record.is_by_hand(trial, trial.pieces[0])):
            cost += piece_cost(rungs, record.last_rung, rung - 1)
    return cost
