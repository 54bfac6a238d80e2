"""The options of a script: numbers that train nothing are refused, and a tracker changes nothing of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.export.export_running import exported

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, lr=0.1, max_epochs=2, batch_size=25"
REFUSED = {
    "--max_epochs 0": "--max_epochs is 0: it must be more than 0.",
    "--max_epochs -2": "--max_epochs is -2: it must be more than 0.",
    "--max_epochs ten": "argument --max_epochs: invalid int value: 'ten'",
    "--max_steps 0": "--max_steps is 0: it must be more than 0.",
    "--batch_size -1": "--batch_size is -1: it must be more than 0.",
    "--threads 0": "--threads is 0: it must be more than 0.",
    "--lr -0.1": "--lr is -0.1: it must be at least 0.",
    "--lr nan": "--lr is nan: it must be at least 0.",
    "--limit_train_batches 0": "--limit_train_batches is 0.0: it must be more than 0.",
    "--limit_train_batches 1.5": "--limit_train_batches is 1.5: it is a fraction, at most 1.",
    "--tracker nothing": "argument --tracker: invalid choice: 'nothing'",
}


def parsed(script: Any, options: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["train.py", *options.split()])
    return script.parse()[0]


def test_numbers_that_train_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = exported(tmp_path, f"{PAIR}, max_steps=5, limit_train_batches=0.5, warmup=3")
    for options, message in REFUSED.items():
        with pytest.raises(SystemExit, match="2"):
            parsed(script, options, monkeypatch)
        assert message in capsys.readouterr().err
    assert parsed(script, "", monkeypatch) == script.Config()
    assert parsed(script, "--lr 0 --seed 0 --warmup 0", monkeypatch) == script.Config(
        lr=0.0, seed=0, warmup=0
    )


WARMUPS = {
    "warmup=2, lr_schedule='linear'": (
        8,
        "warmup=8 is not shorter than the run of 8 updates: give fewer updates (--warmup), or make the run longer (--max_epochs).",
    ),
    "warmup=0.2, lr_schedule='one_cycle', max_steps=7": (
        1.0,
        "warmup=1.0 comes to 7 updates, which is not shorter than the run of 7 updates: give a smaller fraction (--warmup), or make the run longer (--max_epochs).",
    ),
}


@pytest.mark.parametrize("given", WARMUPS)
def test_a_warmup_that_is_the_whole_run(given: str, tmp_path: Path) -> None:
    script = exported(tmp_path, f"{PAIR}, {given}")
    warmup, message = WARMUPS[given]
    with pytest.raises(SystemExit) as error:
        script.main(script.Config(warmup=warmup), tmp_path / "out", tmp_path / "log.jsonl")
    assert str(error.value) == message
    assert not (tmp_path / "log.jsonl").exists()
    script.main(
        script.Config(warmup=type(warmup)(warmup * 0.875)), tmp_path / "out", tmp_path / "log.jsonl"
    )


def test_help_does_not_need_the_docstring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -OO` has none."""
    script = exported(tmp_path, PAIR)
    first = script.__doc__.splitlines()[0]
    script.__doc__ = None
    with pytest.raises(SystemExit, match="0"):
        parsed(script, "--help", monkeypatch)
    assert first.startswith("Train Net as the run ")
    assert first in " ".join(capsys.readouterr().out.split())


def test_a_run_without_an_update_keeps_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = exported(tmp_path, PAIR.replace("max_epochs=2", "max_steps=0"))
    assert parsed(script, "", monkeypatch).max_steps == 0


@pytest.mark.parametrize(
    "before",
    [
        "",
        "torch.set_num_threads(1)",
        "class Data(torch.utils.data.Dataset):\n    __len__ = lambda self: 50\n\n    def __getitem__(self, i: int):\n        return x[i], y[i]",
    ],
)
def test_it_has_the_threads_of_the_run_or_as_many_as_are_asked_for(
    before: str, tmp_path: Path
) -> None:
    """Where the user's code sets them itself, and where it stands at the top level, too."""
    script = exported(
        tmp_path,
        PAIR if "Data" not in before else PAIR.replace("train=(x, y)", "train=Data()"),
        before,
    )
    assert script.Config().threads == 1
    text = (tmp_path / "train.py").read_text()
    assert text.count("torch.set_num_threads(config.threads)") == 1
    assert ("torch.set_num_threads(Config.threads)" in text) == ("Data" in before)
    script.main(script.Config(), tmp_path / "out")
    torch.set_num_threads(2)
    script.main(script.Config(), tmp_path / "one")
    assert torch.get_num_threads() == 1
    script.main(script.Config(threads=2), tmp_path / "two")
    assert torch.get_num_threads() == 2


def test_a_tracker_has_updates_and_validations(tmp_path: Path) -> None:
    script = exported(tmp_path, PAIR)
    script.main(script.Config(), tmp_path / "plain", tmp_path / "plain.jsonl")
    script.main(
        script.Config(), tmp_path / "tracked", tmp_path / "tracked.jsonl", tracker="tensorboard"
    )
    lines = (tmp_path / "plain.jsonl").read_text()
    assert (tmp_path / "tracked.jsonl").read_text() == lines
    rows = [json.loads(line) for line in lines.splitlines()]
    read = EventAccumulator(str(tmp_path / "tracked" / "train")).Reload()
    for name, steps in {"loss": [*range(8)], "val_loss": [4, 8]}.items():
        logged = [(row["step"], pytest.approx(row[name])) for row in rows if name in row]
        assert [(point.step, point.value) for point in read.Scalars(name)] == logged
        assert [step for step, _ in logged] == steps
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
