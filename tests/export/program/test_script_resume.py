"""A script that is killed and started again with --resume ends as one that was not, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.export.export_running import Outcome, Runner, check, lint, make_bench

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, lr=0.1, max_epochs=4"
MODULE = """
class Own(Net):
    def training_step(self, batch, batch_idx):
        self.log("train_loss", loss := F.cross_entropy(self(batch[0]), batch[1]))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val_loss", "frequency": 2}]


class Adversaries(Own):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0] + torch.randn(8)), batch[1]))
        first.step()
        self.manual_backward(self(batch[0]).square().mean())  # its gradients reach the first one's, and stay there
        if batch_idx % 2:
            second.step()

    def configure_optimizers(self):
        return torch.optim.Adam([*self.body.parameters(), *self.norm.parameters()], lr=0.01), torch.optim.SGD(self.head.parameters(), lr=0.01)


class Turns(Own):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        first = torch.optim.Adam([*self.body.parameters(), *self.norm.parameters()], lr=0.01)
        second = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9)
        schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(first, 1), "interval": "step", "frequency": 3}
        return {"optimizer": first, "frequency": 2, "lr_scheduler": schedule}, {"optimizer": second, "frequency": 1}
"""
WORKERS = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return x[index] + torch.randn(8), y[index]
"""
EVERYTHING = (
    f"{PAIR}, lr_schedule='cosine', warmup=3, weight_averaging='ema', ema_decay=0.5, accumulate_grad_batches=2, gradient_clip_val=1.0, "
    "early_stopping=wb.EarlyStopping('val_loss', patience=1), monitor='val_loss_averaged'"
)
CASES = {
    "plain": (PAIR, "", "step == 7"),
    "while the checkpoint is written": (PAIR, "", "path.stem == 'checkpoint' and path.exists()"),
    "many techniques": (EVERYTHING, "", "step == 5"),
    "max_steps": (f"{PAIR[:-14]}, max_steps=11, val_check_interval=3, weight_averaging='swa', swa_epoch_start=1", "", "step == 10"),
    "bfloat16, updates that may be left out": (f"{PAIR}, precision='bf16-mixed', on_nonfinite='skip'", "", "step == 6"),
    "two optimizers in turn": ("Turns(), train=(x, y), max_epochs=4", MODULE, "step == 9"),
    "LBFGS": (f"{PAIR}, optimizer=lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=2)", "", "step == 6"),
    "a LightningModule": ("Own(), train=(x, y), val=(x[:40], y[:40]), max_epochs=5", MODULE, "step == 14"),
    "two optimizers by hand": ("Adversaries(), train=(x, y), max_epochs=4", MODULE, "step == 9"),
    "workers and a sampler": (
        "model, train=torch.utils.data.DataLoader(Noisy(), batch_size=20, num_workers=1, sampler=torch.utils.data.RandomSampler("
        "y, generator=torch.Generator().manual_seed(3))), loss=F.cross_entropy, max_epochs=3", WORKERS, "step == 8",
    ),
}  # fmt: skip


SLOW = {"plain", "max_steps", "bfloat16, updates that may be left out", "two optimizers in turn", "LBFGS"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES])
def test_a_killed_script_continues(name: str, runner: Runner, tmp_path: Path) -> None:
    arguments, code, kill = CASES[name]
    bench = make_bench(tmp_path, arguments, code)
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    check(bench, run, runner.run_resumed(script, kill))
    bench.close()


def test_two_processes_continue(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    bench.close()
    whole, resumed = runner.run_two(script), runner.run_resumed(script, "step == 6", processes=2)
    assert equal(whole, resumed)


def equal(some: Outcome, other: Outcome) -> bool:
    weights = all(torch.equal(some.weights[name], other.weights[name]) for name in some.weights)
    return weights and np.array_equal(some.losses, other.losses)


REFUSED = {
    "Counting.forward changes self.calls": (
        "Counting(), train=(x, y), loss=F.cross_entropy, max_epochs=1",
        "class Counting(Net):\n    calls = 0\n\n    def forward(self, x):\n        self.calls += 1\n        return super().forward(x)\n",
    ),
    "swa_lrs": (f"{PAIR}, weight_averaging='swa', swa_lrs=0.05, swa_epoch_start=1", ""),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name(why: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *REFUSED[why])
    bench.fit().result()
    text = bench.script()
    assert f"--resume is not possible: {why}" in text
    assert "checkpoint" not in text
    bench.close()
