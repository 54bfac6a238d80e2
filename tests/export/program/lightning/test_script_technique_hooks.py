"""Each technique in the script of an object with a `training_step` of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.combinations import every
from tests.export.export_running import Runner, make_bench, repeats

# some leave parts of a model out of the optimizer, which the bench warns of
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]

PRELUDE = """\
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb

torch.manual_seed(0)
x, y = torch.randn(60, 6), torch.randint(0, 3, (60,))


class Own(nn.Module):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.body, self.norm, self.head = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.body(x))))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1]) * (1 + batch_idx % 2)

    def validation_step(self, batch, batch_idx):
        output = self(batch[0])
        self.log("val_right", (output.argmax(1) == batch[1]).float().mean())
        return F.cross_entropy(output, batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
"""
DATA = "train=(x, y), val=(x[:25], y[:25]), batch_size=8"
TOKENS = """
class Tokens(Own):
    def training_step(self, batch, batch_idx):
        kept = batch[1] != 2
        if batch_idx % 3 == 1:
            return None
        return {"loss": F.cross_entropy(self(batch[0])[kept], batch[1][kept]), "weight": int(kept.sum())}

    def validation_step(self, batch, batch_idx):
        return {"loss": F.cross_entropy(self(batch[0]), batch[1]), "weight": float(batch_idx + 1)}
"""
PLATEAU = """
class Plateau(Own):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return [optimizer], [
            {"scheduler": plateau, "monitor": "val_right", "frequency": 2},
            {"scheduler": decay, "interval": "step", "frequency": 3},
        ]
"""
PIECES = """
torch.manual_seed(1)
z = torch.randn(20, 9, 6)


class Recurrent(Own):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(6, 6)

    def training_step(self, batch, hiddens):
        output, hiddens = self.cell(batch[0].transpose(0, 1), hiddens)
        return {"loss": (output[-1] - 1).square().mean(), "hiddens": hiddens}

    def validation_step(self, batch):
        return self.cell(batch[0].transpose(0, 1))[0].square().mean()


class Splitting(Recurrent):
    def training_step(self, batch, batch_idx, hiddens):
        output, hiddens = self.cell(batch[0].transpose(0, 1), hiddens)
        return {"loss": (output[-1] - batch_idx).square().mean(), "hiddens": hiddens}

    def tbptt_split_batch(self, batch, split_size):
        return [[batch[0][:, start : start + split_size]] for start in range(0, batch[0].shape[1] - 1, split_size)]


class Sometimes(Recurrent):
    def training_step(self, batch, batch_idx, hiddens):
        if hiddens is None and batch_idx % 2:
            return None
        output, hiddens = self.cell(batch[0].transpose(0, 1), hiddens)
        return {"loss": output.square().mean(), "hiddens": hiddens, "weight": len(output)}


class Gappy(Recurrent):
    def training_step(self, batch, batch_idx, hiddens):
        if batch[0][0, 0, 0] > 0:
            return None
        output, hiddens = self.cell(batch[0].transpose(0, 1), hiddens)
        return {"loss": output.square().mean(), "hiddens": hiddens}
"""
TWO = """
class Two(Own):
    def training_step(self, batch, batch_idx, optimizer_idx):
        output = self(batch[0])
        if optimizer_idx == 0:
            return F.cross_entropy(output, batch[1])
        return output.square().mean() + F.cross_entropy(output, batch[1])

    def configure_optimizers(self):
        first = torch.optim.SGD([*self.norm.parameters(), *self.body.parameters()], lr=self.lr, momentum=0.9)
        second = torch.optim.Adam(self.head.parameters(), lr=self.lr / 3)
        decay = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
        return [first, second], [{"scheduler": decay, "interval": "step", "frequency": 2}]


class Turns(Two):
    def configure_optimizers(self):
        (first, second), _ = super().configure_optimizers()
        decay = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
        schedule = {"scheduler": decay, "interval": "step", "frequency": 2}
        return (
            {"optimizer": first, "frequency": 3, "lr_scheduler": torch.optim.lr_scheduler.StepLR(first, 1, 0.5)},
            {"optimizer": second, "frequency": 2, "lr_scheduler": schedule},
        )


class Plain(Two):
    def configure_optimizers(self):
        (first, second), _ = super().configure_optimizers()
        return {"optimizer": first, "frequency": 3}, {"optimizer": second, "frequency": 2}


class Unlike(Two):
    def configure_optimizers(self):
        first = torch.optim.SGD([*self.norm.parameters(), *self.body.parameters()], lr=self.lr)
        second = torch.optim.Adam(self.head.parameters(), lr=self.lr / 3)
        return {"optimizer": first, "frequency": 1}, {"optimizer": second, "frequency": 3}


class Fixed(Two):
    def configure_optimizers(self):
        return torch.optim.SGD(self.body.parameters(), lr=0.1), torch.optim.SGD(self.head.parameters(), lr=0.03)
"""
MANUAL = """
class Manual(Own):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        schedule = self.lr_schedulers()
        self.toggle_optimizer(first)
        loss = F.cross_entropy(self(batch[0]), batch[1])
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        with second.toggle_model():
            second.zero_grad()
            self.manual_backward(self(batch[0]).square().mean())
            second.step()
        schedule.step()

    def configure_optimizers(self):
        first = torch.optim.SGD([*self.norm.parameters(), *self.body.parameters()], lr=self.lr, momentum=0.9)
        second = torch.optim.Adam(self.head.parameters(), lr=self.lr / 3)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]


class One(Manual):
    def training_step(self, batch):
        optimizer = self.optimizers()
        assert isinstance(optimizer, torch.optim.SGD)
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()

    configure_optimizers = Own.configure_optimizers


class Switched(Own):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        first.step()
        with self.toggled_optimizer(second):
            self.manual_backward(self(batch[0]).square().mean())
            second.step()
        if batch_idx % 2:
            self.toggle_optimizer(first)  # and leaves it so

    def on_before_optimizer_step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.7)

    configure_optimizers = Manual.configure_optimizers


class Early(Manual):
    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        output = self(batch[0])
        self.manual_backward(F.cross_entropy(output, batch[1]) + output.square().mean())
        if batch_idx % 2 == 0:
            second.step()
        if batch_idx % 3:
            first.step()
            first.zero_grad()
"""
PART = """
class Part(Own):
    def configure_optimizers(self):
        return torch.optim.SGD([*self.head.parameters(), *self.body.parameters()], lr=0.1)
"""

CASES: dict[str, tuple[str, str]] = {
    "weights and none": (f"Tokens(), {DATA}, accumulate_grad_batches=2, max_epochs=3, gradient_clip_val=0.2", TOKENS),
    "weights and none, one batch an update": (f"Tokens(), {DATA}, max_epochs=2, gradient_clip_val=0.2", TOKENS),
    "a plateau on a metric of its own": (f"Plateau(), {DATA}, max_epochs=6, val_check_interval=0.5", PLATEAU),
    "a built-in schedule": (f"Own(), {DATA}, max_epochs=2, lr_schedule='one_cycle', warmup=0.2, accumulate_grad_batches=2", ""),
    "mixed precision, an average, early stopping, compiled": (
        f"Own(), {DATA}, max_epochs=5, precision='bf16-mixed', weight_averaging='ema', ema_decay=0.8, limit_train_batches=5, "
        "early_stopping={'monitor': 'val_right_averaged', 'mode': 'max', 'patience': 2}, compile='eager'", "",
    ),
    "pieces": ("Recurrent(), train=(z,), val=(z,), batch_size=6, max_epochs=2, truncated_bptt_steps=4", PIECES),
    "pieces of its own, windows": (
        "Splitting(), train=(z,), batch_size=6, max_epochs=2, truncated_bptt_steps=4, accumulate_grad_batches=2", PIECES,
    ),
    "pieces of which some are left out": ("Sometimes(), train=(z,), batch_size=6, max_epochs=2, truncated_bptt_steps=4", PIECES),
    "pieces of which some are left out, windows": (
        "Sometimes(), train=(z,), batch_size=6, max_epochs=2, truncated_bptt_steps=4, accumulate_grad_batches=2", PIECES,
    ),
    "pieces of which any are left out": ("Gappy(), train=(z,), batch_size=6, max_epochs=3, truncated_bptt_steps=4", PIECES),
    "pieces of which any are left out, windows": (
        "Gappy(), train=(z,), batch_size=4, max_epochs=3, truncated_bptt_steps=2, accumulate_grad_batches=2", PIECES,
    ),
    "two optimizers": (f"Two(), {DATA}, max_epochs=2, gradient_clip_val=0.5", TWO),
    "two optimizers, windows, a rate of the bench": (
        f"Two(), {DATA}, max_epochs=2, accumulate_grad_batches=3, lr=0.02, precision='bf16-mixed', weight_decay=0.1", TWO,
    ),
    "two optimizers in turns": (f"Turns(), {DATA}, max_epochs=3, gradient_clip_val=0.1, gradient_clip_algorithm='value'", TWO),
    "two optimizers in turns, a schedule for each": (
        f"Plain(), {DATA}, max_epochs=3, lr_schedule='cosine', warmup=0.25, accumulate_grad_batches={{1: 2}}", TWO,
    ),
    "two optimizers in turns, a warm-up of updates": (f"Plain(), {DATA}, max_epochs=2, warmup=3", TWO),
    "two optimizers in turns, one cycle for each": (f"Unlike(), {DATA}, max_steps=14, lr_schedule='one_cycle'", TWO),
    "two optimizers with rates of their own": (f"Fixed(), {DATA}, max_epochs=2, lr=0.05, lr_schedule='cosine'", TWO),
    "manual": (f"Manual(), {DATA}, max_epochs=2, gradient_clip_val=0.5", MANUAL),
    "manual, torch's own optimizers": (f"Switched(), {DATA}, max_epochs=2, gradient_clip_val=0.1", MANUAL),
    "manual, windows": (f"Manual(), {DATA}, max_epochs=2, accumulate_grad_batches=2", MANUAL),
    "manual, steps in the middle of windows": (f"Early(), {DATA}, max_epochs=3, accumulate_grad_batches=3", MANUAL),
    "manual, one optimizer": (f"One(), {DATA}, max_steps=9, precision='bf16-mixed'", MANUAL),
    "manual, one optimizer, windows": (f"One(), {DATA}, max_steps=5, accumulate_grad_batches=3, gradient_clip_val=0.3", MANUAL),
    "a part of the parameters, clipped": (f"Part(), {DATA}, max_epochs=2, gradient_clip_val=0.1", PART),
    "swa, a built-in loader": (f"Own(), {DATA}, max_epochs=4, weight_averaging='swa', swa_epoch_start=0.5, swa_lrs=0.01", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_a_technique_of_an_object(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before = CASES[case]
    bench = make_bench(tmp_path, arguments, before, PRELUDE)
    repeats(bench, runner, tmp_path)
    if case.endswith("torch's own optimizers"):
        assert "class ManualOptimizer" not in (tmp_path / "out" / "train.py").read_text()
