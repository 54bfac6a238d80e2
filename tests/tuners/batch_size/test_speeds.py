"""How the speeds of batch sizes are compared: in turn, so that a busy machine changes none against the others."""

import math
import random

import pytest
import torch

from tests.engine.problems import bench, labelled, noisy_net, same_weights, weights
from workbench.events import Trial
from workbench.tuners.batch_size import speeds
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, Seconds
from workbench.tuners.batch_size.batch_size_search import TrialStopped
from workbench.tuners.batch_size.speeds import compare, typical

ENDLESS = Seconds(1e9, 1e9)
TRUE = {16: 0.001, 64: 0.002, 256: 0.005}


@pytest.mark.parametrize("seed", range(5))
def test_a_load_that_comes_and_goes_changes_no_ratio(seed):
    """Each round is up to ten times slower, and one time in eight is disturbed."""
    draw = random.Random(seed)
    rounds = []
    for _ in range(60):
        load = math.exp(draw.uniform(0, math.log(10)))
        rounds.append(
            {
                size: seconds
                * load
                * draw.gauss(1, 0.03)
                * (draw.uniform(1, 3) if draw.random() < 1 / 8 else 1)
                for size, seconds in TRUE.items()
            }
        )
    found = typical(rounds)
    for size, seconds in TRUE.items():
        assert found[size][0] / found[16][0] == pytest.approx(seconds / TRUE[16], rel=0.05)
        assert 0 < found[size][1] < 0.1


def test_even_times_are_known_exactly_and_few_are_not_known():
    known = typical([TRUE] * 10)
    assert known == {size: (pytest.approx(seconds), 0.0) for size, seconds in TRUE.items()}
    assert all(within is None for _, within in typical([TRUE] * 9).values())


def trials(*sizes):
    return [Trial(size, True, 1.0, float(size), peak_bytes=7) for size in sizes]


def settings_of(root):
    made = bench(noisy_net(), labelled(256), root)
    return made._task, made.settings


def test_the_comparison_replaces_speeds_alone_and_leaves_no_trace(tmp_path, one_thread):
    model = noisy_net()
    made = bench(model, labelled(256), tmp_path)
    before, state = weights(model), torch.get_rng_state()
    compared = compare(
        made._task, made.settings, BatchSizeRequest(), trials(8, 32), Seconds(0.2, 20.0)
    )
    assert [(t.size, t.peak_bytes) for t in compared] == [(8, 7), (32, 7)]
    assert all(0 < t.seconds < 1 for t in compared)
    assert all(t.samples_per_second == pytest.approx(t.size / t.seconds) for t in compared)
    assert same_weights(before, weights(model))
    assert torch.equal(state, torch.get_rng_state())


@pytest.fixture
def turns(monkeypatch):
    """Each turn of a size takes 0.02 s by the clock of the comparison; the list counts them."""
    counted = []

    def steady(work):
        work()
        counted.append(1)
        return 0.02

    monkeypatch.setattr(speeds, "core_seconds", steady)
    return counted


def test_it_ends_when_all_speeds_are_known(tmp_path, turns, one_thread):
    compared = compare(*settings_of(tmp_path), BatchSizeRequest(), trials(4, 8), ENDLESS)
    assert [t.uncertainty for t in compared] == [0.0, 0.0]
    assert len(turns) == 2 * (1 + 10)  # a round before, and the fewest that show a spread


def test_the_time_ends_within_a_round_which_is_then_left_out(tmp_path, turns, one_thread):
    compared = compare(*settings_of(tmp_path), BatchSizeRequest(), trials(4, 8), Seconds(0.05, 1e9))
    assert [t.seconds for t in compared] == [pytest.approx(0.02)] * 2
    assert len(turns) == 2 + 2 + 1


def test_where_no_round_is_whole_the_trials_stay(tmp_path, turns, one_thread):
    assert compare(
        *settings_of(tmp_path), BatchSizeRequest(), trials(4, 8), Seconds(0.01, 1e9)
    ) == trials(4, 8)
    assert len(turns) == 2 + 1


def test_it_ends_by_the_clock_in_the_first_round_too(tmp_path, turns, one_thread):
    seconds = Seconds(1e9, 0.0)
    assert compare(*settings_of(tmp_path), BatchSizeRequest(), trials(4, 8), seconds) == trials(
        4, 8
    )
    assert not turns


def test_a_stop_ends_it(tmp_path, one_thread):
    with pytest.raises(TrialStopped):
        compare(
            *settings_of(tmp_path), BatchSizeRequest(), trials(4, 8), ENDLESS, stop=lambda: True
        )
