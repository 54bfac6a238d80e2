"""Deletes runs with their records, checkpoints and weights: one run, or the oldest ones beyond
`keep_runs`.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from workbench.runs.folder.annotations import annotations_in, read_annotations
from workbench.runs.folder.files import Folder, open_regular, write_whole
from workbench.runs.folder.ids import check_id, note_given
from workbench.runs.printable import printable
from workbench.runs.read import (
    RUNS,
    STUDY,
    RunSummary,
    age,
    list_runs,
    number_of,
    read_header,
    run_folders,
    summary,
    where_written,
)

GONE = ".gone-"
_NEXT = "deleted-next"
"""A file in a fit's folder that allows the next fit to delete it: it names the run in whose
record a message announces this.
"""
FIT = "fit"
"""The kind of runs that have weights."""
_LONGEST_ID = 256
"""How many bytes of a mark are read; an id has at most 64 characters."""


def prune(root: Path, kind: str, keep: int, spare: Collection[str] = ()) -> list[str]:
    """Delete the oldest runs of this kind until `keep` are left; returns the deleted ids, oldest
    first. Other kinds stay.

    A fit has weights that may exist nowhere else, so it is deleted only if `mark_next` has marked
    it (a message has named it).
    `spare`: ids to keep, such as those from which a job will start. Only runs that have ended are
    deleted: their record ends with RunEnded, or their writer is known to be dead
    (`alive.liveness`). Folders without a readable `run.json`, links, and everything outside
    `<root>/runs` are never touched, and nothing is deleted if `runs` itself is a link.
    """
    if keep < 0:
        raise ValueError(f"keep={keep}: give 0 or more")
    folder = Path(root) / RUNS
    if folder.is_symlink() or not folder.is_dir():
        return []
    remove_leftovers(root)
    runs, excess = _of_kind(root, kind, keep)
    gone: list[str] = []
    for run in runs:
        if len(gone) >= excess:
            break
        named = kind != FIT or (run.path / _NEXT).is_file()
        if run.over and named and run.id not in spare and remove_folder(run.path, pinned=False):
            gone.append(run.id)
    return gone


def remove_leftovers(root: Path) -> None:
    """Remove the remains of deletions that were interrupted."""
    for left in (Path(root) / RUNS).glob(f"{GONE}*"):
        _delete(left)


def next_to_go(root: Path, keep: int, id: str) -> list[Path]:
    """The folders of the fits to delete when one more fit begins, oldest first. `id`: the fit
    that runs now.
    """
    runs, excess = _of_kind(root, FIT, keep - 1)
    return [run.path for run in runs if run.over or run.id == id][: max(0, excess)]


def mark_next(root: Path, folders: Sequence[Path], id: str) -> None:
    """Mark these fits, and no others, as those that the next fit may delete: the record of fit
    `id` names them. Raises OSError if a mark cannot be written.
    """
    for run in run_folders(root):
        if run not in folders:
            (run / _NEXT).unlink(missing_ok=True)
    for folder in folders:
        if not (folder / _NEXT).exists():
            write_whole(folder / _NEXT, f"{id}\n".encode())


def marked_by(run: Path) -> str | None:
    """The id of the run whose record names this one, according to its mark (`mark_next`); None:
    it has no mark.
    """
    try:
        with open_regular(run / _NEXT) as file:
            return check_id(file.read(_LONGEST_ID).decode().strip())
    except (OSError, ValueError):
        return None


def _of_kind(root: Path, kind: str, keep: int) -> tuple[list[RunSummary], int]:
    """The runs of a kind, oldest first, and how many there are beyond `keep`; no runs if there are
    not more than that.

    Left out are pinned runs, those of studies, runs whose ids the workbench has not given (somebody
    has renamed or copied their folders), and runs that only count as running, because their process
    cannot be seen from here.
    """
    folders = [path for path in run_folders(root) if number_of(path.name) is not None]
    if len(folders) > keep:  # else no header is needed
        folders = [path for path in folders if _is_counted(path, kind)]
    if len(folders) <= keep:
        return [], 0
    runs = []
    for path in folders:
        with contextlib.suppress(OSError, ValueError):  # being made, being deleted, or not ours
            runs.append(summary(path))
    counted = [run for run in runs if not run.unseen and not read_annotations(run.path).pinned]
    return sorted(counted, key=lambda run: age(run.id, run.created)), len(counted) - keep


def _is_counted(run: Path, kind: str) -> bool:
    """Whether it is a run of this kind, and of no study."""
    try:
        header = read_header(run)
    except (OSError, ValueError):
        return False
    return header.get("kind") == kind and not header.get(STUDY)


def remove_folder(path: Path, *, pinned: bool = True) -> bool:
    """Delete a run folder; False where it could not be moved. pinned: also a run that is pinned."""
    note_given(path)  # in case an earlier version made it
    # Renamed first, so that an interrupted deletion leaves no incomplete run in the list.
    moved = path.with_name(GONE + path.name)
    try:
        with Folder.opened(path) as folder, folder.locked():  # nobody pins it meanwhile
            if not pinned and annotations_in(folder).pinned:
                return False
            path.rename(moved)
    except OSError:  # another process pruned it, or it is not ours to move
        return False
    _delete(moved)
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # removes links in it, but never their targets


def delete(
    folder: Path, needed: Mapping[str, str], *, force: bool = False, pinned: bool = True
) -> None:
    """Delete the run in this folder. `needed`: for the id of each run that must stay, the id of the
    job that starts from it.

    A fit that has begun has copied what it starts from, so only a fit that has not begun needs
    another run's folder.
    force: also delete one that only counts as running because its process cannot be seen from here;
    the user knows that it has
    ended. pinned: also delete a run that is pinned. Raises RuntimeError if it runs, is needed or
    must stay, OSError if it could not be removed.
    """
    run_summary = summary(folder)
    where = printable(where_written(run_summary.header))
    if run_summary.unseen and not force:
        raise RuntimeError(
            f"run {run_summary.id} may still run: its record has no end, and whether {where} lives"
            " cannot be seen from here (another machine, container or boot). If you know that it"
            f" has ended: bench.delete({run_summary.id!r}, force=True), or `workbench runs delete"
            f" {shlex.quote(run_summary.id)} --force`."
        )
    if not run_summary.over and not run_summary.unseen:
        raise RuntimeError(
            f"run {run_summary.id} is not over ({run_summary.status}, {where}): stop it first, then"
            " delete it."
        )
    if run_summary.id in needed:
        raise RuntimeError(
            f"run {run_summary.id} is needed: {needed[run_summary.id]} starts from it. Delete it"
            " when that is over."
        )
    if not remove_folder(folder, pinned=pinned):
        if not pinned and read_annotations(folder).pinned:
            raise RuntimeError(f"run {run_summary.id} stays: it was pinned meanwhile.")
        raise OSError(
            f"run {run_summary.id} could not be removed: {folder} cannot be moved (permission), or"
            " is gone already."
        )
    left = folder.with_name(f"{GONE}{folder.name}")
    if left.exists():
        raise OSError(
            f"run {run_summary.id} is no longer listed, but some of its files could not be removed:"
            f" they are in {left}."
        )


def oldest_beyond_keep(root: Path, keep: int, kind: str | None = None) -> list[RunSummary]:
    """The runs that are older than the newest `keep` of their kind, oldest first. kind: only runs
    of this kind.

    Only runs that have ended, are not pinned, of no study, and have an id with a number are counted
    and listed.
    `keep_runs` (`prune`) also counts a running one.
    """
    if keep < 0:
        raise ValueError(f"keep={keep}: give 0 or more.")
    ended = [run for run in list_runs(root) if run.over and kind in (None, run.kind)]
    numbered = [run for run in ended if number_of(run.id) is not None and not run.header.get(STUDY)]
    counted = [run for run in numbered if not read_annotations(run.path).pinned]
    of_kind = {
        group: [run for run in counted if run.kind == group]
        for group in {run.kind for run in counted}
    }
    old = {run.path for runs in of_kind.values() for run in runs[: max(0, len(runs) - keep)]}
    return [run for run in counted if run.path in old]
