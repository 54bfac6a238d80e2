"""The script on Lightning: it trains as the run did where Lightning means the same, and says where it does not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import workbench as wb
from tests.combinations import every
from tests.export.export_running import PRELUDE, clean_environment, lint, make_bench
from tests.warm import Warm

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]

PAIR = "model, train=(x, y), loss=F.cross_entropy"
FULL = "x, y = x[:96], y[:96]\n"
"""Samples that fill all windows: a shorter one weighs otherwise in Lightning."""
MODULE = """
import lightning as L
from torch.utils.data import DataLoader, TensorDataset


class Lit(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.net = Net()
        self.lr = lr

    def training_step(self, batch, batch_idx):
        inputs, target = batch
        loss = F.cross_entropy(self.net(inputs), target)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, target = batch
        self.log("val_loss", F.cross_entropy(self.net(inputs), target))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Samples(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(x, y), 16)


module, samples = Lit(), Samples()
"""


ALONE = MODULE.replace(
    "return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]", "return optimizer"
)
PLAIN = """
class Plain(Net):
    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


def train(
    with_lightning: Warm, script: Path, name: str = "train_loss"
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Run a script; the weights of its last checkpoint, and the values that it logged by this name."""
    output = script.with_name("trained")
    process = with_lightning.start(
        str(script),
        "--output",
        str(output),
        folder=script.parent,
        environment=clean_environment(),
        leave=True,
    )
    said = "".join(process.communicate(280))
    assert process.wait() == 0, f"{said}\n{script.read_text()}"
    state = torch.load(output / "last.ckpt", weights_only=False)["state_dict"]
    log = output / "lightning_logs" / "version_0" / "metrics.csv"
    logged = [float(row[name]) for row in csv.DictReader(log.open()) if row.get(name)]
    return {name.removeprefix("network."): value for name, value in state.items()}, logged


def exported(folder: Path, arguments: str, before: str = "") -> tuple[wb.Workbench, Any, Path]:
    bench = make_bench(folder, arguments, before, PRELUDE)
    run = bench.fit().result()
    script = bench.export(folder / "out" / "train.py", format="lightning")
    lint(script)
    return bench, run, script


CASES = {
    "plain": (f"{PAIR}, val=(x, y), max_epochs=2, metrics={{'right': lambda output, y: output.argmax(1) == y}}", ""),
    "windows, clipping by norm, decay, a schedule of its own": (
        f"{PAIR}, val=(x, y), max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.3, batch_size=16, weight_decay=0.3, "
        "scheduler=lambda optimizer, updates: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=updates)",
        FULL,
    ),
    "windows by epoch, clipping by value, a built-in schedule": (
        f"{PAIR}, max_epochs=3, accumulate_grad_batches={{1: 2}}, gradient_clip_val=0.01, gradient_clip_algorithm='value', "
        "lr_schedule='cosine', warmup=3, batch_size=16, optimizer=torch.optim.SGD, lr=0.1",
        FULL,
    ),
    "a number of updates, parts of the data, a rate of its own": (
        f"{PAIR}, val=(x, y), max_steps=9, limit_train_batches=4, limit_val_batches=0.5, drop_last=True, batch_size=16, "
        "val_check_interval=0.5, optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), lr=0.02, precision='bf16-mixed'",
        "",
    ),
    "dict batches, a loss with weights, a sampler of its own": (
        "Named(), train=DataLoader(Rows(), sampler=WeightedRandomSampler(torch.ones(100), 40, generator=torch.Generator().manual_seed(3))), "
        "loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), max_epochs=2, batch_size=8",
        "from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler\n\n\nclass Rows(Dataset):\n    def __len__(self):\n"
        "        return 100\n\n    def __getitem__(self, i):\n        return {'inputs': x[i], 'target': y[i]}\n\n\n"
        "class Named(Net):\n    def forward(self, inputs):\n        return super().forward(inputs)\n",
    ),
    "a generator of its own, a scheduler in a dict": (
        "model, train=DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=torch.Generator().manual_seed(5)), loss=F.cross_entropy, "
        "max_epochs=3, scheduler=lambda optimizer, updates: {'scheduler': torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), 'interval': 'epoch'}",
        "from torch.utils.data import DataLoader, TensorDataset\n",
    ),
    "ready batches, stopping early": (
        "model, train=wb.batches(batches), val=wb.batches(batches), loss=F.cross_entropy, max_epochs=6, lr=0.5, "
        "early_stopping=wb.EarlyStopping('val_loss', patience=1)",
        "batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 70, 7)]\n",
    ),
    "a LightningModule": (
        "module, train=DataLoader(TensorDataset(x, y), 16, shuffle=True), val=DataLoader(TensorDataset(x, y), 16), max_epochs=2, "
        "accumulate_grad_batches=2, gradient_clip_val=0.3, lr=0.05",
        FULL + MODULE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_it_trains_as_the_run_did(with_lightning: Warm, tmp_path: Path, case: str) -> None:
    bench, run, script = exported(tmp_path, *CASES[case])
    weights, losses = train(with_lightning, script)
    trained = bench.model.state_dict()
    assert [name for name in weights if not name.startswith("loss_function.")] == list(trained)
    for name, value in trained.items():
        assert torch.equal(value, weights[name]), name
    if run.settings.accumulate_grad_batches == 1:
        assert np.array_equal(np.array(losses, dtype=np.float64), run.history["loss"])
    bench.close()


def test_it_validates_when_the_run_did(with_lightning: Warm, tmp_path: Path) -> None:
    """After updates of all epochs, which Lightning counts in batches; but not at the end."""
    arguments = f"{PAIR}, val=(x, y), max_epochs=3, batch_size=16, accumulate_grad_batches=2, val_check_interval=2"
    bench, run, script = exported(tmp_path, arguments, FULL)
    assert "not validated at its end" in script.read_text()
    _, losses = train(with_lightning, script, "val_loss")
    np.testing.assert_allclose(losses, run.validation["val_loss"][:-1], rtol=1e-6)
    bench.close()


def test_it_reads_the_data_beside_it(with_lightning: Warm, tmp_path: Path) -> None:
    torch.seed()
    bench = make_bench(
        tmp_path,
        "Lit(), train=(x, y), val=(x, y), max_epochs=1",
        MODULE,
        PRELUDE.replace("torch.manual_seed(0)", ""),
    )
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py", format="lightning", data="beside")
    lint(script)
    assert "TensorDataset(x, y)" not in script.read_text()
    weights, losses = train(with_lightning, script)
    assert np.array_equal(np.array(losses, dtype=np.float64), run.history["loss"])
    assert all(
        torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
    )
    bench.close()


def test_a_datamodule_stays_one(with_lightning: Warm, tmp_path: Path) -> None:
    bench, run, script = exported(
        tmp_path, "module, train=samples, max_epochs=2, shuffle=False", MODULE
    )
    assert "trainer.fit(module, datamodule=samples)" in script.read_text()
    assert "Your own loaders are used" in script.read_text()
    _, losses = train(with_lightning, script)
    assert len(losses) == len(run.history["loss"])
    bench.close()


@pytest.mark.parametrize(
    "averaging",
    [
        "weight_averaging='ema', ema_decay=0.9, ema_warmup=False, val=(x, y), early_stopping=wb.EarlyStopping('val_loss_averaged')",
        "weight_averaging='swa', swa_lrs=0.05, swa_epoch_start=1",
    ],
)
def test_averages_of_weights_are_lightnings(
    with_lightning: Warm, tmp_path: Path, averaging: str
) -> None:
    bench, run, script = exported(
        tmp_path, f"nn.Linear(8, 3), train=(x, y), loss=F.cross_entropy, max_epochs=3, {averaging}"
    )
    weights, losses = train(with_lightning, script)
    assert np.array_equal(np.array(losses, dtype=np.float64), run.history["loss"]), (
        "the rates move to swa_lrs at the same epoch"
    )
    if "ema" in averaging:
        assert all(
            torch.allclose(value, weights[name], atol=1e-6)
            for name, value in bench.model.state_dict().items()
        )
    assert "What Lightning does otherwise" in script.read_text()
    bench.close()


def test_the_trainer_has_the_rules_of_the_run_and_not_the_modules_callbacks(
    with_lightning: Warm, tmp_path: Path
) -> None:
    """Lightning would put those that the module brings in the place of the Trainer's."""
    own = MODULE.replace(
        "    def configure_optimizers",
        "    def configure_callbacks(self):\n        return [L.pytorch.callbacks.EarlyStopping('val_loss', patience=99)]\n\n    def configure_optimizers",
        1,
    )
    arguments = "module, train=DataLoader(TensorDataset(x, y), 16), val=DataLoader(TensorDataset(x, y), 16), max_epochs=9, lr=0.05, early_stopping=wb.EarlyStopping('val_loss', patience=1, min_delta=9.0)"
    with pytest.warns(UserWarning, match="Given instead: early_stopping"):
        bench, run, script = exported(tmp_path, arguments, own)
    assert run.epochs == 2
    _, losses = train(with_lightning, script)
    assert len(losses) == len(run.history["loss"])
    bench.close()


NOISY = """
class Noisy(Net):
    def __init__(self):
        super().__init__()
        print("made")


noisy = Noisy()
"""


def test_importing_it_makes_neither_the_model_nor_the_data(
    with_lightning: Warm, tmp_path: Path
) -> None:
    bench, run, script = exported(
        tmp_path, "noisy, train=(x, y), val=(x, y), loss=F.cross_entropy, max_epochs=1", NOISY
    )
    start = {"folder": script.parent, "environment": clean_environment(), "leave": True}
    imported = with_lightning.start(
        "-c",
        "import sys; sys.path.insert(0, ''); import train; print(hasattr(train, 'x'), hasattr(train, 'noisy'))",
        **start,
    )
    assert imported.communicate(280)[0] == "False False\n"
    weights, losses = train(with_lightning, script)
    assert np.array_equal(np.array(losses, dtype=np.float64), run.history["loss"])
    assert all(
        torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
    )
    bench.close()


def test_what_differs_is_named(tmp_path: Path) -> None:
    bench, _, script = exported(
        tmp_path,
        f"{PAIR}, max_epochs=1, accumulate_grad_batches=3, num_workers=1, weight_averaging='ema'",
    )
    head = " ".join(script.read_text().split('"""')[1].split())
    for part in (
        "weighs 1 / accumulate_grad_batches",
        "Loader workers draw other",
        "has the layers' buffers too",
        "NaN does not end",
    ):
        assert part in head
    assert "DistributedSampler" not in head
    bench.close()


@pytest.mark.parametrize(
    ("arguments", "before", "named"),
    [
        (f"{PAIR}, max_epochs=2, find_lr_at={{1}}", "", "lr that was changed during the run"),
        (f"{PAIR}, on_nonfinite='skip'", "", "on_nonfinite='skip'"),
        (
            f"{PAIR}, val=(x, y), early_stopping=wb.EarlyStopping('val_loss', warmup=1)",
            "",
            "EarlyStopping with warmup",
        ),
        (f"{PAIR}, weight_averaging='swa', max_epochs=2", "", "without swa_lrs"),
        (
            f"{PAIR}, weight_averaging='ema', averaging_start_epoch=1, max_epochs=2",
            "",
            "averaging_start_epoch",
        ),
        (
            f"{PAIR}, weight_averaging='ema', avg_fn=torch.optim.swa_utils.get_ema_avg_fn()",
            "",
            "avg_fn",
        ),
        (
            "module, train=(x, y), lr_schedule='cosine'",
            ALONE,
            "lr_schedule or warmup beside a LightningModule",
        ),
        ("module, train=(x, y), weight_decay=0.1", MODULE, "weight_decay beside a LightningModule"),
        ("module, train=(x, y), compile='eager'", MODULE, "torch.compile(module)"),
        ("Plain(), train=(x, y)", PLAIN, "let it inherit"),
    ],
)
def test_what_lightning_cannot_do_is_refused_by_name(
    tmp_path: Path, arguments: str, before: str, named: str
) -> None:
    bench = make_bench(
        tmp_path,
        f"{arguments}, max_epochs=1" if "max_epochs" not in arguments else arguments,
        before,
    )
    bench.fit().result()
    with pytest.raises(wb.ExportError) as error:
        bench.export(tmp_path / "train.py", format="lightning")
    assert named in str(error.value)
    assert not (tmp_path / "train.py").exists()
    bench.close()
