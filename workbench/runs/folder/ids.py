"""Makes the ids of run folders, each with a number that no other run of the root ever had, and
checks ids from users.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import time
from pathlib import Path

from workbench.runs.folder.files import append_to, open_regular
from workbench.runs.read import RUNS, number_of

_ID = re.compile(r"\w[\w.-]{0,63}")
_DIGITS = re.compile(rb"[0-9]{1,18}")
PRIVATE = "WORKBENCH_PRIVATE"
"""The environment variable that closes runs to other users of the machine."""
_GIVEN = ".given"
"""A file in `<root>/runs` with one line for each number that was given. Only its end is read: no
number at or below one there is given again.
"""
_TAIL = 1 << 12
_LARGEST_NUMBER = 10**9
"""Larger numbers are ignored when the next id is made, since the workbench did not assign them."""


def runs_folder(root: Path) -> Path:
    """`<root>/runs`, created if it does not exist, with a `.gitignore` in the root.

    With WORKBENCH_PRIVATE=1 in the environment, no other user of the machine can enter `runs`, nor
    a root that is made here.
    """
    folder = Path(root) / RUNS
    if os.environ.get(PRIVATE, "0") not in ("", "0"):
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    # A root with other files, such as the project itself, must not be ignored by git as a whole.
    ours = all(entry.name == RUNS for entry in folder.parent.iterdir())
    if ours:
        with contextlib.suppress(FileExistsError), ignore.open("x") as file:
            file.write("*\n")
    return folder


def new_id(root: Path, kind: str) -> str:
    """Reserve an id such as "0012-fit": the next number in this root, unique among concurrent
    processes.

    The number is larger than those of all runs that were made here, also deleted ones, so that a
    `Run` of a deleted run never reads another one. The folder is made here (mkdir is the lock);
    pass the id to `RunFolder.create`.
    """
    return numbered_folder(runs_folder(root), kind).name


def numbered_folder(folder: Path, kind: str) -> Path:
    """Make a folder such as "0012-fit" in this one, with the next number: larger than all that were
    made here, and unique among concurrent processes.
    """
    word = re.sub(r"[^\w]+", "-", kind).strip("-").lstrip("0123456789-")[:32] or "run"
    while True:
        numbers = _numbers(folder)
        number = (
            max(
                (known for known in (*numbers, *_given(folder)) if known < _LARGEST_NUMBER),
                default=0,
            )
            + 1
        )
        while number in numbers:
            number += 1
        mine = folder / f"{number:04d}-{word}"
        try:
            mine.mkdir()
        except FileExistsError:
            continue
        if _numbers(folder).count(number) == 1:
            note_given(mine)
            return mine
        # Another kind of job took the number at the same moment. Both may notice, so wait for a
        # random time and try again.
        mine.rmdir()
        # the user's own random state does not change
        time.sleep(random.SystemRandom().uniform(0, 0.01))


def reserve_id(root: Path, id: str, kind: str) -> str:
    """Reserve an id that another root has given; a new one where the numbers of this root have got
    that far, since it may have had such a run. Its folder is made, as by `new_id`.
    """
    folder, number = runs_folder(root), number_of(check_id(id))
    if number is None or number > max((*_numbers(folder), *_given(folder)), default=0):
        with contextlib.suppress(FileExistsError):
            (folder / id).mkdir()
            note_given(folder / id)
            return id
    return new_id(root, kind)


def is_id(text: str) -> bool:
    """Whether a text can name a run: only letters, digits, '-', '_' and '.'."""
    return _ID.fullmatch(text) is not None and ".." not in text and not text.endswith(".")


def check_id(id: str) -> str:
    """Return `id` if it can name a folder within runs/, else raise ValueError."""
    if not isinstance(id, str) or not is_id(id):
        raise ValueError(
            f"{id!r} cannot be a run's id: letters, digits, '-', '_' and '.', at most 64, beginning"
            " with a letter or digit"
        )
    return id


def _numbers(folder: Path) -> list[int]:
    return [number for name in os.listdir(folder) if (number := number_of(name)) is not None]


def _given(folder: Path) -> list[int]:
    """The numbers at the end of the file of given numbers; empty where it cannot be read."""
    try:
        with open_regular(folder / _GIVEN) as file:
            file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
            numbers = [
                int(number) for number in file.read(_TAIL).split() if _DIGITS.fullmatch(number)
            ]
            return [number for number in numbers if number < _LARGEST_NUMBER]
    except (OSError, ValueError):
        return []


def note_given(run: Path) -> None:
    """Add a run's number to the file of given numbers, if it is larger; does nothing where the
    file cannot be written.
    """
    number = number_of(run.name)
    if number is None or not max(_given(run.parent), default=0) < number < _LARGEST_NUMBER:
        return
    with contextlib.suppress(OSError):
        file = append_to(run.with_name(_GIVEN))
        try:
            # begins a new line, in case another writer's line has no end
            os.write(file, f"\n{number:04d}".encode())
        finally:
            os.close(file)
