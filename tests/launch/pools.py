"""What tests of the pool share: a small bench, and what there is of processes and shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench import Workbench
from workbench.events import StepsDone
from workbench.launch.process import fork_client

DEVICES = 2


class Net(nn.Module):
    """Two layers; `on_step(rank, step)` is called before each forward of training, in whichever process."""

    def __init__(self, on_step: Callable[[int, int], Any] = lambda rank, step: None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        self.on_step = on_step
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and "RANK" in os.environ:
            self.on_step(int(os.environ["RANK"]), self.steps)
            self.steps += 1
        out: Tensor = self.layers(x)
        return out


def net(*args: Any) -> Net:
    torch.manual_seed(1)
    return Net(*args)


def data(n: int = 48) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=numbers), torch.randint(0, 3, (n,), generator=numbers)


def bench(model: nn.Module, root: Path, **given: Any) -> Workbench:
    usual = {"train": data(), "loss": F.cross_entropy, "batch_size": 4, "max_epochs": 2, "lr": 0.05}
    where = {"devices": DEVICES, "accelerator": "cpu", "root": root}
    made = Workbench(model, **{**usual, **where, **given})
    warmed()
    return made


def warmed() -> None:
    """Behind it no thread is about to start ranks ahead: a late one would do so when a test counts them."""
    for thread in threading.enumerate():
        if thread.name == "workbench-warm":
            thread.join()


def losses(job: Any) -> list[float]:
    return [
        float(v)
        for event in job.events
        if isinstance(event, StepsDone)
        for v in event.array("loss")
    ]


def ranks() -> list[psutil.Process]:
    """The processes of the server: ranks, and whatever is left of them."""
    return psutil.Process(fork_client.server().process.pid).children(recursive=True)


def shared() -> tuple[set[str], int]:
    """What lies in shared memory: names that no stranger's process uses, and this process's segments."""
    gc.collect()  # what only a cycle holds would go at any moment
    links = []
    for fd in os.listdir("/proc/self/fd"):
        # another thread has closed it; or it was that of the list
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return named(), sum("memfd" in link for link in links)


def nothing_new(before: tuple[set[str], int]) -> bool:
    """Whether no more is shared than there was. Waited for: a stranger's name that nobody has mapped yet is there for a moment."""
    names, segments = shared()
    return names <= before[0] and segments == before[1]


def named() -> set[str]:
    """The names in shared memory, but for those that a process has mapped which is not of these tests."""
    names = set(filter(_holds, os.listdir("/dev/shm")))
    if not names:
        return names
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    used = set()
    for pid in set(psutil.pids()) - ours:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            used |= {
                Path(line.split(maxsplit=5)[5]).name.removesuffix(" (deleted)")
                for line in lines
                if "/dev/shm/" in line
            }
    return names.intersection(os.listdir("/dev/shm")) - used


def _holds(name: str) -> bool:
    """Whether it takes memory. torch makes a file, gives it a size and deletes its name: a process killed in between leaves it empty."""
    path = Path("/dev/shm", name)
    with contextlib.suppress(FileNotFoundError):
        return not name.startswith("torch_") or path.stat().st_size > 0
    return False
