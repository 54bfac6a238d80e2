"""What a study's view is sent: all of it once, then what has changed, and never more than fits into a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from tests.bench import study_parts
from tests.runs.tables.test_brief import events, recorded
from tests.ui.canvas.study.clock import Clock
from workbench.runs.study.record import Change, PieceEnd, StudyHead, TrialProposal
from workbench.runs.study.write import add_trial, change, claim, new_study
from workbench.settings.space import Choice, Float, Space
from workbench.ui.canvas.study import described
from workbench.ui.canvas.study.described import TRIALS, Describer
from workbench.ui.canvas.transport.messages import LIMIT, Outbox


def ended(path: Path, trial: int, value: float, run: str) -> None:
    """Record that a trial has ended, and which run trained it."""
    piece = claim(path, trial, 0, 0, "worker")
    assert piece is not None
    piece.end(PieceEnd("completed", 1.0, value=value, run=run))


@pytest.fixture
def study(tmp_path: Path) -> wb.Study:
    return study_parts.recorded(tmp_path)


def test_its_state_its_space_and_its_trials(study: wb.Study) -> None:
    values = Describer(study).present()
    head, now = values["study"], values["study_now"]
    assert (head["id"], head["monitor"], head["mode"]) == ("0001-study", "val_loss", "min")
    assert (head["best"], head["best_value"]) == (5, 0.5)
    assert (head["baseline"], head["baseline_value"]) == (1, 4.5)
    assert head["names"] == ["lr", "width"]
    assert now["status"] == "no worker"
    assert (now["budget"], now["unit"]) == (12.0, "fits")
    assert now["spent"] == pytest.approx(study.record.spent, abs=1e-4)
    rate, width = values["study_space"]
    assert (rate["low"], rate["high"], rate["log"], rate["edits"]) == (1e-4, 1.0, True, True)
    assert (width["choices"], width["codes"]) == (["32", "64"], ["32", "64"])
    fifth = values["study_trial.5"]
    assert fifth["at"] == [pytest.approx(10 ** (-4 + 5 / 4), rel=1e-3), 0.0]
    assert (fifth["value"], fifth["share"], fifth["whole"]) == (0.5, 1.0, True)
    fourth = values["study_trial.4"]
    assert (fourth["infeasible"], fourth["value"]) == (True, None)
    assert fourth["cause"] == "the loss is nan"
    assert [entry["name"] for entry in values["study_importance"]]


def test_a_loaded_machine_does_not_put_off_the_curve_of_a_trial_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space((Float("lr", low=1e-4, high=1.0, log=True),))
    head = StudyHead("study", "val_loss", "min", {"fits": 4.0}, space.to_record(), {"epochs": 9})
    path = new_study(tmp_path, head)
    add_trial(path, TrialProposal(1, {"lr": 1e-3}, "baseline"))
    assert claim(path, 1, 0, 0, "worker") is not None
    clock = Clock()

    def slow(*_: object) -> tuple[Any, Any]:
        clock.passes(100.0, own=0.01)  # others have the machine
        return np.array([1.0, 2.0]), np.array([0.5, clock.now])

    monkeypatch.setattr(described, "time", clock)
    monkeypatch.setattr(described, "curve", slow)
    describer = Describer(wb.Study(path))
    first = describer.present()["study_curve.1"]
    clock.passes(1.0, own=0.0)
    assert describer.present()["study_curve.1"] != first


def test_each_sentence_says_whether_a_button_can_carry_it_out(study: wb.Study) -> None:
    words = Describer(study).present()["study_words"]
    by_code = {word["code"]: word["runs"] for word in words}
    assert by_code["study.work()"]
    assert by_code["study.seeds(5, 3)"]
    assert not by_code[""]
    assert "<b>width</b>" in " ".join(word["text"] for word in words)  # text, and no markup


def test_what_has_not_changed_is_not_described_again(study: wb.Study) -> None:
    describer = Describer(study)
    describer.present()
    assert {*describer.present()} <= {"study_now"}
    values = {"lr": 1e-3, "width": 64, "optimizer": {"sgd": {"momentum": 0.94131}}}
    add_trial(study.path, TrialProposal(13, values, "by hand"))
    trial = describer.present()["study_trial.13"]
    assert (trial["from"], trial["values"]) == ("by hand", ["1e-3", "64", "sgd(momentum=0.941)"])


def test_a_trial_outside_of_a_narrowed_range_keeps_its_place(study: wb.Study) -> None:
    narrow = Space((Float("lr", low=1e-3, high=1e-2, log=True),))
    change(study.path, Change("space", {"space": narrow.to_record()}))
    values = Describer(study).present()
    assert values["study_space"][0]["high"] == 1e-2
    assert values["study_trial.12"]["at"] == [pytest.approx(0.1)]


def test_a_study_that_was_ended_by_hand_says_so_until_its_workers_have(study: wb.Study) -> None:
    study.pause()
    now = Describer(study).present()["study_now"]
    assert (now["status"], now["paused"], now["left"]) == ("paused", True, None)


def test_a_curve_is_the_metric_over_updates(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path) as bench:
        studied = study_parts.Studied(bench, {"lr": (1e-4, 0.1)})
        end = studied.train(1, {"lr": 0.01})
        curve = Describer(wb.Study(studied.path)).present()["study_curve.1"]
        validation = studied.run(end).validation
    assert curve["x"] == [int(step) for step in validation["step"]]
    assert curve["y"] == pytest.approx(validation["val_loss"].tolist(), rel=1e-5)
    assert curve["ends"] == [[end.step, pytest.approx(end.value, rel=1e-5)]]


def test_only_the_record_of_the_trial_that_ended_is_read(
    study: wb.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_run = [], wb.Run.open
    monkeypatch.setattr(wb.Run, "open", lambda run: opened.append(run.name) or open_run(run))
    describer = Describer(study)
    for number in (13, 14):
        add_trial(study.path, TrialProposal(number, {"lr": 1e-3, "width": 64}, "by hand"))
        id = f"{number:04d}-fit"
        recorded(study.path.parents[1], events(200, id=id), id)
        ended(study.path, number, 0.4, id)
        assert f"study_curve.{number}" in describer.present()
    assert opened == ["0013-fit", "0014-fit"]


def test_the_best_trial_has_its_curve_however_old_it_is(tmp_path: Path) -> None:
    space = Space((Float("lr", low=1e-4, high=1.0, log=True),))
    head = StudyHead("study", "val_loss", "min", {"fits": 200.0}, space.to_record(), {"epochs": 1})
    path = new_study(tmp_path, head)
    for number in range(1, 121):
        add_trial(path, TrialProposal(number, {"lr": 0.01}, "prior"))
    recorded(tmp_path, events(200, id="0002-fit"), "0002-fit")
    ended(path, 2, 0.1, "0002-fit")
    curves = [name for name in Describer(wb.Study(path)).present() if "study_curve" in name]
    assert curves == ["study_curve.2"]


def test_a_strangers_study_fits_into_messages(tmp_path: Path) -> None:
    many = [f"<i>{'é' * 100}{number}" for number in range(30)]
    names = [f"p{number}" + "x" * 150 for number in range(40)]
    space = Space(tuple(Choice(name, choices=tuple(many)) for name in names))
    head = StudyHead("study", "m" * 200, "max", {"fits": 9.0}, space.to_record(), {"epochs": 1})
    path = new_study(tmp_path, head)
    for number in range(1, TRIALS + 20):
        values: dict[str, Any] = dict.fromkeys(names[:30], many[number % 30])
        add_trial(path, TrialProposal(number, values, "b" * 500, "w" * 5000))
    piece = claim(path, 1, 0, 0, "worker")
    assert piece is not None
    piece.end(PieceEnd("failed", 0.0, cause="ü" * 9000))
    outbox = Outbox({})
    for name, value in Describer(wb.Study(path)).present().items():
        outbox.put(name, value)  # refuses what is too long
    sizes = []
    while (packet := outbox.take()) is not None:
        sizes.append(packet.size)
    assert max(sizes) <= LIMIT
