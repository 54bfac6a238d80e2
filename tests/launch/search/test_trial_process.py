"""What a batch-size trial runs in, and what the launcher makes of how it ended."""

import os

import pytest
import torch
import torch.nn.functional as F

from tests.engine.problems import bench, labelled, plain_net, same_weights, weights
from workbench.commands import Mailbox, Stop
from workbench.launch.search.trial_process import trials
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, TrialStopped
from workbench.tuners.trial import measure_here

MB = 2**20


def on(b, request=None, inbox=None):
    return trials(b._task, b.settings, request or BatchSizeRequest(), inbox or Mailbox())


def test_a_trial_is_another_process_with_our_weights(tmp_path):
    here = os.getpid()

    def loss(output, y):
        if os.getpid() != here and len(y) == 4:
            raise LookupError(f"sum {float(output.sum()):.6f} in another process")
        return F.cross_entropy(output, y)

    model = plain_net()
    b = bench(model, (torch.ones(20, 6), torch.zeros(20, dtype=torch.long)), tmp_path, loss=loss)
    with torch.no_grad():
        model[2].bias += 5
    before = weights(model)
    with torch.no_grad():
        expected = float(model(torch.ones(4, 6)).sum())
    with on(b) as trial:
        assert trial(2).ok
        with pytest.raises(LookupError, match=f"sum {expected:.4f}"):
            trial(4)
        assert trial(2).ok  # the next has a child of its own
    assert same_weights(before, weights(model))


def test_a_child_that_is_killed_is_a_failed_trial(tmp_path):
    here = os.getpid()

    def loss(output, y):
        if os.getpid() != here:
            os.kill(os.getpid(), 9)
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(), tmp_path, loss=loss)
    with on(b) as trial:
        outcome = trial(2)
    assert not outcome.ok
    assert "killed by the system" in outcome.error


def test_a_limit_is_a_limit_for_one_trial(tmp_path):
    def loss(output, y):
        return F.cross_entropy(output, y) + 0 * torch.zeros(len(y) * 10 * MB // 4).sum()

    b = bench(plain_net(), labelled(), tmp_path, loss=loss)
    with on(b, BatchSizeRequest(max_memory=200 * MB)) as trial:
        assert [trial(size).ok for size in (2, 32, 4)] == [True, False, True]


def test_a_stop_that_waits_ends_the_trial_and_stays_for_the_search(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    inbox = Mailbox()
    inbox.put(Stop())
    with on(b, inbox=inbox) as trial, pytest.raises(TrialStopped):
        trial(2)
    assert inbox.has(Stop)


def test_threads_of_the_child_are_ours(tmp_path):
    here, threads = os.getpid(), torch.get_num_threads()

    def loss(output, y):
        if os.getpid() != here:
            assert torch.get_num_threads() == 1
        return F.cross_entropy(output, y)

    torch.set_num_threads(1)
    try:
        b = bench(plain_net(), labelled(), tmp_path, loss=loss)
        with on(b) as trial:
            assert trial(2).ok
    finally:
        torch.set_num_threads(threads)


def test_loader_workers_in_a_trial(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, num_workers=1)
    with on(b, BatchSizeRequest(steps_per_trial=1)) as trial:
        assert trial(4).ok


def test_in_place_running_out_of_memory_is_a_failed_trial(tmp_path):
    def loss(output, y):
        if len(y) == 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        if len(y) == 17:
            raise RuntimeError("something else")
        return F.cross_entropy(output, y)

    model = plain_net()
    b = bench(model, labelled(), tmp_path, loss=loss)
    before = weights(model)
    failed = measure_here(b._task, b.settings, 16, 1)
    assert (failed.size, failed.ok) == (16, False)
    assert "out of memory" in failed.error
    with pytest.raises(RuntimeError, match="something else"):
        measure_here(b._task, b.settings, 17, 1)
    assert same_weights(before, weights(model))
