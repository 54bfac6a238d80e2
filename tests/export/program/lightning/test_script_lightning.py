"""Scripts of real LightningModules and DataModules: the object's own hooks in a visible loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.export_running import Runner, make_bench, repeats
from tests.warm import Warm

# some leave parts of a model out of the optimizer, which the bench warns of
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]

PRELUDE = """\
import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

import workbench as wb

torch.manual_seed(0)


class Boring(BoringModel):
    def __init__(self, lr=0.05, batch_size=4):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        loss = self.step(batch) * (1 + batch_idx)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "extra": 1}

    def validation_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("val_loss", loss)
        self.log("val_epoch", float(self.current_epoch + 10 * self.global_step))
        self.log_dict({"val_index": float(batch_idx), "val_device": float(self.device.type == "cpu")})

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.layer.parameters(), lr=self.hparams.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def train_dataloader(self):
        return DataLoader(RandomDataset(32, 22), batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return [DataLoader(RandomDataset(32, 9), batch_size=2)]
"""
DATA = """
class Samples(pl.LightningDataModule):
    def prepare_data(self):
        self.prepared = True

    def setup(self, stage):
        assert self.prepared and stage == "fit"
        self.samples = torch.randn(22, 32)

    def train_dataloader(self):
        return DataLoader(self.samples, batch_size=5, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.samples[:7], batch_size=2)
"""
OTHER = """
class Stepping(Boring):
    def setup(self, stage):
        self.head = torch.nn.Linear(2, 2)

    def configure_optimizers(self):
        groups = [{"params": self.layer.parameters(), "lr": 0.02}, {"params": self.head.parameters(), "lr": 0.01, "weight_decay": 0.005}]
        optimizer = torch.optim.AdamW(groups)
        first = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        second = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": first, "interval": "step", "frequency": 2}, second]

    def training_step(self, batch):
        return self.head(self.layer(batch)).square().mean()
"""
FIXED = """
class Fixed(BoringModel):
    def training_step(self, batch, batch_idx):
        return self.step(batch) * (2 + self.trainer.current_epoch) / (3 + self.global_step)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.3}], lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.3], total_steps=30)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
"""

MANUAL = """
class Manual(Boring):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        self.manual_backward(self.step(batch))
        first.step()
        self.untoggle_optimizer(first)
        second.zero_grad()
        self.manual_backward(self.step(batch) * (1 + self.global_step))
        second.step()
        if self.trainer.is_global_zero:
            for _ in range(1 + self.trainer.is_last_batch):
                self.lr_schedulers().step()

    def configure_optimizers(self):
        first = torch.optim.SGD([self.layer.weight], lr=self.hparams.lr)
        second = torch.optim.SGD([self.layer.bias], lr=self.hparams.lr)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]
"""
KEEPS = """
class Keeps(Boring):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.step(batch))
        optimizer.zero_grad(set_to_none=False)
        bias = self.layer.bias if batch_idx % 2 else None
        self.manual_backward(torch.nn.functional.linear(batch, self.layer.weight, bias).square().mean())
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=0.1)
"""
IMPORTED = "from lightning.pytorch.demos.boring_classes import ManualOptimBoringModel\n"
WATCHING = """
class Watching(Boring):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_loss"}
"""
HOOKS = """
class Hooks(Boring):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        for group in optimizer.param_groups:
            group["lr"] = self.hparams.lr * min(1.0, (self.trainer.global_step + 1) / 4)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        if self.current_epoch:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)

    def backward(self, loss, *arguments, **options):
        super().backward(loss * 1.5, *arguments, **options)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        return batch + 0.1 if self.trainer.training else batch

    def configure_model(self):
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.layer(x))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.trainer.is_global_zero and self.logger is None:
            self.last = outputs["loss"] * outputs["extra"]

    def on_train_epoch_end(self):
        self.print("last", f"{self.last.item():.4f}", self.trainer.max_epochs, self.trainer.estimated_stepping_batches)
        self.trainer.should_stop = self.current_epoch == 2

    def on_validation_epoch_end(self):
        self.log("val_layer", self.layer.weight.square().sum(), prog_bar=True)
"""
WHOLE = """
class Whole(Samples):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return super().transfer_batch_to_device(batch, device, dataloader_idx) * 2

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch + self.trainer.current_epoch

    def teardown(self, stage):
        self.samples = None
"""


@pytest.fixture(scope="module")
def runner(with_lightning: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(with_lightning, tmp_path_factory.mktemp("elsewhere"))


CASES: dict[str, tuple[str, str]] = {
    "its own data, hparams, a schedule by epoch": (
        "Boring(), max_epochs=3, lr=0.02, batch_size=3",
        "",
    ),
    "a data module, windows, clipping": (
        "Boring(), train=Samples(), max_epochs=2, accumulate_grad_batches=3, gradient_clip_val=0.5, weight_decay=0.1",
        DATA,
    ),
    "a schedule by update, groups, another rate and decay than it makes": (
        "Stepping(), train=Samples(), val=torch.randn(5, 32), max_epochs=3, lr=0.05, weight_decay=0.3",
        DATA + OTHER,
    ),
    "a rate that it has nowhere": (
        "Fixed(), train=torch.randn(30, 32), lr=0.07, batch_size=4, max_epochs=2",
        FIXED,
    ),
    "manual optimisation": (
        "Manual(), max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, lr=0.02",
        MANUAL,
    ),
    "manual optimisation, gradients set to zero": ("Keeps(), max_epochs=2, lr=0.02", KEEPS),
    "a schedule that watches a metric, an average": (
        "Watching(), max_epochs=4, weight_averaging='ema', ema_decay=0.5, early_stopping='val_loss_averaged', min_epochs=4",
        WATCHING,
    ),
    "hooks of its own": ("Hooks(), max_epochs=9, gradient_clip_val=0.5, min_epochs=2", HOOKS),
    "hooks of its own, windows, a data module's": (
        "Hooks(), train=Whole(), max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.1",
        DATA
        + HOOKS.replace("def on_train_batch_end", "def not_called").replace(
            "self.last.item()", "1.0"
        )
        + WHOLE,
    ),
    "manual optimisation of a class that is imported": (
        "ManualOptimBoringModel(), max_epochs=1",
        IMPORTED,
    ),
    "manual optimisation, a data module's hooks": (
        "Manual(), train=Whole(), max_epochs=3, lr=0.02",
        DATA + MANUAL + WHOLE,
    ),
    "no validation, a schedule in a dict": (
        "Plain(), train=torch.randn(30, 32), max_steps=9, batch_size=6, gradient_clip_val=0.1",
        "class Plain(Boring):\n    validation_step = val_dataloader = None\n\n    def configure_optimizers(self):\n"
        "        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)\n"
        "        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n"
        "        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': schedule, 'interval': 'epoch', 'frequency': 2}}\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_lightning_module(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before = CASES[case]
    bench = make_bench(tmp_path, arguments, before, PRELUDE)
    repeats(bench, runner, tmp_path)
