"""A study of Optuna over fits of one bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

import workbench as wb
from tests.engine.problems import bench as make
from tests.engine.problems import labelled, plain_net

pytestmark = pytest.mark.usefixtures("one_thread")
optuna.logging.set_verbosity(optuna.logging.WARNING)


def bench(root: Path, **more: Any) -> wb.Workbench:
    return make(
        plain_net(),
        labelled(),
        root,
        **{"val": labelled(20), "max_epochs": 2, "enable_progress_bar": False, **more},
    )


def seeded() -> Any:
    return optuna.samplers.RandomSampler(seed=0)


def test_each_trial_is_the_fit_with_its_settings(tmp_path: Path) -> None:
    with bench(tmp_path / "a") as made, bench(tmp_path / "b") as again:
        study = wb.sweep(
            made,
            {"lr": (1e-3, 1.0), "batch_size": [4, 8], "accumulate_grad_batches": (1, 3)},
            n_trials=4,
            sampler=seeded(),
        )
        assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
        runs = {run.id: run for run in made.runs}
        for trial in study.trials:
            run = runs[trial.user_attrs["run"]]
            assert run.tags == ("sweep-1",)
            assert {name: getattr(run.settings, name) for name in trial.params} == trial.params
            assert (
                trial.value
                == run.metrics["val_loss"]
                == again.fit(**trial.params).result().metrics["val_loss"]
            )
        assert study.best_value == min(trial.value for trial in study.trials)
        assert study.trials[0].distributions["lr"].log
        assert isinstance(
            study.trials[0].distributions["accumulate_grad_batches"],
            optuna.distributions.IntDistribution,
        )
        assert made.settings.lr == again.settings.lr, "nothing is applied"
        assert wb.sweep(made, {"lr": [0.1]}, n_trials=1, max_epochs=1).study_name == "sweep-2"
        assert made.runs[-1].settings.max_epochs == 1


def test_weak_trials_end_early(tmp_path: Path) -> None:
    class Second(optuna.pruners.BasePruner):  # type: ignore[misc]
        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number > 0 and trial.last_step == 2

    with bench(tmp_path, max_epochs=5) as made:
        study = wb.sweep(made, {"lr": [0.1]}, n_trials=1, pruner=Second())
        pruned = wb.sweep(made, {"lr": [0.1]}, n_trials=1, study=study, max_epochs=100_000)
        assert pruned is study
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
        assert [*study.trials[0].intermediate_values] == [1, 2, 3, 4, 5], (
            "validations by their numbers"
        )
        assert [run.status for run in made.runs] == ["finished", "stopped"]


def test_the_metric_and_its_direction(tmp_path: Path) -> None:
    metrics = {
        "accuracy": lambda output, y: output.argmax(1) == y,
        "thing": lambda output, y: output.argmax(1) == y,
    }
    with bench(tmp_path, metrics=metrics) as made:
        study = wb.sweep(made, {"lr": [1e-3, 0.3]}, n_trials=2, monitor="val_accuracy")
        assert study.direction.name == "MAXIMIZE"
        made.set(monitor="val_accuracy")
        assert wb.sweep(made, {"lr": [0.1]}, n_trials=1).direction.name == "MAXIMIZE"
        assert (
            wb.sweep(
                made, {"lr": [0.1]}, n_trials=1, monitor="val_thing", direction="maximize"
            ).direction.name
            == "MAXIMIZE"
        )
        with pytest.raises(
            wb.SettingsError,
            match=r"monitor='val_thing': its name does not say .*give direction='minimize' or 'maximize'",
        ):
            wb.sweep(made, {"lr": [0.1]}, monitor="val_thing")
        with pytest.raises(wb.SettingsError, match=r"'val_acuracy'.*Did you mean 'val_accuracy'"):
            wb.sweep(made, {"lr": [0.1]}, monitor="val_acuracy")


def test_a_loss_that_is_not_finite_fails_its_trial_alone(tmp_path: Path) -> None:
    with bench(tmp_path, loss=lambda output, y: output.square().square().mean()) as made:
        study = wb.sweep(
            made,
            {"lr": [1000.0, 0.01]},
            n_trials=2,
            sampler=optuna.samplers.GridSampler({"lr": [1000.0, 0.01]}, seed=0),
        )
        assert sorted(trial.state.name for trial in study.trials) == ["COMPLETE", "FAIL"]
        assert study.best_params == {"lr": 0.01}
        assert [trial.user_attrs["run"] for trial in study.trials] == [run.id for run in made.runs]
        assert [run.tags for run in made.runs] == [("sweep-1",)] * 2


def test_a_study_of_the_users_own(tmp_path: Path) -> None:
    metrics = {
        "accuracy": lambda output, y: output.argmax(1) == y,
        "thing": lambda output, y: output.argmax(1) == y,
    }
    with bench(tmp_path, metrics=metrics) as made:
        study = optuna.create_study()
        assert wb.sweep(made, {"lr": [0.1]}, n_trials=1, study=study) is study
        assert made.runs[-1].tags == ("sweep-1",), "Optuna's own name is too long for a tag"
        wb.sweep(made, {"lr": [0.1]}, n_trials=1, study=optuna.create_study(study_name="mine"))
        assert made.runs[-1].tags == ("mine",)
        with pytest.raises(
            wb.SettingsError,
            match=r"study= would minimize val_accuracy: make it with optuna\.create_study\(direction='maximize'\)",
        ):
            wb.sweep(made, {"lr": [0.1]}, study=study, monitor="val_accuracy")
        made.set(monitor="val_thing", monitor_mode="max")
        assert wb.sweep(made, {"lr": [0.1]}, n_trials=1).direction.name == "MAXIMIZE"


@pytest.mark.parametrize(
    ("space", "more", "why"),
    [
        ({}, {}, "give settings to choose"),
        ({"lrr": (1e-3, 1.0)}, {}, "unknown setting 'lrr'. Did you mean 'lr'"),
        ({"lr": (0, 1)}, {}, r"lr=\(0, 1\): the range of a rate is logarithmic and begins above 0"),
        ({"lr": (1.0, 0.1)}, {}, "the lower one first"),
        ({"lr": 0.1}, {}, r"lr=0.1: give a tuple \(low, high\) for a range, a list"),
        ({"batch_size": (0, 8)}, {}, "batch_size=0: should be at least 1"),
        ({"batch_size": (10.0, 60.0)}, {}, "batch_size=.*whole number"),
        (
            {"batch_size": optuna.distributions.FloatDistribution(10, 60)},
            {},
            "batch_size=.*whole number",
        ),
        (["lr"], {}, "give settings by name"),
        ({"precision": ["32", "33"]}, {}, "precision='33'"),
        ({"lr": [0.1]}, {"lr": 0.2}, "lr is in the space and given for all trials too"),
        ({"lr": optuna.distributions.FloatDistribution(-1.0, 1.0)}, {}, "lr=-1.0"),
        (
            {"lr": [0.1]},
            {"study": optuna.create_study(), "direction": "minimize"},
            "direction='minimize' is given together with study=",
        ),
        (
            {"lr": [0.1]},
            {"study": optuna.create_study(directions=["minimize"] * 2)},
            "has 2 objectives",
        ),
    ],
)
def test_mistakes_are_named_before_anything_trains(
    space: dict[str, Any], more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with bench(tmp_path) as made:
        with pytest.raises(wb.SettingsError, match=why):
            wb.sweep(made, space, n_trials=1, **more)
        assert not len(made.runs)
