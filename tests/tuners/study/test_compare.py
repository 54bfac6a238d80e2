"""The values of one setting, each tuned with an equal share of a study's budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.tuners.study import simulated
from workbench.runs.study.record import StudyRecord
from workbench.settings import Settings
from workbench.settings.space import Space
from workbench.tuners.study.compare import compared, verdict
from workbench.tuners.study.plan import NewTrial, Train, plan

SPACE = Space.parse(
    {"optimizer": {"adamw": {"lr": (1e-5, 1.0)}, "sgd": {"lr": (1e-3, 10.0), "momentum": (0.8, 0.99)}}},
    Settings(optimizer="adamw"),
)  # fmt: skip
GAIN = {"adamw": 0.0, "sgd": -0.2}


def loss(values: Mapping[str, Any], seed: int, rung: int) -> float:
    """The loss after a fit: sgd is 0.2 better at its best rate, 30 times that of adamw; it diverges above an lr of 3."""
    optimizer = values["optimizer"]
    name = optimizer if isinstance(optimizer, str) else next(iter(optimizer))
    lr = values.get("lr", 1e-3)
    if lr > 3:
        return math.inf
    best = {"adamw": 3e-3, "sgd": 0.1}[name]
    noise = 0.01 * math.sin(1e4 * lr + 7 * seed)
    return 2 + GAIN[name] + math.log10(lr / best) ** 2 + 0.3 / (rung + 1) + noise


def study(fits: float, **head: Any) -> StudyRecord:
    priors = {"optimizer.adamw.lr": {"center": 2e-3}, "optimizer.sgd.lr": {"center": 0.05}}
    arguments = {"space": SPACE, "priors": priors, "compare": "optimizer", **head}
    return simulated.study(fits, **arguments)


def name_of(values: Mapping[str, Any]) -> str:
    optimizer = values["optimizer"]
    return optimizer if isinstance(optimizer, str) else str(next(iter(optimizer)))


@pytest.mark.parametrize("rungs", [simulated.RUNGS, (1.0,)])
@pytest.mark.parametrize(("fits", "workers"), [(6, 1), (12, 1), (20, 4)])
def test_each_value_has_an_equal_share(fits: float, workers: int, rungs: tuple[float, ...]) -> None:
    record = simulated.finished(study(fits, rungs=rungs), loss, workers)
    values = compared(record)
    assert [entry.value for entry in values] == ["sgd", "adamw"]
    shares = [entry.fits for entry in values]
    assert abs(shares[0] - shares[1]) <= 1
    assert fits - 1.4 <= record.spent <= fits + 0.1
    assert [trial.number for trial in record.trials] == [*range(1, len(record.trials) + 1)]
    assert record.trials[0].origin == "baseline"
    for entry in values:
        assert entry.best is not None
        assert name_of(entry.best.values) == entry.value


def test_the_verdict_compares_fresh_seeds_of_each_best() -> None:
    record = simulated.finished(study(18), loss)
    sgd, adamw = (entry.best for entry in compared(record))
    assert sgd is not None
    assert adamw is not None
    seeds = {1, 2, 3}
    assert (
        {p.seed for p in sgd.pieces if p.rung == 2}
        == {p.seed for p in adamw.pieces if p.rung == 2}
        == {0, *seeds}
    )
    judged = verdict(record)
    assert judged.adopt
    assert "sgd is better than adamw in 3 of 3 seeds, by 0.2" in judged.text
    assert f"(trial {sgd.number})" in judged.text


def test_without_fresh_seeds_it_says_how_to_get_them() -> None:
    record = simulated.finished(study(6), loss)
    judged = verdict(record)
    numbers = [entry.best.number for entry in compared(record) if entry.best is not None]
    assert judged.adopt is None
    for number in numbers:
        assert f"study.seeds({number}, 3)" in judged.text
    for number in numbers:
        record = simulated.changed(record, "seeds", trial=number, n=3)
    record = simulated.finished(record, loss)
    assert verdict(record).adopt


def test_values_that_are_equal_are_not_told_apart() -> None:
    space = Space.parse({"width": [1, 2], "lr": (1e-3, 1.0)}, Settings(), {"width": 1})
    record = study(18, space=space, compare="width", priors={})
    record = simulated.finished(
        record, lambda values, seed, rung: 1 + 0.1 * math.sin(99 * seed * values["width"])
    )
    assert verdict(record).adopt is False


def test_a_value_that_cannot_be_trained_does_not_end_the_others() -> None:
    def broken(values: Mapping[str, Any], seed: int, rung: int) -> float:
        return math.inf if name_of(values) == "sgd" else loss(values, seed, rung)

    record = simulated.finished(study(12), broken)
    adamw, sgd = compared(record)
    assert (adamw.value, sgd.best) == ("adamw", None)
    assert adamw.best is not None
    assert verdict(record).adopt is None


@pytest.mark.parametrize("cost", [0.0, 0.02])
@pytest.mark.parametrize(("fits", "rungs"), [(12, simulated.RUNGS), (30, (1.0,))])
def test_a_value_that_costs_hardly_anything_leaves_its_share(
    cost: float, fits: float, rungs: tuple[float, ...]
) -> None:
    record = study(fits, rungs=rungs, seeds=2)
    for _ in range(200):
        action = plan(record)
        if not isinstance(action, NewTrial | Train):
            break
        record, number = simulated.begun(record, action)
        trial = record.trial(number)
        assert trial is not None
        seed, rung = action.seed, action.rung
        if name_of(trial.values) == "sgd":
            record = simulated.ended(record, number, seed, rung, math.inf, cost=cost)
        else:
            record = simulated.ended(record, number, seed, rung, loss(trial.values, seed, rung))
    adamw, sgd = compared(record)
    assert (adamw.value, adamw.untrainable, sgd.best) == ("adamw", None, None)
    assert fits - 1.4 <= record.spent <= fits + 0.1
    assert "trials have no value" in str(sgd.untrainable)
    assert "sgd cannot be trained" in verdict(record).text


def test_more_budget_tries_a_value_again_that_could_not_be_trained() -> None:
    def broken(values: Mapping[str, Any], seed: int, rung: int) -> float:
        return math.inf if name_of(values) == "sgd" else loss(values, seed, rung)

    # the share of sgd is enough for the trials after which it is given up
    record = simulated.finished(study(24, rungs=(1.0,), seeds=2), broken)
    assert compared(record)[1].untrainable
    more = simulated.finished(simulated.changed(record, "more", fits=12), loss)
    assert not any(entry.untrainable for entry in compared(more))
    assert [len(entry.best.pieces) for entry in compared(more) if entry.best] == [3, 3]


def test_where_no_value_can_be_trained_the_study_ends_and_names_them() -> None:
    record = simulated.finished(study(30), lambda values, seed, rung: math.inf)
    why = plan(record).why  # type: ignore[union-attr]
    assert why.startswith("adamw: the last ")
    assert "; sgd: the last " in why
    assert record.spent < 20


def test_two_fits_of_each_value_and_its_seeds_are_budget_enough() -> None:
    record = simulated.finished(study(10, rungs=(1.0,), seeds=3), loss)
    for entry in compared(record):
        assert entry.fits == 2
        assert entry.best is not None
        assert len(entry.best.pieces) == 4
    assert verdict(record).adopt


def test_what_is_asked_for_is_trained_beyond_the_budget() -> None:
    record = simulated.finished(study(6), loss)
    spent = record.spent
    added = simulated.changed(record, "add", values={"optimizer": "sgd", "lr": 0.1})
    after = simulated.finished(added, loss)
    assert after.trials[-1].origin == "by hand"
    assert after.spent - after.by_hand == pytest.approx(spent)
