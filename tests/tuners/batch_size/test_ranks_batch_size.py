"""The batch-size search on several ranks: the worst of them decides, nobody is left waiting, all know the same."""

import os
import resource

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.fit_results import Heard, fit, same
from tests.engine.problems import adam, labelled, noisy_net, plain_net, same_weights, sgd, weights
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox, Stop
from workbench.events import SearchEnded, Trial
from workbench.launch.search.distributed_search import RankSearch, RankTrial
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, cap_of
from workbench.tuners.batch_size.batch_size_search import BatchSizes, NotEnoughData, search

MB = 2**20
GIVEN = {
    **dict.fromkeys(("val", "test", "scheduler", "metrics", "collate_fn")),
    "loss": F.cross_entropy,
    "optimizer": sgd,
}


def task_on(model, data, given=None):
    task = task_of(model, **{**GIVEN, "train": data, **(given or {})})
    task.partial = False
    return task


def tried(model, data, size, given=None, settings=None, **request):
    """What this rank is told of a trial of one size, and whether its weights and its limits are as before."""
    task, before, limit = (
        task_on(model, data, given),
        weights(model),
        resource.getrlimit(resource.RLIMIT_DATA),
    )
    chosen = Settings.make(lr=0.05, **(settings or {}))
    done = RankTrial(task, chosen, BatchSizeRequest(**request), size)(Heard(), Mailbox())
    return done.value, same_weights(before, weights(model)) and limit == resource.getrlimit(
        resource.RLIMIT_DATA
    )


class Wide(nn.Module):
    """Few weights; one sample's activations take 4 megabytes and more."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(())), nn.Linear(1, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.scale * x[:, :1].expand(-1, MB)).mean(1, keepdim=True))


class OneRunsOut:
    """A loss for which the second rank has no memory from so many samples on."""

    def __init__(self, size):
        self.size = size

    def __call__(self, output, y):
        if len(y) >= self.size and os.environ.get("RANK") == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return F.cross_entropy(output, y)


CASES = {
    "updates": {},
    "accumulated, averaged": {
        "settings": {"accumulate_grad_batches": 2, "weight_averaging": "ema"}
    },
    "validate": {"method": "validate", "given": {"val": labelled(50).tensors}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_size_that_fits_is_tried_by_all_and_told_alike(case, one_thread):
    data = labelled(50).tensors
    (trial, untouched), (other, other_untouched) = on_ranks(
        2, lambda: tried(noisy_net(), data, 12, **CASES[case])
    )
    assert trial == other
    assert (trial.size, trial.ok, trial.ranks) == (12, True, 2)
    assert trial.samples_per_second > 0
    if case != "validate":
        batches = CASES[case].get("settings", {}).get("accumulate_grad_batches", 1)
        assert trial.samples_per_second == pytest.approx(2 * 12 * batches / trial.seconds)
    assert untouched
    assert other_untouched


@pytest.mark.parametrize("make", [sgd, torch.optim.LBFGS])
def test_one_rank_that_runs_out_of_memory_decides_for_all_and_strands_nobody(make, one_thread):
    def rank():
        given = {"loss": OneRunsOut(8), "optimizer": make}
        return [tried(plain_net(), labelled(50).tensors, size, given) for size in (4, 8, 6)]

    for trials in on_ranks(2, rank):
        assert [(t.size, t.ok) for t, _ in trials] == [(4, True), (8, False), (6, True)]
        assert trials[1][0].error.startswith("rank 1: CUDA out of memory")
        assert all(untouched for _, untouched in trials)


def test_a_last_batch_that_the_model_refuses_is_tried_before_the_ranks_take_updates_together(
    one_thread,
):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    for trials in on_ranks(
        2,
        lambda: [
            tried(model, labelled(33).tensors, size, settings=more)
            for size, more in ((8, {}), (8, {"drop_last": True}), (7, {}))
        ],
    ):
        assert [(t.ok, t.refused) for t, _ in trials] == [(False, 1), (True, None), (True, None)]
        assert all(untouched for _, untouched in trials)


def test_a_limit_holds_in_each_rank_and_for_the_trial_alone(one_thread):
    data = labelled(200).tensors

    def rank():
        return [tried(Wide(), data, size, max_memory=200 * MB) for size in (2, 64, 4)]

    for trials in on_ranks(2, rank):
        assert [t.ok for t, _ in trials] == [True, False, True]
        assert 0 < trials[0][0].peak_bytes < 200 * MB
        assert all(untouched for _, untouched in trials)


def test_other_errors_are_raised_as_they_are(one_thread):
    def loss(output, y):
        if len(y) == 8:
            raise LookupError("something else")
        return F.cross_entropy(output, y)

    with pytest.raises(LookupError, match="something else"):
        on_ranks(2, lambda: tried(plain_net(), labelled(50).tensors, 8, {"loss": loss}))


class Counting(torch.utils.data.IterableDataset):
    """Nobody knows its length: 12 samples."""

    def __iter__(self):
        return ((x, y) for x, y in labelled(12))


def test_data_that_do_not_fill_a_batch_of_each_rank(one_thread):
    for found, _ in on_ranks(2, lambda: tried(plain_net(), Counting(), 8)):
        assert isinstance(found, NotEnoughData)
        assert "fewer than 8 samples" in str(found)
    task = task_on(plain_net(), labelled(37).tensors)
    assert cap_of(task, ranks=2) == 18
    with pytest.raises(
        TaskError, match="train has 37 samples, too few for 40 ranks: take devices=37"
    ):
        cap_of(task, ranks=40)


def test_a_whole_search_by_the_ranks_themselves(one_thread):
    def rank():
        heard = Heard()
        task = task_on(plain_net(), labelled(80).tensors, {"loss": OneRunsOut(13)})
        request = BatchSizeRequest(mode="binsearch", init_val=3, steps_per_trial=1, headroom=0.2)
        status = RankSearch(task, Settings.make(lr=0.05, batch_size=4), request)(
            heard, Mailbox()
        ).status
        return status, [e for e in heard if isinstance(e, Trial | SearchEnded)]

    (status, events), other = on_ranks(2, rank)
    assert (status, events) == other
    found = BatchSizes.from_events(events)
    assert status == "finished"
    assert found.largest == 12
    assert {t.size: t.ok for t in found.trials}.items() >= {
        3: True,
        12: True,
        13: False,
        9: True,
    }.items()
    assert "largest 12 on each of 2 devices" in repr(found)
    assert found._charts()[0].x.unit == "samples per device"


def test_a_stop_ends_a_search_of_all(one_thread):
    def rank():
        mailbox = Mailbox()

        class Stopping(Heard):
            def __call__(self, event):
                super().__call__(event)
                if isinstance(event, Trial) and event.size == 4:
                    mailbox.put(Stop())  # on each rank, and only that of the first one is heard

        heard = Stopping()
        task = task_on(plain_net(), labelled(800).tensors)
        status = RankSearch(task, Settings.make(lr=0.05, batch_size=4), BatchSizeRequest())(
            heard, mailbox
        ).status
        return status, [e.size for e in heard if isinstance(e, Trial)]

    assert on_ranks(2, rank) == [("stopped", [2, 4])] * 2


def test_the_effective_batch_is_that_of_all_ranks():
    """48 samples of an update are 2 x 24 on one device each: sizes above that make no such update, divisors come first."""

    def trial(size):
        return Trial(
            size, size <= 10, 1.0, float(size), 10, None if size <= 10 else "out of memory", ranks=2
        )

    found = search(trial, init_val=3, cap=500, effective=48, ranks=2)
    assert [t.size for t in found.trials] == [3, 6, 12]
    assert (found.best, found.accumulate_grad_batches) == (6, 4)
    odd = search(trial, init_val=5, max_val=5, effective=48, ranks=2)
    assert odd.accumulate_grad_batches == 5
    assert odd.ended.endswith("48 is not a multiple of 2 x 5: 5 of them make 50")
    assert (
        "stopped at the effective batch per device (24)"
        in search(lambda n: Trial(n, True, 1.0, 1.0), effective=48, ranks=2).ended
    )


# -- inside a fit


FIT = {"train": labelled(40).tensors, "optimizer": adam}
SETTINGS = {"max_epochs": 3, "lr": 0.01, "num_sanity_val_steps": 0, "batch_size": 4}


def test_a_size_found_in_the_middle_of_a_fit_is_taken_by_all(one_thread):
    given = {**FIT, "loss": OneRunsOut(9)}
    found = on_ranks(2, lambda: fit(plain_net(), given, {**SETTINGS, "find_batch_size_at": (1,)}))
    same(*found, 0.0)
    steps = len(found[0]["loss"])
    assert steps in {5 + 2 * -(-40 // (2 * size)) for size in (1, 2, 4, 8)}
    assert np.isfinite(found[0]["loss"]).all()


def test_a_search_in_the_middle_of_a_fit_leaves_no_trace_on_any_rank(one_thread):
    """One trial of which runs out of memory in one of them."""
    given = {**FIT, "loss": OneRunsOut(9)}

    def rank():
        from workbench.engine.control import Control

        Control.change = lambda *_: None
        return fit(noisy_net(), given, SETTINGS), fit(
            noisy_net(), given, {**SETTINGS, "find_batch_size_at": (1, 2)}
        )

    for plain, searched in on_ranks(2, rank):
        np.testing.assert_array_equal(plain["loss"], searched["loss"])
        torch.testing.assert_close(plain["weights"], searched["weights"], rtol=0, atol=0)
