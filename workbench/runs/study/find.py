"""Finds a study by its id or its number."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.runs.folder.lookup import matching_ids, near
from workbench.runs.printable import printable
from workbench.runs.study.record import HEAD, STUDIES


def study_folders(root: Path) -> list[Path]:
    """The folders of the studies in a root, the oldest first. Links are not among them."""
    try:
        entries = list(os.scandir(Path(root) / STUDIES))
    except (FileNotFoundError, NotADirectoryError):
        return []
    folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(folder for folder in folders if (folder / HEAD).is_file())


def find_study(root: Path, text: str) -> Path:
    """The folder of the study of this id ("0003-study"), number ("3") or name ("study").

    Raises FileNotFoundError if there is none, ValueError if there are several. Both name similar
    ids.
    """
    folders = {folder.name: folder for folder in study_folders(root)}
    ids = matching_ids(text, folders) or [id for id in folders if id.partition("-")[2] == text]
    if len(ids) == 1:
        return folders[ids[0]]
    if ids:
        names = ", ".join(map(printable, ids))
        raise ValueError(f"Several studies in {root} are called {text}: {names}. Give an id.")
    hint = f"Near it: {near(text, folders)}." if folders else "It holds no studies."
    raise FileNotFoundError(f"There is no study {text!r} in {root}. {hint}")
