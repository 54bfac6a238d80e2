"""Follows a job of another process: reads its record and sends commands through its folder.

`run` launches a job and follows it; launch/attached/attach.py follows any run of a root, from any
process.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.commands import Command, Mailbox
from workbench.engine.checkpoint.files import load_tensors, load_weights, peek, tensors_of
from workbench.events import Message, RunEnded
from workbench.launch.accelerate import command as accelerate
from workbench.launch.accelerate import failure_files, job_file, private_file
from workbench.launch.accelerate.failure_files import LaunchError
from workbench.launch.accelerate.job_file import FOLDER, VALUE
from workbench.launch.assignments import Assignment, Done
from workbench.launch.first_events import FirstEvents, FirstMessages
from workbench.launch.job import Detached, EventSink, JobSink
from workbench.launch.process.run_in_child import RemoteTraceback
from workbench.launch.thread import StillRunning, error_text
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.folder import control
from workbench.runs.folder.alive import is_alive
from workbench.runs.folder.files import open_regular
from workbench.runs.printable import printable
from workbench.runs.read import read_header, summary
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import stream
from workbench.share.package import pack
from workbench.task.protocol import Task
from workbench.task.state.of_task import load_held
from workbench.trackers.listener import TrackerListener as Tracker

PERIOD = 0.1
"""Seconds between two reads of a record."""
_CHECK = 10
"""After so many reads without anything new, its process is checked."""
_END = 10.0
"""Seconds that the launcher has to end after its job."""
_TAIL = 1 << 14
_LINES = 20
"""Lines of the output in the error of a job that ended without one."""


def run(
    assignment: Assignment, emit: EventSink, inbox: Mailbox, plan: accelerate.LaunchPlan
) -> Done:
    """Launch the job and follow it; if it ends while this process waits, the task gets its
    trained weights.
    """
    if not isinstance(emit, FirstEvents):
        raise RuntimeError(
            f"{assignment.kind} is a part of a job, and only whole ones are launched."
        )
    job_sink: JobSink = emit.sink  # type: ignore[assignment]  # of the process that asked
    messages, going = _with_trackers(emit.take())
    with job_sink.away() as away:
        run = away.folder.path
        try:
            job_file.write(run, assignment, messages, plan.notes)
            for tracker in going:
                tracker.leave(run.name)
            process = _start(plan, away)
        except BaseException:
            job_file.remove(run)
            raise
        del messages
        follower = LaunchedJob(run, lambda command: control.send(run, command), away.left)
        try:
            end = follower.follow(job_sink, inbox)
        except StillRunning:
            _left.append(process)
            raise
        except LaunchError:
            _wait(process)
            job_file.remove(run)
            raise _error(run) from None
        _wait(process)
        assignment.updates = end.step
        if end.status == "failed":
            job_sink(end)
            raise _error(run, end)
        if assignment.trains:
            _copy_results_back(assignment.task, run, end, job_sink)
        job_sink(end)
    return Done(end.status, _value(run))


def _with_trackers(first: FirstMessages) -> tuple[FirstMessages, list[Tracker]]:
    """The first messages with the trackers that the launched process runs, because they continue
    without this process.
    """
    going, messages = [], list(first.messages)
    for tracker in first.trackers:
        if not tracker.is_sent_along:
            continue
        try:
            with pack(tracker):
                going.append(tracker)
        except Exception as error:  # noqa: BLE001 - an argument that cannot be pickled may raise anything
            text = (
                f"tracker {tracker.name!r} stays in this process, and gets the run's events as long"
                f" as this process follows the run: {error}"
            )
            messages.append(Message(text, "warning"))
    return first._replace(messages=messages, trackers=going), going


_left: list[subprocess.Popen[bytes]] = []
"""Launchers that no code waits for any more; they are children of this process."""


def _start(plan: accelerate.LaunchPlan, away: Detached) -> subprocess.Popen[bytes]:
    _left[:] = [process for process in _left if process.poll() is None]
    run = away.folder.path
    if plan.machines > 1:  # in the record, so that every process that follows the run shows it
        script, last = accelerate.write_script(plan, run).absolute(), plan.machines - 1
        text = (
            f"{run.name} waits for its other machines: run `sh {script} NUMBER` on each, where"
            " NUMBER is " + ("1." if last == 1 else f"1 to {last}.")
        )
        away.folder.append(Message(text, "warning"))
    process = accelerate.start(plan, run)
    away.folder.name_writer(process.pid)
    return process


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        _left.append(process)


class LaunchedJob:
    """Passes on the events that another process records, until the run ends."""

    def __init__(self, run: Path, send: Callable[[Command], None], left: threading.Event) -> None:
        """send: called with each command. left: set when no code of this process waits for the
        job any more.
        """
        self._run, self._send, self._left = run, send, left
        self._tail = Tail(run)
        self.caught_up = threading.Event()
        """Set when all events recorded so far have been passed on."""

    def follow(self, emit: JobSink, inbox: Mailbox) -> RunEnded:
        """Follow the record until its `RunEnded`, and return that.

        Raises LaunchError where the process ended without one, StillRunning once `left` is set.
        """
        idle, over = 0, False
        while True:
            new = self._tail.numbered()
            for line, event in new:
                if isinstance(event, RunEnded):
                    self.caught_up.set()
                    return event
                emit.recorded(event, line)
            if new:
                idle = 0
                continue
            self.caught_up.set()
            if over:
                raise LaunchError(self._run.name)
            idle += 1
            over = idle % _CHECK == 0 and not self._alive()  # its last lines may have come since
            if not over:
                inbox.wait(PERIOD)
            self._pass_on(inbox, emit)
            if self._left.is_set():
                raise StillRunning(
                    f"{self._run.name} continues without this process:"
                    f" wb.attach({self._run.name!r}) follows it."
                )

    def _pass_on(self, inbox: Mailbox, emit: EventSink) -> None:
        while not self._over() and (command := inbox.take()) is not None:
            try:
                self._send(command)
            except OSError as error:
                emit(
                    Message(
                        f"{type(command).__name__} could not be sent to {self._run.name}"
                        f" ({error}).",
                        "error",
                    )
                )

    def _over(self) -> bool:
        """Whether the record has an end, which may not be read yet. A command then stays in the
        inbox, and the job reports that it was not carried out.
        """
        try:
            return summary(self._run).over
        except (OSError, ValueError):
            return False

    def _alive(self) -> bool:
        try:
            return is_alive(read_header(self._run))
        except (OSError, ValueError):
            return self._run.is_dir()


def in_words(run: Path, end: RunEnded | None = None) -> LaunchError:
    """The error of a run that failed, made from the text in its record; end=None: its process ended
    without recording an end.

    Nothing in the folder is unpickled, since it may come from an untrusted source.
    """
    if end is None and not run.is_dir():
        return LaunchError(
            f"the record of {run.name} has disappeared: {run} was deleted or moved, and its job"
            " ends without it."
        )
    if end is None:
        return LaunchError(
            f"the process of {run.name} ended without ending the run.{_last_lines(run)}"
        )
    error = LaunchError(printable(f"{run.name} failed: {end.error}", lines=True))
    texts = [
        event.text
        for event in stream(run, ())
        if isinstance(event, Message) and event.level == "error"
    ]
    error.__cause__ = RemoteTraceback(printable(texts[-1], lines=True)) if texts else None
    return error


def _error(run: Path, end: RunEnded | None = None) -> BaseException:
    """The error of a run that this process launched, of its own type where that can be loaded."""
    root = failure_files.root_cause(run / FOLDER)
    if root is None or (end is not None and end.error != error_text(root.error)):
        return in_words(run, end)
    root.error.__cause__ = RemoteTraceback(root.text)
    root.error.add_note(root.where)
    return root.error


def _last_lines(run: Path) -> str:
    """The last lines of its processes' output."""
    path = run / accelerate.OUTPUT
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    return (
        "".join(
            ["\n", f"{path} ends with:\n", *(f"  {printable(line)}\n" for line in lines[-_LINES:])]
        )
        if lines
        else ""
    )


def _value(run: Path) -> Any:
    """The result of the assignment besides events and weights."""
    path = run / FOLDER / VALUE
    if not path.exists():
        return None
    try:
        return private_file.read(path).open()
    finally:
        private_file.remove(path)


def _copy_results_back(task: Task, run: Path, end: RunEnded, emit: EventSink) -> None:
    """Give the task's modules the weights of the run's last checkpoint, in place."""
    checkpoints = [
        checkpoint
        for checkpoint in list_checkpoints(run)
        if checkpoint.end and checkpoint.step == end.step
    ]
    if not checkpoints:
        emit(
            Message(
                "the trained weights were not copied into this process: the run saved no checkpoint"
                " at its end.",
                "warning",
                end.step,
            )
        )
        return
    load_weights(task.trained_modules, checkpoints[-1].path / "model.safetensors")
    if not checkpoints[-1].resumable:
        return
    state = peek(checkpoints[-1].path, "extra_state", "others", "held")
    device = next(parameter.device for parameter in task.model.parameters())
    load_tensors(task.model, tensors_of(task.model), state["extra_state"])
    for module, saved in zip(task.modules[1:], state["others"], strict=True):
        load_tensors(module, saved["tensors"], saved["extra_state"])
    load_held(task, state["held"], device)
