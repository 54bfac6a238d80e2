"""Finds the folders of records that the server may read: those of its configuration, and each
`.workbench` below its root folder.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.runs.read import RUNS

FOLDER = ".workbench"
"""The default root of a bench."""
MOST = 5000
"""The most folders that are searched, the nearest first."""
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


@dataclass(frozen=True, slots=True)
class Root:
    """A folder of records. `key` names it in addresses, `name` in the list that users see."""

    key: str
    name: str
    path: Path


def find_roots(top: Path, depth: int, given: Sequence[str]) -> list[Root]:
    """The given roots, and those found in folders at most `depth` below `top`. Links are not
    followed, nor hidden folders.
    """
    paths = [_given(top, root) for root in given]
    paths += [path for path in _found(Path(os.path.realpath(top)), depth) if path not in paths]
    return [_root(path, top) for path in dict.fromkeys(paths)]


def is_readable(root: Root) -> bool:
    """Whether its runs are in the root itself: a link may lead anywhere."""
    return not (root.path / RUNS).is_symlink()


def why_no_runs(top: Path, one: str) -> str:
    """Why a given root lists no runs now, and what to do; "": it can."""
    path = _given(top, one)
    if not path.is_dir():
        return (
            f"is not read, since there is no folder {path}. Give an existing folder; if this one is"
            " made later, it is read then."
        )
    if (path / RUNS).is_symlink():
        return (
            f"is not read, since the folder runs in {path} is a link. Give the folder that holds"
            " the one which the link leads to."
        )
    if not (path / RUNS).is_dir():
        return (
            f"lists no runs, since {path} has neither a folder runs nor {FOLDER}/runs. Give the"
            " root of a bench; runs that begin there later are listed."
        )
    return ""


def _given(top: Path, root: str) -> Path:
    """Return the folder of records that a user means: the folder of a project stands for the
    records in it.
    """
    path = Path(os.path.realpath(top / Path(root).expanduser()))
    inner = path / FOLDER
    return (
        inner
        if not (path / RUNS).exists() and (inner / RUNS).is_dir() and not inner.is_symlink()
        else path
    )


def _root(path: Path, top: Path) -> Root:
    shown = path.parent if path.name == FOLDER else path
    top = Path(os.path.realpath(top))
    name = str(shown.relative_to(top)) if shown.is_relative_to(top) else str(shown)
    return Root(hashlib.sha256(os.fsencode(path)).hexdigest()[:12], name, path)


def _found(top: Path, depth: int) -> Iterable[Path]:
    waiting, seen = deque([(top, 0)]), 0
    while waiting and seen < MOST:
        folder, level = waiting.popleft()
        seen += 1
        try:
            with os.scandir(folder) as entries:
                inside = [entry for entry in entries if _is_folder(entry)]
        except OSError:  # deleted meanwhile, or not readable
            continue
        for entry in inside:
            if entry.name == FOLDER and os.path.isdir(os.path.join(entry.path, RUNS)):
                yield Path(entry.path)
            elif level < depth and not entry.name.startswith(".") and entry.name not in _SKIPPED:
                waiting.append((Path(entry.path), level + 1))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
