"""What a study shows: charts, table, page, Optuna study; from a record alone, without workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.bench.study_parts import recorded
from workbench.export.errors import ExportError
from workbench.runs.study.record import PieceEnd, TrialProposal
from workbench.runs.study.write import add_trial, claim


@pytest.fixture
def study(tmp_path: Path) -> wb.Study:
    return recorded(tmp_path)


def test_its_charts(study: wb.Study) -> None:
    titles = [chart.title for chart in study.charts()]
    assert titles == [
        "Best value against cost",
        "val_loss by lr",
        "val_loss by width",
        "What matters",
    ]
    (cost,) = study.charts("cost")
    best = cost.series[0]
    assert best.y.tolist() == [4.5, 0.5]  # whole fits alone
    by_rate, _ = study.charts("slices")
    assert by_rate.x.log
    assert [mark.label for mark in by_rate.marks if mark.failed] == ["infeasible"]
    assert [mark.label for mark in by_rate.marks if mark.emphasis] == ["trial 5"]
    study.plot().savefig(study.path / "study.png")
    assert "val_loss by lr" in study.figure("slices").to_json()


def test_a_notebook_has_its_words_as_text_too(
    study: wb.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **how: shown.append(data))
    study._ipython_display_()
    assert shown == [{"text/html": study._repr_html_(), "text/plain": repr(study)}]


def test_a_piece_that_nobody_trains_is_interrupted(study: wb.Study) -> None:
    add_trial(study.path, TrialProposal(13, {"lr": 0.1, "width": 64}, "prior"))
    assert claim(study.path, 13, 0, 0, "a worker that is gone") is not None
    assert study.table()[-1]["status"] == "interrupted"
    assert "interrupted" in repr(study)
    assert "trains" not in repr(study)


def test_what_cannot_be_drawn_is_said(study: wb.Study, tmp_path: Path) -> None:
    with pytest.raises(
        wb.SettingsError, match=r"study\.plot\('slice'\): give one of 'cost', 'slices'"
    ):
        study.plot("slice")
    with pytest.raises(ValueError, match="no trial has a value yet"):
        study.charts("curves")  # none of its runs is here


def test_its_page_has_the_best_trial_first_and_no_markup_of_others(study: wb.Study) -> None:
    page = study._repr_html_()
    assert page.count("image/png;base64") == 1
    assert "<b>width</b>" not in page
    assert "&lt;b&gt;width&lt;/b&gt;" in page
    rows = page.partition("<tbody>")[2].split("<tr>")
    assert rows[1].startswith("<th style='text-align:left'>5</th>")
    text = repr(study)
    assert "trial 4 infeasible: the loss is nan" in text
    assert "trial 12 failed: ValueError" in text


def test_a_script_needs_a_whole_fit(study: wb.Study) -> None:
    with pytest.raises(wb.SettingsError, match=r"export\(…, trial=99\): its trials are 1 to 12"):
        study.export("train.py", trial=99)
    with pytest.raises(ExportError, match="which trial 3 does not have yet"):
        study.export("train.py", trial=3)


def test_optuna_reads_its_trials(study: wb.Study) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = study.optuna().trials
    states = [trial.state.name for trial in trials]
    assert states == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "COMPLETE", *["PRUNED"] * 6, "FAIL"]
    assert study.optuna().best_trial.user_attrs["trial"] == 5
    assert trials[4].params == {"lr": pytest.approx(10**-2.75, rel=1e-3), "width": 32}
    assert trials[1].intermediate_values == {0: 3.5}


def test_it_is_a_page_with_the_curves_of_its_trials(study: wb.Study, tmp_path: Path) -> None:
    x = torch.rand(32, 2)
    bench = wb.Workbench(
        torch.nn.Linear(2, 2),
        train=(x, x),
        val=(x, x),
        loss=F.mse_loss,
        max_epochs=1,
        root=tmp_path,
    )
    runs = [bench.fit().result().id for _ in range(2)]
    for number, run in zip((13, 14), [*runs[:1], "../../stranger-run"], strict=True):
        add_trial(study.path, TrialProposal(number, {"lr": 1e-3, "width": 32}, "prior"))
        piece = claim(study.path, number, 0, 1, "worker")
        assert piece is not None
        piece.end(PieceEnd("completed", 1.0, value=0.1, run=run))
    file = study.export(tmp_path / "study.html")
    text = file.read_text()
    assert "<b>width" not in text
    assert "\\u003cb\\u003ewidth" in text
    assert runs[0] in text
    packets = json.loads(text.partition("id='data'>")[2].partition("</script>")[0])["packets"]
    state = {
        name: value for packet in packets for name, value in packet["content"]["state"].items()
    }
    assert {name for name in state if name.startswith("study_curve")} == {"study_curve.13"}
    assert state["study"]["calls"] == []
    assert len(text) < 1_500_000
    with pytest.raises(ExportError, match="the path alone"):
        study.export(file, 1)
    assert study.export(file).read_text().startswith("<!doctype html>")
    file.write_text("mine")
    with pytest.raises(ExportError, match="was not written by export"):
        study.export(file)
    assert file.read_text() == "mine"
