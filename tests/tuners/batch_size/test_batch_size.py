"""The batch-size search on a real bench: what a trial does, and what it leaves."""

import threading
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.problems import (
    adam,
    bench,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    weights,
)
from tests.waiting import wait_for
from workbench.events import RunEnded, RunStarted, SearchEnded, Trial, TrialStarted
from workbench.runs.run import Run
from workbench.settings import SettingsError
from workbench.share.package import PackageError
from workbench.task.errors import TaskError
from workbench.tuners import trial as trying
from workbench.tuners.batch_size.batch_size_search import BatchSizes, ModelDoesNotFit

MB = 2**20


class Wide(torch.nn.Module):
    """Few weights; one sample's activations take `mb` megabytes and more."""

    def __init__(self, mb=4):
        super().__init__()
        self.scale, self.head, self.width = (
            torch.nn.Parameter(torch.ones(())),
            torch.nn.Linear(1, 3),
            mb * MB // 4,
        )

    def forward(self, x):
        return self.head(
            torch.tanh(self.scale * x[:, :1].expand(-1, self.width)).mean(1, keepdim=True)
        )


def test_only_sizes_that_were_tried_and_the_data_as_a_cap(tmp_path):
    model = noisy_net()
    before = weights(model)
    b = bench(model, labelled(100), tmp_path, adam)
    job = b.find_batch_size(init_val=16, min_updates_per_epoch=1)
    found = job.result()
    assert [t.size for t in found.trials] == [16, 32, 64, 100]
    assert all(t.ok and t.samples_per_second > 0 and t.seconds > 0 for t in found.trials)
    assert [t.updates_per_epoch for t in found.trials] == [7, 4, 2, 1]
    assert found.largest == 100
    assert found.best in [t.size for t in found.trials]
    assert "the size of the data set" in found.ended
    last = {e.size: e for e in job.events if isinstance(e, Trial)}  # the compared speed comes later
    assert tuple(last.values()) == found.trials
    assert isinstance(job.events[-2], SearchEnded)
    assert isinstance(job.events[-1], RunEnded)
    assert BatchSizes.from_events(Run.open(job.folder.path).events) == found
    assert same_weights(before, weights(model))
    assert b.settings.batch_size == 8  # never applied by itself


def test_each_size_is_told_before_it_is_tried_and_how_much_it_may_take(tmp_path):
    b = bench(plain_net(), labelled(64), tmp_path, torch.optim.SGD, accumulate_grad_batches=4)
    job = b.find_batch_size(init_val=8, steps_per_trial=1, max_memory=900 * MB, keep_effective=True)
    found = job.result()
    told = [e for e in job.events if isinstance(e, Trial | TrialStarted)]
    tried, compared = told[:6], told[6:]
    assert [type(e) for e in tried] == [TrialStarted, Trial] * len(found.trials)
    assert [(e.size, e.accumulate_grad_batches) for e in tried[::2]] == [(8, 4), (16, 2), (32, 1)]
    assert all(type(e) is Trial and e in found.trials for e in compared)
    assert [(t.size, t.accumulate_grad_batches) for t in found.trials] == [(8, 4), (16, 2), (32, 1)]
    assert {t.limit_bytes for t in found.trials} == {900 * MB}
    assert {t.updates_per_epoch for t in found.trials} == {2}  # of 32 samples each
    started = next(e for e in job.events if isinstance(e, RunStarted))
    assert {"keep_effective": True, "max_memory": 900 * MB}.items() <= started.request.items()
    assert (
        next(e.accumulate_grad_batches for e in b.find_batch_size(max_trials=1).result().trials)
        is None
    )


def test_memory_that_runs_out_is_a_failed_trial_and_no_dead_process(tmp_path):
    b = bench(Wide(), labelled(64), tmp_path, torch.optim.SGD)
    found = b.find_batch_size(init_val=4, max_memory=80 * MB).result()
    failed = [t for t in found.trials if not t.ok]
    passed = [t for t in found.trials if t.ok]
    assert all(t.error for t in failed)
    assert found.largest == max(t.size for t in passed) < min(t.size for t in failed)
    assert found.ended in {f"{t.size} did not fit" for t in failed}
    assert 0 < max(t.peak_bytes for t in passed) <= 80 * MB
    peaks = {t.size: t.peak_bytes for t in passed}
    assert peaks[found.largest] == max(peaks.values())
    assert b.fit(batch_size=found.largest, max_steps=1).result().status == "finished"


def test_binsearch_finds_the_exact_maximum_and_steps_back(tmp_path):
    # Much more than the stacks of a process's threads, of which a busy machine has one more or less.
    b = bench(Wide(2), labelled(128), tmp_path, torch.optim.SGD)
    found = b.find_batch_size(
        mode="binsearch", init_val=2, max_memory=200 * MB, headroom=0.2, steps_per_trial=1
    ).result()
    tried = {t.size: t.ok for t in found.trials}
    assert tried[found.largest]
    assert tried[found.largest + 1] is False
    assert tried[found.best]
    assert found.best <= found.largest * 0.8 + 1e-9
    passed = [t for t in found.trials if t.ok]
    assert [t.samples_per_second for t in passed] == pytest.approx(
        [t.size / t.seconds for t in passed]
    )


def test_a_model_that_does_not_fit(tmp_path):
    b = bench(Wide(32), labelled(), tmp_path)
    job = b.find_batch_size(max_memory=60 * MB)
    with pytest.raises(ModelDoesNotFit, match="even a batch of 1 sample needs more memory"):
        job.result()
    assert job.status == "failed"
    assert b.fit(batch_size=1, max_steps=1).result().status == "finished"


def test_data_that_makes_its_own_batches_is_refused_by_name(tmp_path):
    data = labelled()

    class PairsSampler(torch.utils.data.Sampler):
        def __len__(self):
            return 2

        def __iter__(self):
            yield from ([0, 1], [2, 3])

    loader = torch.utils.data.DataLoader(data, batch_sampler=PairsSampler())
    with pytest.raises(
        TaskError, match=r"batch_sampler of its own \(PairsSampler\)\. Give the Dataset instead"
    ):
        bench(plain_net(), loader, tmp_path).find_batch_size().result()
    ready = [(data.tensors[0][:4], data.tensors[1][:4])]
    with pytest.raises(TaskError, match="yields ready batches"):
        bench(
            plain_net(), torch.utils.data.DataLoader(ready, batch_size=None), tmp_path
        ).find_batch_size().result()
    assert bench(plain_net(), loader, tmp_path, max_epochs=2).fit().result().step == 4


@pytest.mark.parametrize("init_val", [1, 2])
def test_a_stop_does_not_wait_for_the_end_of_a_trial(init_val, tmp_path):
    begun = tmp_path / "begun"

    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.fast = torch.nn.Linear(6, 3), True

        def forward(self, x):
            if not self.fast:
                begun.touch()
                time.sleep(600)
            return self.line(x)

    model = Slow()
    b = bench(model, labelled(), tmp_path)
    model.fast = False
    job = b.find_batch_size(init_val=init_val)
    # the child is in the middle of its trial, which takes ten minutes and more
    wait_for(begun.exists)
    job.stop()
    found = job.result(timeout=200)
    assert job.status == "stopped"
    assert found.ended == "stopped"
    assert (found.best, found.largest) == (None, None)
    assert found.trials == ()  # a trial that was cut short says nothing about its size


def test_what_cannot_be_sent_to_a_child_is_named(tmp_path):
    class Locked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.guard = torch.nn.Linear(6, 3), threading.Lock()

        def forward(self, x):
            with self.guard:
                return self.line(x)

    b = bench(Locked(), labelled(), tmp_path)
    with pytest.raises(PackageError, match=r"model\.guard cannot be sent to another process"):
        b.find_batch_size().result()
    assert b.fit(max_steps=1).result().status == "finished"


def test_errors_that_are_not_memory_are_raised_as_they_are(tmp_path):
    calls = []

    def loss(output, y):
        if len(y) > 3:
            raise ArithmeticError(f"{len(y)} is too many")
        calls.append(len(y))
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(), tmp_path, loss=loss)
    job = b.find_batch_size()
    with pytest.raises(ArithmeticError, match="4 is too many"):
        job.result()
    assert [t.size for t in job.events if isinstance(t, Trial)] == [2]


def test_a_trial_has_whole_batches_at_the_effective_size(tmp_path):
    """steps_per_trial updates of K batches of exactly this size, a validation batch of it, and the last batch of either."""
    import workbench as wb

    seen = []

    def loss(output, y):
        seen.append((len(y), torch.is_grad_enabled()))
        return F.cross_entropy(output, y)

    b = wb.Workbench(noisy_net(), train=labelled(50), val=labelled(20, 3), loss=loss, root=tmp_path, accelerator="cpu",
                     batch_size=8, accumulate_grad_batches=2)  # fmt: skip
    seen.clear()
    trial = trying.measure(b._task, b.settings, 12, 3)
    assert trial.ok
    training = [size for size, grad in seen if grad]
    assert [size for size in training if size != 12] == [50 % 12]
    assert len(training) >= 3 * 2 + 1
    assert [size for size, grad in seen if not grad] == [12, 20 % 12]


def test_measuring_leaves_no_trace(tmp_path, one_thread):
    model = noisy_net()
    b = bench(model, labelled(), tmp_path, adam, max_epochs=1)
    before, state = weights(model), torch.get_rng_state()
    trying.measure(b._task, b.settings, 20, 2)
    assert same_weights(before, weights(model))
    assert torch.equal(state, torch.get_rng_state())
    first = b.fit().result()
    b.find_batch_size(max_trials=2).result()
    assert np.array_equal(b.fit().result().history["loss"], first.history["loss"])


def test_bad_requests_are_refused_at_once(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    for wrong in (
        {"steps_per_trial": 0},
        {"steps_per_trial": 1.5},
        {"min_updates_per_epoch": True},
        {"max_memory": 0},
        {"max_memory": "8GB"},
        {"keep_effective": "no"},
        {"max_val": 32, "init_val": 64},
    ):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            b.find_batch_size(**wrong)
    for wrong in (
        {"mode": "bisect"},
        {"init_val": 0},
        {"headroom": 1.0},
        {"max_trials": 0},
        {"max_val": -1},
    ):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            b.find_batch_size(**wrong)
    assert b.jobs == []


def test_max_val_and_max_trials(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    found = b.find_batch_size(
        init_val=4, max_val=13, steps_per_trial=1, min_updates_per_epoch=1
    ).result()
    assert [t.size for t in found.trials] == [4, 8, 13]
    assert "max_val" in found.ended
    few = b.find_batch_size(max_trials=2, steps_per_trial=1, min_updates_per_epoch=1).result()
    assert [t.size for t in few.trials] == [2, 4]
    assert few.ended.startswith("max_trials=2")


@pytest.mark.gpu
def test_running_out_of_memory_on_cuda_is_survived(tmp_path):
    free, _ = torch.cuda.mem_get_info()
    model = Wide(64)
    b = bench(model, labelled(10**6), tmp_path, torch.optim.SGD, accelerator="cuda")
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4 * 2**30 / free))
    try:
        found = b.find_batch_size().result()
        failed = [t for t in found.trials if not t.ok]
        assert len(failed) == 1
        assert "memory" in failed[0].error.lower()
        assert found.largest == failed[0].size // 2
        assert torch.cuda.memory_allocated() < 500 * MB
        assert b.fit(batch_size=2, max_steps=1).result().status == "finished"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def normalised(*_):
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )


def grouped(*_):
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GroupNorm(8, 8), torch.nn.Linear(8, 3)
    )


def test_a_recommended_size_leaves_no_last_batch_of_one_for_a_batch_norm(tmp_path):
    """A last batch of one sample ends the fit in its first epoch; size 1 is no reason to end the search."""
    b = bench(normalised(), labelled(9), tmp_path, adam)
    found = b.find_batch_size(init_val=1, max_val=8, min_updates_per_epoch=1).result()
    assert [(t.size, t.refused) for t in found.trials] == [
        (1, 1),
        (2, 1),
        (4, 1),
        (3, None),
        (8, 1),
        (7, None),
    ]
    assert found.best in (3, 7)
    assert "drop_last=True" in found.trials[1].error
    b.set(batch_size=found.best)
    assert b.fit(max_epochs=1).result().status == "finished"
    left_out = b.find_batch_size(init_val=8, max_val=8, drop_last=True).result()
    assert left_out.best == 8
    b.set(batch_size=8, drop_last=False)
    with pytest.raises(ValueError, match="more than 1 value") as raised:
        b.fit(max_epochs=1).result()
    assert "drop_last=True" in str(raised.value)


def test_a_last_batch_of_a_validation_counts_unless_it_is_left_out(tmp_path):
    b = bench(grouped(), labelled(16), tmp_path, adam, val=labelled(9))
    found = b.find_batch_size(init_val=8, max_val=8).result()
    assert [(t.size, t.refused) for t in found.trials] == [(8, 1), (7, None)]
    assert "the last batch of val has 1 sample" in found.trials[0].error
    assert b.find_batch_size(init_val=8, max_val=8, limit_val_batches=1).result().best == 8
