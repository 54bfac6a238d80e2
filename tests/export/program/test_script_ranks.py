"""The script of a run of several processes repeats it on as many, to the last bit, and says how to start it so."""

from __future__ import annotations

import dataclasses
import re
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
        f"{PAIR}, accumulate_grad_batches=2, gradient_clip_val=0.5, lr_schedule='cosine', "
        "warmup=2, val_check_interval=2, weight_averaging='ema', "
        "metrics={'right': lambda o, t: (o.argmax(1) == t).float()}, "
        "early_stopping=[wb.EarlyStopping(monitor='train_loss', patience=9)]",
        "",
    ),
    "an object that trains itself, loader workers, mixed precision": (
        f"Own(), train=Noisy(), val=(x[:5], y[:5]), {COMMON}, num_workers=1, drop_last=True, "
        "precision='bf16-mixed', accumulate_grad_batches=2",
        """\
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, i):
        return x[i] + torch.rand(8), y[i]


class Own(Net):
    lr = 0.01

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0] + torch.rand(1) * batch_idx), batch[1])

    def validation_step(self, batch):
        self.log('val_loss', F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
""",
    ),
    "double precision, several validation sets, an average of the weights": (
        "nn.Linear(8, 3).double(), train=(x[:66].double(), y[:66]), val={'a': (x[:41].double(), "
        f"y[:41]), 'b': (x[50:57].double(), y[50:57])}}, loss=F.cross_entropy, {COMMON}, "
        "weight_averaging='ema', limit_train_batches=4",
        "",
    ),
    "ready batches": (
        "model, train=wb.batches([(x[i : i + 8], y[i : i + 8]) for i in range(0, 66, 8)]), "
        "val=wb.batches([(x[:30], y[:30])]), loss=F.cross_entropy, max_epochs=2, devices=2, "
        "accelerator='cpu', accumulate_grad_batches=2",
        "",
    ),
    "a float64 loss of a float32 model": (
        f"model, train=(x[:66], y[:66]), val=(x[:41], y[:41]), loss=exact, {COMMON}, "
        "early_stopping='train_loss'",
        "def exact(output, y):\n    return F.cross_entropy(output.double(), y)\n",
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
    alone = runner.run(bench.export(tmp_path / "train.py"))
    assert alone.said.startswith("Made on 2 processes:")
    assert len(alone.losses) == 2 * 9
    assert np.isfinite(alone.losses).all()
    # The schedule has the length of this training.
    assert alone.lrs[-1] == pytest.approx(alone.lrs[0] / 18)


def test_the_script_of_one_process_on_two(runner: Runner, tmp_path: Path) -> None:
    """An update has twice as many batches: the validations are those of a run that accumulates."""
    data = "nn.Linear(8, 3), train=(x[:96], y[:96]), val=(x[:40], y[:40]), loss=F.cross_entropy"
    right = "metrics={'right': lambda o, t: (o.argmax(1) == t).float()}"
    common = f"{data}, {right}, batch_size=8, max_epochs=2, accelerator='cpu'"
    expected = make_bench(tmp_path, f"{common}, accumulate_grad_batches=2").fit().result()
    bench = make_bench(
        tmp_path, f"{common}, early_stopping=[wb.EarlyStopping(monitor='train_loss', patience=9)]"
    )
    bench.fit().result()
    two = runner.run_two(bench.export(tmp_path / "train.py"))
    checks = [event.metrics for event in expected.outline if isinstance(event, Validated)]
    assert len(checks) == len(two.validated) == 2
    for metrics, line in zip(checks, two.validated, strict=True):
        assert {name: line[name] for name in metrics} == pytest.approx(metrics, rel=1e-5)


def test_a_script_of_one_process_does_not_grow(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path, "model, train=(x, y), val=(x, y), loss=F.cross_entropy, max_epochs=1"
    )
    bench.fit().result()
    text = bench.export(tmp_path / "train.py").read_text()
    assert not {"Share", "rounds", "broadcast", "SeedSequence"} & set(re.findall(r"\w+", text))


ALONE = "train=(x, y), loss=F.cross_entropy, max_epochs=1, accelerator='cpu'"
PARTS = """
class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 3))

    def forward(self, embedding, target):
        return F.cross_entropy(embedding @ self.centres.T, target)


class Right:
    def reset(self):
        self.right = 0

    def update(self, output, target):
        self.right += int((output.argmax(1) == target).sum())

    def compute(self):
        return self.right
"""
REFUSED = {
    "in which the optimizer evaluates the loss again": f"model, {ALONE}, optimizer=torch.optim.LBFGS",
    "with a loss that is trained": f"model, {ALONE.replace('F.cross_entropy', 'Centres()')}",
    "with metrics that keep a state": f"model, {ALONE}, val=(x, y), metrics={{'right': Right()}}",
    "whose data draw random numbers of the process": (
        "model, train=torch.utils.data.DataLoader(list(zip(x, y)), 8, sampler=torch.utils.data."
        "WeightedRandomSampler(torch.ones(100), 30)), loss=F.cross_entropy, max_epochs=1"
    ),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_is_not_in_a_stand_alone_script(match: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, REFUSED[match], PARTS)
    run = of_two(bench.fit().result())
    with pytest.raises(ExportError, match=f"a run of 2 processes {match}"):
        bench.export(tmp_path / "train.py", run=run, format="script")
    assert not (tmp_path / "train.py").exists()


def of_two(run: wb.Run) -> wb.Run:
    """The same record, as if two processes had made it."""
    events = [
        dataclasses.replace(e, ranks=2) if isinstance(e, RunStarted) else e for e in run.events
    ]
    return Run.from_events(events, run.folder)
