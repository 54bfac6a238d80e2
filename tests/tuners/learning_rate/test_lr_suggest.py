"""The rules and the curve: known answers, slow twins, and no exception whatever the losses."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import lr_rules as slow
from workbench import events
from workbench.events import CurveEnded, CurvePoint, Suggestion
from workbench.tuners.learning_rate import lr_suggest
from workbench.tuners.learning_rate.curve import LRCurve
from workbench.tuners.learning_rate.lr_suggest import (
    Died,
    Landmarks,
    Raced,
    divergence,
    suggest_all,
)
from workbench.tuners.learning_rate.rules import minimum, slide, steepest, valley
from workbench.tuners.learning_rate.sweep import rates, smooth
from workbench.units import rate

LRS = rates(1e-5, 10, 100)
LOG = np.log10(LRS)
SGD = {"beta": 0.9, "adaptive": False}


def bowl(fall=1.5, turn=-1.5, edge=0.0, start=2.0):
    """A curve as they are: flat, falling in a sigmoid around `turn`, exploding at 10^edge."""
    y = start - fall / (1 + np.exp(-4 * (LOG - turn)))
    return np.where(edge <= LOG, start * 10 ** (1 + 4 * (LOG - edge)), y)


class TestKnownAnswers:
    def test_steepest_is_in_log_lr(self):
        """Against raw lr the same sigmoid is steepest far to the left of its middle."""
        found = steepest(LRS, bowl(edge=9))
        assert found.lr == pytest.approx(10**-1.5, rel=0.15)
        assert found.lr == LRS[found.index]
        assert "per decade" in found.why

    def test_steepest_ignores_the_first_tenth(self):
        y = bowl(edge=9)
        y[0], y[3] = 50, -50
        assert steepest(LRS, y).index == steepest(LRS, bowl(edge=9)).index

    def test_valley_is_the_middle_of_the_longest_fall(self):
        y = np.concatenate([np.full(30, 2.0), np.linspace(2, 1, 41)[1:], np.linspace(1, 9, 31)[1:]])
        found = valley(LRS, y)
        # 41 points fall, the last is 69; counted back from there: 69 - 41 + 13 + 6
        assert found.index == 47
        assert found.lr == LRS[47]

    def test_valley_leaps_over_bumps(self):
        y = np.linspace(2, 1, 100)
        y[10:90:7] += 5
        assert abs(valley(LRS, y).index - 50) < 10

    def test_minimum_is_a_tenth_of_the_lowest(self):
        y = (LOG + 1) ** 2
        found = minimum(LRS, y)
        low = LRS[np.argmin(y)]
        assert found.lr == pytest.approx(low / 10)
        assert found.index == np.argmin(np.abs(LOG - np.log10(low / 10)))

    def test_slide_finds_where_the_rise_begins(self):
        y = np.where(LOG < 0, 2.0 - 0.02 * (LOG + 5), 2 + 5 * LOG**2)
        found = slide(LRS, y)
        assert 10**-1.2 < found.lr < 1.0

    @pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
    def test_no_rule_depends_on_the_unit_of_the_loss(self, scale):
        plain = suggest_all(Landmarks(LRS, bowl(), **SGD), smooth(bowl()))
        scaled = suggest_all(Landmarks(LRS, bowl() * scale, **SGD), smooth(bowl() * scale))
        assert [s.index for s in plain] == [s.index for s in scaled]

    def test_landmarks_by_hand(self):
        y = np.where(LOG < -3, 1.0, 1.0 - 0.25 * (LOG + 3))  # falls from 1e-3 on
        y[70:] = 4.5  # just above 4 x the start
        s = np.array(slow.ema(y[:70], 0.9))
        e = LRS[70] * 0.1 * 0.316
        v = 4 * LRS[10 + slow.valley_index(s[10:].tolist())]
        m = LRS[5 + np.argmin(s[5:])] * math.sqrt(0.1) * 0.316
        middle = sorted([e, v, m])[1]
        assert Landmarks(LRS, y, **SGD).suggestion.lr == pytest.approx(0.75 * middle)
        for falling in ("one_cycle", "linear", "cosine"):
            assert Landmarks(LRS, y, **SGD, schedule=falling).suggestion.lr == pytest.approx(
                1.33 * middle
            )

    def test_the_edge_is_above_four_times_the_start_and_not_at_it(self):
        y = np.linspace(1.0, 0.5, 100)
        at, above = y.copy(), y.copy()
        at[60:], above[60:] = 3.999 * y[0], 4.001 * y[0]
        assert divergence(LRS, at) is None
        assert divergence(LRS, above) == LRS[60]

    def test_a_loss_that_is_not_finite_is_an_edge(self):
        y = bowl(edge=9)
        y[70] = math.nan
        exploded = bowl(edge=9)
        exploded[70:] = 1e9
        assert Landmarks(LRS, y, **SGD).suggestion == Landmarks(LRS, exploded, **SGD).suggestion
        assert f"The loss diverges at {LRS[70]:.2g}," in " ".join(Landmarks(LRS, y, **SGD).notes())

    def test_where_the_loss_stays_near_its_start_is_an_edge(self):
        """A transformer that breaks: its loss goes back to where it began, and diverges much later, if ever."""
        y = np.where(LOG < -3, 3.0, np.maximum(2.4, 3.0 - 0.4 * (LOG + 3)))
        broken = np.where(LOG < -1.5, y, 2.9)
        at = np.flatnonzero(broken == 2.9)[0]
        for late in (broken, np.where(LOG < 0.5, broken, 100.0)):
            notes = Landmarks(LRS, late, **SGD).notes()
            assert any(
                note.startswith(f"From a rate of {rate(LRS[at], 2)} on")
                and note.endswith("the loss stays near its start.")
                for note in notes
            )
            assert f"the edge {rate(1.5 * LRS[at] * 0.1 * 0.316, 2)}" in " ".join(notes)
            assert not any("No edge seen" in note for note in notes)
        soon = np.where(LOG < -0.8, broken, 100.0)
        assert f"The loss diverges at {rate(LRS[np.argmax(soon)], 2)}," in " ".join(
            Landmarks(LRS, soon, **SGD).notes()
        )

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("until", [100, 66])
    def test_noise_has_no_such_edge_and_suggests_nothing(self, seed, until):
        y = 2.3 + 0.1 * np.random.default_rng(seed).normal(size=100)
        noise = Landmarks(LRS[:until], y[:until], **SGD)
        assert noise.suggestion.lr is None
        [note] = noise.notes()
        assert note.startswith("No recommendation: the curve is flat")
        assert ("Raise max_lr" if until < 100 else "race=True") in note
        assert noise.estimate is not None  # where a race begins
        assert Landmarks(LRS, y - np.linspace(0, 0.25, 100), **SGD).suggestion.lr is not None

    def test_what_is_behind_the_edge_does_not_count(self):
        y, other = bowl(), bowl()
        behind = np.flatnonzero(y > 8)[5:]
        other[behind] = -1e3
        assert Landmarks(LRS, y, **SGD).suggestion == Landmarks(LRS, other, **SGD).suggestion

    @given(st.integers(0, 10_000), st.sampled_from([0.0, 0.9, 0.95]), st.booleans(), st.booleans())
    def test_landmarks_equal_the_slow_twin(self, seed, beta, adaptive, one_cycle):
        rng = np.random.default_rng(seed)
        y = bowl(rng.uniform(0.1, 1.9), rng.uniform(-4, 0), rng.uniform(-2, 2))
        y = np.abs(y * (1 + 0.05 * rng.normal(size=100))) + 1e-3
        y = np.where(lost < LOG, np.minimum(y, 1.9), y) if (lost := rng.uniform(-2, 2)) < 0.5 else y
        schedule = "one_cycle" if one_cycle else "constant"
        found = Landmarks(LRS, y, beta=beta, adaptive=adaptive, schedule=schedule).suggestion
        assert found.lr == pytest.approx(
            slow.landmarks(LRS.tolist(), y.tolist(), beta, adaptive, one_cycle), rel=1e-9
        )

    @given(st.lists(st.integers(-50, 50), min_size=13, max_size=100))
    def test_the_other_rules_equal_their_slow_twins(self, values):
        y = [float(v) for v in values]
        lrs = LRS[: len(y)]
        assert valley(lrs, y).index == slow.valley_index(y)
        lr = slow.minimum_lr(lrs.tolist(), y)
        assert minimum(lrs, y).lr == (None if lr is None else pytest.approx(lr))
        slope, _ = slow.steepest_index(lrs.tolist(), y, 10)
        found = steepest(lrs, y)
        if slope < -1e-9:
            assert f"{-slope:.3g} per decade" in found.why
            assert found.lr == lrs[found.index]


class TestNoisyLosses:
    """Losses of single samples: the noise of a squared error has the distribution chi-square."""

    @staticmethod
    def suggestions(noise):
        """Of forty sweeps, each as a multiple of the suggestion without noise."""
        calm = Landmarks(LRS, bowl(), **SGD).suggestion.lr
        drawn = [
            Landmarks(LRS, bowl() * noise(np.random.default_rng(seed)), **SGD).suggestion.lr
            for seed in range(40)
        ]
        assert None not in drawn
        return np.array(drawn) / calm

    def test_the_suggestion_is_that_of_the_curve(self):
        of_samples = self.suggestions(lambda rng: rng.chisquare(1, 100))
        assert np.mean(np.abs(np.log10(of_samples)) < 1) >= 0.9
        assert 0.3 < np.median(of_samples) < 3
        of_four = self.suggestions(lambda rng: rng.chisquare(4, 100) / 4)
        assert (np.abs(np.log10(of_four)) < 1).all()

    def test_a_single_sample_is_no_edge(self):
        y = bowl()
        y[[15, 30, 31]] = 200.0
        assert divergence(LRS, y) == divergence(LRS, bowl())
        y[30:33] = 200.0
        assert divergence(LRS, y) == LRS[30]

    @pytest.mark.parametrize("at", range(1, 10))
    def test_a_loss_that_never_comes_back_diverged_at_once(self, at):
        """As with Adam, whose losses stay high and finite."""
        y = np.r_[np.full(at, 1.0), np.linspace(40, 90, 60 - at)]
        found = Landmarks(LRS[:60], y, **SGD, num_training=100).suggestion
        assert found.lr is None
        assert f"diverged or was not finite at {rate(LRS[at], 2)}, point {at + 1}" in found.why
        assert divergence(LRS[:60], y) == LRS[at]


class TestNothingToSay:
    @pytest.mark.parametrize("value", [1.0, 0.0, -1.0])
    def test_a_constant_loss_gives_reasons_and_no_rate(self, value):
        y = np.full(100, value)
        for s in suggest_all(Landmarks(LRS, y, **SGD), smooth(y)):
            assert (s.lr, s.index) == (None, None)
            assert s.why
        assert (
            Landmarks(LRS, y, **SGD).notes()[0].startswith("No recommendation: the loss never fell")
        )

    def test_a_loss_that_only_rises_gives_none(self):
        y = np.linspace(1, 3, 100)
        assert Landmarks(LRS, y, **SGD).suggestion.lr is None
        assert minimum(LRS, y).lr is None
        assert steepest(LRS, y).lr is None
        assert valley(LRS, y).lr is None

    def test_an_explosion_at_once_asks_for_a_lower_start(self):
        found = Landmarks(LRS[:7], [1.0] * 6 + [math.inf], **SGD, num_training=100).suggestion
        assert found.lr is None
        assert "lower rates" in found.why

    @pytest.mark.parametrize("n", range(14))
    def test_short_curves(self, n):
        y = np.linspace(2, 1, 100)[:n]
        for s in suggest_all(Landmarks(LRS[:n], y, **SGD), smooth(y)):
            assert s.why
            assert (s.lr is None) == (s.index is None)
        assert Landmarks(LRS[:n], y, **SGD).notes()

    @given(
        st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=110),
        st.sampled_from([None, 3, 20, 100, 1000]),
        st.sampled_from([0.0, 0.9, 1.5, math.nan]),
    )
    def test_never_an_exception_and_never_a_rate_that_is_none_or_silly(
        self, losses, num_training, beta
    ):
        lrs = rates(1e-5, 10, 110)[: len(losses)]
        given_ = {"beta": beta, "adaptive": True, "num_training": num_training}
        for s in suggest_all(Landmarks(lrs, losses, **given_), smooth(losses)):
            assert s.why
            assert (s.lr is None) == (s.index is None)
            if s.lr is not None:
                assert math.isfinite(s.lr)
                assert 0 < s.lr <= 40
                assert 0 <= s.index < len(losses)
        assert all(isinstance(note, str) for note in Landmarks(lrs, losses, **given_).notes())

    def test_columns_of_different_length_are_the_callers_mistake(self):
        with pytest.raises(ValueError, match="2 learning rates and 3 losses"):
            valley([1, 2], [1, 2, 3])


class TestNegativeLosses:
    def test_an_edge_is_a_rise_against_the_range(self):
        shifted = bowl() - 5.0  # -3 and falling
        found = Landmarks(LRS, shifted, **SGD).suggestion
        assert found.lr is not None
        assert not any("No edge seen" in note for note in Landmarks(LRS, shifted, **SGD).notes())
        assert 0.2 < found.lr / Landmarks(LRS, bowl(), **SGD).suggestion.lr < 5

    def test_falling_is_no_edge(self):
        y = -0.01 - np.linspace(0, 5, 100)
        assert any("No edge seen" in note for note in Landmarks(LRS, y, **SGD).notes())


class TestTrust:
    def test_says_landmarks_distance_and_band(self):
        notes = Landmarks(LRS, bowl(), **SGD).notes()
        lr = Landmarks(LRS, bowl(), **SGD).suggestion.lr
        assert "an estimate each: the edge" in notes[0]
        edge = LRS[np.flatnonzero(bowl() > 8)[0]]
        assert notes[1] == f"The loss diverges at {edge:.2g}, {edge / lr:.2g} times this rate."
        assert f"{lr / 2:.2g} to {lr * 2:.2g}" in notes[2]

    def test_a_good_curve_has_no_flags(self):
        assert len(Landmarks(LRS, bowl(turn=-1), **SGD).notes()) == 3

    @pytest.mark.parametrize(
        ("losses", "context", "flag"),
        [
            (bowl(edge=9), SGD, "No edge seen"),
            (bowl(fall=0.1), SGD, "fell by only"),
            (bowl(turn=-3.8, edge=1), {"beta": 0.0, "adaptive": False}, "decades apart"),
            (bowl(), {"beta": 0.0, "adaptive": False, "schedule": "one_cycle"}, "take a tenth"),
        ],
    )
    def test_flags(self, losses, context, flag):
        assert any(flag in note for note in Landmarks(LRS, losses, **context).notes())

    def test_doubts_are_the_notes_that_speak_against_it(self):
        notes, against = (
            Landmarks(LRS, bowl(fall=0.1), **SGD).notes(),
            Landmarks(LRS, bowl(fall=0.1), **SGD).doubts(),
        )
        assert notes[:-3] == against, (
            "before the facts, so that they follow the suggestion where a curve is printed"
        )
        assert len(against) == 1
        assert "fell by only" in against[0]
        assert Landmarks(LRS, bowl(turn=-1), **SGD).doubts() == ()
        rising = np.linspace(1, 2, 100)
        assert Landmarks(LRS, rising, **SGD).doubts() == Landmarks(LRS, rising, **SGD).notes()
        assert Landmarks(LRS, rising, **SGD).doubts()[0].startswith("No recommendation")

    def test_divergence_is_the_edge(self):
        y = bowl()
        assert divergence(LRS, y) == LRS[np.flatnonzero(y > 8)[0]]
        assert divergence(LRS, bowl(edge=9)) is None
        y[40] = np.nan
        assert divergence(LRS, y) == LRS[40]
        assert divergence(LRS, np.full(100, np.inf)) == LRS[0]
        assert divergence([], []) is None
        shifted = bowl() - 5.0  # below zero: a rise against the range
        assert divergence(LRS, shifted) == pytest.approx(1.0, rel=0.3)

    def test_one_cycle_is_no_matter_with_momentum(self):
        assert not any(
            "One-cycle" in note
            for note in Landmarks(LRS, bowl(), **SGD, schedule="one_cycle").notes()
        )

    def test_short_sweeps_are_flagged(self):
        lrs = rates(1e-5, 10, 30)
        y = np.interp(np.log(lrs), np.log(LRS), bowl())
        assert any(
            "30 updates" in note for note in Landmarks(lrs, y, **SGD, num_training=30).notes()
        )


class TestUnitsThatDie:
    """A curve that falls from a start far off to the loss of guessing, 1, and stays there."""

    FALL = np.where(LOG < -4, 20.0, np.maximum(1.0, 20.0 - 19 * (LOG + 4)))

    def test_where_they_die_is_the_edge(self):
        died = Died(70, "body.0")
        exploded = self.FALL.copy()
        exploded[70:] = 1e3
        assert (
            Landmarks(LRS, self.FALL, **SGD, died=died).suggestion
            == Landmarks(LRS, exploded, **SGD).suggestion
        )
        assert (
            Landmarks(LRS, self.FALL, **SGD, died=died).suggestion.lr
            < Landmarks(LRS, self.FALL, **SGD).suggestion.lr
        )
        notes = " ".join(Landmarks(LRS, self.FALL, **SGD, died=died).notes())
        assert f"Most units of layer body.0 are dead from a rate of {LRS[70]:.2g} on" in notes

    def test_after_divergence_it_does_not_matter(self):
        edge = int(np.flatnonzero(bowl() > 8)[0])
        assert (
            Landmarks(LRS, bowl(), **SGD, died=Died(edge + 1, "")).suggestion
            == Landmarks(LRS, bowl(), **SGD).suggestion
        )

    def test_a_loss_that_only_fell_to_that_of_a_dead_model_is_not_to_be_trusted(self):
        [doubt] = Landmarks(LRS, self.FALL, **SGD, died=Died(70, "")).doubts()
        assert doubt.startswith(
            "Do not trust this rate. The loss began at 20 and never fell clearly below 1,"
        )
        learned = self.FALL.copy()
        learned[40:70] = 0.5
        assert Landmarks(LRS, learned, **SGD, died=Died(70, "")).doubts() == ()
        assert Landmarks(LRS, bowl(turn=-1), **SGD, died=Died(80, "")).doubts() == ()

    def test_a_race_that_learned_ends_the_doubt(self):
        died = Died(70, "")
        assert Landmarks(LRS, self.FALL, **SGD, died=died).doubts(Raced(0.01, 0.5)) == ()
        assert (
            Landmarks(LRS, self.FALL, **SGD, died=died)
            .doubts(Raced(0.01, 1.0))[0]
            .startswith("Do not trust")
        )

    def test_too_early_a_death_asks_for_lower_rates_and_scaled_inputs(self):
        found = Landmarks(LRS, self.FALL, **SGD, died=Died(5, "")).suggestion
        assert found.lr is None
        assert "units died" in found.why
        assert "scale inputs and targets" in found.why


class TestNoEdge:
    def test_a_max_lr_within_the_fall_is_the_only_limit(self):
        y, cut = bowl(turn=-2), 40
        found = Landmarks(LRS[:cut], y[:cut], **SGD, num_training=100).suggestion.lr
        assert LRS[cut - 1] / 4 < found <= LRS[cut - 1] < Landmarks(LRS, y, **SGD).suggestion.lr
        assert any(
            "a higher max_lr says more" in note
            for note in Landmarks(LRS[:cut], y[:cut], **SGD).notes()
        )

    def test_a_max_lr_above_the_lowest_loss_changes_nothing(self):
        y = bowl(turn=-2, edge=0.9) + np.maximum(0, 1.5 * (LOG + 1))
        cut = int(np.flatnonzero(LOG > 0)[0])
        whole, found = (
            Landmarks(LRS, y, **SGD).suggestion.lr,
            Landmarks(LRS[:cut], y[:cut], **SGD, num_training=100).suggestion.lr,
        )
        assert found == pytest.approx(whole, rel=0.3)
        assert not any("max_lr" in note for note in Landmarks(LRS[:cut], y[:cut], **SGD).notes())

    def test_an_explosion_within_the_first_points_is_told(self):
        found = Landmarks(LRS[:2], [1.0, 1e4], **SGD, num_training=100).suggestion
        assert found.lr is None
        assert f"diverged or was not finite at {rate(LRS[1], 2)}" in found.why


class TestOtherLengths:
    @pytest.mark.parametrize("n", [30, 50, 200, 500, 1000])
    def test_the_same_curve_gives_about_the_same_rate(self, n):
        lrs = rates(1e-5, 10, n)
        y = np.interp(np.log(lrs), np.log(LRS), bowl())
        found = Landmarks(lrs, y, **SGD, num_training=n).suggestion.lr
        assert 0.6 < found / Landmarks(LRS, bowl(), **SGD).suggestion.lr < 1.6

    def test_a_sweep_that_ended_early_is_told_by_num_training(self):
        lrs = rates(1e-5, 10, 300)
        y = np.interp(np.log(lrs), np.log(LRS), bowl())
        whole = Landmarks(lrs, y, **SGD, num_training=300).suggestion
        end = int(np.flatnonzero(y > 8)[0]) + 1
        assert Landmarks(lrs[:end], y[:end], **SGD, num_training=300).suggestion.lr == whole.lr


def points(losses=None, start=0):
    losses = bowl() if losses is None else losses
    columns = zip(LRS, losses, smooth(losses), strict=True)
    return [
        CurvePoint(i + start, float(x), float(y), float(s)) for i, (x, y, s) in enumerate(columns)
    ]


def end(losses=None):
    losses = bowl() if losses is None else losses
    found = suggest_all(Landmarks(LRS, losses, **SGD), smooth(losses))
    return CurveEnded(
        "all points done",
        found,
        lr_suggest.recommended(found),
        Landmarks(LRS, losses, **SGD).notes(),
    )


class TestCurve:
    def test_from_events(self):
        curve = LRCurve.from_events([*points(), end()])
        np.testing.assert_array_equal(curve.lrs, LRS)
        np.testing.assert_array_equal(curve.losses, bowl())
        np.testing.assert_array_equal(curve.smoothed, smooth(bowl()))
        assert list(curve.suggestions) == ["landmarks", "steepest", "valley", "minimum", "slide"]
        assert curve.suggestion == curve.suggestions["landmarks"].lr
        assert isinstance(curve.suggestion, float)
        assert curve.ended == "all points done"

    def test_a_record_gives_the_same_curve(self):
        losses = bowl()
        losses[90] = math.nan
        told = [*points(losses), end(losses)]
        read = [events.from_line(events.to_line(event)) for event in told]
        assert LRCurve.from_events(read) == LRCurve.from_events(told)
        assert LRCurve.from_events(read) != LRCurve.from_events([*points(), end()])

    def test_the_last_sweep_counts(self):
        flat = np.full(100, 1.0)
        again = [*points(flat), end(flat), events.Message("between"), *points(), end()]
        assert LRCurve.from_events(again) == LRCurve.from_events([*points(), end()])

    def test_a_sweep_that_did_not_end(self):
        curve = LRCurve.from_events(points()[:4])
        assert (len(curve.lrs), curve.suggestion, curve.ended) == (4, None, "not ended")
        assert "none" in repr(curve)
        assert repr(LRCurve.from_events([])) == "LRCurve: no points (not ended)"

    def test_is_frozen_and_travels(self):
        curve = LRCurve.from_events([*points(), end()])
        with pytest.raises(AttributeError):
            curve.suggestion = 1.0
        with pytest.raises(ValueError, match="read-only"):
            curve.losses[0] = 0
        assert pickle.loads(pickle.dumps(curve)) == curve

    def test_repr_has_the_suggestion_the_notes_and_the_rules(self):
        curve = LRCurve.from_events([*points(), end()])
        text = repr(curve)
        assert rate(curve.suggestion) in text.splitlines()[0]
        assert all(note in text for note in curve.notes)
        assert all(name in text for name in curve.suggestions)

    def test_the_range_for_swa_is_of_the_suggestion(self):
        curve = LRCurve.from_events([*points(), end()])
        low, high = curve.swa_lrs
        assert 0 < low < high <= curve.suggestion
        raced = LRCurve.from_events([*points(), replace(end(), suggestion=2 * curve.suggestion)])
        assert raced.swa_lrs == pytest.approx((2 * low, 2 * high))
        assert LRCurve.from_events(points()[:4]).swa_lrs is None

    def test_repr_of_none_says_why(self):
        flat = np.full(100, 1.0)
        text = repr(LRCurve.from_events([*points(flat), end(flat)]))
        assert "suggestion none" in text
        assert "never fell" in text

    @pytest.mark.parametrize(
        "losses", [bowl(), np.full(100, 1.0), np.array([*bowl()[:99], math.nan])]
    )
    def test_draws(self, losses):
        from matplotlib.figure import Figure

        curve = LRCurve.from_events([*points(losses), end(losses)])
        assert curve.figure().data
        assert isinstance(curve.plot(), Figure)
        ax = Figure().subplots()
        assert curve.plot(ax) is ax
        assert ax.lines

    def test_a_data_frame_has_a_row_an_update(self):
        pytest.importorskip("pandas")
        frame = LRCurve(LRS, LRS + 1, LRS + 2, {}, None, "stopped").to_pandas()
        assert (frame["loss"] == frame["lr"] + 1).all()
        assert (frame["smoothed"] == frame["lr"] + 2).all()
        assert frame["lr"].tolist() == LRS.tolist()

    def test_suggestions_cannot_be_changed_from_outside(self):
        given_ = {"valley": Suggestion("valley", 1.0, 0, "")}
        curve = LRCurve(LRS, LRS, LRS, given_, None, "stopped")
        given_.clear()
        assert "valley" in curve.suggestions
