"""Bounded rows: what is merged is what the updates were, whatever the run's length."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.ui.channels import Buckets, Samples


@pytest.mark.parametrize("updates", [1, 7, 16, 17, 1000])
@pytest.mark.parametrize("flush", [1, 5, 64])
def test_buckets_are_the_slow_minimum_maximum_mean_and_last(updates: int, flush: int) -> None:
    values = np.random.default_rng(updates).normal(size=updates)
    values[3::7] = np.nan
    buckets = Buckets([("min", 1), ("max", 1), ("mean", 1), ("last", 1)], cap=16)
    for start in range(0, updates, flush):
        part = values[start : start + flush, None]
        buckets.add(np.arange(start, start + len(part)), 1, [part] * 4)

    width = buckets.head()["width"]
    assert buckets.length == -(-updates // width) <= 16
    assert width == 1 or buckets.length > 8, "no more merged than needed"
    for i, row in enumerate(buckets.rows(0, buckets.length)):
        here = values[i * width : (i + 1) * width]
        here = here[~np.isnan(here)]
        wanted = [here.min(), here.max(), here.mean(), here[-1]] if len(here) else [np.nan] * 4
        np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-6)


def test_buckets_begin_where_the_run_begins_and_skip_what_was_not_kept() -> None:
    buckets = Buckets([("last", 1)], cap=8)
    buckets.add(np.array([100, 110, 120]), 10, [np.array([[1.0], [2.0], [3.0]])])
    assert buckets.head() == {"origin": 100, "width": 10}
    assert buckets.rows(0, 3).ravel().tolist() == [1, 2, 3]


def test_infinity_wins_and_a_missing_value_does_not() -> None:
    buckets = Buckets([("max", 1)], cap=2)
    buckets.add(np.arange(4), 1, [np.array([[1.0], [np.inf], [np.nan], [2.0]])])
    assert buckets.rows(0, 2).ravel().tolist() == [np.inf, 2.0]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 57, 10_000])
def test_samples_are_thinned_evenly_and_keep_the_newest(count: int) -> None:
    samples = Samples(1, cap=10)
    for i in range(count):
        samples.add([float(i)])
        assert samples.rows(0, samples.length)[-1, 0] == i
    kept = samples.rows(0, samples.length).ravel()
    assert samples.length <= 10
    assert kept[0] == 0
    assert len(set(np.diff(kept)[:-1])) <= 1, "evenly, but for the newest"
