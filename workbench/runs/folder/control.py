"""Sends commands to a run of any process: `control/` in its folder has a file for each.

A command is written to a temporary file and renamed, so that none is half there. The run's own process takes them in
the order of their names, which is that of their times. Whoever may write to the run's folder may put anything there:
the folder is opened once and never through a link, and files are read and removed in that opened folder.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.commands import Command, check, from_line, method_of, to_line
from workbench.runs.folder.files import Folder, make_folder
from workbench.runs.printable import printable
from workbench.runs.read import read_header, summary, where_written

CONTROL = "control"
TAKES = "takes_commands"
"""The key of `run.json` which says that the process of the run reads the commands in its folder."""
_LARGEST = 1 << 16
_numbers = itertools.count()


def send(run: Path, command: Command) -> None:
    """Leave a command for the run in this folder. OSError where that cannot be done."""
    name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers):06d}.json"
    with Folder.opened(make_folder(run / CONTROL)) as folder:
        folder.write(name, (to_line(command) + "\n").encode())


def check_taken(run: Path, command: Command) -> None:
    """Raise RuntimeError where the run in this folder would not carry out the command: it has ended, for example."""
    found, method = summary(run), method_of(command)
    id, kind = printable(found.id), printable(found.kind)
    check(method, id, kind, found.status if found.over else None)
    if not found.header.get(TAKES):
        where = printable(where_written(found.header))
        raise RuntimeError(
            f"{method}() does not reach {id}: an older version trains it, which takes no commands from its folder. Ask its own job, in {where}."
        )


def takes(run: Path) -> bool:
    """Whether the process of the run in this folder reads commands there."""
    return bool(read_header(run).get(TAKES))


def take(run: Path) -> Iterator[Command | str]:
    """The commands that have come, the oldest first; they are gone then. For a file that is none: why not."""
    try:
        with Folder.opened(run / CONTROL) as folder:
            for name in sorted(folder.names()):
                if name.startswith(".") or not name.endswith(".json") or folder.is_folder(name):
                    continue
                try:
                    found: Command | str = from_line(folder.read(name, _LARGEST).decode())
                except (OSError, ValueError, RecursionError) as error:
                    found = f"{name} in {CONTROL}/ is no command ({error}); it was left out."
                folder.remove(name)
                yield found
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"{CONTROL}/ cannot be read ({error}): no command reaches this run."
