"""Finds what ended the processes of a launched job: each leaves its error in the run's folder,
and one is reported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.instruments.finite import NonFiniteError
from workbench.launch.accelerate import private_file
from workbench.launch.pool.failures import RankTimeout
from workbench.launch.process.child_main import pack_error
from workbench.secrets import ending
from workbench.share.package import unpack

_NAME = "error-"
_ECHOES = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "timed out",
    "Connection refused",
    "NCCL",
    "No backend",
    "caused pair closure",
)
"""Words in the error of a process whose partner has ended."""
_WAITED = ("imed out", "timeout caused")
"""Those of them that report a timeout."""
STACKS = getattr(signal, "SIGUSR2", signal.SIGTERM)
"""The signal that makes a rank write its stacks."""
_LONGEST = 1 << 17
"""The most characters of a rank's traceback."""
_GRACE = 3.0
"""Seconds to wait for other errors, when the first one only reports a lost partner."""


class SigtermReceived(BaseException):
    """This process got SIGTERM: from the launcher, since another process has failed, or from
    somebody else.
    """


class LaunchError(RuntimeError):
    """A launched job failed; the message contains everything that is known about it."""


@dataclass(frozen=True)
class Failure:
    """The error of one rank in a form that can be pickled, with its traceback as text and its
    time.
    """

    rank: int
    world: int
    error: BaseException
    text: str
    when: float

    @property
    def order(self) -> tuple[bool, bool, float]:
        """The order of several failures; the first one is the cause: errors of a process itself
        before those about a partner, then the earliest.
        """
        raised_here = isinstance(self.error, NonFiniteError) and bool(
            getattr(self.error, "own", True)
        )
        return self.echo, not raised_here, self.when

    @property
    def echo(self) -> bool:
        """Whether the error only reports that another process has ended."""
        return is_echo(self.error)

    @property
    def waited(self) -> bool:
        """Whether the error reports that another process did not answer in time."""
        return self.echo and any(words in str(self.error) for words in _WAITED)

    @property
    def where(self) -> str:
        """The process that failed, in words."""
        return (
            f"in rank {self.rank} of {self.world}" if self.world > 1 else "in the launched process"
        )


class Process(NamedTuple):
    """A rank's machine and process."""

    host: str
    pid: int


class _RankEndedElsewhere(LaunchError):
    """Replaces `SigtermReceived` by an Exception, which can be raised in the process that
    launched the job.
    """


def failure_of(error: BaseException, rank: int, world: int) -> Failure:
    """The failure of a rank, made from its error."""
    # written to output.log and into the record, too
    text = ending("".join(traceback.format_exception(error)), _LONGEST)
    if isinstance(error, SigtermReceived):
        error = _RankEndedElsewhere(
            f"rank {rank} of {world} was ended by SIGTERM, from the launcher or from somebody else."
        )
    return Failure(rank, world, _sendable(error), text, time.time())


def is_echo(error: BaseException) -> bool:
    """Whether an error only reports that another process has ended."""
    if isinstance(error, RankTimeout):
        return False
    return isinstance(error, _RankEndedElsewhere) or any(words in str(error) for words in _ECHOES)


def write(folder: Path, failure: Failure) -> None:
    """Write a failure for rank 0 and for the process that launched the job."""
    with contextlib.suppress(OSError):
        private_file.write(folder / f"{_NAME}{failure.rank}", failure)


def any_written(folder: Path) -> bool:
    """Whether a rank has written a failure."""
    return any(folder.glob(f"{_NAME}*[0-9]"))


def read_failures(folder: Path) -> list[Failure]:
    """The failures that were written and can be read."""
    failures: list[Failure] = []
    for path in sorted(folder.glob(f"{_NAME}*[0-9]")):
        with contextlib.suppress(Exception):  # of a class that is not here, for example
            failures.append(private_file.read(path).open())
    return failures


def root_cause(folder: Path, mine: Failure | None = None) -> Failure | None:
    """The failure that caused the others; waits a little for it if it is not written yet."""
    until = time.monotonic() + _GRACE
    while True:
        failures = [*read_failures(folder), *([mine] if mine is not None else [])]
        first = min(failures, key=lambda failure: failure.order, default=None)
        if first is not None and (not first.echo or time.monotonic() > until):
            return first
        if mine is None or time.monotonic() > until:
            return first
        time.sleep(0.05)


def hang_error(folder: Path, mine: Failure, others: Sequence[Process], seconds: float) -> Failure:
    """End the ranks of this machine after rank 0 waited too long; each writes its stacks.
    Returns the failure.
    """
    here = [process.pid for process in others if process.host == socket.gethostname()]
    _send(here, STACKS)  # also of a rank that hangs in C; the stacks go to output.log
    until = time.monotonic() + 4 * _GRACE  # on a busy machine a rank needs some time to write them
    while len(failures := read_failures(folder)) < len(others) and time.monotonic() < until:
        # Repeated: a signal that another thread of the process receives does not wake the main
        # thread.
        time.sleep(0.3)
        _send(here, signal.SIGTERM)
    where = [f"rank {failure.rank} was here:\n{failure.text}" for failure in [mine, *failures]]
    silent = sorted({*range(1, mine.world)} - {failure.rank for failure in failures})
    where += [f"rank {rank} has not answered; output.log may have its stacks." for rank in silent]
    error = RankTimeout(
        f"the ranks made no progress together for {seconds:g} s (rank_timeout)\n" + "\n".join(where)
    )
    return Failure(0, mine.world, error, "\n".join(where), mine.when)


def _send(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def _sendable(error: BaseException) -> BaseException:
    """A copy of the error without its traceback, of the same type if that can be pickled."""
    with pack_error(error) as package:
        sent: BaseException = unpack(package)
    return sent
