"""Selects the launcher of a job by its settings, and runs the job on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

import torch

from workbench.commands import Mailbox
from workbench.engine.runtime.runtime import check_device, check_environment
from workbench.launch.accelerate import command
from workbench.launch.assignments import Assignment, Done
from workbench.launch.attached import attached_job
from workbench.launch.job import EventSink
from workbench.launch.joined import group, rank_job
from workbench.launch.pool import pool
from workbench.launch.process import run_in_child
from workbench.launch.turns import cpu_jobs
from workbench.settings import Settings, SettingsError
from workbench.task import rng
from workbench.task.device import xla

Kind = Literal["cpu", "cuda", "mps", "xpu", "tpu"]


@dataclass(frozen=True)
class LauncherChoice:
    """The launcher, and its devices: an entry in `devices` for each rank of this machine."""

    strategy: Literal["thread", "pool", "launch", "joined"]
    """joined: with the other ranks of the launcher that started this process."""
    accelerator: Kind
    devices: tuple[int, ...]
    """The numbers of GPUs; on CPU and MPS only their count matters."""

    @property
    def names(self) -> frozenset[str]:
        """The devices by name: "cuda:0", "mps", "cpu"."""
        if self.accelerator != "cuda":
            return frozenset({self.accelerator})
        return frozenset(f"cuda:{number}" for number in self.devices)


def select_launcher(settings: Settings) -> LauncherChoice:
    """The launcher that `accelerator`, `devices`, `strategy` and `num_nodes` select on this
    machine; raises SettingsError for what is impossible.
    """
    check_environment()
    accelerator = _accelerator(settings)
    joined = group.join(settings)
    if joined is not None:
        rank_job.check(joined, settings)
        return LauncherChoice("joined", accelerator, tuple(range(joined.place.local_world)))
    devices = _devices(settings, accelerator)
    strategy = settings.strategy
    if strategy == "auto":
        strategy = "pool" if len(devices) > 1 else "thread"
        if settings.num_nodes > 1:
            strategy = "launch"
    if strategy == "thread" and len(devices) > 1:
        raise SettingsError(
            f"strategy='thread' trains on one device, and devices={settings.devices!r}: take"
            " strategy='pool' (or leave it at 'auto'), or devices=1."
        )
    if strategy != "launch" and settings.num_nodes > 1:
        raise SettingsError(
            f"num_nodes={settings.num_nodes} with strategy={settings.strategy!r}: several machines"
            " train with strategy='launch'."
        )
    return LauncherChoice(strategy, accelerator, devices)


def ranks(settings: Settings) -> int:
    """How many processes train together, on all machines; for a launched job as the accelerate
    config says.
    """
    choice = select_launcher(settings)
    if choice.strategy == "launch":
        return command.plan(settings, choice.accelerator).processes
    joined = group.join(settings)
    return len(choice.devices) if joined is None else joined.place.world


def processes(settings: Settings) -> tuple[str, int]:
    """The kind of device and how many processes of this host a job with these settings has; for
    "auto" what this host would choose.
    """
    if isinstance(settings.devices, int):
        return _accelerator(settings), settings.devices
    if isinstance(settings.devices, tuple):
        return "cuda", len(settings.devices)
    choice = select_launcher(settings)
    return choice.accelerator, len(choice.devices)


def check(settings: Settings) -> None:
    """Raise SettingsError, at the call, for what is impossible on this machine."""
    choice = select_launcher(settings)
    cpu_jobs()  # raises for a bad value
    if choice.strategy == "joined":
        return
    if choice.strategy == "pool" and not run_in_child.FORK:
        raise SettingsError(
            f"devices={settings.devices!r}, strategy={settings.strategy!r}: a pool of processes"
            " needs fork and memfd, which this system does not have: take strategy='thread' with"
            " devices=1, or strategy='launch'."
        )
    if choice.strategy != "launch" and settings.launch:
        raise SettingsError(
            f"launch={settings.launch!r} with strategy={settings.strategy!r}: these are options of"
            " `accelerate launch`, and the job would run without it: take strategy='launch', or"
            " launch=None."
        )
    several = (
        command.plan(settings, choice.accelerator).processes
        if choice.strategy == "launch"
        else len(choice.devices)
    ) > 1
    if several and choice.accelerator == "tpu":
        raise SettingsError(
            "accelerator='tpu': the bench trains in one process there; take num_nodes=1, and"
            " launch= without num_processes."
        )
    if several and xla.installed():
        raise SettingsError(
            "several processes where torch_xla is installed: accelerate uses its device then, and"
            " no other. Take devices=1, or an environment without torch_xla."
        )


def is_here(settings: Settings) -> bool:
    """Whether this process does a job with these settings alone, if it is free."""
    return select_launcher(settings).strategy == "thread"


def process_of(settings: Settings, *, moves: bool) -> Literal["this", "any", "other"]:
    """The processes that can do a job with these settings (`Claim.process`). moves: whether a
    worker can do it as well.
    """
    choice = select_launcher(settings)
    if choice.strategy in ("pool", "launch"):
        return "other"
    free = settings.strategy == "auto" and choice.strategy == "thread" and run_in_child.FORK
    return "any" if moves and free and choice.accelerator in ("cpu", "cuda") else "this"


def warm(settings: Settings) -> None:
    """Start the processes that the jobs of a bench with these settings need; returns at once."""
    choice = select_launcher(settings)
    if choice.strategy == "pool":
        pool.warm(choice.accelerator, choice.devices)


def run(assignment: Assignment, emit: EventSink, inbox: Mailbox) -> Done:
    """Run the job on the selected launcher and copy the results back."""
    choice = select_launcher(assignment.settings)
    if choice.strategy == "thread":
        with on_device(choice):
            return assignment(emit, inbox)
    joined = group.join(assignment.settings)
    if joined is not None:
        return rank_job.run(joined, assignment, emit, inbox)
    if choice.strategy == "launch":
        return attached_job.run(
            assignment, emit, inbox, command.plan(assignment.settings, choice.accelerator)
        )
    return pool.run(assignment, choice.accelerator, choice.devices, emit, inbox)


def run_in_worker(assignment: Assignment, emit: EventSink, inbox: Mailbox) -> Done:
    """Run a job of this process in a worker, as this process would. Raises PackageError, before it
    begins, where it cannot be sent to another process.
    """
    choice = select_launcher(assignment.settings)
    assignment.random = rng.users_state()
    return pool.run(assignment, choice.accelerator, choice.devices, emit, inbox)


def on_device(choice: LauncherChoice) -> contextlib.AbstractContextManager[object]:
    """Context manager in which the GPU of a job in this thread is the thread's current one."""
    if choice.accelerator != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.device(choice.devices[0])


def _accelerator(settings: Settings) -> Kind:
    check_device(settings.accelerator)
    wanted = settings.accelerator
    if wanted != "auto" and wanted != "gpu":  # mypy knows the rest then
        return wanted
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "xpu" if torch.xpu.is_available() else "cpu"


def _devices(settings: Settings, accelerator: str) -> tuple[int, ...]:
    device_count = torch.cuda.device_count() if accelerator == "cuda" else 1
    # All GPUs, unless the job must stay in this process.
    usual = 1 if settings.strategy == "thread" else max(device_count, 1)
    wanted = usual if settings.devices == "auto" else settings.devices
    if isinstance(wanted, tuple):
        if accelerator != "cuda":
            raise SettingsError(
                f"devices={list(wanted)}: numbers name GPUs, and this is the {accelerator}: give"
                " how many, devices=2."
            )
        missing = [number for number in wanted if number >= device_count]
        if missing:
            raise SettingsError(
                f"devices={list(wanted)}: there is no GPU {missing[0]}; torch sees {device_count}, "
                "counted from 0."
            )
        return wanted
    if accelerator == "cuda" and wanted > device_count:
        raise SettingsError(
            f"devices={wanted}: torch sees {device_count} GPU{'s' if device_count != 1 else ''} "
            f"here; take devices={device_count} or 'auto', or "
            "accelerator='cpu'."
        )
    if accelerator in ("mps", "xpu") and wanted > 1:
        raise SettingsError(
            f"devices={wanted}: the bench trains on one {accelerator.upper()} device; take"
            " devices=1, or accelerator='cpu'."
        )
    if accelerator == "cuda" and settings.strategy != "pool" and wanted == 1:
        # the GPU that the cell has chosen (torch.cuda.set_device)
        begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return (torch.cuda.current_device() if begun else 0,)
    # one process drives all cores of a TPU
    return tuple(range(1 if accelerator == "tpu" else wanted))
