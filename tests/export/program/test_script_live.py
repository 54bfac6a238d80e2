"""A script of a run whose number of batches in an update was changed while it went on: it makes the same updates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import workbench as wb
from tests.export.export_running import Runner, check, fit_asking, make_bench
from workbench.export.errors import ExportError
from workbench.launch.job import Job
from workbench.runs.run import Run

PAIR = "model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.AdamW, batch_size=8"
HOOKED = """\
class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.lr = Net(), 0.05

    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
"""
SKIPS = HOOKED.replace(
    "        return F.cross",
    "        if index == 5:\n            return None\n        return F.cross",
)


def changed(bench: wb.Workbench, sizes: Mapping[int, int]) -> Run:
    """The fit of a bench in which so many batches make an update from these updates on; beside it ratios are measured."""

    def ask(job: Job[wb.Run], step: int) -> None:
        if step in sizes:
            job.change(accumulate_grad_batches=sizes[step], track_update_ratio=step % 2 == 0)
            job.change(accumulate_grad_batches=sizes[step])

    run = fit_asking(bench, ask)
    assert [change.step for change in run.changes] == [step for step in sizes for _ in range(2)]
    return run


EARLY = "wb.EarlyStopping(monitor='val_loss', patience=4, min_delta=0.5)"
CASES = {
    "in the middle of an epoch": ("max_epochs=3", {3: 4, 9: 2}),
    "behind an epoch": ("max_epochs=3", {13: 3}),
    "from more to one": ("max_epochs=2, accumulate_grad_batches=4", {2: 1}),
    "a schedule that is outlasted": (
        "max_epochs=2, accumulate_grad_batches=4, lr_schedule='one_cycle'",
        {1: 1},
    ),
    "a schedule that is not": ("max_epochs=3, lr_schedule='cosine', warmup=0.2", {4: 3}),
    "a length in updates": ("max_steps=20", {5: 2}),
    "checks within epochs": (
        "max_epochs=3, val=(x, y), val_check_interval=0.25, early_stopping=" + EARLY,
        {3: 2, 11: 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_its_updates_are_those_of_the_run(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, sizes = CASES[case]
    bench = make_bench(tmp_path, f"{PAIR}, {arguments}")
    run = changed(bench, sizes)
    check(bench, run, runner.run(bench.export(tmp_path / "out" / "train.py")))


def test_with_what_a_person_has_asked_for(runner: Runner, tmp_path: Path) -> None:
    """Looks at the validation data and checkpoints, also at the end of an epoch."""
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=3, val=(x, y), lr_schedule='linear'")

    def ask(job: Job[wb.Run], step: int) -> None:
        if step in (5, 13):
            job.validate()
            job.checkpoint()
            job.change(lr=0.1 / step)
            job.validate()

    run = fit_asking(bench, ask)
    # asked for twice before one update: done once
    assert list(run.validation["step"]) == [5, 13, 13, 26, 39]
    check(bench, run, runner.run(bench.export(tmp_path / "out" / "train.py")))


OBJECT = "Hooked(), train=(x, y), max_epochs=2, batch_size=8"
REFUSED = [
    ("in a plan by epochs", f"{PAIR}, max_epochs=2, accumulate_grad_batches={{0: 1, 1: 2}}", ""),
    ("with batches that are left out", OBJECT, SKIPS),
]


@pytest.mark.parametrize(("why", "arguments", "before"), REFUSED)
def test_what_no_script_carries_yet(why: str, arguments: str, before: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, arguments, f"{before}\n\n")
    changed(bench, {3: 2})
    with pytest.raises(ExportError, match=f"accumulate_grad_batches that was changed, {why}"):
        bench.export(tmp_path / "out" / "train.py", format="script")
