"""Headless scripts, in which the workbench trains: they repeat runs that no stand-alone script repeats."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruff import find_ruff_bin

import workbench as wb
from tests.export.export_running import PRELUDE, execute, fit_asking, make_bench
from tests.warm import python
from workbench.export.errors import ExportError, NotStandAlone

PAIR = "model, train=(x, y), loss=F.cross_entropy"


def repeats(bench: wb.Workbench, run: wb.Run, folder: Path) -> str:
    """The headless script of a run repeats it, in an empty folder, in another process; its text."""
    script = bench.export(folder / "out" / "train.py", run.id, format="workbench")
    lint = [find_ruff_bin(), "check", "--isolated", "--no-cache", str(script)]
    said = subprocess.run(lint, capture_output=True, text=True, cwd=script.parent, check=False)
    assert said.returncode == 0, said.stdout
    empty = folder / "empty"
    empty.mkdir()
    ended = python().run(str(script), folder=empty)
    assert ended.returncode == 0, ended.stderr
    words = " ".join(ended.stdout.split())
    assert f" fit {run.status} updates {run.step} " in words
    *_, last = sorted(path.parent for path in empty.rglob("run.json"))
    again = wb.Run.open(last)
    for name in ("loss", "lr"):
        assert np.array_equal(again.history[name], run.history[name], equal_nan=True), name
    for name, values in run.validation.items():
        assert np.array_equal(again.validation[name], values, equal_nan=True), name
    bench.close()
    return script.read_text()


MODULE = """
import lightning.pytorch as L


class Stops(L.Callback):
    def on_train_batch_end(self, trainer, module, *rest):
        trainer.should_stop = trainer.global_step > 5


class Loop(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, batch_idx):
        self.log("seen", float(len(self.trainer.callback_metrics)))
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)
"""
NO_MODULE = """
class Loop:
    def __init__(self):
        self.net = Net()

    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-3)
"""
OWN_NAMES = """
batches = wb.batches([(x[:50], y[:50]), (x[50:], y[50:])])
job = main = run = 3


def paced(optimizer, updates):
    return wb.Schedule(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))


def right(output, target):
    return (output.argmax(1) == target).float().mean() * job / run
"""
RUNS = {
    "callbacks with hooks, callback_metrics": (
        "Loop(), train=(x, y), val=(x, y), max_epochs=3, "
        "callbacks=[Stops(), L.callbacks.EarlyStopping('val_loss', patience=5)]",
        MODULE,
    ),
    "functions at hooks": (
        "model, train=(x, y), loss=F.cross_entropy, max_epochs=2, hooks={'on_after_backward': halve}",
        "def halve(model):\n    for parameter in model.parameters():\n        parameter.grad.mul_(0.5)\n",
    ),
    "an object that is no module": ("Loop(), train=(x, y), max_epochs=1", NO_MODULE),
    "an iterator": ("model, train=iter([(x, y)] * 4), loss=F.cross_entropy, max_epochs=1", ""),
    "parts of the workbench, and the script's own names": (
        "model, train=batches, val=(x, y), loss=F.cross_entropy, scheduler=paced, max_steps=3, "
        "metrics={'right': wb.over_epoch(right)}, "
        "early_stopping=wb.EarlyStopping('val_loss', patience=9)",
        OWN_NAMES,
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_it_repeats_the_run(case: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *RUNS[case])
    repeats(bench, bench.fit().result(), tmp_path)


def test_live_changes_and_the_stop_are_repeated(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path,
        f"{PAIR}, val=(x, y), max_epochs=6, seed=5, lr_schedule='cosine', gradient_clip_val=1.0",
    )
    values: dict[int, dict[str, Any]] = {
        3: {"lr": 0.02},
        4: {"gradient_clip_val": 0.1},
        6: {"accumulate_grad_batches": 2},
    }

    def ask(job: Any, step: int) -> None:
        if step in values:
            job.change(**values[step])
        if step == 9:
            job.stop()

    text = repeats(bench, fit_asking(bench, ask), tmp_path)
    assert "    job.change(lr=0.02, at=3)\n" in text
    assert "    job.stop(at=9)\n" in text


def test_a_run_that_continues_others_with_other_settings(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=2, lr_schedule='cosine', weight_decay=0.1")
    fit_asking(bench, lambda job, step: job.stop() if step == 5 else None)
    bench.fit("continue", weight_decay=0.3).result()
    run = bench.fit("continue", max_epochs=3, lr_schedule="constant").result()
    text = repeats(bench, run, tmp_path)
    assert 'bench.fit("continue", weight_decay=0.3)' in text


def test_a_bench_made_in_a_loop_by_a_function(tmp_path: Path) -> None:
    """With a model that a fit has trained before."""
    code = f"""{PRELUDE}

def make(width, lr):
    net = Net(width)
    net.head.register_forward_hook(lambda module, inputs, output: output * 0.5)

    def loss(output, target):
        return F.cross_entropy(output, target) * width / 16

    return wb.Workbench(
        net, train=(x, y), loss=loss, lr=lr, max_steps=3, accelerator="cpu",
        root={str(tmp_path / "runs")!r},
    )


for width in (8, 12):
    bench = make(width, 1e-2 / width)
    bench.fit().result()
    bench.load("0001-fit" if width == 8 else "0003-fit")
    run = bench.fit().result()
"""
    made = execute(tmp_path / "user.py", code)
    repeats(made["bench"], made["run"], tmp_path)


# ---- when it is written --------------------------------------------------------------------------

TIMED = f"{PAIR}, val=(x, y), max_epochs=1, val_check_interval='00:00:10:00'"


def test_it_is_written_where_a_stand_alone_script_is_not_possible(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, TIMED)
    bench.fit().result()
    why = "a stand-alone script does not support a val_check_interval that is a time"
    with pytest.warns(UserWarning, match=rf"headless script, which needs the workbench: {why}"):
        text = bench.export(tmp_path / "train.py").read_text()
    assert why in " ".join(text.split())
    assert (tmp_path / "train.start.safetensors").exists()
    assert bench.script() == text
    bench.export(tmp_path / "train.py", format="workbench")  # it is export's own, and replaced
    remedy = rf"{why}\. A headless script has it.*bench\.export\('train\.py', format='workbench'\)"
    for options in ({"format": "script"}, {"format": "notebook"}, {"data": "beside"}):
        with pytest.raises(NotStandAlone, match=remedy):
            bench.script(**options)  # type: ignore[arg-type]
    for options in ({"data": "beside"}, {"base": "nn.Module"}):
        with pytest.raises(ExportError, match="format='workbench' has no"):
            bench.script(format="workbench", **options)  # type: ignore[arg-type]
    bench.close()


def test_it_has_options_for_the_settings(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_steps=4, lr=0.5")
    bench.fit().result()
    script = bench.export(tmp_path / "train.py", format="workbench")
    ended = python().run(str(script), "--lr", "0.25", "--max_steps", "2", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    words = " ".join(ended.stdout.split())
    assert "updates 2 " in words
    assert "lr 0.25" in words
    beyond = script.read_text().partition("# ---- the training")[2].splitlines()
    assert len([line for line in beyond if line.strip()]) <= 30
    bench.close()
