"""A script that is killed and started again with --resume ends as one that was not, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.export_running import Runner, check, clean_environment, lint, make_bench
from tests.warm import Warm
from workbench.export.errors import NotResumable

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, lr=0.1, max_epochs=4"
WORKERS = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return x[index] + torch.randn(8), y[index]
"""
EVERYTHING = (
    f"{PAIR}, lr_schedule='cosine', warmup=3, weight_averaging='ema', ema_decay=0.5, accumulate_grad_batches=2, gradient_clip_val=1.0, "
    "early_stopping=wb.EarlyStopping('val_loss', patience=1), monitor='val_loss_averaged'"
)
CASES = {
    "plain": (PAIR, "", "step == 7"),
    "while the checkpoint is written": (PAIR, "", "path.stem == 'checkpoint' and path.exists()"),
    "many techniques": (EVERYTHING, "", "step == 5"),
    "max_steps": (f"{PAIR[:-14]}, max_steps=11, val_check_interval=3, weight_averaging='swa', swa_epoch_start=1", "", "step == 10"),
    "bfloat16": (f"{PAIR}, precision='bf16-mixed'", "", "step == 6"),
    "an average and several validation sets": (
        "model, train=(x, y), val={'a': (x[:40], y[:40]), 'b': (x[40:], y[40:])}, loss=F.cross_entropy, batch_size=20, max_epochs=4, "
        "weight_averaging='ema', ema_decay=0.7, monitor='val_loss/b'", "", "step == 12",
    ),
    "a learning rate found on the way": (f"{PAIR}, find_lr_at=(1,)", "", "step == 7"),
    "one optimizer for each part": (
        f"{PAIR}, optimizer={{'body': torch.optim.Adam, '': torch.optim.AdamW}}", "", "step == 6",
    ),
    "LBFGS": (f"{PAIR}, optimizer=lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=2)", "", "step == 6"),
}  # fmt: skip


SLOW = {
    "plain",
    "max_steps",
    "bfloat16",
    "LBFGS",
    "one optimizer for each part",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_a_killed_script_continues(name: str, runner: Runner, tmp_path: Path) -> None:
    arguments, code, kill = CASES[name]
    bench = make_bench(tmp_path, arguments, code)
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "train.py", resume=True)
    lint(script)
    outcome = runner.run_resumed(script, kill)
    check(bench, run, outcome)
    assert "Continuing after epoch " in outcome.said
    bench.close()


def said(processes: Warm, script: Path, *options: str) -> str:
    """What the script says where it does not train."""
    process = processes.start(
        str(script), "--output", str(script.parent / "out"), *options,
        folder=script.parent, environment=clean_environment(), leave=True,
    )  # fmt: skip
    text = "".join(process.communicate(100))
    assert process.wait() == 1, text
    return text


@pytest.mark.parametrize(
    ("arguments", "option", "words"),
    [
        ("", ("--lr", "0.5"), "lr is 0.5, and out/checkpoint.pt was trained with 0.1: resume with --lr 0.1"),
        (", lr_schedule='one_cycle'", ("--max_epochs", "9"), "resume with --max_epochs 2"),
    ],
)  # fmt: skip
def test_what_differs_from_the_checkpoint_is_refused(
    arguments: str, option: tuple[str, str], words: str, without: Warm, tmp_path: Path
) -> None:
    bench = make_bench(tmp_path, PAIR.replace("max_epochs=4", "max_epochs=2") + arguments)
    bench.fit().result()
    script = bench.export(tmp_path / "train.py", resume=True, log_file=False)
    bench.close()
    process = without.start(
        str(script), "--output", "out", folder=tmp_path, environment=clean_environment(), leave=True
    )
    assert process.wait() == 0, process.communicate(100)
    assert words in said(without, script, *option, "--resume", "out/checkpoint.pt")
    (tmp_path / "text").write_text("hello")
    assert "text is no checkpoint of this script: " in said(without, script, "--resume", "text")
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    state["stateful"]["optimizer"]["param_groups"] = []
    torch.save(state, tmp_path / "other.pt")
    assert "other.pt is of another script: " in said(without, script, "--resume", "other.pt")


def test_a_run_that_no_script_can_resume_is_refused(tmp_path: Path) -> None:
    arguments = (
        "model, train=Noisy(), loss=F.cross_entropy, batch_size=20, num_workers=1, max_epochs=1"
    )
    bench = make_bench(tmp_path, arguments, WORKERS)
    bench.fit().result()
    with pytest.raises(NotResumable, match="resume=True is not possible: workers have random"):
        bench.export(tmp_path / "train.py", resume=True)
    bench.close()
