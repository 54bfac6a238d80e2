"""Joins the ranks of a launcher's job (torchrun, srun, mpirun), so that a plain script with a bench
is one training.

Each rank runs the whole script. Its calls of the bench meet here: the ranks compare what they call,
rank 0 makes the run's folder, and all run the job together. They exchange a few words through the
group's key-value store, and not by collectives: a call in the main thread must not get between the
collectives of a job.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from workbench.events import Status
from workbench.launch.cell_context import in_kernel
from workbench.launch.joined.environment import Place, place_in
from workbench.settings import Settings, SettingsError
from workbench.task.device import xla
from workbench.task.ranks import RANK

T = TypeVar("T")

START = 1800.0
"""The least seconds that ranks wait for each other at the start, and at a call."""
_SILENT = 10.0
"""Seconds after which a rank says that it waits for the others to start."""
_LOOK = 0.02
"""Seconds between two looks into the store."""
_CAUSE = 3.0
"""Seconds that a rank whose job has failed waits for the error of another one, which may be the
cause.
"""
_BROKEN = "broken"
"""The key of the reason why the ranks can run no further job together."""
_LONGEST = 20_000
"""The most characters of an error that other ranks are told."""


class RankError(RuntimeError):
    """Raised where another rank has failed, or calls something else than this one."""


class RankFailure(NamedTuple):
    """The error with which a job failed on one rank."""

    error: str
    where: str
    """The line of the user's code."""
    text: str
    """The traceback."""
    lost: bool
    """Whether the error only reports that another rank was lost."""

    def sentence(self, rank: int) -> str:
        """What failed, and where."""
        return f"rank {rank} failed: {self.error}" + (f" ({self.where})" if self.where else "")

    def shortened(self) -> RankFailure:
        """The same for a message."""
        return self._replace(error=self.error[:_LONGEST], text=self.text[-_LONGEST:])


class Joined:
    """The ranks of a launcher's job, as this process has joined them."""

    def __init__(self, place: Place, store: Any) -> None:
        self.place = place
        # torchrun keeps its store when it starts the ranks again
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"workbench/{start}", store)  # type: ignore[attr-defined]
        self._calls = itertools.count()
        self._open: set[int] = set()
        """The calls whose jobs have not ended here."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which records and prints."""
        return self.place.rank == 0

    def meet(self, call: str, about: Mapping[str, Any], files: Mapping[str, str]) -> Meeting:
        """Wait until all ranks make their next call of a bench; raises RankError on all of them
        where the calls differ.

        call: the line of code. about: plain data that must be the same on all ranks. files: the
        digest of each file of the user's code; those that two ranks have must be the same.
        """
        self._check_together()
        meeting = Meeting(self, next(self._calls), call)
        meeting.compare(about, files)
        self._open.add(meeting.number)
        return meeting

    def is_next(self, meeting: Meeting) -> bool:
        """Whether the job of this call may begin: on all ranks, jobs run in the order of calls."""
        return meeting.number == min(self._open)

    def end(self, meeting: Meeting) -> None:
        """Note that the job of this call has ended here."""
        self._open.discard(meeting.number)

    def break_up(self, why: str) -> None:
        """Tell all ranks why they can run no further job together."""
        self.put(_BROKEN, why)

    def _check_together(self) -> None:
        """Raise RankError where the ranks can run no further job together."""
        if self.has(_BROKEN):
            raise RankError(json.loads(self._store.get(_BROKEN)))

    # -- words

    def put(self, key: str, value: Any) -> None:
        """Leave plain data for the other ranks."""
        self._store.set(key, json.dumps(value))

    def has(self, key: str) -> bool:
        """Whether a rank has left a value."""
        return bool(self._store.check([key]))

    def get(self, key: str, waits_for: str, or_key: str = "") -> Any:
        """Wait for a value; raises RankError where it does not come. waits_for: the words for it in
        that error. or_key: another value ends the wait, too; then it returns None.
        """
        until = time.monotonic() + START
        while not self.has(key):
            if or_key and self.has(or_key):
                return None
            if time.monotonic() > until:
                raise RankError(
                    f"rank {self.place.rank} has waited {START / 60:.0f} minutes for"
                    f" {waits_for}. All ranks run the same script: each call of a bench is made on"
                    " all of them. strategy='thread' makes a bench that trains in this process"
                    " alone."
                )
            self._check_together()
            time.sleep(_LOOK)
        return json.loads(self._store.get(key))


class Meeting:
    """One call of a bench, which all ranks make: a job."""

    def __init__(self, ranks: Joined, number: int, call: str) -> None:
        self.ranks, self.number, self.call = ranks, number, call
        self._agreed = itertools.count()

    def _key(self, word: str, rank: int | None = None) -> str:
        return f"{self.number}/{word}" if rank is None else f"{self.number}/{word}/{rank}"

    def compare(self, about: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Raise RankError where the ranks call different things, or run other code."""
        ranks, about = self.ranks, {"call": self.call, **about}
        facts = {**about, "files": files, "host": socket.gethostname()}
        ranks.put(self._key("call", ranks.place.rank), json.loads(json.dumps(facts, default=str)))
        calls = [
            ranks.get(self._key("call", rank), f"rank {rank} to call {self.call}")
            for rank in range(ranks.place.world)
        ]
        for rank, theirs in enumerate(calls):
            for file, digest in calls[0]["files"].items():
                if theirs["files"].get(file, digest) != digest:  # a rank may not have imported it
                    raise RankError(
                        f"{file} on rank {rank} ({theirs['host']}) is another one than on rank 0"
                        f" ({calls[0]['host']}): all ranks run the same code. Start it from a"
                        " folder that all hosts share, or copy the files to each again."
                    )
            for name in about:
                value = calls[0].get(name)
                if theirs.get(name) != value:
                    raise RankError(_difference(name, value, rank, theirs.get(name)))

    def tell_folder(self, id: str, path: Path | None) -> None:
        """On rank 0: tell the others the job's id and its folder, and wait until all see it."""
        ranks = self.ranks
        ranks.put(self._key("folder"), (id, None if path is None else str(path)))
        blind = [
            f"rank {rank} ({host})"
            for rank in range(1, ranks.place.world)
            if (host := ranks.get(self._key("sees", rank), f"rank {rank} to look for {path}"))
        ]
        unseen = ""
        if blind:
            unseen = (
                f"{path} is not seen by {', '.join(blind)}: give a root= that all hosts share, as"
                " on a network file system."
            )
        ranks.put(self._key("unseen"), unseen)
        if unseen:
            raise RankError(unseen)

    def folder(self) -> tuple[str, Path | None]:
        """On the other ranks: the job's id and its folder, which rank 0 has made."""
        ranks = self.ranks
        id, text = ranks.get(self._key("folder"), f"rank 0 to begin {self.call}")
        path = None if text is None else Path(text)
        is_seen = path is None or path.is_dir()
        ranks.put(self._key("sees", ranks.place.rank), "" if is_seen else socket.gethostname())
        unseen = ranks.get(self._key("unseen"), "the other ranks to look for the run's folder")
        if unseen:
            raise RankError(unseen)
        return id, path

    def agree(self, value: T) -> T:
        """The value of rank 0 (plain data), on all ranks. Each calls it at the same point of the
        job.
        """
        ranks, key = self.ranks, self._key(f"agreed/{next(self._agreed)}")
        if ranks.first:
            ranks.put(key, value)
            return value
        failed = self._key("failed", 0)
        agreed: T = ranks.get(key, f"rank 0, which runs {self.call}", or_key=failed)
        if not ranks.has(key):
            raise RankError(RankFailure(*ranks.get(failed, "rank 0")).sentence(0))
        return agreed

    def tell_ended(self, status: Status) -> None:
        """On rank 0: tell the other ranks that the job has ended, and its record is written."""
        self.ranks.put(self._key("ended"), status)

    def ended(self) -> Status | None:
        """The status with which rank 0 has ended the job; None: it has not ended."""
        key = self._key("ended")
        return self.ranks.get(key, "rank 0") if self.ranks.has(key) else None

    def ask_to_stop(self) -> None:
        """Ask rank 0 to stop the job, where this rank alone has got a signal."""
        self.ranks.put(self._key("stop"), True)

    def is_stop_asked(self) -> bool:
        """Whether another rank has asked for the end of the job."""
        return self.ranks.has(self._key("stop"))

    def failures(self, mine: RankFailure) -> dict[int, RankFailure]:
        """Tell the other ranks that the job has failed here; returns the failures of other ranks,
        which may come a moment later.

        Where not all ranks fail, they run no further job: the others may still wait in this one.
        """
        ranks, until = self.ranks, time.monotonic() + _CAUSE
        ranks.put(self._key("failed", ranks.place.rank), mine.shortened())
        others = [rank for rank in range(ranks.place.world) if rank != ranks.place.rank]
        failed: list[int] = []
        while len(failed) < len(others) and time.monotonic() < until:
            time.sleep(_LOOK)
            failed = [rank for rank in others if ranks.has(self._key("failed", rank))]
        failures = {
            rank: RankFailure(*ranks.get(self._key("failed", rank), f"rank {rank}"))
            for rank in failed
        }
        if mine.lost or len(failed) < len(others):
            ranks.break_up(
                f"not all ranks failed in {self.call}, and the ranks have lost each other: start"
                " the script again."
            )
        return failures


_joined: Joined | None = None
_joining = threading.Lock()


def join(settings: Settings) -> Joined | None:
    """Join the ranks of this process's launcher; None: it is alone, or its bench trains alone
    (strategy="thread").

    Raises SettingsError where the group cannot be joined.
    """
    global _joined
    if settings.strategy == "thread" or (_joined is None and RANK in os.environ):
        return None
    if in_kernel():  # its environment may be that of a launcher's job, and no other rank runs cells
        return None
    with _joining:
        if _joined is None:
            try:
                process = place_in(os.environ)
            except ValueError as error:
                raise SettingsError(
                    f"the launcher's environment cannot be taken: {error}"
                ) from None
            if process is None or xla.installed():
                return None
            _joined = Joined(process, _begin(process, settings))
    return _joined


def _begin(place: Place, settings: Settings) -> Any:
    """Join the process group, or take that which the script has made; returns its store."""
    os.environ.update(place.variables)
    os.environ[RANK] = str(place.rank)
    if dist.is_initialized():
        return distributed_c10d._get_default_store()
    cpu = settings.accelerator == "cpu"
    where = f"{place.address}:{place.port}"
    waits = threading.Timer(
        _SILENT,
        print,
        [
            f"rank {place.rank} of {place.world} ({place.launcher}) waits for the others at"
            f" {where} (MASTER_ADDR and MASTER_PORT), for {START / 60:.0f} minutes at most:"
            " strategy='thread' trains in this process alone."
        ],
        {"file": sys.stderr, "flush": True},
    )
    waits.start()
    try:
        store = init(place.world, settings.rank_timeout, cpu=cpu)
    except (RuntimeError, ValueError, OSError) as error:
        del os.environ[RANK]
        raise SettingsError(
            f"rank {place.rank} of {place.world} ({place.launcher}) cannot join the others at"
            f" {where}: {str(error).rstrip('.')}. All {place.world} must be started; MASTER_ADDR"
            " and MASTER_PORT name the host of rank 0, which all of them reach, and a port that is"
            " free there; strategy='thread' trains in this process alone."
        ) from error
    finally:
        waits.cancel()
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=settings.rank_timeout))
    atexit.register(_leave)
    return store


def tell_end(signal: str) -> None:
    """Tell the other ranks that this process ends by a signal, after its jobs."""
    if _joined is not None:
        with contextlib.suppress(RuntimeError):  # rank 0, which has the store, may be gone
            _joined.break_up(f"rank {_joined.place.rank} got {signal}, and has ended.")


def _leave() -> None:
    """Leave the group at the end of the process, after its jobs. Rank 0, which may have the store,
    leaves last.
    """
    with contextlib.suppress(Exception):  # the other ranks may be gone
        if _joined is not None:
            _joined.put(f"left/{_joined.place.rank}", True)
            until = time.monotonic() + _CAUSE
            others = [f"left/{rank}" for rank in range(1, _joined.place.world)]
            while _joined.first and time.monotonic() < until and not all(map(_joined.has, others)):
                time.sleep(_LOOK)
        if dist.is_initialized():
            dist.destroy_process_group()


def init(world: int, timeout: float, *, cpu: bool) -> Any:
    """Make the process group of `world` ranks, whose places are in the environment; returns its
    store.
    """
    seconds = datetime.timedelta(seconds=max(timeout, START))
    shared, rank, _ = next(rendezvous("env://", timeout=seconds))
    # torchrun keeps its store when it starts the ranks again, with the addresses of those before
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt_{attempt}", shared)  # type: ignore[attr-defined]
    gpus = torch.cuda.device_count() if not cpu and torch.cuda.is_available() else 0
    number = int(os.environ["LOCAL_RANK"]) % max(1, gpus)
    uuid = ""
    if gpus:
        torch.cuda.set_device(number)
        os.environ["ACCELERATE_TORCH_DEVICE"] = f"cuda:{number}"
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
        uuid = str(torch.cuda.get_device_properties(number).uuid)
    store.set(f"gpu/{rank}", f"{socket.gethostname()}/{uuid}" if gpus else "")
    all_gpus = {store.get(f"gpu/{other}") for other in range(world)}
    backend, device = "gloo", None
    # NCCL refuses two ranks on one GPU
    if len(all_gpus) == world and b"" not in all_gpus:
        backend, device = "cpu:gloo,cuda:nccl", torch.device("cuda", number)
    if "OMP_NUM_THREADS" not in os.environ:  # the ranks of a host share its cores
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        threads = max(1, torch.get_num_threads() // local_world)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
    name = _interface(world)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=seconds, device_id=device
    )
    return store


def _interface(world: int) -> str | None:
    """The network interface to rank 0; gloo's own choice depends on how the host's name is
    resolved.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", world)) == world:
        main = "127.0.0.1"
    else:
        main = os.environ["MASTER_ADDR"]
    try:
        family, _, _, _, target = socket.getaddrinfo(main, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = probe.getsockname()[0]
    except OSError:
        return None
    return next(
        (
            name
            for name, known in psutil.net_if_addrs().items()
            if any(a.address == address for a in known)
        ),
        None,
    )


def _difference(name: str, first: Any, rank: int, other: Any) -> str:
    """The text of an error about a call that differs between ranks."""
    if name == "call":
        text = f"rank 0 calls {first} and rank {rank} calls {other}"
    elif name == "settings":
        names = [key for key in first if first[key] != (other or {}).get(key)]
        values = ", ".join(f"{key}={first[key]!r}" for key in names[:3])
        theirs = ", ".join(f"{key}={(other or {}).get(key)!r}" for key in names[:3])
        text = f"rank 0 has {values} and rank {rank} has {theirs}"
    else:
        text = f"the {name} of rank 0 is {first}, and that of rank {rank} is {other}"
    return (
        f"{text}: all ranks run the same script with the same settings. What may differ (a host's"
        " name, the time, an unseeded random number) must not decide them."
    )
