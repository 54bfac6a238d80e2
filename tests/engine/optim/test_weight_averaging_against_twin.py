"""Averaged weights, EMA and SWA, against torch's AveragedModel and update_bn in the slow twin."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.combinations import pairs
from tests.engine.learners import (
    assert_same,
    checker,
    copied,
    fitted,
    supervised,
    twin_run,
)
from tests.engine.problems import labelled, noisy_net, plain_net, sgd
from tests.reference import loop
from tests.reference.technique_parts import Average, multiplier

pytestmark = pytest.mark.usefixtures("one_thread")
CE = F.cross_entropy


def batches(size=8, shuffle=False):
    return lambda: loop.loader_of(labelled(), size, shuffle=shuffle)


AVERAGES = {
    "ema": ({"ema_decay": 0.9}, {"decay": 0.9}),
    "without a warm-up": ({"ema_decay": 0.9, "ema_warmup": False}, {"decay": 0.9, "warmup": False}),
    "of a short fit": ({}, {}),
    "every third": ({"ema_decay": 0.8, "averaging_every_n_steps": 3}, {"decay": 0.8, "every": 3}),
    "from update 5 on": ({"ema_decay": 0.5, "averaging_start": 5}, {"decay": 0.5, "start": 5}),
    "from epoch 1 on": (
        {"ema_decay": 0.5, "averaging_start_epoch": 1},
        {"decay": 0.5, "start_epoch": 1},
    ),
}


@pairs("name, net, windows", list(AVERAGES), [plain_net, noisy_net], [1, 3])
def test_ema(name, net, windows, tmp_path):
    settings, parts = AVERAGES[name]
    averaged(tmp_path, net, Average("ema", batches(), **parts), {"accumulate": windows},
             weight_averaging="ema", accumulate_grad_batches=windows, **settings)  # fmt: skip


@pairs("net, begin", [plain_net, noisy_net], [(2, 2), (0, 0), (0.5, 2), (4, 4)])
def test_swa_averages_the_ends_of_epochs(net, begin, tmp_path):
    given, start = begin
    """5 epochs from the third on are three ends; of a fraction of 5, int() is taken."""
    averaged(
        tmp_path,
        net,
        Average("swa", batches(), start=start),
        {},
        epochs=5,
        weight_averaging="swa",
        swa_epoch_start=given,
    )


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("annealing", [0, 1, 3])
def test_swa_rates(strategy, annealing, tmp_path):
    average = Average("swa", batches(), start=2, lr=0.01, epochs=annealing, strategy=strategy)
    run = averaged(
        tmp_path, plain_net, average, {"multiplier": multiplier("linear", 42, 0)}, epochs=6, weight_averaging="swa",
        swa_epoch_start=2, swa_lrs=0.01, annealing_epochs=annealing, annealing_strategy=strategy, lr_schedule="linear",
    )  # fmt: skip
    assert run.history["lr"][-1] == np.float32(0.01)


def test_swa_rates_leave_a_group_at_0_where_it_is(tmp_path):
    def groups(parameters, lr=0.05):
        parameters = list(parameters)
        return torch.optim.SGD(
            [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.0}], lr=lr
        )

    average = Average("swa", batches(), start=1, lr=[0.2, 0.0], epochs=2)
    run = averaged(
        tmp_path, plain_net, average, {"multiplier": multiplier("linear", 28, 0)}, epochs=4, optimizer=groups, weight_averaging="swa",
        swa_epoch_start=1, swa_lrs=0.2, annealing_epochs=2, lr_schedule="linear",
    )  # fmt: skip
    assert run.history["lr"][-1] == np.float32(0.2)


def averaged(tmp_path, net, average, techniques, epochs=3, optimizer=sgd, **settings):
    """In the order given, so that the pass for BatchNorm sees the same batches on both sides."""
    model, data, val = net(), labelled(), labelled(21, seed=5)
    twin = copied(model)
    run = fitted(
        model,
        data,
        tmp_path,
        loss=CE,
        val=val,
        shuffle=False,
        max_epochs=epochs,
        optimizer=optimizer,
        **settings,
    )
    check = checker(val, lambda m, b: CE(m(b[0]), b[1]))
    record = twin_run(twin, data, supervised(twin, CE), [optimizer(twin.parameters(), lr=0.05)], shuffle=False, epochs=epochs,
                      average=average, check=check, **techniques)  # fmt: skip
    assert_same(run, record, model)
    return run


def test_before_the_first_average_the_raw_weights_stay(tmp_path):
    run = averaged(
        tmp_path,
        noisy_net,
        Average("ema", batches(), start=1000),
        {},
        weight_averaging="ema",
        averaging_start=1000,
    )
    assert "val_loss_averaged" not in run.validation


def test_an_average_of_ones_own(tmp_path):
    """The maximum of the weights seen after each fourth update."""

    def largest(averaged, current, n):
        return torch.maximum(averaged, current)

    model, data = plain_net(), labelled()
    twin = copied(model)
    own = {"avg_fn": largest, "should_update": lambda step, epoch: step % 4 == 0}
    fitted(model, data, tmp_path, loss=CE, weight_averaging="ema", custom=own)
    kept = []
    optimizer = sgd(twin.parameters(), lr=0.05)
    for number, (x, y) in enumerate(
        [b for loader in [loop.loader_of(data, 8)] for _ in range(3) for b in loader], 1
    ):
        optimizer.zero_grad()
        CE(twin(x), y).backward()
        optimizer.step()
        if number % 4 == 0:
            kept.append([p.detach().clone() for p in twin.parameters()])
    for ours, *theirs in zip(model.parameters(), *kept, strict=True):
        assert torch.equal(ours, torch.stack(theirs).amax(0))
