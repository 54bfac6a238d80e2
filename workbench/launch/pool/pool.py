"""Keeps a pool of ranks, which stay warm between the jobs of a kernel.

A process has one pool, for one accelerator and list of devices. A job that needs others gets a new
one, and so does the job after a failed one. The ranks are forked from the fork server and end when
this process ends, in any way.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import selectors
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from workbench.commands import Mailbox
from workbench.events import Message
from workbench.instruments.memory import available_memory
from workbench.launch.assignments import Assignment, Done
from workbench.launch.first_events import FirstEvents, FirstMessages
from workbench.launch.job import EventSink
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.failures import cause
from workbench.launch.pool.messages import RankConfig
from workbench.launch.pool.placement import backend, device, environment
from workbench.launch.pool.supervisor import JobOutcome, Supervisor
from workbench.launch.pool.worker_handle import WorkerHandle
from workbench.launch.process import fork_client
from workbench.launch.process.fork_client import ServerError
from workbench.launch.process.run_in_child import FORK, request
from workbench.share.buffer_cache import BufferCache
from workbench.share.capacity import Capacity
from workbench.share.package import pack, write_message
from workbench.share.rebind import rebind

_GRACE = 15.0
"""Seconds until killed ranks must be gone: longer than the server itself waits."""
_numbers = itertools.count()


class Pool:
    """The ranks for these devices. They join their process group while the owner continues."""

    def __init__(self, accelerator: str, devices: tuple[int, ...]) -> None:
        self.key = accelerator, devices
        self.server = fork_client.server()
        self._store = os.path.join(self.server.temporary, f"store-{next(_numbers)}")
        self.members: list[WorkerHandle] = []
        try:
            for rank in range(len(devices)):
                config = RankConfig(
                    rank,
                    len(devices),
                    environment(rank, accelerator, devices),
                    self._store,
                    backend(accelerator, devices),
                    device(rank, accelerator, devices),
                )
                self.members.append(WorkerHandle(config, self.server))
        except BaseException:
            # an interrupt, or no file descriptors are left: the ranks so far would stay
            self.close()
            raise

    def serves(self, accelerator: str, devices: tuple[int, ...]) -> bool:
        """Whether it can take a job for these devices."""
        return (
            self.key == (accelerator, devices)
            and self.server.alive()
            and all(m.is_usable() for m in self.members)
        )

    def kill(self) -> None:
        """Kill its ranks; the job that they run fails."""
        for member in self.members:
            member.kill()

    def close(self) -> None:
        """End its ranks, wait until their processes are gone, and free their resources."""
        self.kill()
        until = time.monotonic() + _GRACE
        with selectors.DefaultSelector() as select:
            for member in self.members:
                member.mute()
                for fd, hear in member.sources() if not member.over else ():
                    select.register(fd, selectors.EVENT_READ, hear)
            while not all(member.over for member in self.members) and time.monotonic() < until:
                for key, _ in select.select(0.1):
                    if not key.data():
                        select.unregister(key.fd)
        for member in self.members:
            member.close()
        with contextlib.suppress(OSError):
            os.unlink(self._store)


_pool: Pool | None = None
_changing = threading.Lock()
"""A thread holds it while it replaces `_pool`."""
_working = threading.Lock()
"""A thread holds it while the ranks run a job, or end."""


def run(
    assignment: Assignment,
    accelerator: str,
    devices: tuple[int, ...],
    emit: EventSink,
    inbox: Mailbox,
) -> Done:
    """Run an assignment on the ranks; afterwards the task of this process has their changes.
    Raises the job's error.
    """
    with _working, _pack_job(assignment, len(devices)) as (handles, note):
        outlet = FirstEvents(
            emit, FirstMessages([] if note is None else [Message(note, "warning")])
        )
        outcome = _done_by(_ready(accelerator, devices), assignment, handles, outlet, inbox)
        if _never_began(outcome):  # the server died between two jobs
            outcome = _done_by(_ready(accelerator, devices), assignment, handles, outlet, inbox)
    assignment.updates = outcome.updates
    if isinstance(outcome.left, ModuleDiff):
        outcome.left.put(assignment.task)
    if outcome.gave_up:
        return Done("stopped")
    if _never_began(outcome):
        raise ServerError(f"no process could be started for the job: {outcome.ranks[0].lost}")
    if outcome.failed:
        raise cause(outcome)
    done: Done | Exception = outcome.ranks[0].value
    for answer in (done, outcome.left):
        if isinstance(answer, Exception):  # it cannot be unpacked here
            raise answer
    assert isinstance(done, Done)
    return done


def warm(accelerator: str, devices: tuple[int, ...]) -> None:
    """Start the ranks of a coming job; returns at once. While another job runs it does nothing."""
    if FORK:
        # Off the main thread: an interrupt between a fork and its record would leave a rank that
        # nothing knows.
        threading.Thread(
            target=_warm, args=(accelerator, devices), name="workbench-warm", daemon=True
        ).start()


def _warm(accelerator: str, devices: tuple[int, ...]) -> None:
    if _working.acquire(blocking=False):
        try:
            with contextlib.suppress(Exception):  # the job will raise it
                _ready(accelerator, devices)
        finally:
            _working.release()


def close() -> None:
    """End the ranks; a running job fails. The next job starts new ones."""
    while not _working.acquire(timeout=0.1):
        if _pool is not None:
            _pool.kill()
    try:
        _cache.close()
        if _pool is not None:
            _drop(_pool)
    finally:
        _working.release()


def _done_by(
    pool: Pool, assignment: Assignment, handles: Sequence[int], emit: EventSink, inbox: Mailbox
) -> JobOutcome:
    following = Supervisor(pool.members, emit, inbox, assignment.settings.rank_timeout)
    try:
        following.hand_out(handles)
        outcome = following.follow()
    except BaseException:
        _drop(pool)
        raise
    if outcome.failed:
        _drop(pool)
    return outcome


def _ready(accelerator: str, devices: tuple[int, ...]) -> Pool:
    """The pool for these devices: the present one, or a new one where it cannot be used."""
    global _pool
    pool = _pool
    if pool is not None and not pool.serves(accelerator, devices):
        _drop(pool)
    with _changing:
        if _pool is None:
            _pool = Pool(accelerator, devices)
        return _pool


def _drop(pool: Pool) -> None:
    global _pool
    with _changing:
        if _pool is pool:
            _pool = None
            pool.close()


_cache = BufferCache()
"""The large buffers of the latest job, which the next one reuses."""
_placed: list[weakref.ref[torch.Tensor]] = []
"""The tensors of the latest job that are in it."""


def keep_one_copy() -> None:
    """Let tensors whose data is in the buffer cache free their own memory, where that has no
    visible effect. The main thread calls this in a wait, because it is the thread that works with
    the notebook's tensors.
    """
    if _placed and not _working.locked():
        with _working:  # an interrupt between an `acquire` and its `try` would leave it locked
            tensors = [tensor for placed in _placed if (tensor := placed()) is not None]
            _placed.clear()
            while tensors:
                rebind([tensors[-1]], _cache)  # the list itself refers to it
                tensors.pop()


@contextlib.contextmanager
def _pack_job(assignment: Assignment, ranks: int) -> Iterator[tuple[list[int], str | None]]:
    """Context manager with the job, packed once for all ranks: its file descriptors, and a
    message about its packing.
    """
    threads = max(1, torch.get_num_threads() // ranks)
    capacity = Capacity(assignment.folder or Path(tempfile.gettempdir()), available_memory)
    packed = pack(assignment, assignment.names(), lists=True, cache=_cache, capacity=capacity)
    _placed[:] = map(weakref.ref, packed.tensors)
    packed.tensors = ()
    with packed as package:
        header, handles = write_message(request(assignment.kind, threads), [package])
        with header:
            yield [handle for handle in handles if isinstance(handle, int)], package.note


def _never_began(outcome: JobOutcome) -> bool:
    return all(rank_outcome.dead and rank_outcome.pid is None for rank_outcome in outcome.ranks)


def _forget() -> None:
    """Forget the ranks, in a process that was forked from this one: they belong to the parent."""
    global _pool, _changing, _working
    _pool, _changing, _working = None, threading.Lock(), threading.Lock()
    _cache.close()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
