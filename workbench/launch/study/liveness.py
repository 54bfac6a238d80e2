"""Finds the pieces of a study whose workers have died.

On the same machine the process table says so. Of a worker elsewhere only its beats are seen, a
counter that it raises every few seconds: where it stands still for long, by this process's own
clock, the worker is dead. Clocks of several machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.events import RunStarted
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.folder.alive import liveness
from workbench.runs.folder.files import Folder
from workbench.runs.folder.ids import is_id
from workbench.runs.read import RUNS
from workbench.runs.run import Run
from workbench.runs.study.record import TRIALS, PieceRecord, StudyRecord, TrialRecord
from workbench.units import counted

SILENT = 150.0
"""Seconds without a beat after which a worker that cannot be seen from here counts as dead."""
BEATS, ENDED = "beats", "ended"
"""In the note of a worker: its beats, and why it has left; "": it has not."""
TAKE_OVERS = 3
"""After so many take-overs in a row that have got no further, a piece has failed."""
_LARGEST = 1 << 12
"""The most bytes of a beat."""


class Observer:
    """Watches the workers of a study, as long as its process lives."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}
        """For each worker and each claim the last count of its beats, and when it was seen
        first.
        """

    def abandoned(self, record: StudyRecord) -> Iterator[tuple[TrialRecord, PieceRecord]]:
        """The pieces whose workers are dead, the oldest first."""
        for trial in record.trials:
            for piece in trial.pieces:
                claim = trial.number, piece.seed, piece.rung, piece.generation
                if piece.state == "claimed" and self._is_dead(claim, piece.claim, piece.beats):
                    yield trial, piece

    def is_alive(self, record: StudyRecord, worker: str) -> bool:
        """Whether this worker lives, as far as it can be seen from here, and has not left."""
        note = record.workers.get(worker, {})
        return not note.get(ENDED) and not self._is_dead(worker, note, note.get(BEATS))

    def _is_dead(self, key: Hashable, process: Mapping[str, Any], beats: object) -> bool:
        known = liveness(process)
        if known != "unknown":
            return known == "gone"
        if key not in self._seen or self._seen[key][0] != beats:
            self._seen[key] = beats, time.monotonic()
        return time.monotonic() - self._seen[key][1] > SILENT


@dataclass(frozen=True)
class Attempt:
    """What one worker has left of a piece that it did not end."""

    run: str
    """Its run; "": it did not get so far."""
    step: int
    """The update of the last checkpoint in it."""
    updates: int
    """How many updates it has recorded, those of a run that it continues among them."""
    given_back: bool
    cost: float = 0.0
    """The share of a whole fit that it and the attempts before it have trained."""


def attempts(record: StudyRecord, trial: TrialRecord, piece: PieceRecord) -> list[Attempt]:
    """What the workers of a piece have left so far, the first one first."""
    earlier = []
    with Folder.opened(record.path / TRIALS / f"{trial.number:04d}") as folder:
        names = {*folder.names()}
        for generation in range(1, piece.generation + 1):
            stem = f"s{piece.seed}r{piece.rung}g{generation}"
            run = _run(folder, f"{stem}.beat") if f"{stem}.beat" in names else ""
            back = f"{stem}.back" in names
            earlier.append(_attempt(record, trial, run, given_back=back))
    return earlier


def cost_of(record: StudyRecord, trial: TrialRecord | None, run: Run) -> float:
    """The share of a whole fit that a run has trained of its piece, with the runs of the same
    piece that it continues. What a killed process had trained after its last checkpoint is not
    counted twice, so that a study ends as one that nobody disturbs.
    """
    trained = max(0, run.step - began_at(record, trial, run))
    start = next((event for event in run.outline if isinstance(event, RunStarted)), None)
    updates = None if start is None else start.updates
    if updates is None:  # data without a length: it was as long as it is
        updates = run.step
    return min(1.0, trained / max(1, updates))


def began_at(record: StudyRecord, trial: TrialRecord | None, run: Run) -> int:
    """The update at which the piece of a run began: where it continues a shorter one."""
    pieces = () if trial is None else trial.pieces
    ended = {p.run for p in pieces if p.end is not None and p.run != run.id}
    return next((event.step for event in reversed(run.resumes) if event.run in ended), 0)


def _run(folder: Folder, name: str) -> str:
    try:
        run = folder.read_json(name, _LARGEST).get("run")
    except (OSError, ValueError):
        return ""
    return run if isinstance(run, str) and is_id(run) else ""


def _attempt(record: StudyRecord, trial: TrialRecord, run: str, *, given_back: bool) -> Attempt:
    folder = record.path.parents[1] / RUNS / run
    if not run or not folder.is_dir():
        return Attempt(run, 0, 0, given_back)
    points = [point for point in list_checkpoints(folder) if point.resumable]
    step = points[-1].step if points else 0
    try:
        opened = Run.open(folder)
        return Attempt(run, step, opened.step, given_back, cost_of(record, trial, opened))
    except (OSError, ValueError):
        return Attempt(run, step, 0, given_back)


def why_hopeless(earlier: list[Attempt]) -> str:
    """Why a piece whose worker died is not taken over once more; "": it is.

    Many a worker that dies before its first update was killed for another reason, so three of them
    count as one.
    """
    vain, reached = 0.0, 0
    for attempt in earlier:
        if attempt.updates > reached or attempt.given_back:
            vain, reached = 0.0, max(attempt.updates, reached)
        else:
            vain += 1 if attempt.updates else 1 / 3
    if vain < TAKE_OVERS:
        return ""
    return (
        f"{len(earlier)} workers have ended while they trained it, the last ones no further than"
        f" after {counted(reached, 'update')}: their logs say why"
    )
