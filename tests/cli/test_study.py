"""The commands `workbench study`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import workbench as wb
from tests.bench import study_parts
from workbench.cli import main
from workbench.launch import signals
from workbench.launch.study import local
from workbench.runs.study.record import TrialProposal
from workbench.runs.study.write import add_trial


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker has its process to itself: this one gets its folder and its handlers back."""
    monkeypatch.chdir(Path.cwd())
    handlers = {number: signal.getsignal(number) for number in (*signals.NUMBERS, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wb.Study:
    """A study on which nobody has worked yet."""
    monkeypatch.setattr(local, "start", lambda *_, **__: {})
    with study_parts.bench(tmp_path, max_epochs=2) as bench:
        return bench.study({"lr": (1e-3, 1.0), "width": [4, 8]}, budget=3)


def run(study: wb.Study, *arguments: str) -> Result:
    root = str(study.path.parents[1])
    return CliRunner().invoke(main, ["study", *arguments, "--root", root])


def test_a_study_is_worked_on_shown_and_exported(study: wb.Study, tmp_path: Path) -> None:
    worked = run(study, "work", "1")
    assert worked.exit_code == 0, worked.output
    assert "0001-study has ended: the budget of 3 fits is used" in worked.output
    assert study.status == "ended"
    shown = run(study, "show", "1")
    assert "val_loss" in shown.output
    assert "baseline" in shown.output
    data = json.loads(run(study, "show", "1", "--json").output)
    assert data["settings"] == study.settings
    assert [row["trial"] for row in data["trials"]] == [row["trial"] for row in study.table()]
    listed = run(study, "list")
    assert listed.output.startswith("0001-study  val_loss (lower is better)  ended")
    watched = run(study, "watch", "1")
    assert "trial 1 (" in watched.output
    written = run(study, "export", "1", str(tmp_path / "best.yaml"))
    assert written.exit_code == 0, written.output
    assert wb.Settings.load(tmp_path / "best.yaml").max_epochs == 2


def test_a_study_is_changed(study: wb.Study) -> None:
    added = run(study, "add", "1", "lr=3e-3", "width=8")
    assert "workbench study work 0001-study" in added.output
    assert "12 fits" in run(study, "more", "1", "9").output
    assert run(study, "stop", "1").exit_code == 0
    changes = [(change.kind, dict(change.values)) for change in study.record.changes]
    assert changes == [
        ("add", {"values": {"lr": 0.003, "width": 8}}),
        ("more", {"fits": 9.0}),
        ("end", {}),
    ]
    assert "was ended" in run(study, "work", "1").output


def test_optimizers_are_tuned_equally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "start", lambda *_, **__: {})
    space = {"optimizer": {"adamw": {"lr": (1e-3, 1.0)}, "sgd": {"lr": (1e-3, 1.0)}}}
    with study_parts.bench(tmp_path, max_epochs=8) as bench:
        study = bench.study(space, compare="optimizer", budget=8)
    assert run(study, "work", "1").exit_code == 0
    rows = study.compared
    assert {row["optimizer"] for row in rows} == {"adamw", "sgd"}
    assert all(row["settings"]["optimizer"] == row["optimizer"] for row in rows)
    assert abs(rows[0]["fits"] - rows[1]["fits"]) <= 1
    assert rows[0]["val_loss"] <= rows[1]["val_loss"]
    numbers = [row["trial"] for row in rows]
    assert f"study.seeds({numbers[0]}, 3), study.seeds({numbers[1]}, 3)" in study.verdict.text
    assert study.verdict.text in run(study, "show", "1").output


def test_a_study_is_steered(study: wb.Study) -> None:
    assert "workbench study resume 0001-study goes on" in run(study, "pause", "1").output
    assert study.status == "paused"
    resumed = run(study, "resume", "1").output
    assert resumed.startswith("0001-study goes on.\nno worker works on 0001-study. Start one:")
    add_trial(study.path, TrialProposal(1, {}, "baseline"))
    assert "with 2 other seeds" in run(study, "seeds", "1", "1", "2").output
    assert "trained once more" in run(study, "repeat", "1", "1").output
    changed = run(study, "space", "1", "lr=(1e-4, 0.1)", "width=[4, 16]", "dropout=...")
    assert "come from the new space" in changed.output
    space = study.record.space
    assert (space["lr"]["low"], space["lr"]["high"]) == (1e-4, 0.1)
    assert space["width"]["choices"] == [4, 16]
    assert space["dropout"]["high"] == 0.5
    kinds = [change.kind for change in study.record.changes]
    assert kinds == ["pause", "resume", "seeds", "repeat", "space"]


def test_a_worker_takes_a_relative_root(
    study: wb.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.stop()
    monkeypatch.chdir(tmp_path.parent)  # the bench was made elsewhere
    worked = CliRunner().invoke(main, ["study", "work", "1", "--root", tmp_path.name])
    assert "was ended" in worked.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "7"], "There is no study '7'"),
        (["stop", "1", "--trial", "4"], "it has no trials yet"),
        (["add", "1", "colour=3"], "colour"),
        (["more", "1", "2h"], "its budget is 3 fits"),
        (["more", "1", "some"], "give a number of fits (8), or a time"),
        (["seeds", "1", "7", "3"], "it has no trials yet"),
        (["repeat", "1", "7"], "it has no trials yet"),
        (["space", "1", "lr=(1, 0.1)"], "the lower one first"),
        (["space", "1", "learning_rate=(0.1, 1)"], "Did you mean 'lr'?"),
        (["pause", "7"], "There is no study '7'"),
    ],
)
def test_what_cannot_be_done_is_said(study: wb.Study, arguments: list[str], says: str) -> None:
    result = run(study, *arguments)
    assert result.exit_code == 1
    assert says in result.output


def test_a_study_that_cannot_be_read_hides_no_other(study: wb.Study) -> None:
    folder = study.path.with_name("0002-study")
    folder.mkdir()
    head: dict[str, Any] = json.loads((study.path / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**head, "space": {}}))
    listed = run(study, "list")
    assert listed.exit_code == 0, listed.output
    assert "0002-study cannot be read" in listed.output
    assert "0001-study  val_loss" in listed.output


def test_a_strangers_study_is_not_worked_on(study: wb.Study, tmp_path: Path) -> None:
    head = study.path / "start" / "start.json"
    data: dict[str, Any] = json.loads(head.read_text())
    head.write_text(json.dumps({**data, "signature": None}))
    result = run(study, "work", "1")
    assert result.exit_code == 1
    assert "has no signature of yours" in result.output
    assert not study.record.trials
