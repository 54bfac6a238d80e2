"""Follows one job of a pool from its start until the last rank has ended."""

from __future__ import annotations

import re
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.commands import Mailbox, Stop
from workbench.events import Event, Message, StepsDone
from workbench.launch.job import EventSink
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.messages import (
    FlushRecord,
    Pong,
    RankEnded,
    RecordFlushed,
    RequestState,
    StartJob,
    StateReply,
    Terminated,
)
from workbench.launch.pool.watchdog import Watchdog
from workbench.launch.pool.worker_handle import WorkerHandle
from workbench.launch.process.channel import Received
from workbench.share.package import Package, read_message, unpack

POLL = 0.02
"""Seconds between two checks of the inbox."""
GATHER = 5.0
"""Seconds that the other ranks have to report after one has failed."""
_CAUSE = 15.0
"""Seconds that they have while all errors are about lost partners, because the cause is still to
be reported.
"""
_STOPPING = 30.0
"""Seconds that ranks have to stop, after a second Stop; none where one of them is suspended."""
_HAND_OVER = 10.0
"""Seconds that rank 0 has to send the task's state after it was asked."""
_FOLLOWS = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|gloo/transport|Socket"
    r" closed|NCCL|"
    r"(?i:timed out).{0,1000}(?:recv|send|store)|process group"
)
"""The words of a rank's error when its partner is gone."""


@dataclass
class RankOutcome:
    """The outcome of a rank, or its state so far."""

    rank: int
    pid: int | None = None
    report: RankEnded | None = None
    value: Any = None
    """Rank 0's `Done`, or the error of a rank that failed."""
    dead: bool = False
    code: int | None = None
    lost: str = ""
    tail: str = ""
    """The end of a dead rank's stderr."""
    at: float = 0.0
    """When the supervisor learned of it."""

    @property
    def over(self) -> bool:
        """Whether the rank has ended or reported its result."""
        return self.dead or self.report is not None

    @property
    def failed(self) -> bool:
        """Whether the rank's process died or reported an error."""
        return self.dead or (self.report is not None and self.report.failed)

    @property
    def follows(self) -> bool:
        """Whether it failed only because another rank did."""
        return self.failed and not self.dead and is_echo(self.value)


def is_echo(error: object) -> bool:
    """Whether a rank's error says only that its partner is gone."""
    return isinstance(error, RuntimeError) and bool(_FOLLOWS.search(str(error)))


@dataclass
class JobOutcome:
    """The outcome of a job."""

    ranks: list[RankOutcome]
    left: ModuleDiff | Exception | None = None
    """Rank 0's changes of the task, or the error of unpacking them here."""
    updates: int = 0
    hung: str = ""
    """The stacks of all ranks, if they hang."""
    gave_up: bool = False
    """Whether the user stopped the job a second time, since its ranks did not stop."""

    @property
    def failed(self) -> bool:
        """Whether a rank hung or failed, or did not stop."""
        return (
            self.gave_up
            or bool(self.hung)
            or any(rank_outcome.failed for rank_outcome in self.ranks)
        )


class Supervisor:
    """Follows one job; only the workers outlive it."""

    def __init__(
        self, members: Sequence[WorkerHandle], emit: EventSink, inbox: Mailbox, timeout: float
    ) -> None:
        self._members, self._emit, self._inbox = members, emit, inbox
        self.outcome = JobOutcome([RankOutcome(member.rank, member.pid) for member in members])
        self._watchdog = Watchdog(members, timeout)
        self._deadline = float("inf")
        self._asked = self._explained = False
        self._stops = 0
        self._give_up_at = float("inf")
        """When ranks that do not stop are given up."""
        self._handed_out = 0
        """The number of commands in the inbox that rank 0 got with the job."""
        for member in members:
            member.listen(emit.printed)

    def hand_out(self, handles: Sequence[int]) -> None:
        """Send the job to all ranks. Rank 0 gets the commands so far with it: sent later, they
        could miss the first updates.
        """
        commands = self._inbox.waiting()
        self._handed_out = len(commands)
        for member in self._members:
            member.send(StartJob(commands if member.rank == 0 else ()), list(handles))

    def follow(self) -> JobOutcome:
        """Follow the job until all ranks have ended, or until some have not ended in time after
        a failure.
        """
        with selectors.DefaultSelector() as select:
            for member in self._members:
                for fd, hear in member.all_sources(self._hear):
                    select.register(fd, selectors.EVENT_READ, hear)
            while (
                not all(rank_outcome.over for rank_outcome in self.outcome.ranks)
                and time.monotonic() < self._deadline
            ):
                for key, _ in select.select(POLL):
                    if not key.data():
                        select.unregister(key.fd)
                self._check_dead_ranks()
                self._forward()
                self._keep_time()
        for member in self._members:
            member.drain()
            member.lines.finish()
        return self.outcome

    def _hear(self, member: WorkerHandle, received: Received) -> None:
        message, fds = received
        if isinstance(message, RankEnded):
            self._take_end(member, message, fds)
        elif isinstance(message, StateReply):
            (self.outcome.left,), self.outcome.updates = _values(fds), message.updates
            self._deadline = 0.0
        elif isinstance(message, Pong):
            self._watchdog.on_pong(message.count)
        elif isinstance(message, Terminated):
            self._members[0].send(Stop())  # past the inbox, where a second one kills the ranks
        elif isinstance(message, FlushRecord):
            self._emit.settle(message.seconds)
            member.send(RecordFlushed(message.number))
        else:
            self._pass_on(message)

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self.outcome.updates = event.done
        self._emit(event)

    def _take_end(self, member: WorkerHandle, ended: RankEnded, fds: list[int]) -> None:
        rank_outcome = self.outcome.ranks[member.rank]
        rank_outcome.report, rank_outcome.at = ended, time.monotonic()
        member.files.update(ended.files)
        rank_outcome.value, left = _values(fds)
        if member.rank == 0:
            self.outcome.left, self.outcome.updates = left, ended.updates

    def _check_dead_ranks(self) -> None:
        for member, rank_outcome in zip(self._members, self.outcome.ranks, strict=True):
            if member.over and not rank_outcome.over:
                for received in member.channel.take():  # its last message
                    self._hear(member, received)
                member.drain()
                if not rank_outcome.over:
                    rank_outcome.dead, rank_outcome.code, rank_outcome.lost, rank_outcome.tail = (
                        True,
                        member.code,
                        member.lost,
                        member.lines.tail,
                    )
                    rank_outcome.pid, rank_outcome.at = member.pid, time.monotonic()

    def _forward(self) -> None:
        """Send commands to rank 0, which shares them with the others. They stay in the inbox
        while rank 0 has no process.
        """
        if self._members[0].pid is None:
            return
        while (command := self._inbox.take()) is not None:
            if isinstance(command, Stop):
                self._stops += 1
                if self._stops == 2:
                    self._give_up_at = time.monotonic() + (0.0 if self._suspended() else _STOPPING)
            if self._handed_out:
                self._handed_out -= 1
            else:
                self._members[0].send(command)

    def _keep_time(self) -> None:
        """After a failure, or where all hang, give the other ranks some seconds; then ask rank 0
        for its state.
        """
        if not self._explained and any(
            rank_outcome.failed and not rank_outcome.follows for rank_outcome in self.outcome.ranks
        ):
            self._explained, self._deadline = True, min(self._deadline, time.monotonic() + GATHER)
        elif self._deadline == float("inf") and self.outcome.failed:
            self._deadline = time.monotonic() + _CAUSE
        if time.monotonic() >= self._give_up_at and not self.outcome.gave_up:
            self._give_up()
        if self._watchdog.due():
            self.outcome.hung = self._watchdog.report()
            self._deadline = 0.0
        if (
            time.monotonic() >= self._deadline
            and not self._asked
            and not self.outcome.ranks[0].over
        ):
            self._asked, self._deadline = True, time.monotonic() + _HAND_OVER
            self._members[0].send(RequestState())

    def _suspended(self) -> list[WorkerHandle]:
        """The ranks whose processes are suspended."""
        return [member for member in self._members if member.state in ("T", "t")]

    def _give_up(self) -> None:
        """Kill ranks that do not stop; rank 0 sends the task's state before, where it can."""
        suspended = self._suspended()
        why = "the ranks did not stop"
        if suspended:
            names = ", ".join(f"{member.rank} (process {member.pid})" for member in suspended)
            why = (
                "suspended (SIGSTOP, or by a debugger), so that the others wait for it: rank"
                f" {names}"
            )
        text = (
            f"stop() was asked for a second time, and the ranks are killed: {why}. The run keeps"
            " its last checkpoint."
        )
        self._emit(Message(text, "warning", self.outcome.updates))
        self.outcome.gave_up, self._deadline = True, 0.0
        self._asked = self._members[0] in suspended


def _values(fds: list[int]) -> list[Any]:
    """The contents of a message's packages; in place of one that cannot be unpacked here, the
    error of unpacking it.
    """
    _, packages = read_message(fds)
    return [_value(package) for package in packages]


def _value(package: Package) -> Any:
    with package:
        try:
            return unpack(package)
        except Exception as error:  # noqa: BLE001 - the job fails with it
            error.add_note("the job ended, but its result cannot be unpacked in this process")
            return error
