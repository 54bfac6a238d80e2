"""Deleting one run for good: its record, its checkpoints, its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from workbench.runs.read import summary
from workbench.runs.store import retire


def delete(folder: Path, needed: Mapping[str, str]) -> None:
    """Remove the run in this folder. `needed`: of runs that must stay, the id, and that of the job that starts from it.

    A fit that has begun has taken over what it starts from, so only one that has yet to begin needs another's folder.
    RuntimeError: it goes on, or is needed. OSError: it could not be removed.
    """
    told = summary(folder)
    if not told.over:
        where = f"process {told.header.get('pid')} on {told.header.get('host')}"
        raise RuntimeError(f"run {told.id} goes on ({told.status}, {where}): stop it first, then delete it.")
    if told.id in needed:
        raise RuntimeError(f"run {told.id} is needed: {needed[told.id]} starts from it. Delete it when that is over.")
    if not retire(folder):
        raise OSError(f"run {told.id} could not be removed: {folder} is not ours to move, or is gone already.")
