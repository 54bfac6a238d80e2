"""The arithmetic of one sweep: rates, smoothing, ends."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import lr_rules as slow
from workbench.settings import SettingsError
from workbench.tuners.learning_rate import sweep
from workbench.tuners.learning_rate.sweep import (
    Level,
    Smoother,
    StopRule,
    rates,
    running_median,
    smooth,
)


def first_end(losses, threshold=4.0):
    """Index and reason of the end of a sweep over `losses`, None: all points."""
    smoother, rule = Smoother(), StopRule(threshold)
    for i, loss in enumerate(losses):
        why = rule.check(loss, smoother.update(loss))
        if why:
            return i, why
    return None


class TestRates:
    @pytest.mark.parametrize("mode", ["exponential", "linear"])
    @pytest.mark.parametrize(
        ("low", "high", "n"), [(1e-5, 10.0, 100), (1e-8, 1.0, 7), (3e-4, 0.7, 3)]
    )
    def test_first_and_last_are_exact_and_nothing_is_doubled(self, mode, low, high, n):
        lrs = rates(low, high, n, mode)
        assert lrs.shape == (n,)
        assert lrs[0] == low
        assert lrs[-1] == high
        assert (np.diff(lrs) > 0).all()

    def test_exponential_steps_are_one_ratio(self):
        lrs = rates(1e-5, 10, 100)
        np.testing.assert_allclose(lrs[1:] / lrs[:-1], 1e6 ** (1 / 99), rtol=1e-12)
        np.testing.assert_allclose(lrs, slow.exponential(1e-5, 10, 100), rtol=1e-12)

    def test_linear_steps_are_one_difference(self):
        np.testing.assert_allclose(np.diff(rates(0.1, 1.0, 10, "linear")), 0.1, rtol=1e-12)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"min_lr": 0.0}, "min_lr=0.0"),
            ({"min_lr": -1e-3}, "min_lr=-0.001"),
            ({"min_lr": math.nan}, "min_lr=nan"),
            ({"max_lr": math.inf}, "max_lr=inf"),
            ({"max_lr": "1"}, "max_lr='1'"),
            ({"min_lr": True}, "min_lr=True"),
            ({"min_lr": 1.0, "max_lr": 1.0}, "max_lr=1.0 is not above min_lr=1.0"),
            ({"min_lr": 1e-300, "max_lr": 1e300}, "too far apart"),
            ({"num_training": 2}, "num_training=2"),
            ({"num_training": 10.0}, "num_training=10.0"),
            ({"num_training": True}, "num_training=True"),
            ({"mode": "log"}, "mode='log'"),
        ],
    )
    def test_errors_name_the_argument_and_the_value(self, arguments, named):
        with pytest.raises(SettingsError, match=named.replace("(", r"\(")):
            rates(**arguments)


class TestRunningMedian:
    @given(
        st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=12),
        st.integers(0, 4),
    )
    def test_is_the_median_of_those_around_each(self, rows, half):
        expected = [
            [
                statistics.median(column)
                for column in zip(*rows[max(0, i - half) : i + half + 1], strict=True)
            ]
            for i in range(len(rows))
        ]
        np.testing.assert_array_equal(running_median(np.array(rows), half), expected)
        np.testing.assert_array_equal(
            running_median(np.array(rows)[:, 0], half), [row[0] for row in expected]
        )

    @pytest.mark.parametrize("columns", [1, 3])
    def test_takes_windows_in_blocks_and_finds_the_same(self, columns):
        values = np.random.default_rng(0).normal(size=(6000, columns))
        half = 300
        windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1, axis=0)
        assert windows.size > 2 << 20
        middle = running_median(values, half)[half:-half]
        assert middle.tobytes() == np.median(windows, axis=-1).tobytes()


class TestSmoothing:
    @pytest.mark.parametrize("value", [1.0, 0.1, -3.7, 0.0, 1e-30])
    def test_a_constant_loss_is_flat_to_the_last_bit(self, value):
        """A peer draws .505, .673, .758 …"""
        assert smooth([value] * 200).tolist() == [value] * 200

    @given(
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=150),
        st.sampled_from([0.0, 0.5, 0.9, 0.98]),
    )
    def test_equals_the_slow_twin(self, losses, beta):
        np.testing.assert_allclose(
            smooth(losses, beta), slow.ema(losses, beta), rtol=1e-9, atol=1e-6
        )

    def test_the_first_is_the_loss_itself(self):
        assert Smoother().update(2.3) == 2.3

    def test_what_is_not_finite_leaves_no_trace(self):
        smoother = Smoother()
        smoother.update(1.0)
        assert math.isnan(smoother.update(math.nan))
        assert smoother.update(math.inf) == math.inf
        assert smoother.update(1.0) == 1.0

    @pytest.mark.parametrize("beta", [1.0, -0.1, math.nan])
    def test_beta_is_checked(self, beta):
        with pytest.raises(SettingsError, match="beta="):
            Smoother(beta)


class TestLevel:
    def test_it_is_of_the_losses_at_the_start(self):
        level = Level.of(np.array([1.0, 3.0, 1.5]))
        assert (level.base, level.high, level.spread, level.size) == (1.5, 3.0, None, 1.5)
        assert level.limit(4.0) == 12.0

    @pytest.mark.parametrize("losses", [[-1.0, 1.0, 0.5], [0.0, 0.0, 2.0]])
    def test_where_a_multiple_means_nothing_a_rise_is_of_the_range(self, losses):
        level = Level.of(np.array(losses))
        assert level.spread == level.size == 2.0
        assert level.limit(4.0) == level.base + 3 * 2.0
        assert level.limit(4.0, lowest=level.base - 5) == level.base + 3 * 5.0


class TestStopRule:
    def test_a_constant_loss_never_ends_it(self):
        for value in (1.0, 0.0, -2.0):
            assert first_end([value] * 500) is None

    def test_ends_above_the_threshold_and_not_at_it(self):
        rule = StopRule(4.0)
        for _ in range(10):
            assert rule.check(1.0, 1.0) is None
        assert rule.check(9.0, 4.0) is None
        assert (
            rule.check(9.0, 4.0001)
            == "the loss diverged, as expected (smoothed loss above 4 x its best)"
        )

    def test_best_starts_at_the_tenth_smoothed_value(self):
        """Before, the smoothed loss is that of a few batches, or of a few samples."""
        rule = StopRule(2.0)
        for smoothed in [0.1, 5.0, 0.01, *[1.0] * 7]:
            assert rule.check(1.0, smoothed) is None
        assert rule.best == 1.0
        assert rule.check(2.0, 2.0) is None
        assert rule.check(5.0, 2.5) is not None

    @pytest.mark.parametrize("seed", range(50))
    def test_losses_of_single_samples_do_not_end_it(self, seed):
        """A squared error of one sample may be anything from 0 to seven times the mean."""
        assert first_end(np.random.default_rng(seed).chisquare(1, 100).tolist()) is None

    def test_best_goes_down_with_the_loss(self):
        rule = StopRule(4.0)
        for _ in range(10):
            assert rule.check(1.0, 1.0) is None
        assert rule.check(0.1, 0.1) is None
        assert rule.check(1.0, 0.41) is not None

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("threshold", [4.0, None])
    def test_not_finite_is_an_end_of_its_own(self, bad, threshold):
        assert first_end([1.0, 1.0, bad], threshold) == (2, sweep.NOT_FINITE)

    def test_none_visits_every_rate(self):
        assert first_end([1.0, 1e6, 1e12], None) is None

    @given(
        st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=60), st.sampled_from([1.5, 4.0, None])
    )
    def test_equals_the_slow_twin_for_positive_losses(self, losses, threshold):
        fast, twin = first_end(losses, threshold), slow.stops_at(losses, threshold)
        assert (fast and fast[0]) == (twin and twin[0])

    def test_a_negative_loss_that_falls_is_not_ended(self):
        assert first_end([-1.0 - 0.1 * i for i in range(100)]) is None

    def test_a_loss_that_crosses_zero_is_not_ended(self):
        noise = np.random.default_rng(0).normal(0, 0.05, 100)
        assert first_end((np.linspace(1.0, -1.0, 100) + noise).tolist()) is None

    def test_a_negative_loss_with_noise_is_not_ended(self):
        for seed in range(20):
            noise = np.random.default_rng(seed).normal(0, 0.1, 100)
            noise[0] = 0
            assert first_end((-0.001 + noise).tolist()) is None

    def test_once_below_zero_a_small_positive_best_does_not_end_it(self):
        assert first_end([0.01, -0.005, 0.03, 0.02] * 25) is None

    def test_a_batch_with_no_loss_at_all_changes_nothing(self):
        """A hinge loss is 0 where all margins hold; the rule for positive losses still holds."""
        at, why = first_end([1.0, 0.0, 1.0] * 10 + [50.0] * 10)
        assert at == slow.stops_at([1.0, 0.0, 1.0] * 10 + [50.0] * 10)[0]
        assert "4 x its best" in why

    def test_a_negative_loss_that_explodes_is_ended(self):
        falls = [-1.0 - 0.02 * i for i in range(50)]
        at, why = first_end(falls + [10.0**i for i in range(10)])
        assert 50 < at < 56
        assert (
            why == "the loss diverged, as expected (smoothed loss rose by more than 3 x its range)"
        )

    def test_a_slow_explosion_of_a_negative_loss_is_ended(self):
        """The range must not grow with the explosion itself."""
        assert first_end([-1.0] * 20 + [-1.0 + 0.2 * i for i in range(200)]) is not None

    @pytest.mark.parametrize("threshold", [1.0, 0.0, -4.0, math.nan, "4", True])
    def test_threshold_is_checked(self, threshold):
        with pytest.raises(SettingsError, match="early_stop_threshold="):
            StopRule(threshold)
