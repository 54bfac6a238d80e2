"""Keeps pools of ranks, which stay warm between the jobs of a kernel.

A pool is for one accelerator and list of devices. GPUs have one pool at most, and the CPU as many
as jobs may train on it. A job that needs another pool there gets a new one, and so does the job
after a failed one. The ranks are forked from the fork server and end when this process ends, in any
way.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
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
from workbench.launch.turns import cpu_jobs, is_idle
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


class _Slot:
    """A slot for a pool: the pool is replaced when it cannot be used, and the large buffers of its
    latest job stay.
    """

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.key: tuple[str, tuple[int, ...]] = "", ()
        """The accelerator and the devices of its latest job, or of the coming one."""
        self.has_job = False
        """Whether a job has it."""
        self.working = threading.Lock()
        """A thread holds it while the ranks start, run a job, or end."""
        self.cache = BufferCache()
        """The large buffers of the latest job, which the next one reuses."""
        self.placed: list[weakref.ref[torch.Tensor]] = []
        """The tensors of the latest job that are in it."""
        self._changing = threading.Lock()
        """A thread holds it while it replaces the pool."""

    def collides(self, accelerator: str, devices: tuple[int, ...]) -> bool:
        """Whether its pool has devices that a pool for these needs."""
        kind, numbers = self.key
        return kind == accelerator and (kind != "cuda" or not set(numbers).isdisjoint(devices))

    def ready(self) -> Pool:
        """The pool: the present one, or a new one where it cannot be used."""
        pool = self.pool
        if pool is not None and not pool.serves(*self.key):
            self.drop(pool)
        with self._changing:
            if self.pool is None:
                self.pool = Pool(*self.key)
            return self.pool

    def drop(self, pool: Pool) -> None:
        """End this pool."""
        with self._changing:
            if self.pool is pool:
                self.pool = None
                pool.close()

    def close(self) -> None:
        """End its ranks; a running job fails."""
        while not self.working.acquire(timeout=0.1):
            pool = self.pool
            if pool is not None:
                pool.kill()
        try:
            self.cache.close()
            if self.pool is not None:
                self.drop(self.pool)
        finally:
            self.working.release()

    def keep_one_copy(self) -> None:
        """Let tensors whose data is in the cache free their own memory (`rebind`)."""
        if self.placed and not self.working.locked():
            # an interrupt between an `acquire` and its `try` would leave it locked
            with self.working:
                tensors = [tensor for placed in self.placed if (tensor := placed()) is not None]
                self.placed.clear()
                while tensors:
                    rebind([tensors[-1]], self.cache)  # the list itself refers to it
                    tensors.pop()


_slots: list[_Slot] = []
_choosing = threading.Lock()
"""A thread holds it while it chooses a slot, or changes the list."""


def run(
    assignment: Assignment,
    accelerator: str,
    devices: tuple[int, ...],
    emit: EventSink,
    inbox: Mailbox,
) -> Done:
    """Run an assignment on the ranks; afterwards the task of this process has their changes.
    Raises the job's error; PackageError where the assignment cannot be sent to them.
    """
    slot = _slot_for(accelerator, devices)
    try:
        with slot.working, _pack_job(assignment, len(devices), slot) as (handles, note):
            outlet = FirstEvents(
                emit, FirstMessages([] if note is None else [Message(note, "warning")])
            )
            outcome = _done_by(slot, assignment, handles, outlet, inbox)
            if _never_began(outcome):  # the server died between two jobs
                outcome = _done_by(slot, assignment, handles, outlet, inbox)
    finally:
        slot.has_job = False
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


def _slot_for(accelerator: str, devices: tuple[int, ...]) -> _Slot:
    """A slot for a job on these devices, which no other job has. The pools of other slots that
    have these devices end.
    """
    with _choosing:
        free = [slot for slot in _slots if not slot.has_job]
        slot = _best(free, accelerator, devices)
        slot.key, slot.has_job = (accelerator, devices), True
        others = [
            other for other in free if other is not slot and other.collides(accelerator, devices)
        ]
        rooms = _rooms(accelerator) - _jobs_on(accelerator, devices)
        others = others[: max(0, len(others) - rooms)]
        for other in others:
            _slots.remove(other)
    for other in others:
        other.close()
    return slot


def _best(free: Sequence[_Slot], accelerator: str, devices: tuple[int, ...]) -> _Slot:
    """The slot whose pool is for these devices; else one that has some of them; else a new one."""
    users = [slot for slot in _slots if slot.collides(accelerator, devices)]
    slot = next((slot for slot in free if slot.key == (accelerator, devices)), None)
    if slot is None and len(users) >= _rooms(accelerator):
        slot = next((slot for slot in free if slot in users), None)
    if slot is None:
        slot = _Slot()
        _slots.append(slot)
    return slot


def warm(accelerator: str, devices: tuple[int, ...]) -> None:
    """Start the ranks of a coming job; returns at once. While another job has these devices it does
    nothing.
    """
    if FORK:
        # Off the main thread: an interrupt between a fork and its record would leave a rank that
        # nothing knows.
        threading.Thread(
            target=_warm, args=(accelerator, devices), name="workbench-warm", daemon=True
        ).start()


def _warm(accelerator: str, devices: tuple[int, ...]) -> None:
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:  # the job will raise it
        with _choosing:
            free = [slot for slot in _slots if not slot.has_job]
            if _jobs_on(accelerator, devices) >= _rooms(accelerator):
                return
            slot = _best(free, accelerator, devices)
            if not slot.working.acquire(blocking=False):
                return
            stack.callback(slot.working.release)
            slot.key = accelerator, devices
        slot.ready()


def _rooms(accelerator: str) -> int:
    """How many jobs may have the same devices."""
    return cpu_jobs() if accelerator == "cpu" else 1


def _jobs_on(accelerator: str, devices: tuple[int, ...]) -> int:
    """How many pools of jobs have these devices. The caller holds the lock."""
    return sum(slot.has_job and slot.collides(accelerator, devices) for slot in _slots)


def close() -> None:
    """End the ranks; running jobs fail. The next job starts new ones."""
    with _choosing:
        slots = tuple(_slots)
    for slot in slots:
        slot.close()


def _done_by(
    slot: _Slot,
    assignment: Assignment,
    handles: Sequence[int],
    emit: EventSink,
    inbox: Mailbox,
) -> JobOutcome:
    pool = slot.ready()
    # a job that this process would have done, had it been free, has no time limit either
    replaces = assignment.random is not None
    timeout = math.inf if replaces else assignment.settings.rank_timeout
    following = Supervisor(pool.members, emit, inbox, timeout)
    try:
        following.hand_out(handles)
        outcome = following.follow()
    except BaseException:
        slot.drop(pool)
        raise
    if outcome.failed:
        slot.drop(pool)
    return outcome


def keep_one_copy() -> None:
    """Let tensors whose data is in a buffer cache free their own memory, where that has no
    visible effect. The main thread calls this in a wait, because it is the thread that works with
    the notebook's tensors.
    """
    if is_idle():
        for slot in tuple(_slots):
            slot.keep_one_copy()


@contextlib.contextmanager
def _pack_job(
    assignment: Assignment, ranks: int, slot: _Slot
) -> Iterator[tuple[list[int], str | None]]:
    """Context manager with the job, packed once for all ranks: its file descriptors, and a
    message about its packing.
    """
    threads = max(1, torch.get_num_threads() // ranks)
    capacity = Capacity(assignment.folder or Path(tempfile.gettempdir()), available_memory)
    packed = pack(assignment, assignment.names(), lists=True, cache=slot.cache, capacity=capacity)
    slot.placed[:] = map(weakref.ref, packed.tensors)
    packed.tensors = ()
    with packed as package:
        header, handles = write_message(request(assignment.kind, threads), [package])
        with header:
            yield [handle for handle in handles if isinstance(handle, int)], package.note


def _never_began(outcome: JobOutcome) -> bool:
    return all(rank_outcome.dead and rank_outcome.pid is None for rank_outcome in outcome.ranks)


def _forget() -> None:
    """Forget the ranks, in a process that was forked from this one: they belong to the parent."""
    global _choosing
    _choosing = threading.Lock()
    for slot in _slots:
        slot.cache.close()
    _slots.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
