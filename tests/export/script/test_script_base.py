"""Scripts of LightningModules that inherit from nn.Module (`base="nn.Module"`), and what needs Lightning still."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.export.export_running import PRELUDE, Runner, check, lint, make_bench
from workbench.export.errors import ExportError

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "Lit(), train=(x, y), val=(x[:30], y[:30]), max_epochs=2"
MODULE = """
import lightning as L


class Lit(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.net = Net()
        self.lr = lr
        self.seen = 0

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1]) * (1 + self.current_epoch + self.trainer.global_step)
        loss = loss * 2 if self.automatic_optimization else loss
        N, L = batch[0].shape
        loss = loss * L / N + sum(L for L in range(3))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1].to(self.device)))

    def on_train_epoch_end(self):
        self.print("an epoch is over")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
"""
MANUAL = """
from lightning.pytorch import LightningModule as Base


class Parent(Base):
    def optimizer_of(self):
        return self.optimizers()


class Lit(Parent):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        if not self.automatic_optimization:
            self.optimizer_of().zero_grad()
        self.manual_backward(loss)
        self.optimizer_of().step()

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val_loss": F.cross_entropy(self.net(batch[0]), batch[1]), "val_step": float(self.global_step)})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("module", [MODULE, MANUAL])
def test_it_repeats_the_run_without_lightning(module: str, tmp_path: Path, runner: Runner) -> None:
    bench = make_bench(tmp_path, PAIR, module)
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py", base="nn.Module")
    text = script.read_text()
    assert "(nn.Module):\n    def " in text
    assert "lightning" not in text.lower()
    check(bench, run, runner.run(script))
    lint(script)
    assert "Needs: torch, accelerate." in text
    bench.close()


NEEDS = {
    r"Lit.__init__ uses self.save_hyperparameters: assign what you need (self.width = width), and fit again": ("self.seen = 0", "self.save_hyperparameters()"),
    r"Lit.training_step uses super().on_train_start: write it without Lightning": (
        "self.log(\"train_loss\", loss, prog_bar=True)", "super().on_train_start()",
    ),
    r"Lit.forward uses self.example_input_array": ("return self.net(x)", "return self.net(x if self.example_input_array is None else x)"),
    r"the code uses L.seed_everything": ("class Lit", "torch.manual_seed(L.seed_everything(0))\n\n\nclass Lit"),
    r"Lit.__init__ uses self.device, which the script sets after the model is made: leave it out (a model is made on the CPU)": (
        "self.seen = 0", "self.seen = torch.zeros(1, device=self.device)",
    ),
    r"Lit.start, which __init__ calls, uses self.current_epoch, which the script sets after the model is made: use it in a method": (
        "self.seen = 0\n", "self.seen = self.start()\n\n    def start(self):\n        return self.current_epoch\n",
    ),
    r"Lit.on_train_epoch_start uses self.freeze": (
        "class Lit(L.LightningModule):\n",
        "class Part(nn.Module):\n    def freeze(self):\n        pass\n\n\nclass Lit(L.LightningModule):\n    part = Part()\n\n"
        "    def on_train_epoch_start(self):\n        if self.seen:\n            self.freeze()\n\n",
    ),
    r"the code uses L.LightningModule": ("        self.print(", "        [L for L in range(3)], isinstance(self, L.LightningModule)\n        self.print("),
    r"Mixed.rate uses self.fabric": (
        "class Lit(L.LightningModule):", "class Mixed:\n    def rate(self):\n        return self.fabric\n\n\nclass Lit(Mixed, L.LightningModule):",
    ),
    r"Part.forward uses self.device, which the script gives to Lit alone, and not to modules inside it: take that of a tensor (x.device), and fit": (
        "class Lit(L.LightningModule):\n    def __init__(self, lr=0.1):\n        super().__init__()\n        self.net = Net()",
        "class Part(L.LightningModule):\n    def __init__(self):\n        super().__init__()\n        self.net = Net()\n\n    def forward(self, x):\n"
        "        return self.net(x.to(self.device))\n\n\nclass Lit(L.LightningModule):\n    def __init__(self, lr=0.1):\n        super().__init__()\n"
        "        self.net = Part()",
    ),
    r"Child.on_fit_end uses self.all_gather": (
        "class Lit(L.LightningModule):\n", "class Base(L.LightningModule):\n    pass\n\n\nclass Child(Base):\n    def on_fit_end(self):\n"
        "        if self.seen:\n            self.all_gather(self.seen)\n\n\nclass Lit(Child):\n",
    ),
}


@pytest.mark.parametrize("said", NEEDS)
def test_what_needs_lightning_is_named(said: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR, MODULE.replace(*NEEDS[said]))
    bench.fit().result()
    with pytest.raises(ExportError, match=re.escape(said)):
        bench.export(tmp_path / "out" / "train.py", base="nn.Module")
    assert not (tmp_path / "out").exists()
    bench.close()


def test_where_it_has_no_effect_it_is_an_error(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1", prelude=PRELUDE)
    bench.fit().result()
    with pytest.raises(ExportError, match=r"base='nn\.Module' has no effect: Net is no LightningModule"):
        bench.script(base="nn.Module")
    with pytest.raises(ExportError, match=r"base='torch' is unknown: give 'nn\.Module'"):
        bench.script(base="torch")  # type: ignore[arg-type]
    for format in ("settings", "lightning"):
        with pytest.raises(ExportError, match=rf"format='{format}' has no base='nn\.Module'"):
            bench.script(base="nn.Module", format=format)  # type: ignore[arg-type]


def test_a_class_that_inherits_from_lightnings_own_models_stays(tmp_path: Path) -> None:
    own = "from lightning.pytorch.demos.boring_classes import BoringModel\n\n\nclass Own(BoringModel):\n    pass\n"
    bench = make_bench(tmp_path, "Own(), train=torch.randn(20, 32), max_epochs=1", own)
    bench.fit().result()
    with pytest.raises(ExportError, match="no class of the script inherits from LightningModule itself"):
        bench.script(base="nn.Module")
