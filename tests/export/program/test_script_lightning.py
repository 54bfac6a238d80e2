"""Scripts of LightningModules: those that stand alone repeat their run, the others say why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.export.export_running import Runner, make_bench, repeats
from tests.warm import Warm
from workbench.export.errors import ExportError

pytestmark = pytest.mark.usefixtures("one_thread")

PRELUDE = """\
import lightning.pytorch as pl
import torch

import workbench as wb

torch.manual_seed(0)
x = torch.randn(30, 32)


class Module(pl.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean() * (1 + batch_idx)
        self.log("train_loss", loss)
        return {"loss": loss, "extra": 1}

    def validation_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("val_loss", loss)
        self.log_dict({"val_index": float(batch_idx)})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
"""
CONFIGURED = """
class Configured(Module):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.SCHEDULE
        return RETURNED
"""
PAIR = "train=x, val=x[:8], batch_size=6, max_epochs=3"


def configured(returned: str, schedule: str = "StepLR(optimizer, 1, 0.5)") -> str:
    return CONFIGURED.replace("SCHEDULE", schedule).replace("RETURNED", returned)


CASES: dict[str, tuple[str, str]] = {
    "an optimizer": (f"Module(), {PAIR}", ""),
    "another rate, windows, clipping": (
        f"Module(), {PAIR}, lr=0.02, accumulate_grad_batches=2, gradient_clip_val=0.5",
        "",
    ),
    "a step without batch_idx": (
        f"Short(), {PAIR}",
        "class Short(Module):\n    def training_step(self, batch):\n"
        "        return self.layer(batch).square().mean()\n",
    ),
    "no LightningModule": (
        f"Plain(), {PAIR}",
        "class Plain(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(32, 2)\n\n"
        "    training_step, validation_step = Module.training_step, Module.validation_step\n\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.parameters(), lr=0.1)\n",
    ),
    "two lists": (f"Configured(), {PAIR}", configured("[optimizer], [schedule]")),
    "a dict, by epoch": (
        f"Configured(), {PAIR}",
        configured('{"optimizer": optimizer, "lr_scheduler": schedule}'),
    ),
    "two lists, by step": (
        f"Configured(), {PAIR}",
        configured('[optimizer], [{"scheduler": schedule, "interval": "step"}]'),
    ),
    "a monitor": (
        f"Configured(), {PAIR}",
        configured(
            '{"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}',
            "ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)",
        ),
    ),
}
HEADLESS: dict[str, str] = {
    r"hooks \(": "    def on_train_epoch_end(self):\n        self.layer.requires_grad_(True)\n",
    "attributes of the trainer": (
        "    def training_step(self, batch):\n"
        "        return self.layer(batch).square().mean() * (1 + self.current_epoch)\n"
    ),
    "a model whose step changes what is trained": (
        "    def training_step(self, batch):\n        self.layer.bias.requires_grad_(len(batch) > 2)\n"
        "        return self.layer(batch).square().mean()\n"
    ),
    "several optimizers": (
        "    def configure_optimizers(self):\n"
        "        weight = torch.optim.SGD([self.layer.weight], lr=0.1)\n"
        "        bias = torch.optim.SGD([self.layer.bias], lr=0.1)\n"
        "        return (\n"
        '            {"optimizer": weight, "frequency": 1},\n'
        '            {"optimizer": bias, "frequency": 1},\n'
        "        )\n\n"
        "    def training_step(self, batch, batch_idx, optimizer_idx):\n"
        "        return self.layer(batch).square().mean()\n"
    ),
    "manual optimization": (
        "    automatic_optimization = False\n\n    def training_step(self, batch):\n"
        "        optimizer = self.optimizers()\n        optimizer.zero_grad()\n"
        "        self.manual_backward(self.layer(batch).square().mean())\n"
        "        optimizer.step()\n"
    ),
}


@pytest.fixture(scope="module")
def runner(with_lightning: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(with_lightning, tmp_path_factory.mktemp("elsewhere"))


@pytest.mark.parametrize("case", CASES)
def test_a_module_that_stands_alone(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, code = CASES[case]
    repeats(make_bench(tmp_path, arguments, code, PRELUDE), runner, tmp_path)


@pytest.mark.parametrize("reason", HEADLESS)
def test_a_module_that_needs_the_workbench(reason: str, tmp_path: Path) -> None:
    code = f"class Other(Module):\n{HEADLESS[reason]}"
    bench = make_bench(tmp_path, f"Other(), {PAIR.replace('=3', '=1')}", code, PRELUDE)
    bench.fit().result()
    head = bench.script(checks=False, log_file=False)
    assert re.search(reason, " ".join(head.split('"""')[1].split())), head
    for option in ("resume", "checks", "log_file", "tracker"):
        options = {**dict.fromkeys(("checks", "log_file"), False), option: True}
        with pytest.raises(ExportError, match=reason):
            bench.script(**options)
    bench.close()
