"""Samplers of Optuna that propose the trials of a study."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.tuners.study import simulated
from tests.tuners.study.test_compare import SPACE
from workbench.runs.study.record import StudyRecord, TrialProposal
from workbench.settings.space import Choice, Float, Space
from workbench.tuners.study.sampler import ask, refuse_unfit
from workbench.values import SettingsError

optuna = pytest.importorskip("optuna")
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
LR = Float("lr", low=1e-4, high=10.0, log=True)
WIDTH = Choice("width", choices=(32, 64))
BOTH = Space((LR, WIDTH))


def bowl(values: Mapping[str, Any]) -> float:
    """Lowest at lr 0.1; what is above 1 cannot be trained."""
    lr = values["lr"]
    return math.inf if lr > 1 else (math.log10(lr) + 1) ** 2 + values["width"] / 640


def studied(sampler: Any, trials: int, space: Space = BOTH, loss: Any = bowl) -> StudyRecord:
    """The record of so many whole fits that the sampler has proposed."""
    record = simulated.study(99, rungs=(1.0,), space=space, method=type(sampler).__name__)
    for number in range(1, trials + 1):
        planned = TrialProposal(number, {}, "prior")
        proposal = ask(record, sampler, planned)
        action = simulated.NewTrial(proposal, 0, 0)
        record, _ = simulated.begun(record, action)
        record = simulated.ended(record, number, 0, 0, loss(proposal.values))
    return record


def rates(record: StudyRecord) -> list[float]:
    return [trial.values["lr"] for trial in record.trials]


def test_it_learns_from_values_and_from_what_cannot_be_trained() -> None:
    record = studied(optuna.samplers.TPESampler(n_startup_trials=5, seed=1), 25)
    assert all(trial.origin == "TPESampler" for trial in record.trials)
    early, late = rates(record)[:5], rates(record)[-10:]
    assert 0.03 < statistics.median(late) < 0.3
    assert any(trial.infeasible for trial in record.trials)
    assert sum(rate > 1 for rate in late) <= 1
    assert len({*early}) == 5


def test_the_record_and_the_seed_decide_what_it_proposes() -> None:
    sampler = optuna.samplers.TPESampler(seed=1)
    first, again = studied(sampler, 4), studied(sampler, 4)
    assert rates(first) == rates(again)
    other = replace(first, head=replace(first.head, seed=5))
    planned = TrialProposal(5, {}, "prior")
    assert ask(first, sampler, planned) == ask(again, sampler, planned)
    assert ask(first, sampler, planned) != ask(other, sampler, planned)


def test_trials_that_others_train_and_those_outside_the_space_are_no_hindrance() -> None:
    record = studied(optuna.samplers.RandomSampler(seed=1), 3)
    outside = TrialProposal(4, {"lr": 1e-9, "width": 5}, "baseline")
    record, number = simulated.begun(record, simulated.NewTrial(outside, 0, 0))
    record = simulated.ended(record, number, 0, 0, 0.5)
    running = TrialProposal(5, {"lr": 0.1, "width": 32}, "by hand")
    record, _ = simulated.begun(record, simulated.NewTrial(running, 0, 0))
    planned = TrialProposal(6, {}, "prior")
    values = ask(record, optuna.samplers.TPESampler(constant_liar=True, seed=1), planned).values
    assert 1e-4 <= values["lr"] <= 10
    assert values["width"] in (32, 64)


def test_optimizers_have_their_own_dimensions() -> None:
    record = studied(optuna.samplers.RandomSampler(seed=1), 8, SPACE, lambda values: values["lr"])
    kinds = {type(trial.values["optimizer"]) for trial in record.trials}
    assert kinds == {str, dict}  # adamw alone, sgd with a momentum
    for trial in record.trials:
        optimizer = trial.values["optimizer"]
        if isinstance(optimizer, dict):
            assert 0.8 <= optimizer["sgd"]["momentum"] <= 0.99


def test_where_it_proposes_only_what_trials_have_the_plan_stays() -> None:
    space = Space((Choice("width", choices=(32, 64)),))
    record = studied(
        optuna.samplers.RandomSampler(seed=1), 2, space, lambda values: values["width"]
    )
    planned = TrialProposal(3, {"width": 7}, "even")
    assert ask(record, optuna.samplers.RandomSampler(seed=1), planned) is planned


class HoldsAFile(optuna.samplers.RandomSampler):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle '_io.TextIOWrapper' object")


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ("gp", "method='gp' is no sampler: give an object"),
        (optuna.samplers.TPESampler, "is no sampler: give an object"),
        (optuna.samplers.NSGAIISampler(seed=1), "keeps what it knows in Optuna's storage"),
        (HoldsAFile(), r"method=HoldsAFile\(\) cannot be copied"),
        (optuna.samplers.GridSampler({"depth": [1]}), "cannot propose a trial of this space"),
    ],
)
def test_what_cannot_propose_is_refused(sampler: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        refuse_unfit(sampler, BOTH, lower_is_better=True)


def test_the_usual_samplers_are_taken() -> None:
    for sampler in (optuna.samplers.TPESampler(), optuna.samplers.GPSampler(seed=1)):
        refuse_unfit(sampler, SPACE, lower_is_better=False)
