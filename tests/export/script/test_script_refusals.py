"""What a stand-alone script does not support is refused by name; a headless one has it. What no code makes is refused by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.export.export_running import PRELUDE, execute, make_bench
from workbench.engine import loop
from workbench.export import read_run
from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.file_format import Format
from workbench.export.supported import NOT_NEEDED, REFUSED, REPLAYED, SUPPORTED
from workbench.settings import Settings, metadata_of

PAIR = "model, train=(x, y), loss=F.cross_entropy"
OLD = '"""An older export.\n\nWritten by Tuning Workbench 0.0.\n"""\n'


def refused(
    bench: wb.Workbench,
    folder: Path,
    match: str,
    run: str | None = None,
    format: Format | None = None,
) -> None:
    """Exporting says why not, and leaves what was there."""
    folder.mkdir(exist_ok=True)
    there = folder / "train.py"
    there.write_text(OLD)
    with pytest.raises(ExportError, match=match):
        bench.export(there, run=run, format=format)
    with pytest.raises(ExportError, match=match):
        bench.export(folder / "new" / "train.py", run=run, format=format)
    assert list(folder.iterdir()) == [there]
    assert there.read_text() == OLD


def test_every_setting_is_carried_or_not_needed_or_refused() -> None:
    fields = set(Settings.model_fields)
    assert fields == SUPPORTED | NOT_NEEDED | set(REFUSED)
    assert len(fields) == len(SUPPORTED) + len(NOT_NEEDED) + len(REFUSED)
    assert {name for name in fields if metadata_of(name).live} <= REPLAYED | NOT_NEEDED
    assert REPLAYED <= SUPPORTED


CASES = {
    r"iterator.*give a Dataset": (
        "model, train=iter([(x, y)] * 9), loss=F.cross_entropy, max_epochs=1",
        "",
    ),
    r"model=Loop is not an nn\.Module: make it one": (
        "Loop(), train=(x, y), max_epochs=1",
        "class Loop:\n    def __init__(self):\n        self.net = Net()\n\n    def training_step(self, batch, index):\n"
        "        return F.cross_entropy(self.net(batch[0]), batch[1])\n\n    def configure_optimizers(self):\n"
        "        return torch.optim.Adam(self.net.parameters(), lr=1e-3)\n",
    ),
    r"Groups, the sampler of train, gives 1 in epoch 0 and 3 in epoch 2: the run left out": (
        "model, train=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_sampler=Groups()), loss=F.cross_entropy, max_epochs=3",
        "class Groups:\n    epoch = 0\n\n    def __len__(self):\n        return 1 + self.epoch\n\n    def __iter__(self):\n"
        "        return iter([[n, n + 1] for n in range(len(self))])\n\n    def set_epoch(self, epoch):\n        self.epoch = epoch\n",
    ),
    r"seed=4294967296": (f"{PAIR}, max_epochs=1, seed=2**32", ""),
    r"model=Own is a Task of its own kind": (
        "Own(), train=(x, y), max_epochs=1",
        "from workbench.task.protocol import Optimization, Scores, Task\n\n\nclass Own(Task):\n    model = Net()\n\n"
        "    def training_step(self, batch, index):\n        return F.cross_entropy(self.model(batch[0]), batch[1])\n\n"
        "    def validation_step(self, batch, index, stage='val'):\n        return Scores({}, 1.0)\n\n"
        "    def configure(self, settings, updates):\n"
        "        return Optimization(torch.optim.Adam(self.model.parameters(), lr=settings.lr))\n",
    ),
    r"val\['b'\] is read in another way than val\['a'\] \(dataset": (
        f"{PAIR}, val={{'a': torch.utils.data.TensorDataset(x, y), 'b': torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y))}}, max_epochs=1",
        "",
    ),
    r"the sets of val \(a, b\) are no data sets with samples by number": (
        f"{PAIR}, val={{'a': wb.batches([(x, y)]), 'b': wb.batches([(x, y)])}}, max_epochs=1",
        "",
    ),
    r"a val_check_interval that is a time": (
        f"{PAIR}, val=(x, y), max_epochs=1, val_check_interval='00:00:00:01'",
        "",
    ),
    r"gradient_clip_val with sparse gradients": (
        "Words(), train=(x.long().abs() % 4, y), loss=F.cross_entropy, optimizer=torch.optim.SGD, max_epochs=1, gradient_clip_val=1.0",
        "class Words(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(4, 3)\n"
        "        self.weight = nn.Parameter(torch.randn(4, 4))\n\n    def forward(self, x):\n"
        "        return self.head(F.embedding(x, self.weight, sparse=True).mean(1))\n",
    ),
    r"an optimizer that evaluates the loss again, with on_nonfinite='skip'": (
        f"{PAIR}, max_epochs=1, on_nonfinite='skip', optimizer=torch.optim.LBFGS",
        "",
    ),
    r"batch-norm statistics of data without a length": (
        "model, train=Endless(), loss=F.cross_entropy, max_steps=3, weight_averaging='ema'",
        "class Endless(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        while True:\n            yield x[0], y[0]\n",
    ),
    r"several optimizers": (
        "Turns(), train=(x, y), max_steps=2, warmup=1",
        "class Turns(Net):\n    def training_step(self, batch, batch_idx, optimizer_idx):\n"
        "        return F.cross_entropy(self(batch[0]), batch[1])\n\n    def configure_optimizers(self):\n"
        "        parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body, self.head)]\n"
        "        return tuple({'optimizer': one, 'frequency': 2} for one in parts)\n",
    ),
    r"an optimizer that evaluates the loss again, with batches that are left out": (
        f"{PAIR.replace('F.cross_entropy', 'sometimes')}, max_epochs=1, optimizer=torch.optim.LBFGS",
        "def sometimes(output, target):\n    return None if len(output) < 9 else F.cross_entropy(output, target)\n",
    ),
    r"a sampler of your own that is read again": (
        "model, train=loader, loss=F.cross_entropy, max_epochs=1, weight_averaging='ema'",
        "data = torch.utils.data.TensorDataset(x, y)\nsampler = torch.utils.data.WeightedRandomSampler(torch.ones(100), 50)\n"
        "loader = torch.utils.data.DataLoader(data, 10, sampler=sampler)\n",
    ),
}


@pytest.mark.parametrize("match", CASES)
def test_what_only_a_headless_script_carries(match: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *CASES[match])
    bench.fit().result()
    refused(bench, tmp_path / "out", match, format="script")
    with pytest.warns(UserWarning, match=f"headless script.*{match}"):
        text = bench.export(tmp_path / "train.py", checks=False, log_file=False).read_text()
    assert " = wb.Workbench(\n" in text
    assert ".load(Path(__file__)" in text
    bench.close()


def test_options_of_stand_alone_scripts_are_refused_elsewhere(tmp_path: Path) -> None:
    skips = "an optimizer that evaluates the loss again, with on_nonfinite='skip'"
    bench = make_bench(tmp_path, *CASES[skips])
    bench.fit().result()
    for name in ("resume", "checks", "log_file", "tracker"):
        options: dict[str, Any] = {"checks": False, name: True}
        with pytest.raises(NotStandAlone, match=f"{skips}.*A headless script has it"):
            bench.export(tmp_path / "train.py", **options)
        for format in ("workbench", "lightning", "settings"):
            with pytest.raises(ExportError, match=f"format='{format}' has no {name}=True"):
                bench.script(format=format, **options)
    assert not (tmp_path / "train.py").exists()
    bench.close()


def test_runs_that_cannot_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1")
    refused(bench, tmp_path / "out", "no finished fit")
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1")
    found = bench.find_lr(num_training=5)
    found.result()
    refused(bench, tmp_path / "out", "is a find_lr that finished", run=found.id)

    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1")
    bench.fit().result()
    monkeypatch.setattr(loop, "train_step", lambda *_: 1 / 0)
    job = bench.fit()
    with pytest.raises(ZeroDivisionError):
        job.result()
    refused(bench, tmp_path / "out", "is a fit that failed", run=job.id)
    other = make_bench(tmp_path, "Net(20), train=(x, y), loss=F.cross_entropy")
    refused(
        other,
        tmp_path / "out",
        "trained a model of 227 parameters, and this bench has one of 283",
        run=bench.jobs[0].id,
    )


def test_a_trial_run(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1, fast_dev_run=1")
    run = bench.fit().result()
    with pytest.raises(
        NotStandAlone,
        match="a stand-alone script does not support fast_dev_run=1: it was a dry run",
    ):
        bench.export(tmp_path / "train.py", run=run, format="script")
    assert not (tmp_path / "train.py").exists()
    assert "fast_dev_run=1" in bench.script(run, format="workbench", checks=False, log_file=False)
    bench.close()


def test_a_setting_without_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1, weight_decay=0.5")
    bench.fit().result()
    monkeypatch.setattr(read_run, "SUPPORTED", SUPPORTED - {"weight_decay"})
    refused(bench, tmp_path / "out", r"does not support weight_decay=0\.5", format="script")
    bench.close()


def test_a_name_that_no_code_makes(tmp_path: Path) -> None:
    code = f"{PRELUDE}\nglobals().update(dict(hidden=(x, y)))\n"
    code += f"bench = wb.Workbench(model, train=hidden, loss=F.cross_entropy, max_epochs=1, root={str(tmp_path)!r})\n"
    bench = execute(tmp_path / "user.py", code)["bench"]
    bench.fit().result()
    refused(bench, tmp_path / "out", "hidden")
