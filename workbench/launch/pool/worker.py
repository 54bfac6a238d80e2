"""Runs a rank of a pool: one job after another, together with the other ranks.

The main thread runs the jobs; a second thread receives jobs, commands and requests, a third sends
events. So a slow owner delays no update, and a rank that hangs can still answer.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import gc
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from cloudpickle import cloudpickle as _cloudpickle

from workbench.commands import Command, Mailbox
from workbench.events import Event
from workbench.launch import signals
from workbench.launch.assignments import Assignment
from workbench.launch.job import NullSink
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.messages import (
    FlushRecord,
    Ping,
    Pong,
    RankConfig,
    RankEnded,
    RecordFlushed,
    RequestState,
    StartJob,
    StateReply,
    Terminated,
)
from workbench.launch.process import child_main
from workbench.launch.process.channel import Channel
from workbench.launch.process.child_main import (
    apply_environment,
    become_child,
    flush,
    format_traceback,
    pack_error,
    unpacked,
)
from workbench.launch.process.process_env import in_mlflow_run
from workbench.share.package import Package, pack, read_message, write_message
from workbench.share.segment import Segment
from workbench.task import rng
from workbench.tracebacks import INSTALLED

_OURS = (__file__, child_main.__file__)
_LONG = datetime.timedelta(days=30)
"""The timeout of the process group. It is longer than any job: the pool's watchdog decides when
ranks hang.
"""


def run_rank(channel: int, more: Sequence[int], temporary: str) -> NoReturn:
    """Run a rank until it ends. more: the file descriptor to which SIGUSR1 makes it write its
    stacks.
    """
    become_child(temporary)
    faulthandler.register(signal.SIGUSR1, file=more[0], all_threads=True)
    # loader workers need the classes of the notebook's cells
    multiprocessing.set_start_method("fork", force=True)
    _Rank(Channel(socket.socket(fileno=channel))).serve()


class _Rank:
    """A rank, from joining its group until its owner ends it or a job fails here."""

    def __init__(self, channel: Channel) -> None:
        self._messages = channel.receive()
        self._works: queue.SimpleQueue[tuple[list[int], _Inbox]] = queue.SimpleQueue()
        self._inbox = _Inbox()
        self._sender = _Sender(channel)
        self._outlet = _EventSender(self._sender)
        self._at_work: tuple[Assignment, Callable[[], ModuleDiff]] | None = None
        self._known = frozenset(sys.modules)
        signals.ask_to_stop(lambda number: self._sender.send(Terminated()), signal.SIGTERM)

    def serve(self) -> NoReturn:
        config: RankConfig = next(self._messages).message
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            _join_process_group(config)
        except BaseException as error:  # noqa: BLE001 - the owner gets it at the next job
            self._fail(error)
        while True:
            self._run_job(config, *self._works.get())

    def _run_job(self, config: RankConfig, handles: list[int], inbox: _Inbox) -> None:
        """Run one job. If it fails here, this rank ends, since the process group cannot be used
        any more.
        """
        _forget_classes()
        try:
            request, packages = read_message(handles)
            apply_environment(request)
            os.environ.update(config.environment)
            (assignment,) = unpacked(request.name, packages)
            self._at_work = assignment, ModuleDiff.since_now(assignment.task)
            if assignment.random is not None:
                rng.set_process_state(assignment.random)
            with in_mlflow_run(request.process.mlflow_run):
                done = assignment(self._outlet if config.rank == 0 else NullSink(), inbox)
            value = pack(done if config.rank == 0 else None, names={"the job's result": done})
            left = pack(self._module_diff(), names={"the model": assignment.task.model})
        except BaseException as error:  # noqa: BLE001 - the owner gets it, SystemExit and KeyboardInterrupt too
            self._fail(error)
        self._send_result(
            RankEnded(updates=assignment.updates, files=_own_files(self._known)), [value, left]
        )
        self._at_work = None
        del assignment, done, packages
        gc.collect()  # the data of the job is freed before the next
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def _fail(self, error: BaseException) -> NoReturn:
        """Send the error with the task's state, and end; the other ranks notice the lost
        connection.
        """
        updates = 0 if self._at_work is None else self._at_work[0].updates
        try:
            left = pack(self._module_diff())
        except Exception as second:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"the changes of the model cannot be sent: {second}")
            left = pack(None)
        self._send_result(
            RankEnded(True, format_traceback(error, _OURS), updates), [pack_error(error), left]
        )
        self._sender.flush()
        os._exit(1)

    def _module_diff(self) -> ModuleDiff | None:
        """The changes of the task; None in other ranks than 0."""
        if self._at_work is None or (dist.is_initialized() and dist.get_rank()):
            return None
        assignment, changes = self._at_work
        return changes() if assignment.trains else None

    def _send_result(self, message: RankEnded | StateReply, packages: Sequence[Package]) -> None:
        flush()
        header, handles = write_message(None, packages)
        segments = [header, *(segment for package in packages for segment in package.segments)]
        self._sender.send(
            message, [handle for handle in handles if isinstance(handle, int)], segments
        )

    def _receive(self) -> None:
        try:
            for message, fds in self._messages:
                self._take(message, fds)
        except BaseException:  # noqa: BLE001 - a rank that receives nothing must end
            traceback.print_exc()
        finally:
            # the owner is gone, or has closed the channel; loader workers end too
            os.killpg(0, signal.SIGKILL)

    def _take(self, message: Any, fds: list[int]) -> None:
        if isinstance(message, StartJob):
            self._inbox = _Inbox()
            for command in message.commands:
                self._inbox.put(command)
            self._works.put((fds, self._inbox))
        elif isinstance(message, Ping):
            self._sender.send(Pong(self._inbox.polls + self._outlet.events_sent))
        elif isinstance(message, RequestState):
            self._leave()
        elif isinstance(message, RecordFlushed):
            self._outlet.settled(message.number)
        else:
            self._inbox.put(message)

    def _leave(self) -> None:
        """Send the task's state as of the last update, while the main thread hangs."""
        with contextlib.suppress(Exception):  # then it sends no state
            if self._at_work is not None:
                self._send_result(
                    StateReply(self._at_work[0].updates_now()), [pack(self._module_diff())]
                )


def _join_process_group(config: RankConfig) -> None:
    """Join the process group."""
    os.environ.update(config.environment)
    if config.device is not None:
        torch.cuda.set_device(config.device)
    if config.world > 1:
        store = dist.FileStore(config.store, config.world)  # type: ignore[attr-defined]
        dist.init_process_group(
            config.backend, store=store, rank=config.rank, world_size=config.world, timeout=_LONG
        )


def _forget_classes() -> None:
    """Forget classes that cloudpickle loaded for a job, so that the next job loads them anew:
    the notebook may have changed them.
    """
    for known in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
        getattr(_cloudpickle, known, {}).clear()


def _own_files(known: frozenset[str]) -> dict[str, int]:
    """The files of the modules imported since `known`, without installed packages, with their
    modification times.
    """
    files = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name not in known and isinstance(file, str) and not file.startswith(INSTALLED):
            with contextlib.suppress(OSError):
                files[file] = os.stat(file).st_mtime_ns
    return files


class _Inbox(Mailbox):
    """An inbox that counts how often the job looks into it, which is at every update at least."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0

    def __bool__(self) -> bool:
        self.polls += 1
        return super().__bool__()

    def has(self, kind: type[Command]) -> bool:
        self.polls += 1
        return super().has(kind)

    def wait(self, timeout: float) -> bool:
        self.polls += 1
        return super().wait(timeout)


class _Sender:
    """Sends messages in order, in a thread of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: queue.SimpleQueue[_Outgoing] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, message: Any, fds: Sequence[int] = (), segments: Sequence[Segment] = ()) -> None:
        """Queue a message. segments: closed when the message is sent."""
        self._queue.put((message, fds, segments))

    def flush(self) -> None:
        """Wait until everything is sent."""
        sent = threading.Event()
        self._queue.put(sent)
        sent.wait()

    def _run(self) -> None:
        try:
            while True:
                outgoing = self._queue.get()
                if isinstance(outgoing, threading.Event):
                    outgoing.set()
                    continue
                message, fds, segments = outgoing
                self._channel.send(message, fds)
                for segment in segments:
                    segment.close()
        except OSError:
            pass  # the owner is gone, which the other thread notices too
        except BaseException:  # noqa: BLE001 - the owner would wait for a message that cannot be sent
            traceback.print_exc()
            os.killpg(0, signal.SIGKILL)


_Outgoing = tuple[Any, Sequence[int], Sequence[Segment]] | threading.Event


class _EventSender:
    """The event sink of rank 0."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self.events_sent = 0
        self._waiting: dict[int, threading.Event] = {}

    def __call__(self, event: Event, /) -> None:
        self.events_sent += 1
        self._sender.send(event)

    def settle(self, seconds: float = 3.0) -> None:
        self.events_sent += 1
        number, reached = self.events_sent, threading.Event()
        self._waiting[number] = reached
        self._sender.send(FlushRecord(number, seconds))
        reached.wait(seconds)
        del self._waiting[number]

    def settled(self, number: int) -> None:
        """Take the owner's answer to a `FlushRecord`."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.set()

    def printed(self, line: str) -> None:
        print(line)
