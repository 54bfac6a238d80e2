"""The pieces of a study are fits as `bench.fit` makes them, from what the study has kept."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import workbench as wb
from tests.bench import study_parts
from tests.bench.study_parts import Studied, to_the_end
from workbench.bench.study_start import open_start
from workbench.bench.study_trial import TrialTrainer
from workbench.launch.job import AnyJob
from workbench.launch.study.worker import Piece
from workbench.runs.study.record import StudyRecord, TrialProposal
from workbench.runs.study.write import add_trial


def losses(run: wb.Run) -> list[float]:
    return [float(loss) for loss in run.history["loss"]]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[wb.Workbench]:
    with study_parts.bench(tmp_path) as made:
        yield made


@pytest.mark.parametrize("model", [study_parts.net, None], ids=["function", "model"])
def test_a_trial_is_the_fit_of_the_bench(model: Any, tmp_path: Path) -> None:
    values = {"lr": 0.02, "width": 12} if model else {"lr": 0.02}
    torch.manual_seed(3)
    with study_parts.bench(tmp_path, model or study_parts.net()) as bench:
        bench.fit(lr=0.3).result()  # trials do not begin where it has ended
        left = [parameter.clone() for parameter in bench.model.parameters()]
        study = Studied(bench, {"lr": (1e-3, 1.0)})
        for parameter, kept in zip(bench.model.parameters(), left, strict=True):
            torch.testing.assert_close(parameter, kept, rtol=0, atol=0)
        ends = [study.train(1, values), study.train(2, values)]
        fitted = bench.fit(**values, seed=0).result()
        for end in ends:
            assert losses(study.run(end)) == losses(fitted)
            assert end.value == fitted.metrics["val_loss"]
            assert (end.status, end.cost, end.step) == ("completed", 1.0, 24)


def test_another_seed_makes_other_weights_where_a_function_makes_them(
    bench: wb.Workbench,
) -> None:
    study = Studied(bench, {"lr": (1e-3, 1.0)})
    one, other = study.train(1, {}), study.train(1, {}, seed=1)
    fitted = bench.fit(seed=1).result()
    assert losses(study.run(other)) == losses(fitted) != losses(study.run(one))


def test_trials_have_the_seed_of_the_bench(bench: wb.Workbench) -> None:
    bench.set(seed=42)
    study = Studied(bench, {"lr": (1e-3, 1.0)}, seed=bench.settings.seed)
    ends = [study.train(1, {}), study.train(1, {}, seed=1)]
    fitted = [bench.fit().result(), bench.fit(seed=43).result()]
    assert [losses(study.run(end)) for end in ends] == [losses(run) for run in fitted]


def test_a_run_says_of_which_trial_it_is_and_is_kept(bench: wb.Workbench) -> None:
    bench.set(keep_runs=1)
    study = Studied(bench, {"lr": (1e-3, 1.0)})
    ends = [study.train(1, {}), study.train(2, {"lr": 0.1})]
    for _ in range(3):
        bench.fit().result()
    places = [study.run(end).study for end in ends]
    assert places == [(study.path.name, 1, 0, 0, 1.0), (study.path.name, 2, 0, 0, 1.0)]
    assert len([run for run in bench.runs if run.study is None]) <= 2


def test_a_halted_fit_goes_on_as_if_it_had_not_halted(bench: wb.Workbench) -> None:
    bench.set(max_epochs=6, lr_schedule="cosine")
    study = Studied(bench, {"lr": (1e-3, 1.0)}, rungs=(1 / 6, 1 / 3, 0.4, 1.0))
    values = {"lr": 0.05}
    first = study.train(1, values, rung=0)
    # at the end of an epoch, where it validates
    assert (first.status, first.step) == ("completed", 8)
    second = study.train(1, values, rung=1, on=first.run)
    assert (second.status, second.step) == ("completed", 16)
    within = study.train(1, values, rung=2, on=second.run)
    assert (within.status, within.step) == ("completed", 19)
    last = study.train(1, values, rung=3, on=within.run)
    whole = study.train(2, values, rung=3)
    assert losses(study.run(last)) == losses(study.run(whole))
    assert (last.value, last.step) == (whole.value, 48)
    assert last.cost == pytest.approx(1 - 19 / 48)


def test_a_piece_goes_on_where_its_worker_died(bench: wb.Workbench) -> None:
    bench.set(checkpoint_every=4)
    study = Studied(bench, {"lr": (1e-3, 1.0)})
    values = {"lr": 0.05}
    record = StudyRecord.read(study.path)

    def stopped(job: AnyJob) -> str:
        job.stop(at=10)
        job.wait()
        return "its worker ends"

    add_trial(study.path, TrialProposal(1, values, "by hand"))
    record = StudyRecord.read(study.path)
    begun = study.trainer(record, Piece(study.path, 1, values, 0, 0, ""), stopped)
    assert begun.status == "stopped"
    again = study.trainer(record, Piece(study.path, 1, values, 0, 0, begun.run), to_the_end)
    whole = study.train(2, values)
    assert losses(study.run(again)) == losses(study.run(whole))
    assert again.value == whole.value
    # as if it had not died: a study that is disturbed has the same trials
    assert (begun.cost, again.cost) == (pytest.approx(10 / 24), 1.0)
    assert again.seconds > begun.seconds


@pytest.mark.parametrize("gone", ["", "checkpoints"])
def test_a_trial_whose_checkpoint_is_gone_begins_again_and_says_so(
    gone: str, bench: wb.Workbench
) -> None:
    study = Studied(bench, {"lr": (1e-3, 1.0)}, rungs=(1 / 3, 1.0))
    values = {"lr": 0.05}
    first = study.train(1, values, rung=0)
    assert first.cause == ""
    shutil.rmtree(study.run(first).folder / gone)
    last = study.train(1, values, rung=1, on=first.run)
    assert last.cause.startswith(f"it began again at update 0: run {first.run}")
    assert (last.status, last.cost) == ("completed", 1.0)
    assert last.value == study.train(2, values, rung=1).value


def fourth(output: Tensor, target: Tensor) -> Tensor:
    return (output**4).mean() + 0 * target.sum()


def test_what_cannot_be_trained_is_a_result_with_its_cause(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path, loss=fourth, optimizer=torch.optim.SGD) as bench:
        study = Studied(bench, {"lr": (1e-3, 1.0)}, limits={"parameters": 200.0})
    end = study.train(1, {"lr": 1000.0})
    assert (end.status, end.value) == ("infeasible", None), end.cause
    assert "update" in end.cause
    large = study.train(2, {"width": 100})
    assert (large.status, large.cost, large.run) == ("infeasible", 0.0, "")
    assert "parameters" in large.cause
    assert large.parameters == 902


class Breaks(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        if self.width > 8:
            raise KeyError("no such table")
        output: Tensor = self.layer(x)
        return output


def test_an_error_of_the_users_code_is_a_failure(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path, Breaks) as bench:
        study = Studied(bench, {"width": [8, 9]})
        end = study.train(1, {"width": 9})
    assert end.status == "failed"
    assert "no such table" in end.cause


def test_what_is_kept_is_private_and_signed(bench: wb.Workbench, tmp_path: Path) -> None:
    study = Studied(bench, {"lr": (1e-3, 1.0)})
    for file in (study.path / "start").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    head = study.path / "start" / "start.json"
    head.write_text(head.read_text().replace('"signature": "', '"signature": "0'))
    with pytest.raises(PermissionError, match=r"--trust"):
        TrialTrainer(study.path)
    assert open_start(study.path, trust=True).recipe.name == "net"


def test_weights_that_were_loaded_need_a_model(bench: wb.Workbench) -> None:
    with torch.no_grad():
        next(bench.model.parameters()).zero_()
    with pytest.raises(wb.TaskError, match="each trial lets net make new ones"):
        Studied(bench, {"lr": (1e-3, 1.0)})


def test_each_optimizer_has_a_search_of_its_own(bench: wb.Workbench) -> None:
    bench.set(max_epochs=40)
    choices = {"adamw": {"lr": ...}, "sgd": {"lr": ..., "momentum": (0.5, 0.9)}}
    study = Studied(bench, {"optimizer": choices})
    study.trainer.prepare(StudyRecord.read(study.path), to_the_end)
    (found,) = StudyRecord.read(study.path).changes
    for name in choices:
        curve = bench.find_lr(optimizer=name).result()
        assert curve.suggestion == pytest.approx(
            found.values["priors"][f"optimizer.{name}.lr"]["center"], rel=0.01
        )
    assert found.values["priors"].keys() == {"optimizer.adamw.lr", "optimizer.sgd.lr"}


def test_a_search_of_batch_sizes_has_its_cost(bench: wb.Workbench) -> None:
    bench.set(max_epochs=40)
    study = Studied(bench, {"batch_size": [4, 8, 16]})
    study.trainer.prepare(StudyRecord.read(study.path), to_the_end)
    (found,) = StudyRecord.read(study.path).changes
    assert found.values["priors"]["batch_size"]["largest"] >= 16
    assert found.values["spent"] > 0.5  # sizes to 64, three updates each, for fits of 24


def test_the_script_of_a_promoted_trial_is_that_of_a_whole_fit(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 96 * 6).reshape(96, 6)
    y = (x.sin().sum(1) > 0).long()
    data = {"train": (x[:64], y[:64]), "val": (x[64:], y[64:])}
    loss = nn.functional.cross_entropy
    with wb.Workbench(nn.Linear(6, 2), **data, loss=loss, max_epochs=3, root=tmp_path) as bench:
        study = Studied(bench, {"lr": (1e-3, 1.0)}, rungs=(1 / 3, 1.0))
        short = study.train(1, {"lr": 0.02})
        whole = study.train(1, {"lr": 0.02}, rung=1, on=short.run)
        assert losses(study.run(whole)) == losses(bench.fit(lr=0.02).result())
    assert study.run(whole).resumes
    script = wb.Study(study.path).export(tmp_path / "train.py", verify=False).read_text()
    assert "import workbench" not in script


def test_the_usual_optimizer_by_its_name_is_the_same(bench: wb.Workbench) -> None:
    study = Studied(bench, {"optimizer": ["adamw", "sgd"]})
    end = study.train(1, {"optimizer": "adamw"})
    assert losses(study.run(end)) == losses(bench.fit().result())


def test_a_sampler_proposes_in_the_worker(bench: wb.Workbench) -> None:
    optuna = pytest.importorskip("optuna")
    sampler = optuna.samplers.TPESampler(seed=1)
    study = Studied(bench, {"lr": (1e-3, 1.0)}, sampler=sampler)
    record = StudyRecord.read(study.path)
    planned = TrialProposal(1, {"lr": 0.5}, "prior")
    proposal = study.trainer.propose(record, planned)
    assert proposal.origin == "TPESampler"
    assert proposal == study.trainer.propose(record, planned)
    baseline = TrialProposal(1, {}, "baseline")
    assert study.trainer.propose(record, baseline) is baseline
