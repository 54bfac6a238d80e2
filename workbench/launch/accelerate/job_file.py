"""Writes and reads the job file of a launched job, from which each rank loads its assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.events import Message
from workbench.launch.accelerate import private_file
from workbench.launch.assignments import Assignment
from workbench.launch.first_events import FirstMessages
from workbench.launch.process.process_env import ProcessEnv
from workbench.settings import Settings

FOLDER = "launch"
"""The subfolder of the run's folder that holds it; only this user may read it."""
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


class Head(NamedTuple):
    """What a rank needs before any code is unpacked."""

    env: ProcessEnv
    timeout: float
    """Seconds that ranks wait for each other at most."""


def write(run: Path, assignment: Assignment, words: FirstMessages, notes: Sequence[str]) -> None:
    """Write the job file into the folder of its run."""
    words = words._replace(
        messages=[*words.messages, *(Message(note, "warning") for note in notes)]
    )
    head = Head(ProcessEnv.here(), assignment.settings.rank_timeout)
    private_file.write(_job(run), JobFile(assignment, words), head, assignment.names())


def read(run: Path) -> private_file.PrivateFile:
    """Read the job file: its head is a `Head`, the rest a `JobFile`."""
    return private_file.read(_job(run))


def remove(run: Path) -> None:
    """Remove the job file. Call it when all ranks have read it, or when none will."""
    private_file.remove(_job(run))


def _job(run: Path) -> Path:
    return run / FOLDER / "job"
