"""The hooks of Lightning-like objects in an exported script: each at its moment, and the numbers of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import workbench as wb
from tests.combinations import every
from tests.export.export_running import Runner, check, fit_asking, lint, make_bench, repeats
from tests.export.program.lightning.export_hooked import (
    ASKS,
    DATA,
    EVERY,
    LOGS,
    MANUAL,
    MOVED,
    PRELUDE,
    SAMPLES,
    SHORT,
    STEPS,
    TOLD,
)
from tests.warm import Warm
from workbench.export.errors import ExportError
from workbench.techniques.precision import Precision

pytestmark = pytest.mark.usefixtures("one_thread")

CASES: dict[str, tuple[str, str]] = {
    "every hook": (f"Every(), {DATA}, max_epochs=2, gradient_clip_val=0.4", EVERY),
    "every hook, windows": (f"Every(), {DATA}, max_epochs=2, accumulate_grad_batches=3, max_steps=5", EVERY),
    "every hook, checks within epochs": (
        f"Every(), {DATA}, max_epochs=3, val_check_interval=0.5, precision='bf16-mixed', "
        "early_stopping={'monitor': 'val_loss', 'patience': 2}, check_val_every_n_epoch=2", EVERY,
    ),
    "every hook, averages": (f"Every(), {DATA}, max_epochs=2, weight_averaging='ema', num_sanity_val_steps=0", EVERY),
    "its own step": (f"Steps(), {DATA}, max_epochs=2, gradient_clip_val=0.4", STEPS),
    "its own step, an average": (f"Steps(), {DATA}, max_epochs=2, weight_averaging='ema', ema_decay=0.8", STEPS),
    "its own step, windows": (f"Windows(), {DATA}, max_epochs=2, gradient_clip_val=0.3, accumulate_grad_batches=3", STEPS),
    "epochs cut short": (f"Short(), {DATA}, max_epochs=4", SHORT),
    "epochs cut short, checks within them, gaps": (
        f"Gappy(), {DATA}, max_epochs=4, val_check_interval=2, early_stopping={{'monitor': 'train_loss', 'patience': 9}}", SHORT,
    ),
    "batches on their way": (f"Moved(), {DATA}, max_epochs=2", MOVED),
    "batches on their way, an average": (
        f"Moved(), {DATA}, max_epochs=2, weight_averaging='swa', swa_epoch_start=0, accumulate_grad_batches=2", MOVED,
    ),
    "a data module's hooks": ("Own(), train=Samples(), max_epochs=2, weight_averaging='ema'", SAMPLES),
    "a data module's hooks, a plain network": ("net, train=Samples(), loss=F.cross_entropy, max_epochs=2", SAMPLES),
    "what it asks of its trainer": (f"Asks(), {DATA}, max_epochs=9, gradient_clip_val=0.5", ASKS),
    "the end that it asks for": (f"Stops(), {DATA}, max_epochs=9, min_steps=7, accumulate_grad_batches=2", ASKS),
    "what it logs": (f"Logs(), {DATA}, max_epochs=5, early_stopping={{'monitor': 'val_forked_epoch', 'patience': 2}}", LOGS),
    "what it logs, in double precision": (f"Logs().double(), {DATA}, max_epochs=2", f"x = x.double()\n{LOGS}"),
    "a loss in double precision": (f"Own().double(), {DATA}, max_epochs=2", "x = x.double()\n"),
    "what it logs, an average": (
        f"Helped(), {DATA}, max_epochs=3, weight_averaging='ema', early_stopping='val_right_averaged', num_sanity_val_steps=-1", LOGS,
    ),
    "manual": (f"Manual(), {DATA}, max_epochs=2", MANUAL),
    "manual, windows": (f"Windows(), {DATA}, max_epochs=2, gradient_clip_val=0.5, accumulate_grad_batches=3", MANUAL),
}  # fmt: skip


@pytest.fixture(scope="module")
def runner(without: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("elsewhere")
    return Runner(without, folder, SAID=str(folder / "said by the script"))


def told(folder: Path) -> list[str]:
    """What the object has told, which is then removed."""
    file = folder / "said by the script"
    lines = file.read_text().splitlines()
    file.unlink()
    return lines


def test_a_stop_by_hand(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAID", str(tmp_path / "said by the script"))
    bench = make_bench(
        tmp_path, f"Every(), {DATA}, max_epochs=3, val_check_interval=3", EVERY, PRELUDE
    )
    run = fit_asking(bench, lambda job, step: job.stop() if step == 12 else None)
    assert run.status == "stopped"
    check(bench, run, runner.run(bench.export(tmp_path / "train.py")))
    assert told(runner.folder) == told(tmp_path)


@pytest.mark.parametrize("windows", [1, 3])
def test_float16(
    windows: int, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Precision(
        torch.float16, torch.device("cpu"), torch.amp.GradScaler("cpu", init_scale=2.0**24)
    )
    monkeypatch.setattr(Precision, "of", lambda *_: made)
    monkeypatch.setenv("SAID", str(tmp_path / "said by the script"))
    bench = make_bench(
        tmp_path, f"Every(), {DATA}, max_epochs=3, gradient_clip_val=0.5", EVERY, PRELUDE
    )
    run = bench.fit(precision="16-mixed", accumulate_grad_batches=windows).result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    script.write_text(
        script.read_text().replace(".device.type)", ".device.type, init_scale=2.0**24)")
    )
    check(bench, run, runner.run(script))
    assert told(runner.folder) == told(tmp_path)
    assert 0 < run.skipped < run.step


def test_names_of_the_user_stay(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = (
        "Log",
        "Stepping",
        "TrainingStep",
        "clip_gradients",
        "moved",
        "outputs_of",
        "parameters_of",
        "trainer",
        "stepping",
        "training",
    )
    before = "".join(f"{name} = {number}\n" for number, name in enumerate(ours, 1))
    before += (
        STEPS.replace(
            'self.say("optimizer_step",', f'self.say("optimizer_step", {", ".join(ours)},'
        )
        + MOVED.partition("def on_fit_end")[0]
    )
    before += "\n\nclass All(Steps, Moved):\n    def on_train_batch_end(self, outputs, batch, batch_idx):\n        self.say(outputs['loss'].item())\n"
    before += "\n    configure_optimizers = Own.configure_optimizers\n"
    monkeypatch.setenv("SAID", str(tmp_path / "said by the script"))
    bench = make_bench(
        tmp_path, f"All(), {DATA}, max_epochs=2, gradient_clip_val=0.4", before, PRELUDE
    )
    run = bench.fit().result()
    check(bench, run, runner.run(bench.export(tmp_path / "train.py")))
    assert told(runner.folder) == told(tmp_path)


PACED = """
class Halving:
    def __init__(self, optimizer):
        self.optimizer, self.epoch = optimizer, 0

    def step(self, epoch):
        self.epoch = epoch
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * 0.5**epoch

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


class Paced(Own):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": Halving(optimizer), "interval": "epoch"}]

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch + 1)
"""


def test_a_scheduler_of_another_kind_that_the_module_steps(runner: Runner, tmp_path: Path) -> None:
    repeats(
        make_bench(tmp_path, f"Paced(), {DATA}, max_epochs=3", PACED, PRELUDE), runner, tmp_path
    )


REFUSED: dict[str, tuple[str, str]] = {
    r"on_train_batch_start that ends epochs \(-1\) with accumulate_grad_batches": (f"Short(), {DATA}, accumulate_grad_batches=2", SHORT),
    r"on_train_batch_end with batches that are left out of windows": (
        f"Gappy(), {DATA}, accumulate_grad_batches=2", SHORT.replace("def on_train_batch_start", "def another"),
    ),
    r"on_before_backward, on_after_backward, .* with on_nonfinite='skip'": (
        f"Less(), {DATA}, on_nonfinite='skip'", EVERY + "\n\nclass Less(Every):\n    on_train_batch_start = on_train_batch_end = None\n",
    ),
    r"asks for self\.trainer\.callback_metrics, which no script has": (
        f"Reads(), {DATA}", "class Reads(Own):\n    def on_train_epoch_end(self):\n        trainer = self.trainer\n        trainer.callback_metrics\n",
    ),
    r"calls self\.all_gather, which no script has": (
        f"Reads(), {DATA}", "class Reads(Own):\n    def on_train_epoch_end(self):\n        self.all_gather(1)\n",
    ),
    r"early_stopping or a scheduler that follows train_right, which is logged in training": (
        f"Reads(), {DATA}, early_stopping={{'monitor': 'train_right'}}",
        "class Reads(Own):\n    def training_step(self, batch, batch_idx):\n        self.log('train_right', 1.0)\n"
        "        return super().training_step(batch, batch_idx)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("match", REFUSED)
def test_what_no_script_does(match: str, tmp_path: Path) -> None:
    arguments, before = REFUSED[match]
    bench = make_bench(tmp_path, f"{arguments}, max_epochs=1", before.replace(TOLD, "\n"), PRELUDE)
    first = bench.fit()
    first.result()
    with pytest.raises(ExportError, match=match):
        bench.export(tmp_path / "train.py", format="script")
    assert not (tmp_path / "train.py").exists()
    if "callback_metrics" in match:  # it shows before the run, and only once
        second = bench.fit()
        second.result()
        said = [
            [e.text for e in job.events if isinstance(e, wb.events.Message)]
            for job in (first, second)
        ]
        assert [len([text for text in texts if "callback_metrics" in text]) for texts in said] == [
            1,
            0,
        ]


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_the_script_calls_them_as_the_run_did(
    case: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, before = CASES[case]
    monkeypatch.setenv("SAID", str(tmp_path / "said by the script"))
    bench = make_bench(tmp_path, arguments, before, PRELUDE)
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    script.write_text(script.read_text().replace("{value:.4f}", "{value!r}"))
    outcome = runner.run(script)
    check(bench, run, outcome)
    if TOLD in before:
        assert told(runner.folder) == told(tmp_path)
    for name, value in run.metrics.items():
        if name.startswith("val_"):
            assert f"{name} {value!r}" in outcome.said
    bench.close()
