"""Scripts of LightningModules that inherit from nn.Module (`base="nn.Module"`); what needs Lightning still fails in its first updates."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.combinations import every
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
        loss = F.cross_entropy(self(batch[0]), batch[1])
        N, L = batch[0].shape
        loss = loss * L / N + sum(L for L in range(3))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
"""


def test_it_repeats_the_run_without_lightning(tmp_path: Path, runner: Runner) -> None:
    bench = make_bench(tmp_path, PAIR, MODULE)
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py", base="nn.Module")
    text = script.read_text()
    assert "(nn.Module):\n    def " in text
    assert "lightning" not in text.lower()
    check(bench, run, runner.run(script))
    lint(script)
    assert "Needs: torch, accelerate. The run had torch " in text
    bench.close()


NEEDS = {
    "it fails: AttributeError: 'Lit' object has no attribute 'save_hyperparameters'": (
        "self.seen = 0",
        "self.save_hyperparameters()",
    ),
    "it fails: AttributeError: 'Part' object has no attribute 'device'": (
        "class Lit(L.LightningModule):\n    def __init__(self, lr=0.1):\n        super().__init__()\n        self.net = Net()",
        "class Part(L.LightningModule):\n    def __init__(self):\n        super().__init__()\n        self.net = Net()\n\n    def forward(self, x):\n"
        "        return self.net(x.to(self.device))\n\n\nclass Lit(L.LightningModule):\n    def __init__(self, lr=0.1):\n        super().__init__()\n"
        "        self.net = Part()",
    ),
}


@pytest.mark.parametrize("told", every(3, [*NEEDS]))
def test_what_needs_lightning_fails_when_it_is_verified(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm.python().executable))
    bench = make_bench(tmp_path, PAIR, MODULE.replace(*NEEDS[told]))
    bench.fit().result()
    with pytest.warns(UserWarning, match=re.escape(told)):
        bench.export(tmp_path / "out" / "train.py", base="nn.Module", verify=True)
    bench.close()


def test_lightning_stays_where_the_code_uses_it(tmp_path: Path, runner: Runner) -> None:
    seeded = MODULE.replace("class Lit", "torch.manual_seed(L.seed_everything(0))\n\n\nclass Lit")
    bench = make_bench(tmp_path, PAIR, seeded)
    run = bench.fit().result()
    script = bench.export(tmp_path / "train.py", base="nn.Module")
    assert "import lightning as L" in script.read_text()
    check(bench, run, runner.run(script))
    bench.close()


def test_where_it_has_no_effect_it_is_an_error(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1", prelude=PRELUDE
    )
    bench.fit().result()
    with pytest.raises(
        ExportError, match=r"base='nn\.Module' has no effect: Net is no LightningModule"
    ):
        bench.script(base="nn.Module")
    with pytest.raises(ExportError, match=r"base='torch' is unknown: give 'nn\.Module'"):
        bench.script(base="torch")  # type: ignore[arg-type]
    for format in ("settings", "lightning"):
        with pytest.raises(ExportError, match=rf"format='{format}' has no base='nn\.Module'"):
            bench.script(base="nn.Module", format=format, checks=False, log_file=False)  # type: ignore[arg-type]


def test_a_class_that_inherits_from_lightnings_own_models_stays(tmp_path: Path) -> None:
    own = "from lightning.pytorch.demos.boring_classes import BoringModel\n\n\nclass Own(BoringModel):\n    pass\n"
    bench = make_bench(tmp_path, "Own(), train=torch.randn(20, 32), max_epochs=1", own)
    bench.fit().result()
    with pytest.raises(
        ExportError, match="no class of the script inherits from LightningModule itself"
    ):
        bench.script(base="nn.Module")
