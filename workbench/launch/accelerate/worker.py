"""The main function of a launched process: `accelerate launch … -m
workbench.launch.accelerate.worker RUN`.

Each rank reads the job file in the run's folder and runs the assignment. From then on rank 0 writes
the run's record and reads the commands in `control/`.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import faulthandler
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from workbench.commands import Mailbox, Stop
from workbench.engine.runtime.runtime import RANK
from workbench.events import Message, Status
from workbench.launch import folder_commands, signals
from workbench.launch.accelerate import failure_files, job_file, private_file
from workbench.launch.accelerate.failure_files import Process
from workbench.launch.accelerate.job_file import FOLDER, VALUE, Head, JobFile
from workbench.launch.first_events import FirstEvents
from workbench.launch.job import Job, JobSink, NullSink
from workbench.launch.joined import group
from workbench.launch.listeners import Listeners
from workbench.launch.process.process_env import in_mlflow_run
from workbench.launch.thread import JobRunner
from workbench.runs.folder import control
from workbench.runs.read import read_header
from workbench.runs.store import RunFolder


def main(run: Path) -> int:
    """Run one rank from its start to its end; returns the exit code."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    os.environ[RANK] = str(rank)
    for stream in (sys.stdout, sys.stderr):
        # all ranks write to one file: whole lines, at once
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    faulthandler.enable()
    if failure_files.STACKS != signal.SIGTERM:
        faulthandler.register(failure_files.STACKS)
    signals.ask_to_stop(_Stopping(run), *signals.NUMBERS)
    try:
        file = job_file.read(run)
        head: Head = file.head
        head.env.take()
        if world > 1:
            cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
            group.init(world, head.timeout, cpu=cpu)
        content: JobFile = file.open()
        processes = _all_here(world, head.timeout)
        with in_mlflow_run(head.env.mlflow_run):
            code = _first(run, content, processes) if rank == 0 else _other(content)
        if world > 1 and code == 0:  # after an error other ranks may hang in it
            dist.destroy_process_group()
        return code
    except BaseException as error:  # noqa: BLE001 - every error is reported
        # the launcher ends all as soon as one has failed
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        failure = failure_files.failure_of(error, rank, world)
        failure_files.write(run / FOLDER, failure)
        print(f"rank {rank}:\n{failure.text}", file=sys.stderr, flush=True)
        return 1


def _leave(code: int) -> NoReturn:
    """End the process without unloading its modules, which would take a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # ends idle threads of executors, and waits for all threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class _Stopping:
    """Asks for the end of the run when this process gets a signal: from a scheduler, or from the
    launcher, which got one.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._asked = run, False

    def __call__(self, number: int) -> None:
        """Leave a Stop for rank 0. Raises SigtermReceived where a rank has failed, after which the
        launcher ends the others, where the Stop cannot be left, and at a second signal.
        """
        if not self._asked and not failure_files.any_written(self._run / FOLDER):
            self._asked = True
            with contextlib.suppress(OSError):
                control.send(self._run, Stop())
                return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise failure_files.SigtermReceived(f"signal {number}")


def _all_here(world: int, timeout: float) -> list[Process]:
    """Wait until all ranks have read their job file; returns their processes."""
    mine = Process(socket.gethostname(), os.getpid())
    if world == 1:
        return [mine]
    processes: list[Any] = [None] * world
    dist.all_gather_object(processes, mine)
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout))
    return processes


# -- rank 0


def _first(run: Path, content: JobFile, processes: list[Process]) -> int:
    job_file.remove(run)
    folder = RunFolder.take_over(run)
    work = _Work(run, content, processes, lambda: folder_commands.listen(job))
    job: Job[Any] = Job(run.name, content.assignment.kind, folder, work, lambda job: None)
    trackers = content.words.trackers
    content.assignment.task.use_trackers(trackers)
    JobRunner(job, Listeners(trackers).on_event).run()
    for tracker in trackers:
        tracker.close()
    return 0 if job.exception() is None else 1


class _Work:
    """Wraps the assignment as a `Work`, so that a job of this process runs it and writes the
    record.
    """

    def __init__(
        self, run: Path, given: JobFile, processes: list[Process], listen: Callable[[], None]
    ) -> None:
        """listen: starts reading commands. It is called when the other ranks begin too: they
        would wait for a job that stops earlier.
        """
        self._run, self._given, self._processes, self._listen = run, given, processes, listen
        self.settings, self.updates = given.settings, 0

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        try:
            self._listen()
            done = self._given.assignment(FirstEvents(emit, self._given.words), inbox)
            if done.value is not None:
                private_file.write(self._run / FOLDER / VALUE, done.value)
            return done.status
        except BaseException as error:  # noqa: BLE001 - `_fail` raises it, or its cause
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._fail(emit, error)
        finally:
            self.updates = self._given.assignment.updates

    def _fail(self, emit: JobSink, error: BaseException) -> NoReturn:
        """Raise the error that ended the job, which may be another rank's."""
        mine = failure_files.failure_of(error, 0, len(self._processes))
        print(f"rank 0:\n{mine.text}", file=sys.stderr, flush=True)
        root = failure_files.root_cause(self._run / FOLDER, mine) or mine
        if root.waited:
            root = mine = failure_files.hang_error(
                self._run / FOLDER, mine, self._processes[1:], self.settings.rank_timeout
            )
        failure_files.write(self._run / FOLDER, mine)
        emit(Message(f"{root.where}:\n{root.text}", "error", self._given.assignment.updates))
        raise root.error


# -- the others


def _other(content: JobFile) -> int:
    content.assignment(NullSink(), Mailbox())
    return 0


if __name__ == "__main__":
    read_header(Path(sys.argv[1]))  # a folder that is not a run's raises an error at once
    _leave(main(Path(sys.argv[1])))
