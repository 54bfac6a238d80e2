"""Removes the weights of a study that has ended, but for those of its best trials and of those
that it could continue.
"""

from __future__ import annotations

import math
import shutil

from workbench.runs.folder.annotations import read_annotations
from workbench.runs.read import RUNS, read_header, summary, trial_place
from workbench.runs.study.record import StudyRecord
from workbench.settings.space import Space

KEPT = 5
"""The best trials whose weights stay: so many with a whole fit, and at each shorter length so many
of those that more budget could continue; of each value, where a study compares values.
"""


def remove_weights(record: StudyRecord) -> None:
    """Remove the checkpoints of the runs of a study that has ended. Those of its best trials stay,
    of the baseline, and of what more budget continues first. So do runs that are pinned, or that
    have not ended, and the records of all runs.
    """
    kept = {
        trial.number
        for trial in record.trials
        if trial is record.baseline or any(piece.state != "ended" for piece in trial.pieces)
    }
    space = Space.from_record(record.space, record.priors)
    for trials in record.trials_by_value(space).values():
        for rung in range(record.last_rung + 1):
            scored = [
                (record.score_at(trial, rung), trial.number)
                for trial in trials
                if rung == record.last_rung or trial.piece(rung + 1) is None
            ]
            kept |= {number for score, number in sorted(scored)[:KEPT] if math.isfinite(score)}
    for trial in record.trials:
        for piece in trial.pieces if trial.number not in kept else ():
            _remove(record, trial.number, piece.run)


def _remove(record: StudyRecord, trial: int, id: str) -> None:
    run = record.path.parents[1] / RUNS / id
    try:
        if not id or run.is_symlink():
            return
        trained = trial_place(read_header(run))
        if trained is None or trained[:2] != (record.path.name, trial):
            return
        checkpoints = run / "checkpoints"
        if summary(run).over and not read_annotations(run).pinned and not checkpoints.is_symlink():
            shutil.rmtree(checkpoints, ignore_errors=True)
    except (OSError, ValueError):  # it was deleted, or cannot be read
        return
