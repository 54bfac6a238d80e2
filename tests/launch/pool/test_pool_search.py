"""Searches on a pool: each size is a job of its ranks, and one that ends a rank is a failed trial."""

import os
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.problems import adam, bench, labelled, plain_net, same_weights, weights
from workbench.events import Changed, RunStarted, SearchEnded, Trial
from workbench.launch.pool import pool
from workbench.runs.run import Run
from workbench.tuners.batch_size.batch_size_search import BatchSizes

MB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _no_ranks_left():
    yield
    pool.close()


def test_a_search_of_two_ranks(tmp_path, one_thread):
    model = plain_net()
    b = bench(model, labelled(50), tmp_path, adam, devices=2)
    before = weights(model)
    job = b.find_batch_size(init_val=8, steps_per_trial=1, min_updates_per_epoch=1)
    found = job.result()
    assert [t.size for t in found.trials] == [8, 16, 25]
    assert all(
        t.ok and t.ranks == 2 and t.samples_per_second > 0 and t.peak_bytes is not None
        for t in found.trials
    )
    assert found.ended == "stopped at the size of the data set per device (25)"
    started = job.events[0]
    assert isinstance(started, RunStarted)
    assert (started.kind, started.device, started.ranks) == ("find_batch_size", "2 x cpu", 2)
    assert len([e for e in job.events if isinstance(e, RunStarted)]) == 1
    assert BatchSizes.from_events(Run.open(job.folder.path).events) == found
    assert same_weights(before, weights(model))


def test_a_rank_that_is_killed_is_a_failed_trial_and_others_try_the_next_size(tmp_path, one_thread):
    def loss(output, y):
        if len(y) >= 16 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), 9)
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(80), tmp_path, loss=loss, devices=2)
    found = b.find_batch_size(
        mode="binsearch", init_val=12, steps_per_trial=1, max_trials=4
    ).result()
    assert len(found.trials) == 4
    assert all(t.ok == (t.size < 16) for t in found.trials)
    assert sum(not t.ok for t in found.trials) >= 2
    assert "killed by the system" in found.trials[1].error
    assert found.largest in (12, 15)


def test_the_limit_is_one_of_each_rank(tmp_path, one_thread):
    def loss(output, y):
        return F.cross_entropy(output, y) + 0 * torch.zeros(len(y) * 10 * MB // 4).sum()

    b = bench(plain_net(), labelled(128), tmp_path, loss=loss, devices=2)
    found = b.find_batch_size(
        init_val=8, steps_per_trial=1, max_memory=240 * MB, min_updates_per_epoch=1
    ).result()
    assert [(t.size, t.ok) for t in found.trials] == [(8, True), (16, True), (32, False)]
    assert found.trials[2].error.startswith("rank 0: ")
    assert found.trials[0].peak_bytes > 75 * MB  # 80, less what the process had free before


def test_other_errors_end_it_as_they_are(tmp_path, one_thread):
    def loss(output, y):
        if len(y) == 4 and os.environ.get("RANK") == "1":
            raise LookupError("something else")
        return F.cross_entropy(output, y)

    job = bench(plain_net(), labelled(), tmp_path, loss=loss, devices=2).find_batch_size(
        steps_per_trial=1, min_updates_per_epoch=1
    )
    with pytest.raises(LookupError, match="something else"):
        job.result()
    assert [(e.size, e.ok) for e in job.events if isinstance(e, Trial)] == [(2, True)]


def test_a_stop_is_heard_by_the_trial_and_ends_the_search(tmp_path, one_thread):
    def loss(output, y):
        if os.environ.get("RANK") is not None:
            time.sleep(0.3)
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(800), tmp_path, loss=loss, devices=2)
    job = b.find_batch_size(steps_per_trial=20)
    while not any(isinstance(e, RunStarted) for e in job.events):
        time.sleep(0.01)
    job.stop()
    found = job.result()
    assert (job.status, found.ended, found.trials) == ("stopped", "stopped", ())


def test_a_curve_and_what_a_fit_finds_on_its_way(tmp_path, one_thread):
    b = bench(plain_net(), labelled(400), tmp_path, batch_size=4, devices=2)
    alone = bench(plain_net(), labelled(400), tmp_path, batch_size=8)
    curve, expected = b.find_lr(num_training=30).result(), alone.find_lr(num_training=30).result()
    np.testing.assert_allclose(curve.losses, expected.losses, rtol=1e-3)
    assert curve.ended == expected.ended

    job = b.fit(max_epochs=3, find_batch_size_at={1}, find_lr_at={2})
    run = job.result()
    assert run.status == "finished"
    found = next(e for e in job.events if isinstance(e, SearchEnded))
    assert all(e.ok and e.ranks == 2 for e in job.events if isinstance(e, Trial))
    changes = [e.values for e in job.events if isinstance(e, Changed)]
    assert changes[-1].keys() == {"lr"}
    assert found.best == 4 or changes[0] == {"batch_size": found.best}
    assert run.step == 50 + 2 * -(-400 // (2 * found.best))
