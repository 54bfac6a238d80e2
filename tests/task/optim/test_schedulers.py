"""What `scheduler=` may be: called as scheduler(optimizer, updates), or refused with what to write instead."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import workbench as wb
from workbench.task.errors import TaskError


def bench(tmp_path, **options):
    data = torch.randn(16, 3), torch.randint(0, 2, (16,))
    options = {
        "loss": F.cross_entropy,
        "root": tmp_path,
        "accelerator": "cpu",
        "optimizer": torch.optim.SGD,
        "batch_size": 4,
    } | options
    return wb.Workbench(nn.Linear(3, 2), train=data, lr=0.1, max_epochs=1, **options)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, last_epoch=-1):
    """As transformers has it."""
    return lr_scheduler.LambdaLR(optimizer, lambda n: 1.0, last_epoch)


def get_constant_schedule_with_warmup(optimizer, num_warmup_steps, last_epoch=-1):
    """As transformers has it."""
    return lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, n / max(1, num_warmup_steps)), last_epoch
    )


def get_constant_schedule(optimizer, last_epoch=-1):
    """As transformers has it."""
    return lr_scheduler.LambdaLR(optimizer, lambda n: 1.0, last_epoch)


class Warmup(lr_scheduler.LRScheduler):
    def __init__(self, optimizer, warmup):
        super().__init__(optimizer)

    def get_lr(self):
        return [0.0 for _ in self.base_lrs]


partial = functools.partial
REFUSED = [
    (lr_scheduler.ExponentialLR, "is gamma", "ExponentialLR(optimizer, gamma=0.9)"),
    (lr_scheduler.StepLR, "is step_size", "StepLR(optimizer, step_size=…)"),
    (lr_scheduler.MultiStepLR, "is milestones", "MultiStepLR(optimizer, milestones=…)"),
    (lr_scheduler.LinearLR, "is start_factor", "LinearLR(optimizer, …)"),
    (lr_scheduler.ConstantLR, "is factor", "ConstantLR(optimizer, …)"),
    (lr_scheduler.LambdaLR, "is lr_lambda", "LambdaLR(optimizer, lr_lambda=…)"),
    (
        lr_scheduler.OneCycleLR,
        "is max_lr",
        "OneCycleLR(optimizer, max_lr=0.1, total_steps=updates)",
    ),
    (
        lr_scheduler.CyclicLR,
        "CyclicLR cannot be called",
        "CyclicLR(optimizer, base_lr=…, max_lr=0.1)",
    ),
    (
        lr_scheduler.CosineAnnealingWarmRestarts,
        "is T_0",
        "CosineAnnealingWarmRestarts(optimizer, T_0=…)",
    ),
    (lr_scheduler.ReduceLROnPlateau, "is mode", "ReduceLROnPlateau(optimizer, …)"),
    (torch.optim.swa_utils.SWALR, "is swa_lr", "SWALR(optimizer, swa_lr=…)"),
    (Warmup, "is warmup", "Warmup(optimizer, warmup=…)"),
    (
        partial(lr_scheduler.StepLR, gamma=0.5),
        "partial(StepLR, …)",
        "StepLR(optimizer, gamma=0.5, step_size=…)",
    ),
    (
        partial(lr_scheduler.StepLR, step_size=3),
        "cannot be called",
        "StepLR(optimizer, step_size=3)",
    ),
    (get_constant_schedule, "is last_epoch", "get_constant_schedule(optimizer, …)"),
    (
        partial(get_constant_schedule, last_epoch=-1),
        "cannot be called",
        "get_constant_schedule(optimizer, last_epoch=-1)",
    ),
    (
        partial(lr_scheduler.ExponentialLR, gamma=0.9),
        "cannot be called",
        "ExponentialLR(optimizer, gamma=0.9)",
    ),
    (
        partial(lr_scheduler.OneCycleLR, max_lr=0.1),
        "cannot be called",
        "OneCycleLR(optimizer, max_lr=0.1",
    ),
    (
        get_linear_schedule_with_warmup,
        "cannot be called",
        "num_warmup_steps=…, num_training_steps=updates)",
    ),
    (get_constant_schedule_with_warmup, "is num_warmup_steps", "(optimizer, num_warmup_steps=…)"),
]


@pytest.mark.parametrize(("given", "why", "remedy"), REFUSED)
def test_a_scheduler_that_would_take_the_updates_for_something_else(given, why, remedy, tmp_path):
    with pytest.raises(TaskError) as caught:
        bench(tmp_path, scheduler=given)
    text = str(caught.value)
    assert why in text
    assert "scheduler=lambda optimizer, updates: " in text
    assert remedy in text


ALLOWED = [
    lr_scheduler.CosineAnnealingLR,
    partial(lr_scheduler.CosineAnnealingLR, eta_min=0.01),
    lr_scheduler.PolynomialLR,
    lambda optimizer, n: lr_scheduler.ExponentialLR(optimizer, 0.9),
]


@pytest.mark.parametrize("given", ALLOWED)
def test_one_that_takes_the_number_of_updates(given, tmp_path):
    with bench(tmp_path, scheduler=given) as b:
        assert b.fit().result().history["lr"][0] == pytest.approx(0.1)


def test_the_rate_never_rises_by_a_class(tmp_path):
    """The reported case: gamma was the number of updates, and the rate rose to 1e7."""
    with bench(
        tmp_path,
        scheduler=lambda optimizer, updates: lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
    ) as b:
        assert max(b.fit().result().history["lr"]) == pytest.approx(0.1)
