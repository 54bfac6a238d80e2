"""Bounded rows: what is merged is what the updates were, whatever the run's length."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.ui.controls.test_run_history import brief
from tests.ui.mirror import Mirror
from workbench.ui.canvas.runs.past_curves import PastCurves
from workbench.ui.canvas.transport.channels import Buckets, Samples
from workbench.ui.canvas.transport.messages import Outbox


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
    assert buckets.head() == {"origin": 100, "width": 10, "every": 10}
    assert buckets.rows(0, 3).ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize("every", [1, 10])
def test_the_middle_of_a_bucket_is_that_of_its_updates(every: int) -> None:
    """As the page computes it from the head (`step` and `place` in extensions/live/src/data/table.ts)."""
    steps = 100 + every * np.arange(23)
    for count in (3, 8, 9, 16, 23):
        buckets = Buckets([("mean", 1)], cap=8)
        buckets.add(steps[:count], every, [steps[:count, None].astype(float)])
        head = buckets.head()
        assert head["every"] == every
        origin, width = head["origin"], head["width"]
        whole = count // (width // every)  # the last bucket may still fill
        middles = origin + np.arange(whole) * width + (width - every) / 2
        np.testing.assert_array_equal(buckets.rows(0, whole).ravel(), middles)
        places = (steps[:count] - origin + every / 2) / width
        np.testing.assert_array_equal(np.floor(places), np.arange(count) // (width // every))


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


def test_each_metric_of_compared_runs_is_drawn_by_itself() -> None:
    """What is sent says which metrics they are, which live changes there were, and whose they are."""
    curves, mirror = PastCurves(), Mirror()
    outbox = Outbox({"compared": curves.compared})
    check = np.array([[40.0, 1.0, 2.0, 0.9]])
    briefs = [
        dataclasses.replace(brief(0), history={"val_loss": check, "val_acc": check}),
        dataclasses.replace(brief(1), history={"val_f1": check}, marks=[(20, "lr → 0.01")]),
    ]
    curves.over_one_another(outbox, briefs)
    while (packet := outbox.take()) is not None:
        mirror.on_event(packet.content, list(packet.buffers))
    assert mirror.state["compared"]["metrics"] == ["val_loss", "val_acc", "val_f1"]
    assert mirror.state["compared_marks"] == [[1, 20, "lr → 0.01"]]
    rows = mirror.rows("compared")
    assert {(which, kind) for which, kind, *_ in rows if kind} == {(0, 1), (0, 2), (1, 3)}
    assert mirror.state["compared"]["view"] == mirror.tables["compared"].head["view"]
