"""A fit that is killed. `place`: where SIGKILL comes, at the `count`-th time there.

"update", "validation", "checkpoint" (behind the weights, before all else), "rename" (before the checkpoint has its
name), "record" (in the middle of a line); "never": it runs to the end, unless it is killed from outside.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import workbench as wb
from workbench.engine.checkpoint import shards
from workbench.launch.thread import JobRunner
from workbench.runs.store import RunFolder


class Noisy(Dataset):
    """Samples with noise from torch's generator, as augmentation draws it."""

    def __init__(self, count: int = 52) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x, self.y = (
            torch.randn(count, 6, generator=generator),
            torch.randint(0, 3, (count,), generator=generator),
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return self.x[index] + 0.1 * torch.randn(6), self.y[index]


class Dying:
    """Counts calls, and dies at the one that was named."""

    def __init__(self, place: str, count: int) -> None:
        self.place, self.left = place, count

    def at(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def bench(root: Path, dying: Dying) -> wb.Workbench:
    def loss(output, y):
        dying.at("update" if torch.is_grad_enabled() else "validation")
        return F.cross_entropy(output, y)

    return wb.Workbench(
        net(), train=Noisy(), val=Noisy(20), loss=loss, root=root, accelerator="cpu", batch_size=4,
        accumulate_grad_batches=2, max_epochs=4, lr=0.02, lr_schedule="cosine", warmup=3, gradient_clip_val=1.0,
        weight_averaging="ema", ema_decay=0.9, val_check_interval=0.5, checkpoint_every=2, save_top_k=2,
        early_stopping=wb.EarlyStopping("val_loss", patience=50),
    )  # fmt: skip


def arm(dying: Dying) -> None:
    """Let it die within the writing of a checkpoint or of the record."""
    append, replace, write = RunFolder.append, os.replace, shards.save_file

    def appended(folder, event):
        if type(event).__name__ == "StepsDone" and dying.place == "record" and dying.left == 1:
            with (folder.path / "metrics.jsonl").open("ab") as file:
                file.write(b'{"type":"StepsDone","step":')
        if type(event).__name__ == "StepsDone":
            dying.at("record")
        append(folder, event)

    def written(tensors, path, *rest, **options):
        write(tensors, path, *rest, **options)
        dying.at("checkpoint")

    def replaced(source, target, *rest):
        dying.at("rename")
        replace(source, target, *rest)

    RunFolder.append, os.replace, shards.save_file = appended, replaced, written
    # A checkpoint waits so long at most for the record before it: on a machine that is held up, too.
    JobRunner.settle.__defaults__ = (200.0,)


def run(root: str, start: str, place: str, count: int) -> None:
    """The whole life of a process that fits."""
    torch.set_num_threads(1)
    dying = Dying("never", 0)
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        bench(Path(root), dying) as made,
    ):
        dying.place, dying.left = place, count
        arm(dying)
        made.fit(start=start).result()


if __name__ == "__main__":
    run(*sys.argv[1:4], int(sys.argv[4]))
