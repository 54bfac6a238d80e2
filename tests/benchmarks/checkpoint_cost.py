"""What a checkpoint costs: `python -m tests.benchmarks.checkpoint_cost [--millions 20]`.

A model with its Adam state, written by the workbench (two files, synced to the disk, renamed), by `torch.save`, and
by Lightning's `save_checkpoint`; and read back. Interleaved rounds, the median of each; the size on the disk beside it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workbench.commands import Mailbox
from workbench.engine import loop
from workbench.engine.checkpoint.files import read_state
from workbench.engine.checkpoint.fit_state import restore
from workbench.engine.checkpoint.manager import CheckpointManager
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.runs.checkpoints import find
from workbench.settings import Settings
from workbench.task.factory import task_of

WIDE = 2048


def network(millions: float) -> nn.Module:
    layers = max(1, round(millions * 1e6 / (WIDE * WIDE)))
    return nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(layers)))


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def size(path: Path) -> float:
    """Megabytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def lightning_module(millions: float) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(millions)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    return Module()


def peer(folder: Path, millions: float) -> Any:
    import lightning.pytorch as pl

    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(2, WIDE)), batch_size=2
    )
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(lightning_module(millions), data)
    return trainer


def trained(session: Session, folder: Path) -> tuple[ValidationSchedule, CheckpointManager]:
    checks = ValidationSchedule(session)
    checkpoints = CheckpointManager(session, checks, folder, lambda event: None, lambda: None)
    loop.fit(session, lambda event: None, Mailbox(), validation=checks)
    return checks, checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, default=20.0, help="parameters")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    x = torch.randn(2, WIDE)
    task = task_of(
        network(options.millions), train=(x, x), val=None, test=None, loss=F.mse_loss, optimizer=torch.optim.Adam,
        scheduler=None, metrics=None, collate_fn=None,
    )  # fmt: skip
    settings = Settings.make(batch_size=2, max_steps=1, accelerator="cpu")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root, open_session(task, settings) as session:
        run, plain, other = Path(root, "run"), Path(root, "plain.pt"), Path(root, "lightning.ckpt")
        folder = run / "checkpoints"
        folder.mkdir(parents=True)
        checks, checkpoints = trained(session, folder)
        trainer = peer(Path(root), options.millions)

        def save_plainly() -> None:
            states = {
                "model": task.model.state_dict(),
                "optimizer": session.optimizers[0].optimizer.state_dict(),
            }
            torch.save(states, plain)

        def load_plainly() -> None:
            states = torch.load(plain, weights_only=True)
            task.model.load_state_dict(states["model"])
            session.optimizers[0].optimizer.load_state_dict(states["optimizer"])

        for _ in range(options.rounds):
            for name, action in (
                ("torch.save", save_plainly),
                ("workbench, written", checkpoints.save),
                ("Lightning, written", lambda: trainer.save_checkpoint(other)),
                ("torch.load", load_plainly),
                (
                    "workbench, restored",
                    lambda: restore(session, checks, read_state(find(run, "last").path)),
                ),
            ):
                found.setdefault(name, []).append(timed(action))
        sizes = {
            "torch.save": size(plain),
            "workbench, written": size(folder),
            "Lightning, written": size(other),
        }
    base = statistics.median(found["torch.save"])
    for name, seconds in found.items():
        ratio = statistics.median(seconds) / base
        megabytes = f"   {sizes[name]:.0f} MB" if name in sizes else ""
        print(
            f"{name:22} {statistics.median(seconds):6.2f} s   {ratio:4.2f} x torch.save{megabytes}"
        )


if __name__ == "__main__":
    main()
