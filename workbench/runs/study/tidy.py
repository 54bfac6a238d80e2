"""Removes the weights of a study that has ended, but for those of its best trials."""

from __future__ import annotations

import shutil

from workbench.runs.folder.annotations import read_annotations
from workbench.runs.read import RUNS, read_header, summary, trial_place
from workbench.runs.study.record import StudyRecord

KEPT = 5
"""The best trials whose weights stay."""


def remove_weights(record: StudyRecord) -> None:
    """Remove the checkpoints of all runs of a study but those of its best trials and of the
    baseline. The records of the runs stay; so do runs that are pinned, or that have not ended.
    """
    whole = [trial for trial in record.trials if record.whole(trial) is not None]
    best = sorted(whole, key=lambda trial: (record.score(record.whole(trial)), trial.number))
    kept = {trial.number for trial in best[:KEPT]}
    for trial in record.trials:
        if trial.number in kept or trial is record.baseline:
            continue
        for piece in trial.pieces:
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
