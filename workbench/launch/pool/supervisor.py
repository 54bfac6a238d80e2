"""Follows one job of a pool from its start until the last rank has ended."""

from __future__ import annotations

import re
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.commands import Mailbox
from workbench.events import Event, StepsDone
from workbench.launch.job import EventSink
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.messages import Exit, LateEvents, Pong, RankEnded, Settle, Settled, StartJob
from workbench.launch.pool.watchdog import Watchdog
from workbench.launch.pool.worker_handle import WorkerHandle
from workbench.launch.process import message as letter
from workbench.launch.process.channel import Received
from workbench.share.package import Package, unpack

POLL = 0.02
"""Seconds between two checks of the inbox."""
GATHER = 5.0
"""Seconds that the other ranks have to report after one has failed."""
_CAUSE = 15.0
"""Seconds that they have while only lost partners were reported: the cause is still to come."""
_HAND_OVER = 10.0
"""Seconds that rank 0 has to send the task's state after it was asked."""
_FOLLOWS = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|gloo/transport|Socket closed|NCCL|"
    r"(?i:timed out).*(?:recv|send|store)|process group"
)
"""The words of a rank's error when its partner is gone."""


@dataclass
class RankOutcome:
    """The outcome of a rank. Neither failed nor dead: it has done its part, or is still working."""

    rank: int
    pid: int | None = None
    said: RankEnded | None = None
    value: Any = None
    """Rank 0's `Done`; the error of a rank that failed."""
    dead: bool = False
    code: int | None = None
    lost: str = ""
    tail: str = ""
    """The end of a dead rank's stderr."""
    at: float = 0.0
    """When that was known."""

    @property
    def over(self) -> bool:
        return self.dead or self.said is not None

    @property
    def failed(self) -> bool:
        return self.dead or (self.said is not None and self.said.failed)

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

    fates: list[RankOutcome]
    left: ModuleDiff | Exception | None = None
    """Rank 0's changes of the task, or why they cannot be unpacked here."""
    updates: int = 0
    hung: str = ""
    """The stacks of all ranks, if they hang."""
    threads: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.hung) or any(fate.failed for fate in self.fates)


class Supervisor:
    """Follows one job; nothing here outlives it but the workers."""

    def __init__(self, members: Sequence[WorkerHandle], emit: EventSink, inbox: Mailbox, timeout: float) -> None:
        self._members, self._emit, self._inbox = members, emit, inbox
        self.course = JobOutcome([RankOutcome(member.rank, member.pid) for member in members])
        self._watchdog = Watchdog(members, timeout)
        self._deadline = float("inf")
        self._asked = self._explained = False
        for member in members:
            member.listen(emit.printed)

    def hand_out(self, handles: Sequence[int]) -> None:
        """Send the job to all ranks; each has its own copy of the message."""
        for member in self._members:
            member.tell(StartJob(), list(handles))

    def follow(self) -> JobOutcome:
        """Follow until all ranks have ended, or cannot be waited for any longer."""
        with selectors.DefaultSelector() as select:
            for member in self._members:
                for fd, hear in member.all_sources(self._hear):
                    select.register(fd, selectors.EVENT_READ, hear)
            while not all(fate.over for fate in self.course.fates) and time.monotonic() < self._deadline:
                for key, _ in select.select(POLL):
                    if not key.data():
                        select.unregister(key.fd)
                self._check_dead_ranks()
                self._forward()
                self._keep_time()
        for member in self._members:
            member.drain()
            member.lines.finish()
        return self.course

    def _hear(self, member: WorkerHandle, received: Received) -> None:
        message, fds = received
        if isinstance(message, RankEnded):
            self._take_end(member, message, fds)
        elif isinstance(message, LateEvents):
            (self.course.left,), self.course.updates = _values(fds), message.updates
            self._deadline = 0.0
        elif isinstance(message, Pong):
            self._watchdog.on_pong(message.count)
        elif isinstance(message, Settle):
            self._emit.settle(message.seconds)
            member.tell(Settled(message.number))
        else:
            self._pass_on(message)

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self.course.updates = event.step + event.every * (event.rows - 1) + 1
        self._emit(event)

    def _take_end(self, member: WorkerHandle, ended: RankEnded, fds: list[int]) -> None:
        fate = self.course.fates[member.rank]
        fate.said, fate.at = ended, time.monotonic()
        member.files.update(ended.files)
        fate.value, left = _values(fds)
        if member.rank == 0:
            self.course.left, self.course.updates = left, ended.updates

    def _check_dead_ranks(self) -> None:
        for member, fate in zip(self._members, self.course.fates, strict=True):
            if member.over and not fate.over:
                for received in member.channel.take():  # its last message
                    self._hear(member, received)
                member.drain()
                if not fate.over:
                    fate.dead, fate.code, fate.lost, fate.tail = True, member.code, member.lost, member.lines.tail
                    fate.pid, fate.at = member.pid, time.monotonic()

    def _forward(self) -> None:
        """Send commands to rank 0, which shares them."""
        while (command := self._inbox.take()) is not None:
            self._members[0].tell(command)

    def _keep_time(self) -> None:
        """When one has failed, or all hang, the others have some seconds; then take rank 0's state."""
        if not self._explained and any(fate.failed and not fate.follows for fate in self.course.fates):
            self._explained, self._deadline = True, min(self._deadline, time.monotonic() + GATHER)
        elif self._deadline == float("inf") and self.course.failed:
            self._deadline = time.monotonic() + _CAUSE
        if self._watchdog.due():
            self.course.hung = self._watchdog.report()
            self._deadline = 0.0
        if time.monotonic() >= self._deadline and not self._asked and not self.course.fates[0].over:
            self._asked, self._deadline = True, time.monotonic() + _HAND_OVER
            self._members[0].tell(Exit())


def _values(fds: list[int]) -> list[Any]:
    """The contents of a message's packages; one that cannot be unpacked here becomes the error that says so."""
    _, parcels = letter.read(fds)
    return [_value(parcel) for parcel in parcels]


def _value(parcel: Package) -> Any:
    with parcel:
        try:
            return unpack(parcel)
        except Exception as error:  # noqa: BLE001 - it is what came of the job
            error.add_note("the job ended, but what it gave cannot be read in this process")
            return error
