"""One job, given to each launcher as its manual says. All of this is importable: the peers cannot take it from a cell."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.benchmarks.launched.problems import Little, Marked


class Job:
    """What is to be done."""

    def __init__(
        self,
        train: Dataset[Any],
        batch_size: int,
        epochs: int,
        ranks: int,
        workers: int = 0,
        gate_at: int = 0,
    ) -> None:
        self.train, self.batch_size, self.epochs = train, batch_size, epochs
        self.ranks, self.workers, self.gate_at = ranks, workers, gate_at

    def loader(self, sampler: Any = None) -> DataLoader[Any]:
        return DataLoader(
            self.train, self.batch_size, shuffle=sampler is None, sampler=sampler, num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )  # fmt: skip


Launcher = Callable[[Job], Callable[[], Any]]
"""Gives what starts the job, and returns when it is over; what can be done before is done."""


def workbench(strategy: str) -> Launcher:
    def prepare(job: Job) -> Callable[[], Any]:
        import workbench as wb

        bench = wb.Workbench(
            Little(job.gate_at), train=job.train, loss=F.mse_loss, optimizer=Marked, root=os.environ.get("RANKS_ROOT", ".workbench"),
            batch_size=job.batch_size, max_epochs=job.epochs, num_workers=job.workers, devices=job.ranks, strategy=strategy,
            accelerator="cpu",
        )  # fmt: skip
        return lambda: bench.fit(start="fresh").result()

    return prepare


def on_each_rank(job: Job) -> None:
    """The function that accelerate's launcher is given."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Little(job.gate_at)
    model, optimizer = accelerator.prepare(model, Marked(model.parameters(), lr=1e-3))
    sampler: Any = DistributedSampler(
        job.train, accelerator.num_processes, accelerator.process_index
    )
    loader = job.loader(sampler)
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            accelerator.backward(F.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def notebook_launcher(job: Job) -> Callable[[], Any]:
    from accelerate import notebook_launcher

    def start() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        os.environ.update(ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
        notebook_launcher(on_each_rank, (job,), num_processes=job.ranks, use_port=port)

    return start


def lightning(strategy: str) -> Launcher:
    def prepare(job: Job) -> Callable[[], Any]:
        import lightning.pytorch as pl

        from tests.benchmarks.launched.lightning_module import Module

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"

        def start() -> None:
            trainer = pl.Trainer(
                accelerator="cpu", devices=job.ranks, strategy=strategy, max_epochs=job.epochs, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(Module(job.gate_at), job.loader())

        return start

    return prepare


LAUNCHERS: dict[str, Launcher] = {
    "workbench pool": workbench("pool"),
    "workbench thread": workbench("thread"),
    "notebook_launcher": notebook_launcher,
    "Lightning ddp_spawn": lightning("ddp_spawn"),
    "Lightning ddp_notebook": lightning("ddp_notebook"),
}
PEERS = ("notebook_launcher", "Lightning ddp_spawn", "Lightning ddp_notebook")
