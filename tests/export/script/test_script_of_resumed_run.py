"""Scripts of runs that go on from others: the whole of them, from the first update on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.export.export_running import Runner, check, fit_asking, lint, make_bench
from workbench.export.errors import ExportError

pytestmark = pytest.mark.usefixtures("one_thread")

# seven updates in an epoch
PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, batch_size=16"
NOISY = (
    "class Noisy(torch.utils.data.Dataset):\n    def __len__(self):\n        return 70\n\n"
    "    def __getitem__(self, i):\n        return x[i] + torch.rand(8), y[i]\n"
)
DRAWN = "model, train=Noisy(), val=(x, y), loss=F.cross_entropy, batch_size=10"
EPOCHS = (
    "scheduler=lambda o, updates: wb.Schedule(torch.optim.lr_scheduler.StepLR(o, 1, 0.5), 'epoch')"
)


def stopped(bench: wb.Workbench, at: int, **settings: Any) -> wb.Run:
    """The run of a fit that is stopped after so many updates."""
    run = fit_asking(bench, lambda job, step: job.stop() if step == at else None, **settings)
    assert (run.status, run.step) == ("stopped", at)
    return run


def repeat(bench: wb.Workbench, run: Any, runner: Runner, folder: Path) -> str:
    """The script of the run does what the run did."""
    script = bench.export(folder / "out" / "train.py", run=run)
    check(bench, run, runner.run(script))
    lint(script)
    return script.read_text()


def test_a_run_that_was_stopped_and_continued(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path, f"{DRAWN}, max_epochs=3, weight_averaging='ema', accumulate_grad_batches=2", NOISY
    )
    stopped(bench, 5)
    stopped(bench, 8, start="continue")
    run = bench.fit(start="continue").result()
    assert len(run.history["loss"]) == 12
    text = repeat(bench, run, runner, tmp_path)
    assert "CHANGES" not in text
    assert "max_epochs: int = 3" in text


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "more epochs": (f"{PAIR}", "", {"max_epochs": 2}, {"max_epochs": 4}),
    "more epochs, an end that was checked": (
        f"{PAIR}, check_val_every_n_epoch=3, early_stopping={{'monitor': 'val_loss', 'patience': 2, 'min_delta': 1.0}}",
        "", {"max_epochs": 2}, {"max_epochs": 9},
    ),
    "a length that cuts an epoch short": (f"{DRAWN}", NOISY, {"max_steps": 10}, {"max_steps": 23}),
    "a length that cuts an epoch short, an end that was checked, averages": (
        f"{DRAWN}, weight_averaging='swa', swa_epoch_start=1, val_check_interval=4, "
        "early_stopping={'monitor': 'val_loss', 'patience': 3, 'min_delta': 1.0}",
        NOISY, {"max_steps": 10, "max_epochs": 5}, {"max_steps": 40},
    ),
    "another rate": (f"{PAIR}, {EPOCHS}", "", {"max_epochs": 2}, {"max_epochs": 4, "lr": 0.007}),
    "other settings that change nothing": (
        f"{PAIR}, max_epochs=2", "", {}, {"max_epochs": 3, "save_top_k": 3, "monitor": "val_loss", "detect_anomaly": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_went_on(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before, first, second = CASES[case]
    bench = make_bench(tmp_path, arguments, before)
    begun = bench.fit(**first).result()
    if "averag" in case or "checked" in case:
        assert begun.status == "finished"
    run = bench.fit(start="continue", **second).result()
    assert run.step > begun.step
    repeat(bench, run, runner, tmp_path)


def test_another_rate_within_an_epoch_and_at_its_end(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, {EPOCHS}, max_epochs=4, gradient_clip_val=0.5")
    stopped(bench, 5)
    stopped(bench, 14, start="continue", lr=0.003)
    run = bench.fit(start="continue", lr=0.02, gradient_clip_val=0.1).result()
    assert [change.step for change in run.changes] == [5, 14]
    repeat(bench, run, runner, tmp_path)


def test_from_the_middle_of_a_run(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=3, checkpoint_every=5, save_top_k=-1, lr=0.1")
    first = bench.fit().result()
    run = bench.fit(start=f"{first.id}@5", lr=0.01).result()
    repeat(bench, run, runner, tmp_path)
    check(
        bench,
        bench.fit(start=f"{first.id}@best").result(),
        runner.run(bench.export(tmp_path / "best.py")),
    )


def test_another_rate_where_swa_begins(runner: Runner, tmp_path: Path) -> None:
    averages = (
        "weight_averaging='swa', swa_epoch_start=2, swa_lrs=0.05, save_top_k=-1, checkpoint_every=7"
    )
    bench = make_bench(tmp_path, f"{PAIR}, {EPOCHS}, max_epochs=3, {averages}")
    first = bench.fit().result()
    # In the one all updates of the second epoch are taken, and what follows them is to come; the other is an end.
    run = bench.fit(start=f"{first.id}@14", lr=0.007).result()
    repeat(bench, run, runner, tmp_path)
    run = bench.fit(start=first.id, lr=0.007, max_epochs=5).result()
    repeat(bench, run, runner, tmp_path)


def test_a_change_after_the_last_update_of_an_epoch(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, {EPOCHS}, max_epochs=4")
    run = fit_asking(
        bench, lambda job, step: job.change(lr=0.037 / step) if step in (3, 7, 14) else None
    )
    assert "if step in (7, 14):" in repeat(bench, run, runner, tmp_path)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    r"weight_decay=0\.5 was set where run 0002-fit continues 0001-fit, at update 7": (
        "",
        {"weight_decay": 0.5},
    ),
    r"a batch_size that was changed by hand": ("", {"batch_size": 8}),
    r"max_epochs that was set .*, with a schedule that was made for another length": (
        ", lr_schedule='cosine'",
        {},
    ),
    r"max_epochs that was set .*, with swa_epoch_start=0\.5": (
        ", weight_averaging='swa', swa_epoch_start=0.5",
        {},
    ),
    r"min_epochs.* that was set .*, with early_stopping": (
        ", early_stopping='val_loss'",
        {"min_epochs": 2},
    ),
    r"log_every_n_steps that was set": (", early_stopping='train_loss'", {"log_every_n_steps": 2}),
}


@pytest.mark.parametrize("match", REFUSED)
def test_what_was_edited_and_no_script_replays(match: str, tmp_path: Path) -> None:
    arguments, edits = REFUSED[match]
    bench = make_bench(tmp_path, f"{PAIR}{arguments}")
    bench.fit(max_epochs=1).result()
    bench.fit(start="continue", max_epochs=2, **edits).result()
    with pytest.raises(ExportError, match=match):
        bench.export(tmp_path / "train.py", format="script")
    assert not (tmp_path / "train.py").exists()


def test_a_model_with_hooks(runner: Runner, tmp_path: Path) -> None:
    code = (
        "class Own(Net):\n    def training_step(self, batch, batch_idx):\n"
        "        return F.cross_entropy(self(batch[0]), batch[1]) * (1 + self.global_step % 3 + self.trainer.current_epoch)\n\n"
        "    def validation_step(self, batch, batch_idx):\n        self.log('val_right', self(batch[0]).mean())\n\n"
        "    def configure_optimizers(self):\n        self.seen = 0\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n"
        "    def on_train_batch_start(self, batch, batch_idx):\n        self.seen += 1\n        return -1 if self.seen in (6, 23) else None\n\n"
        "    def on_after_backward(self):\n        self.head.weight.grad *= 1 + 0.1 * (self.seen % 4)\n\n"
        "    def on_validation_epoch_end(self):\n        self.log('val_seen', float(self.seen))\n\n"
        "    def on_train_epoch_end(self):\n        self.seen += 1\n"
    )
    bench = make_bench(
        tmp_path,
        "Own(), train=(x, y), val=(x, y), batch_size=16, max_epochs=4, gradient_clip_val=0.7",
        code,
    )
    stopped(bench, 9)
    run = bench.fit(start="continue").result()
    assert 15 < run.step < 27
    repeat(bench, run, runner, tmp_path)


def test_hooks_that_were_called_again(tmp_path: Path) -> None:
    code = (
        "class Own(Net):\n    def training_step(self, batch, batch_idx):\n        return F.cross_entropy(self(batch[0]), batch[1])\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n"
        "    def on_train_start(self):\n        pass\n"
    )
    bench = make_bench(tmp_path, "Own(), train=(x, y), batch_size=16", code)
    bench.fit(max_epochs=1).result()
    bench.fit(start="continue", max_epochs=2).result()
    with pytest.raises(ExportError, match="on_train_start, called again where the run continues"):
        bench.export(tmp_path / "train.py", format="script")
