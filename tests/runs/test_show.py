"""`workbench runs show`: what a run was, which checkpoints it has, where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.events import Resumed, RunEnded, RunStarted, StepsDone, pack
from workbench.runs.store import RunFolder


def a_run(root: Path, *checkpoints: dict[str, Any], resumed: bool = False) -> None:
    with RunFolder.create(root, "0002-fit", {"kind": "fit"}) as folder:
        folder.append(RunStarted("0002-fit", "fit", {"lr": 0.1, "batch_size": 32}, "cpu"))
        folder.append(StepsDone(0, 1, 2, 0, 1.0, {"loss": pack([2, 1]), "lr": pack([0.1, 0.1])}))
        if resumed:
            folder.append(Resumed(2, "0001-fit", "00000002", {"max_epochs": 5}))
        folder.append(RunEnded("finished", 2, 1.0))
        for info in checkpoints:
            path = folder.checkpoints / (f"{info['step']:08d}" + "-end" * info["end"])
            path.mkdir()
            usual = {"epoch": 1, "monitor": None, "value": None, "mode": "min", "resumable": True, "why": None, "format": 1}
            (path / "info.json").write_text(json.dumps(usual | info))


def shown(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["runs", "show", "0002-fit", "--root", str(root)]) == 0
    return capsys.readouterr().out.splitlines()


def test_checkpoints_are_listed_with_what_they_are_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(
        tmp_path,
        {"step": 1, "end": False, "monitor": "val_acc", "value": 0.75, "mode": "max"},
        {"step": 2, "end": False, "monitor": "val_acc", "value": 0.5, "mode": "max"},
        {"step": 2, "end": True, "epoch": 2, "resumable": False, "why": "the state of MyScheduler holds a Foo"},
    )
    lines = shown(tmp_path, capsys)
    assert lines[0].startswith("<Run 0002-fit: fit finished · 2 updates")
    assert lines[1:] == [
        "  lr = 0.1",
        "  checkpoint 00000001      epoch 1  val_acc 0.75  best",
        "  checkpoint 00000002      epoch 1  val_acc 0.5",
        "  checkpoint 00000002-end  epoch 2  weights alone: the state of MyScheduler holds a Foo",
    ]


def test_it_is_said_where_a_run_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, resumed=True)
    assert shown(tmp_path, capsys)[1:] == ["  lr = 0.1", "  resumed at update 2 from 0001-fit@00000002, max_epochs=5"]


def test_a_run_without_checkpoints_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path)
    assert shown(tmp_path, capsys)[1:] == ["  lr = 0.1"]


def test_a_root_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "0002-fit", "--root", str(tmp_path / "typo")]) == 2
    assert "there is no run '0002-fit' in" in (said := capsys.readouterr().err)
    assert "there are: none" in said
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "train.py"
    root.touch()
    for command in (["list"], ["show", "0002-fit"]):
        assert main(["runs", *command, "--root", str(root)]) == 2
        assert capsys.readouterr().err.startswith("workbench: [Errno 20] Not a directory")
