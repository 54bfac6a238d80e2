"""A script that is killed and started again with --resume ends as one that was not, to the last bit."""

from __future__ import annotations

import dataclasses
import zipfile
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.export.export_running import Outcome, Runner, check, exported, lint, make_bench

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, lr=0.1, max_epochs=4"
MODULE = """
class Own(Net):
    def __init__(self):
        super().__init__()
        self.head.requires_grad_(False)

    def on_train_epoch_start(self):
        if self.trainer.current_epoch == 1:
            for p in self.head.parameters():
                p.requires_grad = True

    def training_step(self, batch, batch_idx):
        self.log("train_loss", loss := F.cross_entropy(self(batch[0]), batch[1]))
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val_loss", "frequency": 2}]


class Adversaries(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0] + torch.randn(8)), batch[1]))
        first.step()
        self.manual_backward(self(batch[0]).square().mean())  # its gradients reach the first one's, and stay there
        if batch_idx % 2:
            second.step()

    def configure_optimizers(self):
        return torch.optim.Adam([*self.body.parameters(), *self.norm.parameters()], lr=0.01), torch.optim.SGD(self.head.parameters(), lr=0.01)


class Turns(Net):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        first = torch.optim.Adam([*self.body.parameters(), *self.norm.parameters()], lr=0.01)
        second = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9)
        schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(first, 1), "interval": "step", "frequency": 3}
        return {"optimizer": first, "frequency": 2, "lr_scheduler": schedule}, {"optimizer": second, "frequency": 1}
"""
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
    "bfloat16, updates that may be left out": (f"{PAIR}, precision='bf16-mixed', on_nonfinite='skip'", "", "step == 6"),
    "two optimizers in turn": ("Turns(), train=(x, y), max_epochs=4", MODULE, "step == 9"),
    "an average and several validation sets": (
        "model, train=(x, y), val={'a': (x[:40], y[:40]), 'b': (x[40:], y[40:])}, loss=F.cross_entropy, batch_size=20, max_epochs=4, "
        "weight_averaging='ema', ema_decay=0.7, monitor='val_loss/b'", "", "step == 12",
    ),
    "rates of SWA": (f"{PAIR}, weight_averaging='swa', swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=2, lr_schedule='cosine'", "", "step == 14"),
    "rates of SWA, of two optimizers": (
        "Bare(), train=(x, y), max_epochs=5, weight_averaging='swa', swa_lrs=0.05, swa_epoch_start=1",
        f"{MODULE}\n\nclass Bare(Turns):\n    def __init__(self):\n        super().__init__()\n        self.norm = torch.nn.Identity()\n", "step == 14",
    ),
    "LBFGS": (f"{PAIR}, optimizer=lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=2)", "", "step == 6"),
    "a LightningModule": ("Own(), train=(x, y), val=(x[:40], y[:40]), max_epochs=5, gradient_clip_val=0.1", MODULE, "step == 14"),
    "two optimizers by hand": ("Adversaries(), train=(x, y), max_epochs=4", MODULE, "step == 9"),
    "workers": ("model, train=Noisy(), val=Noisy(), loss=F.cross_entropy, batch_size=20, num_workers=1, max_epochs=2", WORKERS, "step == 6"),
    "workers and a sampler": (
        "model, train=torch.utils.data.DataLoader(Noisy(), batch_size=20, num_workers=1, sampler=torch.utils.data.RandomSampler("
        "y, generator=torch.Generator().manual_seed(3))), loss=F.cross_entropy, max_epochs=3", WORKERS, "step == 8",
    ),
}  # fmt: skip


SLOW = {
    "plain",
    "workers and a sampler",
    "rates of SWA, of two optimizers",
    "max_steps",
    "bfloat16, updates that may be left out",
    "two optimizers in turn",
    "LBFGS",
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


def test_two_processes_continue(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    bench.fit().result()
    script = bench.export(tmp_path / "train.py", resume=True)
    bench.close()
    whole, resumed = runner.run_two(script), runner.run_resumed(script, "step == 6", processes=2)
    assert equal(whole, resumed)
    assert resumed.said.count("Continuing after epoch 2 of 4 (update 4) from ") == 1


LENGTHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "the rate of a script without a schedule": (
        "",
        {"lr": 0.5},
        "lr is 0.5, and .* was trained with 0.1: resume with --lr 0.1",
    ),
    "longer without a schedule": ("", {"max_epochs": 9}, ""),
    "one cycle": (
        ", lr_schedule='one_cycle'",
        {"max_epochs": 9},
        "max_epochs is 9, and .* was trained with 1: resume with --max_epochs 1",
    ),
    "the user's": (
        ", scheduler=lambda o, updates: torch.optim.lr_scheduler.CosineAnnealingLR(o, updates)",
        {"max_epochs": 9},
        "max_epochs is 9",
    ),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_resumed_with_other_options(case: str, tmp_path: Path) -> None:
    given, options, match = LENGTHS[case]
    script = exported(tmp_path, PAIR.replace("=4", "=1") + given)
    script.gather_object = list
    process: Any = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, process_index=0, is_main_process=True
    )
    path, model, before = (
        tmp_path / "checkpoint.pt",
        torch.nn.Linear(1, 1),
        dataclasses.asdict(script.Config()),
    )
    script.save_checkpoint(process, path, before, [model], [], 3)
    model.requires_grad_(False)
    with pytest.raises(SystemExit, match=match) if match else nullcontext():
        script.load_checkpoint(process, path, {**before, **options}, [model], [])
    assert model.weight.requires_grad == (not match)


def test_resume_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = exported(tmp_path, PAIR.replace("=4", "=1"))
    for options in (
        ["--resume", str(tmp_path / "nothing.pt")],
        ["--output", str(tmp_path / "nothing"), "--resume"],
    ):
        monkeypatch.setattr("sys.argv", ["train.py", *options])
        with pytest.raises(SystemExit):
            script.parse()
        assert f"there is no {tmp_path / 'nothing'}" in capsys.readouterr().err


def test_a_training_that_did_not_end_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = exported(tmp_path, PAIR.replace("=4", "=1"))
    out = tmp_path / "out"
    script.main(script.Config(), out)
    monkeypatch.setattr("sys.argv", ["train.py", "--output", str(out)])
    assert script.parse() == (script.Config(), out, None, None, None)  # it has ended
    (out / "last.pt").unlink()
    with pytest.raises(SystemExit, match="2"):
        script.parse()
    said = capsys.readouterr().err
    assert (
        f"{out / 'checkpoint.pt'} is of a training that did not end: continue it with --resume"
        in said
    )
    assert "--output" in said
    monkeypatch.setattr("sys.argv", ["train.py", "--output", str(out), "--resume"])
    assert script.parse()[3] == out / "checkpoint.pt"


def test_resume_from_a_file_that_is_no_checkpoint_of_it(tmp_path: Path) -> None:
    script = exported(tmp_path, PAIR.replace("=4", "=1"))
    script.gather_object = list
    process: Any = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, process_index=0, is_main_process=True
    )
    model, settings = torch.nn.Linear(1, 1), dataclasses.asdict(script.Config())
    adam, sgd = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters())
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("some", "text")
    for name, value in {"model": model, "weights": model.state_dict(), "list": [1]}.items():
        torch.save(value, tmp_path / name)
    script.save_checkpoint(
        process, tmp_path / "settings.pt", {**settings, "warmup": 1}, [model, adam], [], 3
    )
    script.save_checkpoint(process, tmp_path / "optimizer.pt", settings, [model, sgd], [], 3)
    script.save_checkpoint(
        process, tmp_path / "shape.pt", settings, [torch.nn.Linear(2, 1), adam], [], 3
    )
    whole = torch.load(tmp_path / "settings.pt") | {"settings": settings}
    for key in whole:
        torch.save(
            {name: value for name, value in whole.items() if name != key}, tmp_path / f"{key}.lacks"
        )
    lacking = [f"{key}.lacks" for key in whole]
    for name in ("text", "empty", "folder", "zip", "model"):
        with pytest.raises(SystemExit, match=f"{name} is no checkpoint: torch.load cannot read it"):
            script.load_checkpoint(process, tmp_path / name, settings, [model, adam], [])
    for name in ("weights", "list", "settings.pt", "optimizer.pt", *lacking):
        with pytest.raises(
            SystemExit,
            match=rf"{name} is no checkpoint of this script: [^$]* Name a checkpoint\.pt of this script, or leave --resume out",
        ):
            script.load_checkpoint(process, tmp_path / name, settings, [model, adam], [])
    with pytest.raises(
        SystemExit,
        match=r"shape\.pt is a checkpoint of another script: [^$]*size mismatch for weight",
    ):
        script.load_checkpoint(process, tmp_path / "shape.pt", settings, [model, adam], [])


ENDS: dict[str, tuple[str, dict[str, int], str]] = {
    "its last epoch": (
        "max_epochs=2",
        {},
        "was trained for 2 epochs, and max_epochs is 2: nothing is left to train. Resume with a larger --max_epochs.",
    ),
    "fewer epochs": (
        "max_epochs=2",
        {"max_epochs": 1},
        "was trained for 2 epochs, and max_epochs is 1: nothing is left",
    ),
    "fewer updates": (
        "max_steps=9",
        {"max_steps": 8},
        "was trained for 8 updates, and max_steps is 8: nothing is left to train. Resume with a larger --max_steps.",
    ),
    "the length of a schedule": (
        "max_epochs=1, lr_schedule='cosine'",
        {},
        "nothing is left to train. Leave --resume out to train anew.",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_resumed_where_nothing_is_left_to_train(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length, options, match = ENDS[case]
    script = exported(tmp_path, PAIR.replace("max_epochs=4", length))
    script.main(script.Config(), tmp_path)
    checkpoint, last = tmp_path / "checkpoint.pt", tmp_path / "last.pt"
    written = last.read_bytes()
    with pytest.raises(SystemExit, match=match):
        script.main(script.Config(**options), tmp_path, None, checkpoint)
    assert last.read_bytes() == written
    if case == "its last epoch":  # killed before it saved its weights, it only saves them
        last.unlink()
        script.main(script.Config(), tmp_path, None, checkpoint)
        assert "Continuing after epoch 2 of 2 (update 8)" in capsys.readouterr().out
        assert all(
            torch.equal(value, other)
            for value, other in zip(
                torch.load(last).values(), torch.load(BytesIO(written)).values(), strict=True
            )
        )


def test_into_another_folder_without_a_better_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = ", optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, maximize=True)"
    script = exported(tmp_path, PAIR.replace("=4", "=1") + worse)
    script.main(script.Config(), tmp_path / "one")
    script.main(
        script.Config(max_epochs=2), tmp_path / "other", None, tmp_path / "one" / "checkpoint.pt"
    )
    said = capsys.readouterr().out
    assert (
        f"Continuing after epoch 1 of 2 (update 4) from {tmp_path / 'one' / 'checkpoint.pt'}.\n"
        in said
    )
    first, second = (line for line in said.splitlines() if line.startswith("Saved"))
    assert first == f"Saved {tmp_path / 'one' / 'last.pt'} and {tmp_path / 'one' / 'best.pt'}"
    assert second == f"Saved {tmp_path / 'other' / 'last.pt'}"


def equal(some: Outcome, other: Outcome) -> bool:
    weights = all(torch.equal(some.weights[name], other.weights[name]) for name in some.weights)
    return weights and np.array_equal(some.losses, other.losses)


REFUSED = {
    "Counting.forward changes self.calls": (
        "Counting(), train=(x, y), loss=F.cross_entropy, max_epochs=1",
        "class Counting(Net):\n    calls = 0\n\n    def forward(self, x):\n        self.calls += 1\n        return super().forward(x)\n",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_name(why: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *REFUSED[why])
    bench.fit().result()
    text = bench.script()
    assert f"--resume is not possible: {why}" in text
    assert "checkpoint" not in text
    bench.close()
