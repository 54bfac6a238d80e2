"""Finds a recorded run by its id or its number; an error lists similar ids."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from workbench.runs.printable import printable
from workbench.runs.read import HEADER, RUNS, age, run_folders

_NUMBER = re.compile(r"(\d+)-")
_NEAR = 5
"""How many ids an error lists."""


def check_root(root: Path) -> None:
    """Raise OSError if this is not the root of a bench's records; the error names a folder
    nearby that is one.
    """
    if not root.exists():
        raise FileNotFoundError(
            f"There is no folder {root}. Give the root of a bench: --root FOLDER (a bench's own is"
            " .workbench)."
        )
    if not root.is_dir():
        raise NotADirectoryError(
            f"{root} is not a folder. Give the root of a bench: --root FOLDER."
        )
    if (root / RUNS).is_dir():
        return
    meant, inside = None, root / ".workbench"
    if (inside / RUNS).is_dir():
        meant = inside
    elif root.name == RUNS or (root / HEADER).exists():
        above = (root.parent, root.parent.parent)
        meant = next((parent for parent in above if (parent / RUNS).is_dir()), None)
    hint = f"Is it --root {meant}?" if meant else "Give the root of a bench: --root FOLDER."
    raise FileNotFoundError(f"{root} has no folder {RUNS}/, so no run was recorded there. {hint}")


def check_not_linked(root: Path) -> None:
    """Raise OSError if runs/ is a link, through which nothing is deleted."""
    if (root / RUNS).is_symlink():
        raise OSError(
            f"{root / RUNS} is a link to {(root / RUNS).resolve()}. Give the root that holds these"
            " runs: --root FOLDER."
        )


def folders_by_id(root: Path) -> dict[str, Path]:
    """The folders that may be runs of a root, by their names as they are on the disk. It holds
    no links.
    """
    return {folder.name: folder for folder in run_folders(root)}


def find_run(root: Path, text: str) -> Path:
    """The folder of the run of this id ("0012-fit") or number ("12").

    Raises FileNotFoundError if there is none, ValueError if there are several. Both name similar
    ids.
    """
    check_root(root)
    folders = folders_by_id(root)
    ids = matching_ids(text, folders)
    if len(ids) == 1:
        return folders[ids[0]]
    if ids:
        raise ValueError(
            f"{text} is the number of several runs in {root}: {', '.join(map(printable, ids))}. "
            "Give the whole id."
        )
    if not folders:
        raise FileNotFoundError(f"There is no run {text!r}: {root} holds no runs.")
    raise FileNotFoundError(f"There is no run {text!r} in {root}. Near it: {near(text, folders)}.")


def matching_ids(text: str, ids: Collection[str]) -> list[str]:
    """The ids that match an id ("0012-fit") or a number ("12"): one, none, or several with this
    number.
    """
    if text in ids:
        return [text]
    return sorted(id for id in ids if text.isdecimal() and _number(id) == int(text))


def near(text: str, ids: Iterable[str]) -> str:
    """A phrase with the ids most similar to `text`: by number if it begins with one, else by
    letters, else the newest.
    """
    names = sorted(ids, key=age)
    match = re.match(r"\d{1,18}", text)
    if match:
        by_distance = sorted(
            names, key=lambda name: (abs((_number(name) or 0) - int(match[0])), name)
        )
        chosen = sorted(by_distance[:_NEAR])
    else:
        chosen = difflib.get_close_matches(text, names, _NEAR) or names[-_NEAR:]
    return ", ".join(map(printable, chosen))


def _number(name: str) -> int | None:
    match = _NUMBER.match(name)
    return int(match[1]) if match and len(match[1]) < 19 else None
