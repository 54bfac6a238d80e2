"""What a killed run loses: `python -m tests.benchmarks.killed`.

A small model with dropout trains on shuffled data for 80 updates, with a checkpoint every 10. A process kills itself before update 38,
and another one resumes as the library documents it. The table has the updates that are done again, and the largest relative
difference of a later loss to that of a process that nobody killed; 0 is equal to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPOCHS, UPDATES, BATCH, EVERY, KILLED_AT = 4, 20, 16, 10, 37


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(UPDATES * BATCH, 8, generator=generator)
    return x, x[:, :3].argmax(1)


class Loss:
    """Cross-entropy that writes each value down; before the update of number `dies` it kills the process."""

    def __init__(self, file: Path, dies: int) -> None:
        self.file, self.left = file, dies

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        loss = F.cross_entropy(output, target)
        with self.file.open("a") as file:
            file.write(f"{loss.item()!r}\n")
        return loss


def workbench(folder: Path, loss: Loss, resumes: bool) -> None:
    import workbench as wb

    bench = wb.Workbench(
        network(), train=samples(), loss=loss, optimizer=torch.optim.Adam, lr=0.01, batch_size=BATCH, max_epochs=EPOCHS,
        checkpoint_every=EVERY, root=folder, accelerator="cpu", devices=1, dry_run=False, enable_progress_bar=False,
    )  # fmt: skip
    bench.fit(start="0001-fit" if resumes else "fresh").result()


def lightning(folder: Path, loss: Loss, resumes: bool) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any) -> Tensor:
            return loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    pl.seed_everything(0, verbose=False)
    saves = ModelCheckpoint(folder, every_n_train_steps=EVERY, save_last=True)
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, callbacks=[saves], enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(*samples()), BATCH, shuffle=True)
    trainer.fit(Module(), loader, ckpt_path=folder / "last.ckpt" if resumes else None)


def accelerate(folder: Path, loss: Loss, resumes: bool) -> None:
    """With the lines that its page on checkpoints asks the user to write: the place in the epoch is counted by hand."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed
    from torch.utils.data import DataLoader, TensorDataset

    set_seed(0)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
    )
    model = network()
    prepared = (
        DataLoader(TensorDataset(*samples()), BATCH, shuffle=True),
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
    )
    loader, model, optimizer = accelerator.prepare(*prepared)
    step = 0
    if resumes:
        last = max(folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
        accelerator.load_state(str(last))
        step = int(last.name.removeprefix("step_"))
    for epoch in range(step // UPDATES, EPOCHS):
        loader.set_epoch(epoch)
        batches = (
            accelerator.skip_first_batches(loader, step % UPDATES) if step % UPDATES else loader
        )
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(loss(model(x), y))
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(str(folder / f"step_{step}"))


LIBRARIES: dict[str, Callable[[Path, Loss, bool], None]] = {
    "workbench": workbench,
    "lightning": lightning,
    "accelerate": accelerate,
}


def losses(
    library: str, folder: Path, name: str, *, dies: int = -1, resumes: bool = False
) -> list[float]:
    """Of a process of its own, as far as it came."""
    file = folder / name
    command = [
        sys.executable,
        "-m",
        __spec__.name,
        "--child",
        json.dumps([library, str(folder), str(file), dies, resumes]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != (-signal.SIGKILL if dies >= 0 else 0):
        raise RuntimeError(f"{library}, {name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return [float(line) for line in file.read_text().splitlines()]


def measured(library: str) -> tuple[int, float]:
    """The updates done again, and the largest relative difference of a loss after the resume."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = losses(library, Path(one), "whole")
        begun = losses(library, Path(other), "begun", dies=KILLED_AT)
        rest = losses(library, Path(other), "rest", resumes=True)
    assert len(whole) == EPOCHS * UPDATES
    assert len(begun) == KILLED_AT
    again = KILLED_AT + len(rest) - len(whole)
    return again, max(abs(a - b) / abs(a) for a, b in zip(whole[-len(rest) :], rest, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        library, folder, file, dies, resumes = json.loads(options.child)
        warnings.simplefilter("ignore")
        LIBRARIES[library](Path(folder), Loss(Path(file), dies), resumes)
        return
    print(f"{'':12} {'updates done again':>20} {'largest difference of a loss':>30}")
    for library in LIBRARIES:
        if find_spec(library) is None:
            print(f"{library:12} {'not installed':>20}")
            continue
        again, difference = measured(library)
        print(f"{library:12} {again:>20} {difference:>30.3g}")


if __name__ == "__main__":
    main()
