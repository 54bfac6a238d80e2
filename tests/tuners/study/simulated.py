"""A study whose fits are a formula: workers that follow `plan` on a record in memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.runs.study.record import (
    LIVES,
    Change,
    PieceEnd,
    PieceRecord,
    StudyHead,
    StudyRecord,
    TrialRecord,
)
from workbench.settings.space import Float, Space
from workbench.tuners.study.brackets import piece_cost
from workbench.tuners.study.plan import Ended, NewTrial, Train, Wait, plan

RUNGS = (1 / 9, 1 / 3, 1.0)
LR = Float("lr", present=1e-3, has_present=True, low=1e-5, high=10.0, log=True)
DECAY = Float("weight_decay", present=1e-2, has_present=True, low=1e-4, high=1.0, log=True)
Objective = Callable[[Mapping[str, Any], int, int], float]


def bowl(values: Mapping[str, Any], seed: int, rung: int) -> float:
    """The loss after a fit: lowest at lr 0.1 and a decay of 0.1, infinite above an lr of 1; a seed adds some noise."""
    if values["lr"] > 1:
        return math.inf
    distance = (
        math.log10(values["lr"] / 0.1) ** 2 + 0.2 * math.log10(values["weight_decay"] / 0.1) ** 2
    )
    return 1 + distance + 0.3 / (rung + 1) + 0.01 * math.sin(1e4 * values["lr"] + 7 * seed)


def study(fits: float = 8, *, rungs: tuple[float, ...] = RUNGS, **head: Any) -> StudyRecord:
    space = head.pop("space", Space((LR, DECAY)))
    head = {
        "priors": {"lr": {"center": 0.05, "factor": 3.0}},
        "budget": {"fits": float(fits)},
        "mode": "min",
    } | head
    return StudyRecord(
        Path("0001-study"),
        StudyHead(
            "study",
            "val_loss",
            space=space.to_record(),
            length={"updates": 900},
            rungs=rungs,
            **head,
        ),
        workers={"always": {LIVES: [[0.0, 1e9]]}},
    )


def begun(record: StudyRecord, action: NewTrial | Train) -> tuple[StudyRecord, int]:
    """The record in which a worker has claimed this piece, and the number of its trial."""
    if isinstance(action, NewTrial):
        proposal = action.proposal
        trial = TrialRecord(proposal.number, proposal.values, proposal.origin, proposal.why)
    else:
        known = record.trial(action.trial)
        assert known is not None
        trial = known
    open_pieces = [p for p in trial.pieces if (p.rung, p.seed) == (action.rung, action.seed)]
    assert all(piece.state == "open" for piece in open_pieces), "a piece is trained once"
    others = tuple(p for p in trial.pieces if p not in open_pieces)
    piece = PieceRecord(action.seed, action.rung, len(open_pieces) + 1, "claimed", "worker")
    return with_trial(record, replace(trial, pieces=(*others, piece))), trial.number


def ended(
    record: StudyRecord, number: int, seed: int, rung: int, value: float, **end: Any
) -> StudyRecord:
    trial = record.trial(number)
    assert trial is not None
    status = end.pop("status", "completed" if math.isfinite(value) else "infeasible")
    below = [p.rung for p in trial.pieces if p.seed == seed and p.rung < rung and p.end is not None]
    cost = end.pop("cost", piece_cost(record.head.rungs, rung, max(below, default=None)))
    record_of_end = PieceEnd(
        status, cost, value, **{"seconds": 100 * cost, "run": f"{number:04d}-fit", **end}
    )
    pieces = tuple(
        replace(p, state="ended", end=record_of_end) if (p.rung, p.seed) == (rung, seed) else p
        for p in trial.pieces
    )
    return with_trial(record, replace(trial, pieces=pieces))


def with_trial(record: StudyRecord, trial: TrialRecord) -> StudyRecord:
    others = [t for t in record.trials if t.number != trial.number]
    return replace(record, trials=tuple(sorted([*others, trial], key=lambda t: t.number)))


def changed(record: StudyRecord, kind: Any, created: float = 0.0, **values: Any) -> StudyRecord:
    change = Change(kind, values, len(record.trials), created)
    return replace(record, changes=(*record.changes, change))


def finished(
    record: StudyRecord, objective: Objective = bowl, workers: int = 1, most: int = 10_000
) -> StudyRecord:
    """The record after so many workers have carried out at most so many actions; each piece takes as long as it costs."""
    clock, ends = 0.0, []
    for count in range(most):
        action = plan(record)
        while isinstance(action, Wait) or (ends and len(ends) >= workers):
            clock, _, number, seed, rung, value = heapq.heappop(ends)
            record = ended(record, number, seed, rung, value)
            action = plan(record)
        if isinstance(action, Ended):
            break
        record, number = begun(record, action)
        trial = record.trial(number)
        assert trial is not None
        value = objective(trial.values, action.seed, action.rung)
        took = piece_cost(record.head.rungs, action.rung, action.rung - 1 if action.rung else None)
        heapq.heappush(ends, (clock + took, count, number, action.seed, action.rung, value))
    while ends:
        _, _, number, seed, rung, value = heapq.heappop(ends)
        record = ended(record, number, seed, rung, value)
    return record
