"""Scripts with their data beside them (`data="beside"`): what is saved, what is refused, and which code is left out."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import workbench as wb
from tests import warm
from tests.export.export_running import (
    PRELUDE,
    Runner,
    check,
    lint,
    make_bench,
)
from workbench.export.errors import ExportError
from workbench.export.inputs import saved_data

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy, max_epochs=1"
UNSEEDED = PRELUDE.replace(
    "torch.manual_seed(0)", "import numpy as np\nfrom torch.utils.data import *"
)
READS = (
    "class Reads(Dataset):\n    def __init__(self, rows):\n        self.rows = rows\n\n    def __len__(self):\n        return len(self.rows)\n\n"
    "    def __getitem__(self, index):\n        return SAMPLE\n\n\n"
)
CONV = "nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 3))"

SAVED = {
    "arrays": ("model, train=(x, y), val=(x[:30], y[:30]), loss=F.cross_entropy, max_epochs=2", ""),
    "arrays of another order in memory, from a file that is gone": (
        f"{CONV}, train=(images, y[:40]), loss=F.cross_entropy, max_epochs=2",
        "import os\n\nnp.save(FOLDER + '/images.npy', np.random.default_rng().normal(size=(40, 8, 8, 3)).astype('float32'))\n"
        "images = np.load(FOLDER + '/images.npy').transpose(0, 3, 1, 2)\nos.remove(FOLDER + '/images.npy')\n",
    ),
    "what random_split returns": (
        "model, train=half, val=DataLoader(other, 20), loss=F.cross_entropy, max_epochs=2",
        "half, other = random_split(TensorDataset(x, y), [60, 40])\n",
    ),
    "a loader with a generator, and one data set twice": (
        "model, train=loader, val=data, loss=F.cross_entropy, max_epochs=2",
        "data = TensorDataset(x, y)\nloader = DataLoader(data, 16, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(int(np.random.default_rng().integers(99))))\n",
    ),
    "a data set of numbers and arrays": (
        "model, train=Reads(x), val=Subset(Reads(x), range(9)), loss=F.cross_entropy, max_epochs=1, num_workers=1, prefetch_factor=2",
        READS.replace("SAMPLE", "self.rows[index].numpy(), int(self.rows[index].sum() > 0)"),
    ),
    "a data set of dicts, with a generator of its own": (
        "model, train=Reads(drawn), loss=F.cross_entropy, max_epochs=1",
        "drawn = torch.from_numpy(np.random.default_rng().normal(size=(50, 8)).astype('float32'))\n\n\n"
        + READS.replace("SAMPLE", "{'x': self.rows[index], 'label': np.int64(index % 3)}"),
    ),
    "a collate function that draws": (
        "model, train=[(one, label) for one, label in zip(x, y)], loss=F.cross_entropy, max_epochs=1, collate_fn=noisy",
        "def noisy(samples):\n    inputs, labels = map(torch.stack, zip(*samples))\n    return inputs + torch.randn_like(inputs), labels\n",
    ),
    "a collate function for validation alone": (
        "model, train=[(one, label) for one, label in zip(x, y)], val=list(zip(x, y)), loss=F.cross_entropy, max_epochs=1, val_collate_fn=halved",
        "def halved(samples):\n    inputs, labels = map(torch.stack, zip(*samples))\n    return inputs / 2, labels\n",
    ),
    "one tensor": (
        "Own(), train=x, max_epochs=1",
        "class Own(Net):\n    def training_step(self, batch, batch_idx):\n        return self(batch).square().mean()\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), 0.1)\n",
    ),
}


@pytest.fixture(autouse=True)
def unlike_another_process() -> None:
    torch.seed()


def bench_of(folder: Path, arguments: str, before: str = "") -> wb.Workbench:
    """A bench whose data are drawn without a seed."""
    return make_bench(
        folder, arguments, before.replace("FOLDER", repr(str(folder))), prelude=UNSEEDED
    )


def fitted(folder: Path, arguments: str = PAIR, before: str = "") -> tuple[wb.Workbench, Any]:
    bench = bench_of(folder, arguments, before)
    return bench, bench.fit().result()


@pytest.mark.parametrize("case", SAVED)
def test_the_script_repeats_the_run_on_saved_data(
    case: str, tmp_path: Path, runner: Runner
) -> None:
    bench, run = fitted(tmp_path, *SAVED[case])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        script = bench.export(tmp_path / "out" / "train.py", data="beside")
    assert sorted(file.name for file in script.parent.iterdir()) == [
        "train.data.safetensors",
        "train.py",
        "train.start.safetensors",
    ]
    check(bench, run, runner.run(script))
    lint(script)
    text = script.read_text()
    assert text.count("train.data.safetensors") == 2
    assert not any(
        word in text
        for word in ("randn(100", "random_split", "default_rng", "class Reads", "np.load")
    )
    bench.close()


def test_a_tensor_that_both_read_is_saved_once(tmp_path: Path) -> None:
    bench, _ = fitted(
        tmp_path, "model, train=(x, y), val=(x, y), loss=F.cross_entropy, max_epochs=1"
    )
    bench.export(tmp_path / "train.py", data="beside")
    assert set(load_file(tmp_path / "train.data.safetensors")) == {"train.0", "train.1"}


def test_what_the_model_reads_stays(tmp_path: Path, runner: Runner) -> None:
    bench, run = fitted(tmp_path, "Net(width), train=(x, y), test=(x, z), loss=nn.CrossEntropyLoss(weights), max_epochs=1", (
        "width = 2 * x.shape[1]\nweights = torch.rand(3)\nz = np.random.permutation(y)\n"
    ))  # fmt: skip
    script = bench.export(tmp_path / "train.py", data="beside")
    text = script.read_text()
    assert "x = torch.randn(100, 8)" in text
    assert "permutation" not in text
    assert len(runner.run(script).losses) == len(run.history["loss"])


def test_without_its_data_it_ends_at_once(tmp_path: Path, runner: Runner) -> None:
    bench, _ = fitted(tmp_path)
    script = bench.export(tmp_path / "train.py", data="beside")
    (tmp_path / "train.data.safetensors").unlink()
    with pytest.raises(AssertionError, match=r"FileNotFoundError: .*train\.data\.safetensors"):
        runner.run(script)


REFUSED = {
    r"cannot save train, which draws random numbers or changes when it reads a sample \(Reads\): put the random part into collate_fn": (
        "model, train=Reads(x), loss=F.cross_entropy, max_epochs=1",
        READS.replace("SAMPLE", "self.rows[index] + torch.rand(1), 0"),
    ),
    r"cannot save val, which draws random numbers .*set a seed": (
        "model, train=(x, y), val=Own(x), loss=F.cross_entropy, max_epochs=1",
        READS.replace("SAMPLE", "self.rows[index] + self.own.normal(), 0")
        + "class Own(Reads):\n    own = np.random.default_rng(0)\n\n    def __getitem__(self, index):\n"
        "        return self.rows[index] + np.float32(self.own.normal()), 0\n",
    ),
    r"train, which has a loader with sampler=WeightedRandomSampler": (
        "model, train=DataLoader(TensorDataset(x, y), 10, sampler=WeightedRandomSampler(torch.ones(100), 50)), loss=F.cross_entropy, max_epochs=1",
        "",
    ),
    r"train, which has a loader with a collate_fn, .*: give it to the Workbench \(collate_fn=": (
        "model, train=DataLoader(TensorDataset(x, y), 10, collate_fn=lambda s: default_collate(s)), loss=F.cross_entropy, max_epochs=1",
        "",
    ),
    r"train, which gives ready batches": (
        "model, train=wb.batches([(x, y), (x, y)]), loss=F.cross_entropy, max_epochs=1",
        "",
    ),
    r"train, which is an IterableDataset \(Stream\)": (
        "model, train=Stream(), loss=F.cross_entropy, max_epochs=1",
        "class Stream(IterableDataset):\n    def __iter__(self):\n        return iter(zip(x, y))\n",
    ),
    r"train, which has a str in its samples \(Reads\), and only tensors and numbers are saved": (
        "Named(), train=Reads(x), loss=F.cross_entropy, max_epochs=1",
        "class Named(Net):\n    def forward(self, x, name):\n        return super().forward(x)\n\n\n"
        + READS.replace("SAMPLE", "{'x': self.rows[index], 'y': 1, 'name': 'a'}"),
    ),
    r"train, which has a int in its samples \(list\), and only tensors are saved where there is a collate_fn": (
        "model, train=[(one, 0) for one in x], loss=F.cross_entropy, max_epochs=1, collate_fn=lambda s: default_collate(s)",
        "",
    ),
    r"train, which is made by train_dataloader\(\): give what it makes": (
        "model, train=Makes(), loss=F.cross_entropy, max_epochs=1",
        "import lightning as L\n\n\nclass Makes(L.LightningDataModule):\n    def train_dataloader(self):\n        return DataLoader(TensorDataset(x, y), 10)\n",
    ),
    r"train, which asks which epoch it is \(Epochs\.set_epoch\)": (
        "model, train=Epochs(x, y), loss=F.cross_entropy, max_epochs=1",
        "class Epochs(TensorDataset):\n    def set_epoch(self, epoch):\n        pass\n",
    ),
    r"would save 4 kB, and at most 3 kB are saved: write the data to a file": (PAIR, ""),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_cannot_be_saved_is_named(
    match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = fitted(tmp_path, *REFUSED[match])
    if "kB" in match:
        monkeypatch.setattr(saved_data, "MOST", 3000)
    state = torch.get_rng_state()
    with pytest.raises(ExportError, match=match):
        bench.export(tmp_path / "out" / "train.py", data="beside")
    assert torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "out").exists()
    bench.close()


@pytest.mark.parametrize(
    ("arguments", "before", "change"),
    [
        (
            "model, train=data",
            "class Holds(Dataset):\n    offset = 0.0\n\n    def __len__(self):\n        return 9\n\n    def __getitem__(self, i):\n"
            "        return x[i] + self.offset, y[i]\n\n\ndata = Holds()\nmodel.held = [data]\n",
            lambda data: setattr(data, "offset", 1.0),
        ),
        (
            "model, train=loader, collate_fn=lambda s: default_collate(s)",
            "loader = DataLoader(TensorDataset(x, y), 10, shuffle=True, generator=torch.Generator().manual_seed(3))\nmodel.held = [loader]\n",
            list,
        ),
    ],
    ids=["values", "generator"],
)
def test_data_that_have_changed_since_the_run_are_measured(
    arguments: str, before: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm.python().executable))
    bench, _ = fitted(tmp_path, f"{arguments}, loss=F.cross_entropy, max_epochs=1", before)
    change(bench.model.held[0])  # type: ignore[union-attr, index]
    with pytest.warns(UserWarning, match="it does not repeat the run: at update 1"):
        bench.export(tmp_path / "train.py", data="beside", verify=True)
    bench.close()


def test_arguments_and_files_that_do_not_fit(tmp_path: Path) -> None:
    bench, _ = fitted(tmp_path)
    with pytest.raises(ExportError, match="data='inside' is unknown: give 'beside'"):
        bench.export(tmp_path / "train.py", data="inside")  # type: ignore[arg-type]
    with pytest.raises(ExportError, match="format='settings' has no data='beside'"):
        bench.export(tmp_path / "settings.yaml", data="beside", checks=False, log_file=False)
    file = tmp_path / "train.data.safetensors"
    file.write_text("mine")
    with pytest.raises(ExportError, match=r"train\.data\.safetensors exists without the script"):
        bench.export(tmp_path / "train.py", data="beside")
    assert file.read_text() == "mine"
    file.unlink()
    assert (
        bench.script(data="beside")
        == bench.export(tmp_path / "train.py", data="beside").read_text()
    )
