"""What a run says of itself: each rule speaks where it should, and is silent where it would be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.events import (
    ENDED_EARLY,
    Changed,
    Event,
    Message,
    Observed,
    Resumed,
    RunEnded,
    RunStarted,
    Spiked,
    StepsDone,
    TimeSpent,
    Validated,
    pack,
)
from workbench.runs.health import Finding, Health, examine
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.values import EarlyStopping

LAYERS = ("conv1.weight", "conv1.bias", "conv2.weight", "head.weight")


CHAOS = [
    2.5, 1.6e6, 2.3e5, 1.7e4, 1385, 4237, 1822, 144, 40, 69, 36, 45, 39, 31, 58, 65, 50, 46, 54, 67, 47, 15, 26, 13, 20, 18, 18, 14, 17, 15,
    14, 20, 17, 14, 14, 14, 15, 35, 13, 73, 2270, 8.8, 9.5, 342, 5856, 2426,
]  # fmt: skip
"""Losses of a CNN on digits at a rate of 100."""


def started(
    memory: int | None = None,
    layers: tuple[str, ...] = LAYERS,
    supervised: bool = False,
    **settings: Any,
) -> RunStarted:
    return RunStarted(
        "r",
        "fit",
        Settings.make(**settings).model_dump(),
        "cpu",
        layers,
        1000,
        5,
        memory=memory,
        supervised=supervised,
    )


def steps(
    loss: Sequence[float] | NDArray[np.float64], at: int = 0, norm: Any = None, clipped: Any = None, layers: Any = None, *, seconds: float = 1.0,
    waited: float = 0.0, memory: int | None = None, skipped: Any = None, **more: Any,
) -> StepsDone:  # fmt: skip
    """One flush; `norm` and `clipped` of all rows alike, or one by one."""
    n = len(loss)
    columns = {
        "loss": pack(loss),
        "lr": pack(np.broadcast_to(np.asarray(more.pop("lr", 0.1), np.float32), n)),
    }
    for name, values in {
        "grad_norm": norm,
        "grad_norm_clipped": clipped,
        "skipped": skipped,
        **more,
    }.items():
        if values is not None:
            columns[name] = pack(np.broadcast_to(np.asarray(values, np.float32), n))
    if layers is not None:
        columns["layer_norms"] = pack(
            np.broadcast_to(np.asarray(layers, np.float32), (n, np.shape(layers)[-1]))
        )
    return StepsDone(at, 1, n, 0, seconds, columns, waited=waited, memory=memory)


def falling(n: int, at: int = 0) -> list[float]:
    return (2.0 / (1 + 0.01 * np.arange(at, at + n))).tolist()


def said(*events: Event) -> list[str]:
    return [str(finding) for finding in examine(events)]


def only(*events: Event) -> Finding:
    (finding,) = examine(events)
    return finding


def test_a_run_that_is_well_says_nothing() -> None:
    rng = np.random.default_rng(0)
    events: list[Event] = [started(memory=100, gradient_clip_val=1.0)]
    for at in range(0, 2000, 50):
        norm = rng.lognormal(0, 0.3, 50)
        layers = norm[:, None] * [0.5, 0.01, 0.3, 1.0]
        events.append(
            steps(
                falling(50, at),
                at,
                norm,
                np.minimum(norm, 1),
                layers,
                seconds=at / 10 + 1,
                waited=at / 100,
                memory=80,
            )
        )
        events.append(Validated(at + 50, 0, {"val_loss": 2.1 / (1 + 0.01 * at)}))
    assert said(*events, RunEnded("finished", 2000, 200.0)) == []
    assert said() == []


def test_where_numbers_went_wrong() -> None:
    good, bad = [1.0, 0.5, 1.0, 2.0], [1.0, np.nan, np.inf, 2.0]
    found = only(
        started(),
        steps(falling(10), layers=good),
        steps([0.5, np.nan, 0.4], 10, layers=[good, bad, good]),
    )
    assert (found.level, found.step) == ("error", 11)
    assert found.text == "loss not finite at update 11, first in conv1.bias"
    # A layer that never had a gradient is NaN too, and is not where it began.
    frozen = [np.nan, 0.5, 1.0, 2.0]
    found = only(
        started(),
        steps(falling(10), layers=frozen),
        steps([0.5], 10, np.inf, layers=[np.nan, 0.5, np.inf, 2.0]),
    )
    assert found.text == "gradient not finite at update 10, first in conv2.weight"
    # Optimizers that take turns have no loss together.
    turns = steps([np.nan] * 10, norm=None, **{"loss.0": 1.0, "loss.1": 2.0})
    assert said(started(), turns) == []


def test_the_runs_own_words_stand_for_the_error() -> None:
    error = "NonFiniteError: loss not finite at update 3, first in conv2.weight; the batch itself holds NaN."
    found = only(started(), steps([1.0, 1.0, np.nan]), RunEnded("failed", 2, 1.0, error))
    assert (
        found.text
        == "loss not finite at update 3, first in conv2.weight; the batch itself holds NaN"
    )
    assert (found.trouble, found.remedy) == ("not finite", "")  # another rate would not help
    failed = RunEnded(
        "failed",
        2,
        1.0,
        "ValueError: something else\nand more",
        where="cell 4, line 7: loss = self.net(x)",
    )
    found = only(started(), failed)
    assert (found.level, found.trouble) == ("error", "failed")
    assert (
        found.text
        == "an error ended it after 2 updates in cell 4, line 7: loss = self.net(x): ValueError: something else"
    )


def test_updates_that_were_left_out() -> None:
    skipped = steps([1.0, np.nan, 1.0, np.nan], skipped=[0, 1, 0, 1])
    note = Message(
        "loss is nan at update 1. It began in conv2. The update was not taken.", "warning", 1
    )
    assert (
        "2 updates were left out, the first at 1: loss is nan at update 1. It began in conv2"
        in said(started(), note, skipped)[0]
    )
    # 16-mixed looks for its scale.
    half = started(precision="16-mixed")
    assert said(half, skipped, steps(falling(200), 4)) == []
    many = steps([1.0] * 40, 4, skipped=[0, 1] * 20)
    assert "too large for 16 bits" in said(half, skipped, many)[0]


def test_waiting_for_data() -> None:
    def run(share: float, until: float, **settings: Any) -> list[str]:
        return said(
            started(**settings),
            *(steps([1.0], i, seconds=until * i, waited=share * until * i) for i in (0, 1, 2)),
        )

    assert run(0.41, 10.0)[0].startswith(
        "training waits for its data 41% of the time; find_num_workers() tries"
    )
    assert "tries more than num_workers=2" in run(0.41, 10.0, num_workers=2)[0]
    assert run(0.1, 10.0) == []
    assert run(0.9, 3.0) == []  # loader processes that start
    late = [
        steps([1.0], 0, seconds=0.0),
        steps([1.0], 1, seconds=50.0, waited=40.0),
        Resumed(2, "a", "00000002"),
    ]
    assert (
        said(
            started(),
            *late,
            steps([1.0], 2, seconds=1.0),
            steps([1.0], 3, seconds=40.0, waited=1.0),
        )
        == []
    )


def test_workers_that_start_anew_in_each_epoch() -> None:
    def run(
        first: float,
        place: str = "setting",
        flag: str = "persistent_workers=False",
        device: str = "cuda:0",
    ) -> list[Finding]:
        waits = (steps([1.0], i, seconds=10.0 * i, waited=4.0 * i) for i in (0, 1, 2))
        spent = (
            TimeSpent(i, 10.0, {"forward": 6.0, "first batch": part, "data": 4.0 - part})
            for i, part in ((1, 4.0), (2, first))
        )
        begun = dataclasses.replace(started(num_workers=2), device=device)
        return list(
            examine([begun, Observed(1, 0, "loader_option", (flag, place)), *waits, *spent])
        )

    (found,) = run(3.5)
    assert found.text == (
        "training waits for its data 40% of the time, 35% for the first batch of an epoch: the loader's workers start anew in each"
    )
    assert (found.advice, found.remedy) == (
        "set persistent_workers=True",
        "bench.set(persistent_workers=True)",
    )
    (found,) = run(3.5, "DataLoader")
    assert found.advice.startswith("give your DataLoader persistent_workers=True")
    assert found.remedy == "bench.set(persistent_workers=True)"
    (found,) = run(3.5, "own DataLoader")
    assert (found.advice, found.remedy) == ("give your DataLoader persistent_workers=True", "")
    (found,) = run(1.0)  # most of the time it waits within epochs
    assert found.remedy == "bench.find_num_workers()"
    (found,) = run(1.0, "own DataLoader", "num_workers=2")  # no search can change it
    assert (found.advice, found.remedy) == (
        "your DataLoader makes its batches itself: give it more num_workers",
        "",
    )
    _, pinned = run(1.0, "DataLoader", "pin_memory=True", device="2 x cpu")
    assert (
        pinned.text
        == "pin_memory=True is of no use in a fit on the CPU (training waits for its data 40% of the time)"
    )
    assert (pinned.level, pinned.remedy) == ("info", "bench.set(pin_memory=None)")
    assert "give your DataLoader pin_memory=False" in pinned.advice
    assert len(run(1.0, "setting", "pin_memory=True")) == 1, "on a GPU it is of use"


def test_time_that_goes_into_something_else_than_updates() -> None:
    def run(**parts: float) -> list[str]:
        spent = [TimeSpent(step, 6.0, parts) for step in (10, 20)]
        return said(started(), *spent)

    assert run(validation=4.0, forward=2.0)[0].startswith(
        "validation takes 67% of the time; check_val_every_n_epoch"
    )
    assert run(hooks=2.0, forward=4.0)[0].startswith("hooks and callbacks take 33% of the time")
    assert run(validation=2.0, forward=4.0) == run(forward=6.0) == []
    assert said(started(), TimeSpent(10, 6.0, {"validation": 6.0})) == [], (
        "six seconds tell nothing yet"
    )
    assert (
        said(started(), TimeSpent(10, 60.0, {"validation": 60.0}), Resumed(10, "a", "00000010"))
        == []
    )
    assert said(started(), TimeSpent(10, float("nan"), {"validation": float("nan")})) == []


def test_clipping_that_cuts_all_or_nothing() -> None:
    def run(norm: float, clip: float | None, n: int = 1200, **settings: Any) -> list[str]:
        cut = None if clip is None else min(norm, clip)
        return said(
            started(gradient_clip_val=clip, **settings),
            *(steps(falling(100, at), at, norm, cut) for at in range(0, n, 100)),
        )

    assert run(5.0, 1.0)[0].startswith("100% of the last 200 updates were clipped")
    assert run(0.5, 1.0)[0].startswith(
        "none of 1200 updates was clipped: the largest norm was 0.5, the clip value is 1"
    )
    assert run(0.5, 1.0, n=900) == run(5.0, 1.0, n=100) == run(5.0, None) == []
    # other norms than those clipped
    assert run(5.0, 1.0, track_grad_norm=1.0) == run(0.5, 1.0, track_grad_norm="inf") == []
    # A new clip value is a new question.
    changed = [
        steps(falling(200), 0, 5.0, 1.0),
        Changed(200, {"gradient_clip_val": 9.0}),
        steps(falling(200, 200), 200, 5.0, 5.0),
    ]
    assert said(started(gradient_clip_val=1.0), *changed) == []


def test_layers_without_a_gradient() -> None:
    usual = [1.0, 1e-9, 0.5, 2.0]  # a bias before a normalisation
    assert said(started(), steps(falling(200), layers=usual)) == []
    assert said(started(), steps(falling(200), layers=[1.0, 0.0, 0.5, 2.0])) == [], (
        "it cancels without a rest"
    )
    scales = (
        "0.bias",
        "0.parametrizations.weight.original0",
        "0.parametrizations.weight.original1",
        "1.weight",
    )
    assert said(started(layers=scales), steps(falling(200), layers=[1e-9, 1e-5, 1.0, 1.0])) == [], (
        "the scale of a weight norm"
    )
    (zero,) = said(started(), steps(falling(200), layers=[0.0, 0.0, 0.5, 2.0]))
    assert zero.startswith(
        "a gradient of zero reaches conv1.weight, conv1.bias in 200 updates; its units are dead from the start"
    )
    none = [1.0, 1.0, np.nan, 2.0]
    assert said(started(), steps(falling(200), layers=none))[0].startswith(
        "no gradient reaches conv2.weight in 200 updates"
    )
    dead = said(
        started(),
        steps(falling(50), layers=[1.0, 1.0, 1.0, 2.0]),
        steps(falling(150, 50), 50, layers=[1.0, 1.0, 0.0, 2.0]),
    )
    assert dead == [
        "no gradient reaches conv2.weight since update 50; its units are dead or saturated: lower the learning rate"
    ]
    # Zero is dead; one that is not computed any more was frozen, and biases before a normalisation have none.
    alive = steps(falling(50), layers=[1.0, 1.0, 1.0, 2.0])
    found = only(started(lr=0.5), alive, steps(falling(150, 50), 50, layers=[1.0, 1.0, 0.0, 2.0]))
    assert (found.trouble, found.remedy) == ("dead layers", "bench.set(lr=0.05)")
    assert (
        only(started(), alive, steps(falling(150, 50), 50, layers=[1.0, 1.0, np.nan, 2.0])).trouble
        == ""
    )
    assert (
        only(started(), alive, steps(falling(150, 50), 50, layers=[1.0, 0.0, 1.0, 2.0])).trouble
        == ""
    )
    small = [1.0, 0.5, 1e-5, 2.0]
    found = only(
        started(),
        steps(falling(50), layers=[1.0, 0.5, 1.0, 2.0]),
        steps(falling(150, 50), 50, layers=small),
    )
    assert (
        found.text
        == "hardly a gradient (1000 times below the median layer's) reaches conv2.weight since update 50"
    )
    # Used by one batch in fifty.
    seldom = np.tile(small, (200, 1))
    seldom[::50, 2] = 1.0
    assert said(started(), steps(falling(200), layers=seldom)) == []
    # Its optimizer's turn is yet to come.
    assert said(started(), steps(falling(200), layers=none, **{"loss.0": 1.0, "loss.1": 1.0})) == []
    # Nothing was measured.
    assert said(started(), steps(falling(200), layers=[np.nan] * 4)) == []


def test_a_norm_that_runs_away() -> None:
    calm = steps(falling(300), norm=np.random.default_rng(1).lognormal(0, 0.4, 300))
    found = only(started(), calm, steps(falling(40, 300), 300, 20.0))
    assert found.text.startswith("the gradient norm rose to ")
    assert 300 < (found.step or 0) < 340
    spike = np.ones(40)
    spike[20] = 1e4
    assert said(started(), calm, steps(falling(40, 300), 300, spike)) == []
    assert said(started(), calm, steps(falling(400, 300), 300, 5.0)) == []


def checks(
    *values: float, train: Sequence[float], every: int = 200, **settings: Any
) -> list[Event]:
    events: list[Event] = [started(**settings)]
    for i, value in enumerate(values):
        events += [
            steps([train[i]] * every, every * i),
            Validated(every * (i + 1), i, {"val_loss": value}),
        ]
    return events


def test_overfitting() -> None:
    falls = [2.0, 1.0, 0.5, 0.3, 0.2, 0.1]
    found = only(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, train=falls))
    assert (
        found.text == "validation has risen since update 600, from 1 to 1.3, while training falls"
    )
    assert said(*checks(2.0, 1.5, 1.0, 1.01, 1.02, 1.03, train=falls)) == []  # hardly
    assert said(*checks(2.0, 1.5, 1.0, 0.9, 1.2, 1.3, train=falls)) == []  # two checks only
    # training rises too
    assert said(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, train=[2.0, 1.0, 0.5, 0.6, 0.7, 0.8])) == []
    # by chance
    assert (
        said(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, train=[2.0, 1.0, 0.5, 0.49, 0.49, 0.48])) == []
    )
    # and came back
    assert said(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, 0.9, train=[*falls, 0.05])) == []


def test_a_gross_rise_needs_fewer_validations() -> None:
    falls = [0.7, 0.4, 0.16]
    assert said(*checks(0.65, 2.0, train=falls[:2])) == []  # one, and the fit goes on
    assert only(*checks(0.65, 2.0, 4.6, train=falls)).trouble == "overfitting"
    assert (
        only(*checks(0.65, 2.0, train=falls[:2]), RunEnded("finished", 1200, 1.0)).trouble
        == "overfitting"
    )
    assert said(*checks(0.65, 0.9, train=falls[:2]), RunEnded("finished", 1200, 1.0)) == []


def test_no_search_is_proposed_for_a_fit_that_early_stopping_has_ended() -> None:
    seen = {"train": [2.0, 1.0, 0.5, 0.3, 0.2, 0.1]}
    for restores in (False, True):
        stop = EarlyStopping("val_loss", restore_best=restores)
        stopped = Message(f"{ENDED_EARLY}: val_loss did not improve.", "info", 1200)
        found = only(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, early_stopping=stop, **seen), stopped)
        assert not found.remedy
        assert ("the model has the best weights" in found.advice, found.level) == (
            restores,
            "info" if restores else "warning",
        )


def test_the_remedy_of_overfitting_where_early_stopping_is_on() -> None:
    """The search of a weight decay: with stretches that are long enough to overfit, too."""
    seen = {"train": [2.0, 1.0, 0.5, 0.3, 0.2, 0.1], "early_stopping": "val_loss"}
    early = only(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, every=30, **seen))
    assert early.remedy == "bench.find_weight_decay()"
    assert (
        early.advice
        == "more data delays it; find_weight_decay() tests in 800 updates whether weight_decay does too"
    )
    late = only(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, **seen))
    assert late.remedy == "bench.find_weight_decay(updates=4800)", (
        "the best check came after 600 updates, and a stretch has 1,200"
    )
    assert only(*checks(2.0, 1.5, 1.0, 1.1, 1.2, 1.3, truncated_bptt_steps=8, **seen)).remedy == ""


def test_a_loss_that_does_not_move() -> None:
    noise = np.random.default_rng(2).normal(0, 0.05, 400)
    found = only(started(), steps((2.3 + noise).tolist()))
    assert found.text.startswith("the loss has not moved in 400 updates: from 2.")
    assert said(started(), steps((2.3 + noise).tolist()[:200])) == []
    assert said(started(), steps((2.3 - 0.002 * np.arange(400) + noise).tolist())) == []
    assert said(started(warmup=300), steps((2.3 + noise).tolist())) == []
    assert (
        said(started(), Resumed(500, "a", "00000500"), steps((0.3 + 0.01 * noise).tolist(), 500))
        == []
    )
    assert said(started(), steps((2.3 + noise).tolist(), **{"loss.0": 1.0, "loss.1": 1.0})) == []


def test_memory_that_is_nearly_full() -> None:
    found = only(
        started(memory=1000),
        steps([1.0], memory=500),
        steps([1.0], 7, memory=950),
        steps([1.0], 8, memory=600),
    )
    assert found.text == "95% of the device's memory was in use"
    assert (
        said(started(memory=1000), steps([1.0], memory=900))
        == said(started(), steps([1.0], memory=900))
        == []
    )


def test_the_worst_comes_first_and_a_new_run_begins_anew() -> None:
    health = Health()
    for event in (started(memory=10), steps([1.0, np.nan], memory=10)):
        health.on_event(event)
    assert [finding.level for finding in health.findings] == ["error", "warning"]
    health.on_event(started())
    assert health.findings == ()
    health.on_event(RunStarted("s", "find_lr", {}, "cpu"))
    health.on_event(steps([np.nan]))
    assert health.findings == ()


def test_the_run_has_them() -> None:
    run = Run.from_events(
        [started(memory=10), steps([1.0], memory=10), RunEnded("finished", 1, 1.0)]
    )
    assert [finding.level for finding in run.health] == ["warning"]
    assert "100% of the device's memory was in use" in repr(run)
    assert "100% of the device&#x27;s memory was in use" in run._repr_html_()
    assert "health" not in repr(
        Run.from_events([started(), steps([1.0]), RunEnded("finished", 1, 1.0)])
    )


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_it_is_the_same_however_the_flushes_fall(rows: int) -> None:
    rng = np.random.default_rng(3)
    norm = np.concatenate([rng.lognormal(0, 0.2, 600), rng.lognormal(4, 0.2, 400)])
    layers = norm[:, None] * [1.0, 1.0, 1e-6, 1.0]
    loss = (2.3 + rng.normal(0, 0.05, 1000)).tolist()
    flushes = [
        steps(loss[i : i + rows], i, norm[i : i + rows], layers=layers[i : i + rows])
        for i in range(0, 1000, rows)
    ]
    levels = [(found.level, found.text.split(" ")[:3]) for found in examine([started(), *flushes])]
    assert levels == [
        ("warning", ["hardly", "a", "gradient"]),
        ("warning", ["the", "gradient", "norm"]),
        ("warning", ["the", "loss", "has"]),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_that_diverged_is_found_however_the_flushes_fall(seed: int) -> None:
    edges = np.unique(np.random.default_rng(seed).integers(1, len(CHAOS), 8))
    flushes = [
        steps(part, at) for at, part in zip([0, *edges], np.split(CHAOS, edges), strict=True)
    ]
    found = only(started(supervised=True), *flushes, RunEnded("finished", len(CHAOS), 1.0))
    assert (found.trouble, found.text) == (
        "diverged",
        "the loss has risen from 2.5 to 1604 from update 1 on, and is 16 now",
    )


def test_a_run_of_a_few_updates_that_diverged_says_so_at_its_end() -> None:
    few = steps(CHAOS[:5])
    assert said(started(), few) == []
    assert only(started(), few, RunEnded("finished", 5, 1.0)).trouble == "diverged"
    assert said(started(), steps(falling(5)), RunEnded("finished", 5, 1.0)) == []


def test_a_loss_that_runs_away_and_stays_finite() -> None:
    rising = (2.3 * 1.02 ** np.arange(300)).tolist()
    found = next(
        f for f in examine([started(), steps([2.3] * 50), steps(rising, 50)]) if "risen" in f.text
    )
    assert (found.level, found.text.partition(" since")[0]) == (
        "error",
        "the loss has risen from 2.3 to 710.4",
    )
    assert "learning rate" in found.advice
    assert (found.remedy, found.trouble) == ("bench.find_lr()", "diverged")
    assert found.step == pytest.approx(50 + np.log(3) / np.log(1.02), abs=1)
    # At the very first step.
    assert any(
        "risen from 2.3 to 531" in text for text in said(started(), steps([2.3, *[531.0] * 20]))
    )
    # It comes down, and is not where it began yet.
    peak = [2.3, *[7000.0] * 20, *[15.0] * 60]
    for at in (10, 100):
        found = only(started(), *(steps(peak[i : i + at], i) for i in range(0, 81, at)))
        assert (found.text, found.trouble) == (
            "the loss has risen from 2.3 to 7000 from update 1 on, and is 15 now",
            "diverged",
        )
    # It came back.
    assert (
        said(started(), steps([2.3] * 50), steps([1e6] * 30, 50), steps(falling(50, 80), 80)) == []
    )
    # A first batch that was easy by chance, noise, and a game of two.
    rng = np.random.default_rng(0)
    easy = np.concatenate([[1e-4], rng.chisquare(1, 200)]).tolist()
    for at in (1, 10, 201):  # of a sample each
        assert (
            said(started(batch_size=1), *(steps(easy[i : i + at], i) for i in range(0, 201, at)))
            == []
        )
    assert (
        said(
            started(), steps([0.7] * 50), steps([30.0] * 100, 50, **{"loss.0": 1.0, "loss.1": 1.0})
        )
        == []
    )


@pytest.mark.parametrize("at", [7, 40, 200])
def test_losses_that_grow_in_health(at: int) -> None:
    rng = np.random.default_rng(1)
    healthy = {
        "to nearly nothing": np.exp(-0.05 * np.arange(600)) + 1e-8 * rng.chisquare(1, 600),
        "policy": rng.normal(0, 0.05 + 0.002 * np.arange(600)),
        "value": rng.chisquare(2, 600) * (0.5 + 0.01 * np.arange(600)),
        "likelihood": -3 + 2.0 * np.exp(-0.01 * np.arange(600)) + rng.normal(0, 0.1, 600),
        "teacher": 0.05 * (1 - np.exp(-0.01 * np.arange(600))) * rng.chisquare(5, 600),
        "one sample": rng.chisquare(1, 600) / (1 + 0.01 * np.arange(600)),
    }
    for name, losses in healthy.items():
        flushes = [steps(losses[i : i + at].tolist(), i) for i in range(0, 600, at)]
        assert [text for text in said(started(), *flushes) if "not moved" not in text] == [], name


def test_a_rate_beyond_all_that_is_usual() -> None:
    noise = 2.3 + np.random.default_rng(2).normal(0, 0.01, 80)
    found = only(started(), steps(noise.tolist(), lr=1e7))
    assert (found.level, found.text) == (
        "warning",
        "the loss does not fall at a learning rate of 1e7",
    )
    found = only(started(), steps(noise.tolist(), lr=1e-12))
    assert found.text == "the learning rate is 1e-12, and the loss has not changed in 80 updates"
    assert said(started(), steps(falling(200), lr=1e7)) == []  # it falls
    assert said(started(), steps(falling(200), lr=1e-10)) == []
    assert said(started(warmup=100), steps(noise.tolist(), lr=1e-10)) == []
    cycle = np.concatenate([np.linspace(1e-4, 1e-2, 20), np.linspace(1e-2, 1e-10, 60)])
    assert said(started(), steps(noise.tolist(), lr=cycle)) == []


def constant(
    *values: float,
    name: str = "val_accuracy",
    losses: Sequence[float] = (2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7),
) -> list[Event]:
    events: list[Event] = [started()]
    for i, value in enumerate(values):
        metrics = {name: value} if name == "val_loss" else {"val_loss": losses[i], name: value}
        events += [steps([losses[i]] * 10, 10 * i), Validated(10 * (i + 1), i, metrics)]
    return events


def test_a_metric_that_is_constant() -> None:
    found = only(*constant(*[0.0983] * 5))
    assert (found.level, found.text) == ("info", "val_accuracy was 0.0983 at all 5 validations")
    assert (
        "val_mine was 0.123456 at all 5 validations"
        in said(*constant(*[0.123456] * 5, name="val_mine"))[0]
    )
    assert said(*constant(*[0.0983] * 4)) == []
    assert said(*constant(0.5, *[0.9] * 6)) == []  # it settled
    # nothing is left to learn
    assert said(*constant(*[1.0] * 6)) == said(*constant(*[0.0] * 6, name="val_error")) == []
    # a setting that was logged
    assert (
        said(*constant(*[0.1] * 6, name="val_beta")) == said(*constant(*[64] * 6, name="n")) == []
    )
    assert len(said(*constant(*[0.0] * 5))) == 1
    # The validation loss, while nothing is learned.
    still = [2.3] * 5
    assert said(*constant(*[2.3017] * 3, name="val_loss", losses=still))[0].startswith(
        "val_loss was 2.3017 at all 3 validations"
    )
    assert said(*constant(*[2.3017] * 3, name="val_loss")) == []  # at its minimum
    assert said(*constant(*[0.0] * 3, name="val_loss", losses=still)) == []


def test_what_the_engine_observed() -> None:
    found = only(started(), steps(falling(5)), Observed(1, 0, "evaluation_mode", ("",)))
    assert (found.level, found.step) == ("warning", 0)
    assert (
        found.text
        == "the model was in evaluation mode at update 0: without dropout and batch statistics"
    )
    found = only(started(), Observed(1, 0, "evaluation_mode", ("backbone", "head.norm")))
    assert found.level == "info"
    assert found.text.startswith("backbone, head.norm trained in evaluation mode")
    found = only(started(), Observed(10, 1, "same_order"), Observed(20, 2, "same_order"))
    assert found.level == "warning"
    assert found.text.startswith("epoch 1 had its samples in the same order as epoch 0")


def test_spikes() -> None:
    first, later = (
        Spiked(3, 0, 9.0, 0.5, samples=(4, 8, 15)),
        Spiked(9, 1, 8.0, 0.5, samples=(8, 2)),
    )
    found = only(started(), first)
    assert (found.level, found.step) == ("warning", 3)
    assert found.text == "the loss spiked at update 3: 9, expected 0.5"
    found = only(started(), first, later)
    assert found.text.startswith("the loss spiked 2 times, the first time at update 3")
    assert found.text.endswith("sample 8 is in each of these batches")
    ready = [dataclasses.replace(spike, are_batches=True) for spike in (first, later)]
    assert only(started(), *ready).text.endswith("each of them has batch 8 of the loader")
    found = only(started(), steps([1.0] * 5), dataclasses.replace(first, action="skip"))
    assert (found.level, found.advice) == ("info", "run.spikes has the samples")


@pytest.mark.parametrize("at", [7, 40, 200])
def test_a_loss_of_fixed_targets_that_rose(at: int) -> None:
    """Ten times is a divergence where nothing that learns could be so high; noise of small batches is none."""
    rng = np.random.default_rng(3)

    def run(losses: Any, supervised: bool = True, **settings: Any) -> list[str]:
        flushes = [steps(losses[i : i + at].tolist(), i) for i in range(0, len(losses), at)]
        return [
            found.trouble
            for found in examine([started(supervised=supervised, **settings), *flushes])
            if found.trouble
        ]

    linear = np.minimum(10.0, 1.0 * 1.03 ** np.arange(300)) * rng.normal(1, 0.1, 300)
    assert run(linear) == ["diverged"]
    assert run(linear, supervised=False) == []
    # Down, and up again: near the rate at which it diverges. A spike, sorted samples and other losses are something else.
    rebound = np.concatenate(
        [np.linspace(2.3, 1.1, 100), np.linspace(1.1, 2.2, 30), np.full(100, 2.2)]
    ) + rng.normal(0, 0.02, 230)
    assert run(rebound) == ["unstable"]
    assert run(rebound, shuffle=False) == run(rebound, supervised=False) == []
    spike = np.concatenate(
        [np.linspace(2.3, 1.1, 100), np.full(15, 2.2), np.linspace(1.1, 0.9, 115)]
    )
    assert run(spike) == []
    # Where it began, or above.
    assert run(2.4 + rng.normal(0, 0.03, 400)) == ["not learning"]
    assert run(np.concatenate([[2.3], 2.5 + rng.normal(0, 0.03, 399)])) == ["not learning"]
    healthy = {
        "one sample": rng.chisquare(1, 600) / (1 + 0.01 * np.arange(600)),
        "easy by chance": np.concatenate([[1e-2], rng.chisquare(1, 600)])
        / (1 + 0.01 * np.arange(601)),
        "slow": 2.3 - 0.0003 * np.arange(600) + rng.normal(0, 0.02, 600),
        "to nearly nothing": np.exp(-0.05 * np.arange(600)) + 1e-8 * rng.chisquare(1, 600),
        "warm restarts": 0.2
        + 2.0 * np.exp(-0.02 * np.arange(600))
        + 0.3 * (np.arange(600) % 200 < 60),
    }
    for name, losses in healthy.items():
        assert run(losses) == [], name


def test_a_short_fit_that_learned_nothing_says_so_at_its_end() -> None:
    flat = steps((2.3 + np.random.default_rng(2).normal(0, 0.02, 120)).tolist())
    assert said(started(supervised=True), flat) == []
    found = only(started(supervised=True), flat, RunEnded("finished", 120, 1.0))
    assert (found.trouble, found.remedy) == ("not learning", "bench.find_lr()")


def test_a_metric_that_gets_worse_while_the_loss_falls() -> None:
    falls = [2.0, 1.0, 0.5, 0.3, 0.2, 0.1]

    def run(name: str, *values: float, **settings: Any) -> tuple[Finding, ...]:
        events: list[Event] = [started(**settings)]
        for i, value in enumerate(values):
            events += [
                steps([falls[i]] * 200, 200 * i),
                Validated(200 * (i + 1), i, {"val_loss": falls[i], name: value}),
            ]
        return examine(events)

    (found,) = run("val_accuracy", 0.10, 0.08, 0.06, 0.04, 0.02, 0.01)
    assert (
        found.text
        == "val_accuracy has fallen since update 200, from 0.1 to 0.01, while training falls"
    )
    assert (found.trouble, found.remedy) == (
        "overfitting",
        "bench.set(early_stopping={'monitor': 'val_accuracy', 'mode': 'max'})",
    )
    (found,) = run("val_error", 0.10, 0.11, 0.13, 0.15, 0.16, 0.17)
    assert (found.trouble, found.remedy) == ("overfitting", "bench.set(early_stopping='val_error')")
    assert (
        run("val_error", 0.10, 0.11, 0.13, 0.15, 0.16, 0.17, early_stopping="val_loss")[0].remedy
        == ""
    )
    # Noise of few samples, a metric that rises by right, and names that do not tell.
    assert run("val_accuracy", 0.80, 0.97, 0.84, 0.95, 0.82, 0.86) == ()
    assert (
        run("val_kl_loss", 0.1, 0.2, 0.4, 0.6, 0.7, 0.8)
        == run("val_sparsity", 0.8, 0.6, 0.4, 0.2, 0.1, 0.1)
        == ()
    )


def test_of_one_trouble_the_cause_alone_is_found() -> None:
    """A fit that diverges until nothing is finite: one message."""
    rising = [2.3] * 40 + [2.3 * 1.5**i for i in range(60)]
    norms = np.array(rising)
    health = Health()
    for event in (
        started(supervised=True),
        steps(rising, norm=norms),
        Validated(100, 0, {"val_loss": 1e9}),
    ):
        health.on_event(event)
    assert health.trouble is not None
    assert (health.trouble.trouble, len(health.findings)) == ("diverged", 1)
    health.on_event(steps([np.nan], 100, np.nan))
    health.on_event(
        RunEnded(
            "failed", 100, 1.0, "NonFiniteError: loss not finite at update 100, first in head."
        )
    )
    assert [(one.trouble, one.text) for one in health.findings] == [
        ("not finite", "loss not finite at update 100, first in head")
    ]
    assert health.trouble == health.findings[0]


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, None, True, -1, 1e400])
def test_settings_of_a_record_from_anybody_break_no_rule(value: Any) -> None:
    names = (
        "lr",
        "warmup",
        "gradient_clip_val",
        "track_grad_norm",
        "early_stopping",
        "shuffle",
        "precision",
        "num_workers",
    )
    start = RunStarted(
        "r", "fit", dict.fromkeys(names, value), "cpu", LAYERS, 1000, 5, supervised=True
    )
    rows = steps([2.3] * 1500, norm=5.0, clipped=1.0, layers=[1.0, 1.0, 0.0, 1.0], lr=1e7)
    assert all(
        isinstance(found.remedy, str)
        for found in examine(
            [start, rows, Changed(5, {"gradient_clip_val": 2.0}), RunEnded("finished", 1500, 1.0)]
        )
    )
