"""Schedules that were made for fewer updates than the run takes: data longer than their length, and a fit that continues for longer."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import IterableDataset

import workbench as wb

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
SCHEDULES = {
    "sequential": lambda o, n: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, n - 3)], [3]
    ),
    "lambda": lambda o, n: lr_scheduler.LambdaLR(o, lambda step: max(0.0, 1 - step / n)),
    "cosine": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n),
    "polynomial": lambda o, n: lr_scheduler.PolynomialLR(o, n, 2.0),
    "one cycle": lambda o, n: lr_scheduler.OneCycleLR(o, 0.1, total_steps=n),
}
INDIFFERENT = {
    "step": lambda o, n: lr_scheduler.StepLR(o, 3, 0.7),
    "restarts": lambda o, n: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "cyclic": lambda o, n: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3),
    "warm-up": lambda o, n: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 20)),
}


class Longer(IterableDataset):
    """It yields four times as many samples as it says."""

    def __len__(self):
        return 16

    def __iter__(self):
        return iter(zip(X, X[:, :1], strict=True))


def bench(root, train=(X, X[:, :1]), **settings):
    options = {"batch_size": 8, "max_epochs": 2, "lr": 0.1, "accelerator": "cpu", **settings}
    return wb.Workbench(
        nn.Linear(4, 1),
        train=train,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD,
        root=root,
        **options,
    )


def messages(job, word):
    return [
        event.text
        for event in job.events
        if type(event).__name__ == "Message" and word in event.text
    ]


def rates(make, updates):
    """The rates of a plain loop."""
    optimizer = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)
    scheduler, found = make(optimizer, updates), []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_the_users_is_made_again_for_a_longer_fit(name, tmp_path):
    made = bench(tmp_path, scheduler=SCHEDULES[name])
    made.fit().result()
    job = made.fit(start="continue", max_epochs=4)
    run = job.result()
    np.testing.assert_allclose(
        run.history["lr"][16:], rates(SCHEDULES[name], 32)[16:], rtol=1e-5, atol=1e-9
    )
    (text,) = messages(job, "made for 16 updates")
    assert "32" in text


def test_it_keeps_a_rate_that_was_changed(tmp_path):
    made = bench(tmp_path, scheduler=SCHEDULES["cosine"])
    made.fit().result()
    run = made.fit(start="continue", max_epochs=4, lr=0.01).result()
    np.testing.assert_allclose(
        run.history["lr"][16:],
        np.array(rates(SCHEDULES["cosine"], 32)[16:]) / 10,
        rtol=1e-5,
        atol=1e-9,
    )


@pytest.mark.parametrize("name", INDIFFERENT)
def test_a_schedule_without_a_length_continues_as_it_was(name, tmp_path):
    made = bench(tmp_path, scheduler=INDIFFERENT[name])
    made.fit().result()
    job = made.fit(start="continue", max_epochs=4)
    np.testing.assert_array_equal(
        job.result().history["lr"], np.float32(rates(INDIFFERENT[name], 32))
    )
    assert not messages(job, "made for")


@pytest.mark.parametrize("schedule", ["linear", "cosine", "one_cycle"])
def test_a_built_in_schedule_says_that_its_rate_jumps(schedule, tmp_path):
    made = bench(tmp_path, lr_schedule=schedule)
    made.fit().result()
    job = made.fit(start="continue", max_epochs=4)
    job.result()
    (text,) = messages(job, "made for 16 updates")
    assert schedule in text


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_schedule": "cosine"},
        {"lr_schedule": "one_cycle"},
        {"scheduler": SCHEDULES["polynomial"]},
    ],
)
def test_data_longer_than_their_length_are_told_at_once(settings, tmp_path):
    job = bench(tmp_path, Longer(), **settings).fit()
    job.result()
    told = [
        event
        for event in job.events
        if type(event).__name__ == "Message" and "more than the 2 batches" in event.text
    ]
    assert len(told) == 1
    assert told[0].step == 3


def test_data_of_their_length_are_not_told(tmp_path):
    job = bench(tmp_path, lr_schedule="cosine", accumulate_grad_batches=3).fit()
    job.result()
    assert not messages(job, "batches that their length")


def test_torchs_error_is_not_swallowed(tmp_path):
    with pytest.raises(ValueError, match="Tried to step 5 times") as caught:
        bench(tmp_path, Longer(), scheduler=SCHEDULES["one cycle"]).fit().result()
    assert "planned when the run began" in "".join(caught.value.__notes__)
