"""The job of one rank of a launcher's job: all ranks run it together, and rank 0 records it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.parameter import is_lazy

from workbench.commands import Command, Mailbox
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.events import Event, Status, StatusChanged
from workbench.launch.accelerate.failure_files import is_echo
from workbench.launch.assignments import Assignment, Done
from workbench.launch.attached.attached_job import LaunchedJob
from workbench.launch.job import Detached, EventSink, Job, JobSink, NullSink, Work
from workbench.launch.job_folder import JobFolder
from workbench.launch.joined import group
from workbench.launch.joined.group import Joined, Meeting, RankError, RankFailure
from workbench.launch.process.run_in_child import RemoteTraceback
from workbench.launch.thread import StillRunning, error_text
from workbench.runs.record.event_log import EventLog
from workbench.settings import Settings, SettingsError
from workbench.task.protocol import Task
from workbench.task.summary import ModelSummary
from workbench.tracebacks import user_line, whole_text

T = TypeVar("T")

_LOOK = 0.2
"""Seconds between two looks for a rank that asks for the end of the job."""
_LATE = 5.0
"""Seconds that the end of rank 0's record may come after rank 0 has said that the job ended."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in the text of an object, which differs between processes."""


def meet(
    settings: Settings,
    call: Callable[[], str],
    model: ModelSummary,
    data: str,
    files: Mapping[str, str],
) -> Meeting | None:
    """Wait until all ranks make this call; None: this process is alone. RankError where they
    differ.

    call: its line of code. data: a description of the training data. files: the text of each file
    of the user's code.
    """
    ranks = group.join(settings)
    if ranks is None:
        return None
    values = {name: _text(value) for name, value in settings.model_dump().items()}
    size = f"{model.name} with {model.parameters} parameters"
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    about = {"settings": values, "model": size, "training data": _text(data)}
    return ranks.meet(_text(call()), about, digests)


def _text(value: Any) -> str:
    return _ADDRESS.sub("", value if isinstance(value, str) else repr(value))


def folder_of(meeting: Meeting, make: Callable[[], JobFolder]) -> JobFolder:
    """The folder of a job, which rank 0 makes; RankError where a rank does not see it."""
    ranks = meeting.ranks
    try:
        if ranks.first:
            job_folder = make()
            meeting.tell_folder(job_folder.id, job_folder.path)
            return job_folder._replace(meeting=meeting)
        id, path = meeting.folder()
        return JobFolder(id, record=path, meeting=meeting)
    except BaseException as error:
        ranks.end(meeting)
        if ranks.first and not isinstance(error, RankError):
            ranks.break_up(f"rank 0 could not begin {meeting.call}: {error_text(error)}")
        raise


def run(ranks: Joined, assignment: Assignment, emit: EventSink, inbox: Mailbox) -> Done:
    """Run an assignment on all ranks. They begin with rank 0's weights."""
    _broadcast_weights(ranks, assignment.task)
    return assignment(emit, inbox)


def _broadcast_weights(ranks: Joined, task: Task) -> None:
    """Give this rank the parameters and buffers that rank 0 has: where a script has no seed, each
    rank has made others.
    """
    tensors = [
        tensor.data
        for module in task.modules
        for tensor in (*module.parameters(), *module.buffers())
        if not is_lazy(tensor)
    ]
    ranks_of_job = MultiProcessGroup(ranks.place.local_rank, ranks.place.local_world)
    # in host memory: a script may have put the weights of all ranks on one GPU
    hosted = [tensor.detach().cpu() for tensor in tensors]
    ranks_of_job.broadcast_hosted(hosted)
    with torch.no_grad():
        for tensor, value in zip(tensors, hosted, strict=True):
            tensor.copy_(value)


class RankJob(Job[T]):
    """A job that all ranks run. On rank 0 it is like any other; the others take its events from
    rank 0's record, and their own commands have no effect.
    """

    def __init__(
        self,
        place: JobFolder,
        meeting: Meeting,
        kind: str,
        work: Work,
        finish: Callable[[Job[T]], T],
        called: Callable[[Job[T], str, Mapping[str, Any], str], Callable[[], object]],
    ) -> None:
        ranks = meeting.ranks
        super().__init__(
            place.id, kind, place.folder, work, finish, called if ranks.first else None
        )
        self._ranks, self._meeting, self._path = ranks, meeting, place.path
        if not ranks.first:
            self._inbox = _Deaf()
            if place.path is not None:
                self.events = EventLog(record=place.path)

    @property
    def _run_path(self) -> Path | None:
        return self._path

    def _is_next(self) -> bool:
        return self._ranks.is_next(self._meeting)

    def _waits(self) -> StatusChanged | None:
        return super()._waits() if self._ranks.first else None

    def _stopped_before(self) -> bool:
        return self._meeting.agree(super()._stopped_before())

    def _run(self, emit: JobSink) -> tuple[Status, BaseException | None]:
        recorded = not self._ranks.first and self._path is not None
        if self._ranks.first:
            threading.Thread(target=self._obey_others, daemon=True).start()
        try:
            status, error = super()._run(_Silent(emit) if recorded else emit)
            if error is not None:
                error = self._cause_of(error)
            elif recorded:
                status = self._follow_first(emit)
        except BaseException as failure:  # noqa: BLE001 - result() raises it
            status, error = "failed", failure
        finally:
            self._ranks.end(self._meeting)
        return status, error

    def _follow_first(self, emit: JobSink) -> Status:
        """Take the events from rank 0's record until its end, and return the status."""
        assert self._path is not None
        left = threading.Event()
        threading.Thread(target=self._leave_late, args=(left,), daemon=True).start()
        try:
            end = LaunchedJob(self._path, lambda command: None, left).follow(emit, Mailbox())
        except StillRunning:  # the record lacks its end: the disk may be full
            return self._meeting.ended() or "finished"
        finally:
            left.set()
        emit(end)
        return end.status

    def _leave_late(self, left: threading.Event) -> None:
        """Set the event a while after rank 0 has ended the job."""
        while not left.wait(_LOOK):
            if self._meeting.ended():
                left.wait(_LATE)
                left.set()

    def _end(self, status: Status, error: BaseException | None) -> None:
        if self._ranks.first:
            with contextlib.suppress(RuntimeError):  # the other ranks may be gone
                self._meeting.tell_ended(status)
        super()._end(status, error)

    def _interrupted(self) -> None:
        if not self._ranks.first:
            self._meeting.ask_to_stop()
        super()._interrupted()

    def _stop_once(self) -> None:
        super()._stop_once()
        if not self._ranks.first:
            self._meeting.ask_to_stop()

    def _obey_others(self) -> None:
        """Stop the job where another rank's process has to end."""
        while not self._ended.wait(_LOOK):
            if self._meeting.is_stop_asked():
                self._stop_once()
                return

    def _cause_of(self, error: BaseException) -> BaseException:
        """The error with which the job ends: another rank's, where this one has only lost it."""
        mine = RankFailure(error_text(error), user_line(error), whole_text(error), is_echo(error))
        try:
            others = self._meeting.failures(mine)
        except RuntimeError:  # rank 0 is gone, and the store with it
            return error
        if not others or not mine.lost:
            return error
        rank, failure = next(iter(others.items()))
        cause = RankError(failure.sentence(rank))
        cause.__cause__ = RemoteTraceback(failure.text)
        return cause

    def _watch(self, timeout: float | None) -> bool:
        return super()._watch(timeout) if self._ranks.first else self._ended.wait(timeout)


class _Deaf(Mailbox):
    """The inbox of the other ranks: rank 0's commands are those of all."""

    def put(self, command: Command) -> None:
        """Drop the command."""


class _Silent(NullSink):
    """The event sink of a rank whose job is recorded by rank 0."""

    def __init__(self, sink: JobSink) -> None:
        self._sink = sink

    def recorded(self, event: Event, line: int) -> None:
        """Take an event of rank 0's record."""
        self._sink.recorded(event, line)

    def printed(self, line: str) -> None:
        """Take a line that another process of the job has printed."""
        self._sink.printed(line)

    def away(self) -> contextlib.AbstractContextManager[Detached]:
        """As `JobSink.away`: no other process runs a job of ranks."""
        return self._sink.away()


def check(ranks: Joined, settings: Settings) -> None:
    """Raise SettingsError for settings that the launcher's processes cannot have."""
    process = ranks.place
    where = f"this is rank {process.rank} of {process.world} ({process.launcher})"
    if settings.strategy in ("pool", "launch") or settings.launch:
        asked = (
            f"strategy={settings.strategy!r}"
            if settings.strategy in ("pool", "launch")
            else f"launch={settings.launch!r}"
        )
        raise SettingsError(
            f"{asked}: {where}, and a rank starts no ranks of its own. Leave it out: the ranks"
            " train together; strategy='thread' trains in each one alone."
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        raise SettingsError(
            f"ACCELERATE_USE_FSDP='true' in the environment: {where}, and the ranks of a script do"
            " not shard weights. Launch without FSDP (accelerate launch --multi_gpu), or fit with"
            " strategy='launch' and the same config from one process (docs/fsdp.md)."
        )
    devices = settings.devices if isinstance(settings.devices, int) else None
    if isinstance(settings.devices, tuple):
        devices = len(settings.devices)
    if devices not in (None, process.local_world):
        raise SettingsError(
            f"devices={settings.devices!r}: {where}, and there are {process.local_world} on each"
            " host: the launcher decides how many. Leave devices out, or give that number."
        )
    nodes = process.world // process.local_world
    if settings.num_nodes not in (1, nodes):
        raise SettingsError(
            f"num_nodes={settings.num_nodes}: {where}, on {nodes} hosts: the launcher decides how"
            " many. Leave num_nodes out, or give that number."
        )
