"""Charts: what each plot shows, before any library draws it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.events import Suggestion, Trial
from workbench.plots.clip_statistics import WINDOW
from workbench.plots.drawing import matplotlib, plotly
from workbench.plots.names import fold, shorten
from workbench.plots.ranges import span, wide
from workbench.plots.searches.batch_size import batch_size
from workbench.plots.searches.lr_curve import lr_curve
from workbench.plots.smooth import ema
from workbench.plots.training.changes import change_marks
from workbench.plots.training.clipping import Clipped, clipping
from workbench.plots.training.grad_norm import grad_norm
from workbench.plots.training.logged import logged
from workbench.plots.training.loss import loss
from workbench.plots.training.run import Best, RunData, clip_line
from workbench.plots.training.schedule import schedule


def test_smoothing_is_the_debiased_average() -> None:
    y = np.array([1.0, 3.0, 2.0])
    by_hand = [
        1.0,
        (0.9 * 0.1 * 1 + 0.1 * 3) / 0.19,
        (0.81 * 0.1 * 1 + 0.9 * 0.1 * 3 + 0.1 * 2) / 0.271,
    ]
    np.testing.assert_allclose(ema(y, 0.9), by_hand)
    np.testing.assert_allclose(ema(np.full(9, 2.5), 0.99), 2.5)
    assert ema(np.empty(0), 0.9).shape == (0,)


def test_smoothing_passes_over_what_is_not_a_number() -> None:
    got = ema(np.array([1.0, np.nan, np.inf, 1.0]), 0.9)
    np.testing.assert_allclose(got, [1.0, np.nan, np.nan, 1.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 0.99))
def test_smoothing_stays_within_its_values(values: list[float], beta: float) -> None:
    got = ema(np.array(values), beta)
    slack = 1e-6 * max(1.0, max(map(abs, values)))
    assert min(values) - slack <= got.min()
    assert got.max() <= max(values) + slack


def test_ranges() -> None:
    assert span(np.array([0.0, 10.0, np.nan, np.inf])) == (-0.5, 10.5)
    assert span(np.array([np.nan])) is None
    low, high = span(np.array([0.0, -1.0, 1.0, 100.0]), log=True) or (0, 0)
    assert 0 < low < 1
    assert 100 < high < 200
    assert wide(np.array([1.0, 100.0]))
    assert not wide(np.array([0.0, 100.0]))
    assert not wide(np.empty(0))


LRS = np.geomspace(1e-5, 10, 50)
CURVE = 2.0 - np.exp(-((np.log10(LRS) + 1) ** 2)) + 10 * (LRS > 3)


def test_the_lr_curve_marks_every_suggestion_and_the_recommended_one_most() -> None:
    rules = [
        Suggestion("landmarks", 1e-2, None, "median"),
        Suggestion("valley", LRS[20], 20, "steep"),
        Suggestion("edge", None, None, "no edge seen"),
    ]
    chart = lr_curve(LRS, CURVE, CURVE, {r.name: r for r in rules}, 1e-2, ["24× below divergence"])
    assert chart.x.log
    assert [(m.label, m.emphasis) for m in chart.marks] == [
        ("valley 2.81e-3", False),
        ("recommended 0.01", True),
    ]
    assert chart.marks[0].y == pytest.approx(CURVE[20])  # on the curve
    assert (chart.bands[0].low, chart.bands[0].high) == (0.005, 0.02)
    assert chart.notes == ("24× below divergence", "edge proposes nothing: no edge seen")
    assert chart.y.range is not None
    assert chart.y.range[1] < 5  # the explosion does not flatten the rest


def test_a_recommended_rate_of_no_rule_has_a_mark_of_its_own() -> None:
    chart = lr_curve(LRS, CURVE, CURVE, (), 3e-3)
    assert [(m.label, m.emphasis) for m in chart.marks] == [("recommended 3e-3", True)]
    assert lr_curve(LRS, CURVE, CURVE).marks == lr_curve(LRS, CURVE, CURVE).bands == ()


def test_batch_sizes_show_failures_with_their_reason() -> None:
    trials = [
        Trial(64, True, 1.0, 500.0, 10**9),
        Trial(32, True, 1.0, 400.0, 5 * 10**8),
        Trial(128, False, error="RuntimeError: CUDA out of memory. Tried …"),
    ]
    speed, memory = batch_size(trials, best=32, largest=64, fastest=64)
    assert speed.x.ticks == ("32", "64", "128")
    assert speed.series[0].y.tolist() == [400.0, 500.0]
    assert memory.series[0].y.tolist() == [0.5, 1.0]
    assert memory.y.unit == "GB"
    assert [(m.label, m.failed, m.emphasis) for m in speed.marks] == [
        ("128: out of memory", True, False),
        ("fastest and largest 64", False, False),
        ("best 32", False, True),
    ]
    assert "Tried" in speed.marks[0].why


def test_batch_sizes_without_memory_or_success() -> None:
    assert len(batch_size([Trial(2, True, 1.0, 5.0)], 2, 2)) == 1
    (only,) = batch_size([Trial(1, False, error="")])
    assert only.marks[0].label == "1: failed"
    assert batch_size([])[0].x.ticks == ()


def test_the_loss_is_raw_smoothed_and_checked() -> None:
    step = np.arange(100)
    chart = loss(
        step, np.ones(100), np.array([50, 100]), np.array([1.0, 2.0]), [(40, {"lr": 1e-3})]
    )
    assert [s.style for s in chart.series] == ["faint", "line", "points"]
    assert [(m.x, m.label) for m in chart.marks] == [(40, "lr → 0.001")]
    assert not chart.y.log
    assert loss(step, np.exp(-step / 5.0)).y.log
    assert loss(np.empty(0), np.empty(0)).notes


def test_one_wild_loss_does_not_flatten_the_rest() -> None:
    raw = np.linspace(2, 1, 1000)
    raw[500] = 1e6
    raw[501] = np.nan
    raw[502] = np.inf
    high = (loss(np.arange(1000), np.where(raw > 10, np.nan, raw)).y.range or (0, 0))[1]
    assert high < 3


def test_rates_of_zero_are_seen() -> None:
    """A schedule that ends at 0 has a point more than a logarithmic axis; one that lies there has a line."""
    step, falling = np.arange(100), np.linspace(0.1, 0, 100)
    ends = schedule(step, {"lr": falling})
    assert ends.y.log
    assert ends.series[0].x[-1] == 98
    lies = schedule(step, {"lr": np.where(step < 60, falling, 0.0)})
    assert not lies.y.log
    assert lies.series[0].x[-1] == 99
    assert lies.y.range is not None
    assert lies.y.range[0] < 0


def test_labels_of_near_changes_are_joined() -> None:
    step = np.arange(1000)
    marks = change_marks(
        [(100, {"lr": 0.1}), (101, {"gradient_clip_val": None}), (900, {"lr": 0.2})], step
    )
    assert [m.label for m in marks] == ["lr → 0.1, clip → off", "", "lr → 0.2"]
    assert change_marks([(i, {"lr": 0.1}) for i in range(5)], step)[0].label == "5 changes"
    assert len(change_marks([(0, {"lr": 0.1})], np.empty(0))) == 1


def test_marks_of_a_run_that_was_resumed_again_and_again_can_be_read() -> None:
    many = "resumed, lr → 0.0003, max_epochs → 3, checkpoint_every → 7, save_top_k → 2"
    marks = change_marks(
        [(40, many), (40, {"lr": 3e-4}), (90, "resumed"), (90, "resumed, max_epochs → 9")],
        np.arange(120),
    )
    assert [(m.x, m.label) for m in marks] == [
        (40, "resumed, lr → 0.0003, max_epochs → 3, …"),
        (90, "resumed, max_epochs → 9"),
    ]
    assert marks[0].why == f"from update 40: {many}, lr → 0.0003"


def test_where_a_run_was_resumed_is_marked_in_words() -> None:
    step = np.arange(1000)
    marks = change_marks(
        [(400, "resumed, max_epochs → 5"), (400, {"lr": 1e-4}), (900, "resumed")], step
    )
    assert [(m.x, m.label) for m in marks] == [
        (400, "resumed, max_epochs → 5, lr → 0.0001"),
        (900, "resumed"),
    ]
    assert marks[0].why == "from update 400: resumed, max_epochs → 5, lr → 0.0001"
    wordy = change_marks([(400, f"resumed, early_stopping → {'x' * 99}")], step)[0]
    assert wordy.label == "resumed, …"
    assert "x" * 99 in wordy.why
    history = {"step": step, "loss": np.ones(1000), "lr": np.ones(1000), "grad_norm": np.ones(1000)}
    history["grad_norm_clipped"] = history["grad_norm"]
    told = RunData(
        history, {}, [(400, "resumed"), (600, {"gradient_clip_val": 0.5}), (800, {"lr": 0.1})]
    )
    for charts, labels in (
        (told.loss(), ["resumed", "clip → 0.5", "lr → 0.1"]),
        (told.lr(), ["resumed", "lr → 0.1"]),
        (told.grad_norm(), ["resumed", "clip → 0.5", "lr → 0.1"]),
        (told.clipping()[1:], ["resumed", "clip → 0.5"]),
    ):
        assert [m.label for m in charts[0].marks] == labels
    np.testing.assert_array_equal(told.limit[[599, 600]], [np.nan, 0.5])


def test_the_best_checkpoint_is_a_point_where_its_metric_is_drawn() -> None:
    history = {"step": np.arange(9), "loss": np.ones(9)}
    checks = {
        "step": np.array([4, 8]),
        "val_loss": np.array([0.5, 0.75]),
        "acc": np.array([0.1, 0.9]),
    }
    told = RunData(history, checks, best=Best(4, "val_loss", 0.5))
    assert [(m.x, m.y, m.label) for m in told.loss()[0].marks] == [(4, 0.5, "best checkpoint")]
    assert told.named("acc")[0].marks == ()
    assert RunData(history, checks, best=Best(8, "acc", 0.9)).loss()[0].marks == ()
    (mark,) = RunData(history, checks, best=Best(8, "acc", 0.9)).named("acc")[0].marks
    assert mark.why == "after 8 updates, acc 0.9"
    assert (
        RunData(history, checks, best=Best(8, "val_loss_averaged", 0.25)).loss()[0].marks[0].y
        == 0.25
    )


def test_a_logged_value_is_drawn_by_update_over_epochs_and_of_the_checks() -> None:
    nan = np.nan
    history = {
        "step": np.arange(4),
        "loss": np.ones(4),
        "acc_step": np.array([0.1, nan, 0.3, nan]),
        "grad_norm/acc": np.ones(4),
    }
    epochs = {
        "step": np.array([2, 4]),
        "epoch": np.array([0, 1]),
        "acc_epoch": np.array([0.2, 0.4]),
        "lr-SGD": np.ones(2),
    }
    checks = {
        "step": np.array([4]),
        "epoch": np.array([1]),
        "acc": np.array([0.5]),
        "acc_averaged": np.array([0.6]),
    }
    told = RunData(history, checks, logged=epochs, by_model=("acc_step", "grad_norm/acc"))
    (chart,) = told.named("acc")
    assert [(s.name, s.x.tolist(), s.style) for s in chart.series] == [
        ("each update", [0, 2], "faint"), ("smoothed", [0, 2], "line"), ("over the epoch", [2, 4], "dots"),
        ("validation, raw", [4], "points"), ("validation, averaged", [4], "dots"),
    ]  # fmt: skip
    assert len({s.tone for s in chart.series[1:]}) == 4
    assert chart.x == told.loss()[0].x
    low, high = chart.y.range or (9, 9)
    assert low < 0.1 < 0.6 < high
    assert [s.name for s in told.named("acc_step")[0].series] == ["each update", "smoothed"]
    assert [s.name for s in told.named("lr-SGD")[0].series] == ["over the epoch"]
    assert told.named("acc_averaged")[0].series[0].y.tolist() == [0.6]
    for none in ("loss", "step", "epoch", "grad_norm", "val"):
        assert told.named(none) == []
    assert told.names() == [
        "acc_step",
        "grad_norm/acc",
        "acc_epoch",
        "lr-SGD",
        "acc",
        "acc_averaged",
    ]
    assert told.grad_norm() == []
    assert (
        RunData(history | {"grad_norm": np.ones(4)}, {}, by_model=("grad_norm/acc",))
        .grad_norm()[0]
        .heat
        is None
    )
    assert logged("ppl", (np.arange(9), np.geomspace(1, 1e4, 9))).y.log
    assert not logged("gap", (np.arange(9), np.array([-1.0, *np.geomspace(1, 1e4, 8)]))).y.log


def test_a_spike_stays_in_the_heat_map() -> None:
    norms = np.ones(5000)
    norms[1234] = 50.0
    heat, total = grad_norm(
        np.arange(5000),
        norms,
        {"conv": norms, "head": np.zeros(5000)},
        np.full(5000, 2.0),
        share=0.0,
    )
    assert heat.heat is not None
    assert heat.heat.z.shape[1] <= 400
    assert heat.heat.z[0].max() == 50
    assert heat.heat.rows == ("conv", "head")
    assert "blank" in heat.heat.label
    assert [s.style for s in total.series] == ["thin", "limit"]
    assert total.series[1].x.tolist() == [0, 4999]  # a constant line needs no more
    assert total.notes == ("clipped 0% of the updates with clipping on · p50 1, p95 1",)


def test_the_map_leaves_out_what_is_rounding_noise_and_says_so() -> None:
    """A bias before BatchNorm, or a key's: drawn, 1e-11 would stretch the colours. A weight whose gradient vanishes is drawn."""
    ones = np.geomspace(1.0, 0.5, 300)
    layers = {
        "0.weight": ones,
        "0.bias": 1e-8 * ones,
        "1.weight": 1e-8 * ones,
        "2.bias": 1e-8 * ones,
        "3.bias": 0 * ones,
    }
    layers["2.bias"][7] = 0.1
    heat, _ = grad_norm(np.arange(300), ones, layers)
    assert heat.heat is not None
    assert np.isnan(heat.heat.z).all(axis=1).tolist() == [False, True, False, False, False]
    assert heat.notes == (
        "Rounding noise: 0.bias. A normalisation behind it removes its effect, which is harmless.",
    )
    assert "rounding noise" in heat.heat.label


def test_the_clip_line_follows_the_changes() -> None:
    line = clip_line(
        np.arange(6),
        1.0,
        [(2, {"gradient_clip_val": 0.5}), (3, {"lr": 1.0}), (4, {"gradient_clip_val": None})],
    )
    np.testing.assert_array_equal(line, [1, 1, 0.5, 0.5, np.nan, np.nan])
    assert np.isnan(clip_line(np.arange(2), None, [])).all()


def test_a_run_without_norms_is_its_loss() -> None:
    history = {"step": np.arange(3), "loss": np.ones(3)}
    assert [c.title for c in RunData(history, {}).whole()] == ["Loss"]
    titles = [c.title for c in RunData(history | {"grad_norm": np.ones(3)}, {}, clip=1.0).whole()]
    assert titles == ["Loss", "Total gradient norm"]
    value = RunData(history | {"grad_norm": np.ones(3)}, {}, clip=1.0, clips_norm=False).whole()[1]
    assert len(value.series) == 1  # a limit on entries is no limit on the norm


def test_names_are_folded() -> None:
    assert fold(["m.0.weight", "m.10.weight"]) == (["0", "10"], "m.*.weight")
    assert fold(["m.0.weight", "m.0.bias"]) == (["weight", "bias"], "m.0.*")
    assert fold(["a", "b.c"]) == (["a", "b.c"], "")
    assert fold(["only.one"]) == (["only.one"], "")
    assert fold(["a.a", "a.a.a"]) == (["a", "a.a"], "a.*")
    assert fold([]) == ([], "")
    assert len(shorten("x" * 100, 28)) == 28


@given(st.lists(st.text("ab.", min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
def test_folded_names_stay_apart(names: list[str]) -> None:
    labels, _ = fold(names)
    assert len(set(labels)) == len(names)


def test_charts_take_anything_shaped_like_a_suggestion() -> None:
    rule = SimpleNamespace(name="mine", lr=0.1, index=None, why="")
    assert math.isclose(lr_curve(LRS, CURVE, CURVE, [rule], 0.1).marks[0].x, 0.1)


def test_clipping_shows_both_norms_and_how_many_were_cut() -> None:
    step = np.arange(1000)
    before = np.where(step % 4 == 0, 2.0, 0.5)
    on = step < 600
    part = Clipped(before, np.where(on, np.minimum(before, 1.0), before), on)
    changes = [(600, {"gradient_clip_val": None})]
    norms, share = clipping(step, {"": part}, np.where(on, 1.0, np.nan), changes)
    assert [s.name for s in norms.series] == ["before clipping", "after clipping", "clip value"]
    assert norms.notes == ("25% of the updates with clipping on were cut.",)
    assert [(m.x, m.label) for m in share.marks] == [(600, "clip → off")]
    (line,) = share.series
    assert str(WINDOW) in line.name
    assert line.y[599] == pytest.approx(25.0)
    assert np.isnan(line.y[600:]).all()
    (alone,) = clipping(step, {"": Clipped(before, before, np.zeros(1000, bool))})
    assert alone.notes == ("Clipping was off.",)


def test_optimizers_that_take_turns_have_whole_lines_of_their_own() -> None:
    step = np.arange(8)
    even = step % 2 == 0
    history = {"step": step, "loss": np.where(even, 1.0, 3.0), "lr": np.ones(8)}
    for i, turn in enumerate((even, ~even)):
        history[f"loss.{i}"] = np.where(turn, 1.0 + 2 * i, np.nan)
        history[f"lr.{i}"] = np.where(turn, 0.1 * (i + 1), np.nan)
        history[f"grad_norm.{i}"] = np.where(turn, 4.0, np.nan)
        history[f"grad_norm_clipped.{i}"] = np.where(turn, 1.0 if i else 4.0, np.nan)
    told = RunData(history | {"grad_norm": np.full(8, 4.0)}, {}, clip=1.0)
    (chart,) = told.loss()
    assert [(s.name, s.style) for s in chart.series] == [
        ("", "faint"), ("optimizer 0", "line"), ("", "faint"), ("optimizer 1", "line"),
    ]  # fmt: skip
    assert chart.series[3].x.tolist() == [1, 3, 5, 7]
    assert chart.series[3].y == pytest.approx(3.0)
    (rates,) = told.lr()
    assert [(s.name, s.y[0]) for s in rates.series] == [("optimizer 0", 0.1), ("optimizer 1", 0.2)]
    first, second, share, _ = told.clipping()
    assert (first.notes[0][:2], second.notes[0][:4]) == ("0%", "100%")
    assert [s.name for s in share.series] == ["optimizer 0", "optimizer 1"]
    assert share.series[1].y.tolist() == [100.0] * 4
    assert len(told.grad_norm()[0].series) == 1, (
        "the clip value limits each optimizer's norm, not their total"
    )


def test_optimizers_that_step_together_are_beside_their_sum() -> None:
    step = np.arange(30)
    parts = {"optimizer 0": np.ones(30), "optimizer 1": np.full(30, 2.0)}
    chart = loss(step, np.full(30, 3.0), parts=parts)
    assert [s.name for s in chart.series] == [
        "each update",
        "sum, smoothed",
        "optimizer 0",
        "optimizer 1",
    ]
    low, high = chart.y.range or (9, 9)
    assert low < 1 < 3 < high


def test_averaged_validation_is_a_line_of_its_own() -> None:
    chart = loss(
        np.arange(10),
        np.ones(10),
        np.array([5, 10]),
        np.array([1.0, 0.9]),
        averaged=np.array([np.nan, 0.2]),
    )
    raw, averaged = chart.series[2:]
    assert (raw.name, averaged.name) == ("validation, raw", "validation, averaged")
    assert raw.style != averaged.style
    assert raw.tone != averaged.tone
    assert (chart.y.range or (9, 9))[0] < 0.2


def test_the_learning_rate_has_a_logarithmic_axis_that_can_be_read() -> None:
    step = np.arange(100)
    falling = 1e-3 * 0.5 * (1 + np.cos(np.pi * step / 99))
    chart = schedule(step, {"learning rate": falling}, [(50, {"lr": 1e-3, "batch_size": 1024})])
    assert chart.x == loss(step, np.ones(100)).x
    assert chart.y.log
    low, high = chart.y.range or (0, 0)
    assert 1e-8 < low < 1e-3 < high, (
        "its last updates, which are next to nothing, do not flatten it"
    )
    assert chart.marks[0].label == "lr → 0.001, batch size → 1024"
    low, high = schedule(step, {"learning rate": np.full(100, 3e-4)}).y.range or (0, 0)
    assert high / low >= 10, "or no number would stand beside a constant rate"
    assert schedule(np.empty(0), {"learning rate": np.empty(0)}).notes


def test_a_chart_draws_itself() -> None:
    from matplotlib.figure import Figure

    chart = schedule(np.arange(3), {"learning rate": np.ones(3)})
    assert plotly.figure(chart).data[0].name == "learning rate"
    assert isinstance(matplotlib.figure(chart), Figure)
    ax = Figure().subplots()
    assert matplotlib.draw(chart, ax) is ax
