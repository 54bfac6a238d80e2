"""The script of a run of several processes repeats it on as many, to the last bit, and says how to start it so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.export.export_running import Runner, check, lint, make_bench
from workbench.events import RunStarted, Validated
from workbench.export.errors import ExportError
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

# Nine batches of 8, the last of 2: in the last round rank 1 has none. One batch of the validation is short.
COMMON = "batch_size=8, max_epochs=2, devices=2, accelerator='cpu'"
PAIR = f"model, train=(x[:66], y[:66]), val=(x[:41], y[:41]), loss=F.cross_entropy, {COMMON}"


CASES = {
    "windows, clipping, a schedule, averages with batch norm, metrics, checks within epochs": (
        f"{PAIR}, accumulate_grad_batches=2, gradient_clip_val=0.5, lr_schedule='cosine', warmup=2, weight_averaging='ema', "
        "val_check_interval=2, metrics={'right': lambda o, t: (o.argmax(1) == t).float()}, "
        "early_stopping=[wb.EarlyStopping(monitor='train_loss', patience=9)]",
        "",
    ),
    "an object that trains itself, loader workers, mixed precision": (
        f"Own(), train=Noisy(), val=(x[:5], y[:5]), {COMMON}, num_workers=1, drop_last=True, precision='bf16-mixed'",
        "class Noisy(torch.utils.data.Dataset):\n    def __len__(self):\n        return 90\n\n"
        "    def __getitem__(self, i):\n        return x[i] + torch.rand(8), y[i]\n\n\n"
        "class Own(Net):\n    lr = 0.01\n\n"
        "    def training_step(self, batch, batch_idx):\n"
        "        return F.cross_entropy(self(batch[0] + torch.rand(1)), batch[1])\n\n"
        "    def validation_step(self, batch):\n        self.log('val_loss', F.cross_entropy(self(batch[0]), batch[1]))\n\n"
        "    def configure_optimizers(self):\n        made = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)\n"
        "        return [made], [torch.optim.lr_scheduler.StepLR(made, 1, 0.5)]\n",
    ),
    "double precision, several validation sets": (
        f"model.double(), train=(x[:66].double(), y[:66]), val={{'a': (x[:41].double(), y[:41]), 'b': (x[50:57].double(), y[50:57])}}, loss=F.cross_entropy, {COMMON}, "
        "accumulate_grad_batches=2, gradient_clip_val=0.5",
        "",
    ),
    "a float64 loss of a float32 model": (
        f"model, train=(x[:66], y[:66]), val=(x[:41], y[:41]), loss=exact, {COMMON}, accumulate_grad_batches=2, "
        "early_stopping='train_loss'",
        "def exact(output, y):\n    return F.cross_entropy(output.double(), y)\n",
    ),
    "a hook that trains further parameters": (
        f"Unfreezes(), train=(x[:66], y[:66]), {COMMON}, gradient_clip_val=0.3",
        "class Unfreezes(Net):\n    def __init__(self):\n        super().__init__()\n        self.body.requires_grad_(False)\n\n"
        "    def on_train_epoch_start(self):\n        self.train_all()\n\n    def train_all(self):\n"
        "        for parameter in self.body.parameters():\n            parameter.requires_grad = self.current_epoch == 1\n\n"
        "    def training_step(self, batch):\n        return F.cross_entropy(self(batch[0]), batch[1])\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n",
    ),
    "parameters without a gradient, a stream and a sampler that draw": (
        f"net, train=Stream(), val=torch.utils.data.DataLoader(data, 8, sampler=sampler), loss=F.cross_entropy, {COMMON}",
        "import random\n\nimport numpy as np\n\n\nclass Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        "        for i in np.random.permutation(66):\n            yield x[i] + random.random() + torch.rand(8), y[i]\n\n\n"
        "data = torch.utils.data.TensorDataset(x, y)\n"
        "sampler = torch.utils.data.WeightedRandomSampler(torch.ones(100), 30)\n"
        "net = Net()\nnet.unused = nn.Linear(2, 2)\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_on_two_processes(name: str, runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *CASES[name])
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    assert (
        "torchrun --nproc-per-node 2 train.py    (as the run was made: 2 processes)"
        in script.read_text()
    )
    outcome = runner.run_two(script)
    assert "Made on" not in outcome.said
    check(bench, run, outcome)
    bench.close()


def test_on_another_number_of_processes(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, lr_schedule='linear'")
    bench.fit().result()
    one = runner.run(bench.export(tmp_path / "train.py"))
    assert one.said.startswith(
        "Made on 2 processes; with 1 each update takes 1/2 times as many samples.\n"
    )
    assert len(one.losses) == 2 * 9
    assert np.isfinite(one.losses).all()
    assert one.lrs[-1] == pytest.approx(one.lrs[0] / 18)  # the schedule has the length of this run


DATA = "nn.Linear(8, 3), train=(x[:96], y[:96]), val=(x[:40], y[:40]), loss=F.cross_entropy"
PLAIN = f"{DATA}, batch_size=8, max_epochs=2, accelerator='cpu'"
RIGHT = "metrics={'right': lambda o, t: (o.argmax(1) == t).float()}"


@pytest.mark.parametrize("windows", [1, 2])
def test_the_script_of_one_process_records_the_losses_of_all(
    windows: int, runner: Runner, tmp_path: Path
) -> None:
    """On two processes an update has twice as many batches: as in a run that accumulates these."""
    stops = (
        ", early_stopping=[wb.EarlyStopping(monitor='train_loss', patience=9)]"
        if windows == 1
        else ""
    )
    alone = make_bench(tmp_path, f"{PLAIN}, {RIGHT}, accumulate_grad_batches={2 * windows}")
    expected = alone.fit().result()
    bench = make_bench(tmp_path, f"{PLAIN}, {RIGHT}{stops}, accumulate_grad_batches={windows}")
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    two = runner.run_two(script)
    np.testing.assert_allclose(two.losses, expected.history["loss"], rtol=1e-5)
    checks = [event.metrics for event in expected.outline if isinstance(event, Validated)]
    assert len(checks) == len(two.validated) == 2
    for check_of_one, line in zip(checks, two.validated, strict=True):
        assert {name: line[name] for name in check_of_one} == pytest.approx(check_of_one, rel=1e-5)


HEARS = (
    "class Own(Net):\n    def training_step(self, batch, batch_idx):\n        return F.cross_entropy(self(batch[0]), batch[1])\n\n"
    "    def on_before_optimizer_step(self, optimizer):\n        self.seen = True\n\n"
    "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
)
ALONE = "train=(x, y), max_epochs=1, accelerator='cpu'"
REFUSED = {
    "a run of 2 processes in which the optimizer evaluates the loss again": (
        f"model, {ALONE}, loss=F.cross_entropy, optimizer=torch.optim.LBFGS", "",
    ),
    r"a run of 2 processes in which the model overrides hooks within an update \(on_before_optimizer_step\)": (f"Own(), {ALONE}", HEARS),
}  # fmt: skip


@pytest.mark.parametrize("match", REFUSED)
def test_what_only_one_process_repeats(match: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *REFUSED[match])
    run = of_two(bench.fit().result())
    with pytest.raises(ExportError, match=match):
        bench.export(tmp_path / "train.py", run=run, format="script")
    assert not (tmp_path / "train.py").exists()


def of_two(run: wb.Run) -> wb.Run:
    """The same record, as if two processes had made it."""
    events = [
        dataclasses.replace(e, ranks=2) if isinstance(e, RunStarted) else e for e in run.events
    ]
    return Run.from_events(events, run.folder)
