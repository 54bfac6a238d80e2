"""What a launched process is to do: as it is written by whoever asks, and taken up by each rank."""

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
"""Within the run's folder; nobody else may look into it."""
VALUE = "value"
"""There: what came of the assignment beside events and weights."""


@dataclass(frozen=True)
class JobFile:
    """An assignment, and what its owner has to say at its beginning."""

    assignment: Assignment
    words: FirstMessages

    @property
    def settings(self) -> Settings:
        return self.assignment.settings


@dataclass(frozen=True)
class ProcessEnv:
    """What code of a kernel counts on around it; known before anything of it is unpacked."""

    path: list[str]
    argv: list[str]
    folder: str
    cells: dict[str, Any]
    """linecache's entries of code that is in no file."""
    flags: dict[str, Any]
    """What torch was told for the whole process."""
    timeout: float
    """Seconds that ranks wait for each other at most."""

    @classmethod
    def here(cls, timeout: float) -> ProcessEnv:
        # Lines without a time of change belong to no file.
        cells = {file: entry for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        return cls(list(sys.path), list(sys.argv), os.getcwd(), cells, flags.flags(), timeout)

    def take(self) -> None:
        """Be as the kernel was."""
        sys.path[:], sys.argv[:] = self.path, self.argv
        os.chdir(self.folder)
        linecache.cache.update(self.cells)
        importlib.invalidate_caches()
        flags.take(self.flags)


def write(run: Path, assignment: Assignment, words: FirstMessages, notes: Sequence[str]) -> None:
    """Leave the order in the folder of its run."""
    words = words._replace(messages=[*words.messages, *(Message(note, "warning") for note in notes)])
    private_file.write(_job(run), JobFile(assignment, words), ProcessEnv.here(assignment.settings.rank_timeout), assignment.names())


def read(run: Path) -> private_file.PrivateFile:
    """The order as it lies there: its head is `ProcessEnv`, the rest an `JobFile`."""
    return private_file.read(_job(run))


def remove(run: Path) -> None:
    """All have read it, or nobody will."""
    private_file.remove(_job(run))


def _job(run: Path) -> Path:
    return run / FOLDER / "job"
