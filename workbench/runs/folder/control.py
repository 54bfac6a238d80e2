"""Sends commands to a run of any process: `control/` in its folder has a file for each.

A command is written to a temporary file and renamed, so that a reader finds all of it. The run's
own process takes commands in the order of their file names, which contain the time. Any user who
may write to the run's folder can put anything there: so the folder is opened once and never through
a link, and files are read and removed within that opened folder.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.commands import Command, from_line, method_of, to_line, too_late, why_not_of
from workbench.runs.folder.files import Folder, make_folder
from workbench.runs.printable import printable
from workbench.runs.read import RunSummary, summary, where_written

CONTROL = "control"
TAKES = "takes_commands"
"""The key of `run.json` which says that the process of the run reads the commands in its folder."""
_LARGEST = 1 << 16
_AT_ONCE = 1000
"""How many files one call of `take` looks at: the oldest. The next call takes more."""
_numbers = itertools.count()


def send(run: Path, command: Command) -> None:
    """Leave a command for the run in this folder. Raises OSError if it cannot be written."""
    name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers):06d}.json"
    with Folder.opened(make_folder(run / CONTROL)) as folder:
        folder.write(name, (to_line(command) + "\n").encode())


def why_not_taken(run: Path | RunSummary, command: Command | None = None) -> str:
    """Why a run would not carry out this command now; "": it would. command=None: why it takes no
    commands at all.

    The header of a summary needs `takes_commands`, `launched`, `pid` and `host`.
    """
    run_summary = summary(run) if isinstance(run, Path) else run
    id, kind = printable(run_summary.id), printable(run_summary.kind)
    if command is not None and (why := why_not_of(method_of(command), kind)):
        return why
    method = "A command" if command is None else f"{method_of(command)}()"
    if run_summary.over:
        return too_late(method, id, kind, run_summary.status)
    if not takes(run_summary.header):
        where = printable(where_written(run_summary.header))
        return (
            f"{method} does not reach {id}: an older version trains it, which takes no commands "
            f"from its folder. Ask its own job, in {where}."
        )
    return ""


def check_taken(run: Path | RunSummary, command: Command) -> None:
    """Raise RuntimeError if the run would not carry out the command, for example because it has
    ended.
    """
    if why := why_not_taken(run, command):
        raise RuntimeError(why)


def takes(header: Mapping[str, Any]) -> bool:
    """Whether the process of the run with this header reads the commands in its folder. In older
    versions only launched runs do.
    """
    return bool(header.get(TAKES) or header.get("launched"))


def take(run: Path) -> Iterator[Command | str]:
    """Take the commands that have arrived, the oldest first, and remove their files. For a file
    that is not a command, or cannot be removed, it yields a sentence that says why.
    """
    try:
        with Folder.opened(run / CONTROL) as folder:
            names = (
                name
                for name in folder.names()
                if name.endswith(".json") and not name.startswith(".")
            )
            for name in heapq.nsmallest(_AT_ONCE, names):
                if folder.is_folder(name):
                    continue
                try:
                    command: Command | str = from_line(folder.read(name, _LARGEST).decode())
                except (OSError, ValueError) as error:
                    command = f"{name} in {CONTROL}/ is no command ({error}); it was left out."
                try:
                    folder.remove(name)
                except OSError as error:  # it would be carried out again and again
                    command = (
                        f"{name} in {CONTROL}/ cannot be removed ({error}), so it is not carried "
                        "out."
                    )
                yield command
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"{CONTROL}/ cannot be read ({error}): no command reaches this run."
