"""Writes and reads the job file of a launched process: its assignment, as each rank loads it."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.events import Message
from workbench.launch import torch_flags as flags
from workbench.launch.accelerate import private_file
from workbench.launch.assignments import Assignment
from workbench.launch.first_events import FirstMessages
from workbench.settings import Settings

FOLDER = "launch"
"""The folder within the run's; only this user may read it."""
VALUE = "value"
"""The file with the result of the assignment besides events and weights."""


@dataclass(frozen=True)
class JobFile:
    """An assignment, and the first messages of its job."""

    assignment: Assignment
    words: FirstMessages

    @property
    def settings(self) -> Settings:
        """The settings of the job."""
        return self.assignment.settings


@dataclass(frozen=True)
class ProcessEnv:
    """What the kernel's code relies on in its process; it is read before any code is unpacked."""

    path: list[str]
    argv: list[str]
    folder: str
    cells: dict[str, Any]
    """linecache's entries of code that is in no file."""
    flags: dict[str, Any]
    """torch's flags for the whole process."""
    timeout: float
    """Seconds that ranks wait for each other at most."""

    @classmethod
    def here(cls, timeout: float) -> ProcessEnv:
        """The environment of this process."""
        # Lines without a time of change belong to no file.
        cells = {file: entry for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        return cls(list(sys.path), list(sys.argv), os.getcwd(), cells, flags.flags(), timeout)

    def take(self) -> None:
        """Make this process like the kernel."""
        sys.path[:], sys.argv[:] = self.path, self.argv
        os.chdir(self.folder)
        linecache.cache.update(self.cells)
        importlib.invalidate_caches()
        flags.take(self.flags)


def write(run: Path, assignment: Assignment, words: FirstMessages, notes: Sequence[str]) -> None:
    """Write the job file into the folder of its run."""
    words = words._replace(messages=[*words.messages, *(Message(note, "warning") for note in notes)])
    private_file.write(_job(run), JobFile(assignment, words), ProcessEnv.here(assignment.settings.rank_timeout), assignment.names())


def read(run: Path) -> private_file.PrivateFile:
    """Read the job file: its head is `ProcessEnv`, the rest a `JobFile`."""
    return private_file.read(_job(run))


def remove(run: Path) -> None:
    """Remove the job file, once all ranks have read it or none will."""
    private_file.remove(_job(run))


def _job(run: Path) -> Path:
    return run / FOLDER / "job"
