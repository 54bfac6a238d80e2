"""Commands for a run in another process, through its folder: `control/` has a file for each.

A command is written aside and renamed, so that what is there is whole. The run's own process takes them in the order of
their names, which is that of their times.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.commands import Command, from_line, to_line

CONTROL = "control"
_LARGEST = 1 << 16
_numbers = itertools.count()


def send(run: Path, command: Command) -> None:
    """Leave a command for the run in this folder. OSError where that cannot be done."""
    folder = run / CONTROL
    folder.mkdir(exist_ok=True)
    name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers):06d}.json"
    aside = folder / f".{name}"
    try:
        aside.write_text(to_line(command) + "\n", encoding="utf-8")
        aside.rename(folder / name)
    finally:
        aside.unlink(missing_ok=True)


def take(run: Path) -> Iterator[Command | str]:
    """The commands that have come, the oldest first; they are gone then. Of what is none: why not."""
    try:
        names = sorted(os.listdir(run / CONTROL))
    except FileNotFoundError:
        return
    for name in names:
        path = run / CONTROL / name
        if name.startswith(".") or not name.endswith(".json") or not (path.is_file() or path.is_symlink()):
            continue
        try:
            found: Command | str = from_line(_text(path))
        except (OSError, ValueError, RecursionError) as error:
            found = f"{path.name} in {CONTROL}/ is no command ({error}); it was left out."
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        yield found


def _text(path: Path) -> str:
    """What is in a small file; never what a link leads to."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(number, "rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError("it is too large")
    return data.decode()
