"""Deletes runs: their records, their checkpoints, their weights."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from workbench.runs.folder.annotations import read_annotations
from workbench.runs.folder.prune import GONE, remove_folder
from workbench.runs.printable import printable
from workbench.runs.read import RunSummary, list_runs, summary, where_written


def delete(folder: Path, needed: Mapping[str, str], *, force: bool = False) -> None:
    """Remove the run in this folder. `needed`: of runs that must stay, the id, and that of the job that starts from it.

    A fit that has begun has taken over what it starts from, so only one that has yet to begin needs another's folder.
    force: also one that counts as running only because its process cannot be seen from here: the user knows that it ended.
    RuntimeError: it runs, or is needed. OSError: it could not be removed.
    """
    run_summary = summary(folder)
    where = printable(where_written(run_summary.header))
    if run_summary.unseen and not force:
        raise RuntimeError(
            f"run {run_summary.id} may still run: its record has no end, and whether {where} lives cannot be seen from "
            f"here (another machine, container or boot). If you know that it has ended: bench.delete({run_summary.id!r}, force=True), or "
            f"`workbench runs delete {shlex.quote(run_summary.id)} --force`."
        )
    if not run_summary.over and not run_summary.unseen:
        raise RuntimeError(f"run {run_summary.id} is not over ({run_summary.status}, {where}): stop it first, then delete it.")
    if run_summary.id in needed:
        raise RuntimeError(f"run {run_summary.id} is needed: {needed[run_summary.id]} starts from it. Delete it when that is over.")
    if not remove_folder(folder):
        raise OSError(f"run {run_summary.id} could not be removed: {folder} cannot be moved (permission), or is gone already.")
    left = folder.with_name(f"{GONE}{folder.name}")
    if left.exists():
        raise OSError(f"run {run_summary.id} is no longer listed, but some of its files could not be removed: they are in {left}.")


def oldest_beyond_keep(root: Path, keep: int, kind: str | None = None) -> list[RunSummary]:
    """The runs that are older than the newest `keep` of their kind, oldest first; `kind`: of this kind alone.

    Only runs that have ended and are not pinned are counted and listed. `keep_runs` (`prune.prune`) also counts one that runs.
    """
    if keep < 0:
        raise ValueError(f"keep={keep}: give 0 or more.")
    found = [run for run in list_runs(root) if run.over and not read_annotations(run.path).pinned and kind in (None, run.kind)]
    of_kind = {one: [run for run in found if run.kind == one] for one in {run.kind for run in found}}
    old = {run.path for runs in of_kind.values() for run in runs[: max(0, len(runs) - keep)]}
    return [run for run in found if run.path in old]
