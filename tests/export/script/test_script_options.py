"""The options of a script: each setting of the run, and a tracker, which changes nothing of the training."""

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


def parsed(script: Any, options: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["train.py", *options.split()])
    return script.parse()


def test_each_setting_is_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = exported(
        tmp_path, f"{PAIR}, max_steps=5, limit_train_batches=0.5, gradient_clip_val=1"
    )
    assert parsed(script, "", monkeypatch) == script.Config()
    changed = {
        "lr": 0.5,
        "seed": 3,
        "max_steps": 7,
        "gradient_clip_val": 0.1,
        "output": Path("out"),
    }
    options = " ".join(f"--{name} {value}" for name, value in changed.items())
    assert parsed(script, options, monkeypatch) == script.Config(**changed)
    with pytest.raises(SystemExit, match="2"):
        parsed(script, "--max_epochs ten", monkeypatch)
    assert "argument --max_epochs: invalid int value: 'ten'" in capsys.readouterr().err


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


def test_it_has_the_threads_of_the_run_or_as_many_as_are_asked_for(tmp_path: Path) -> None:
    script = exported(tmp_path, PAIR)
    assert script.Config().threads == 1
    assert (tmp_path / "train.py").read_text().count("set_num_threads") == 1
    torch.set_num_threads(2)
    script.main(script.Config(output=tmp_path / "one"))
    assert torch.get_num_threads() == 1
    script.main(script.Config(threads=2, output=tmp_path / "two"))
    assert torch.get_num_threads() == 2


def test_data_that_an_import_makes_are_made_with_the_threads_of_the_run(tmp_path: Path) -> None:
    data = """
class Data(torch.utils.data.Dataset):
    __len__ = lambda self: 50

    def __getitem__(self, i: int):
        return x[i], y[i]
"""
    script = exported(tmp_path, PAIR.replace("train=(x, y)", "train=Data()"), data)
    assert not hasattr(script.Config(), "threads")
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert [line for line in lines if "set_num_threads" in line] == ["torch.set_num_threads(1)"]


def test_threads_that_the_code_sets_are_no_option(tmp_path: Path) -> None:
    script = exported(tmp_path, PAIR, "torch.set_num_threads(1)")
    assert not hasattr(script.Config(), "threads")


def test_a_tracker_has_updates_and_validations(tmp_path: Path) -> None:
    script = exported(tmp_path, PAIR, tracker=True)
    for name, tracker in {"plain": "", "tracked": "tensorboard"}.items():
        log_file = str(tmp_path / f"{name}.jsonl")
        script.main(script.Config(output=tmp_path / name, log_file=log_file, tracker=tracker))
    lines = (tmp_path / "plain.jsonl").read_text()
    assert (tmp_path / "tracked.jsonl").read_text() == lines
    rows = [json.loads(line) for line in lines.splitlines()]
    read = EventAccumulator(str(tmp_path / "tracked" / "train")).Reload()
    for name, steps in {"loss": [*range(8)], "val_loss": [4, 8]}.items():
        logged = [(row["step"], pytest.approx(row[name])) for row in rows if name in row]
        assert [(point.step, point.value) for point in read.Scalars(name)] == logged
        assert [step for step, _ in logged] == steps
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
