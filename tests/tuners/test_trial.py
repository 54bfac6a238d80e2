"""How long a trial of a batch size is timed: until the typical time of an update is known, or a limit is reached."""

import itertools

import pytest
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.tuners import trial


@pytest.fixture
def bench(tmp_path):
    with wb.Workbench(
        plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu"
    ) as made:
        yield made


def measured(bench, monkeypatch, times, *, most=300):
    """A trial whose updates take these times, and how many it took."""
    taken, clock = [], itertools.count(0.0, 1e-3)

    def timed(work):
        taken.append(next(times))
        return taken[-1]

    monkeypatch.setattr(trial, "MOST", most)
    monkeypatch.setattr(trial, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(trial, "timed", timed)
    monkeypatch.setattr(trial.TrialStep, "samples", 8, raising=False)
    return trial.measure_here(bench._task, bench.settings, 8, 3), len(taken)


def test_a_steady_speed_is_known_soon(bench, monkeypatch):
    found, count = measured(bench, monkeypatch, itertools.repeat(0.01))
    assert count < 20
    assert found.uncertainty == 0.0
    assert found.seconds == 0.01


def test_a_speed_that_varies_is_timed_until_it_is_known_to_the_accuracy(bench, monkeypatch):
    found, count = measured(
        bench, monkeypatch, itertools.cycle([0.008, 0.012, 0.010, 0.0095, 0.0105])
    )
    assert 20 <= count < 300
    assert found.uncertainty <= trial.CERTAIN


def test_one_that_stays_uncertain_ends_at_the_most_updates(bench, monkeypatch):
    found, count = measured(bench, monkeypatch, itertools.cycle([0.001, 0.1]), most=30)
    assert count == 33
    assert found.uncertainty > trial.CERTAIN


def test_the_seconds_end_it_too(bench, monkeypatch):
    """The clock of this test goes on by a millisecond at each look."""
    found, count = measured(bench, monkeypatch, itertools.cycle([0.001, 0.1]), most=10**6)
    assert count == pytest.approx(3 + trial.ENOUGH * 1000, abs=3)
    assert found.ok
