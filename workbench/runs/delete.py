"""Deletes a run: its record, its checkpoints, its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from workbench.runs.printable import printable
from workbench.runs.read import summary, where_written
from workbench.runs.store import retire


def delete(folder: Path, needed: Mapping[str, str], *, force: bool = False) -> None:
    """Remove the run in this folder. `needed`: of runs that must stay, the id, and that of the job that starts from it.

    A fit that has begun has taken over what it starts from, so only one that has yet to begin needs another's folder.
    force: also one that counts as running only because its process cannot be seen from here: the user knows that it ended.
    RuntimeError: it runs, or is needed. OSError: it could not be removed.
    """
    told = summary(folder)
    where = printable(where_written(told.header))
    if told.unseen and not force:
        raise RuntimeError(
            f"run {told.id} may still run: its record has no end, and whether {where} lives cannot be told from "
            f"here (another machine, container or boot). If you know that it has ended: bench.delete({told.id!r}, force=True), or "
            f"`workbench runs delete {told.id} --force`."
        )
    if not told.over and not told.unseen:
        raise RuntimeError(f"run {told.id} is not over ({told.status}, {where}): stop it first, then delete it.")
    if told.id in needed:
        raise RuntimeError(f"run {told.id} is needed: {needed[told.id]} starts from it. Delete it when that is over.")
    if not retire(folder):
        raise OSError(f"run {told.id} could not be removed: {folder} is not ours to move, or is gone already.")
