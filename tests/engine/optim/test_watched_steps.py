"""torch's hooks of an optimizer's step and its profiler find what they find in a plain loop."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.optim import optimizer as torch_optimizer

import workbench as wb
from tests.engine.problems import labelled, plain_net

pytestmark = pytest.mark.usefixtures("one_thread")

RATE = 0.1


def halve(optimizer, *_):
    """A hook that halves all gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def fit(optimizer, tmp_path, updates=6, loss=F.cross_entropy):
    bench = wb.Workbench(
        plain_net(),
        train=labelled(),
        loss=loss,
        optimizer=optimizer,
        lr=RATE,
        batch_size=8,
        root=tmp_path,
        accelerator="cpu",
        dry_run=False,
    )
    return bench.fit(max_steps=updates).result().history["loss"].tolist()


@pytest.mark.parametrize("whose", ["its own", "of all optimizers"])
def test_a_hook_before_the_step_changes_the_gradients(whose, tmp_path):
    def hooked(parameters, lr):
        made = torch.optim.SGD(parameters, lr=lr)
        if whose == "its own":
            made.register_step_pre_hook(halve)
        return made

    handle = (
        torch_optimizer.register_optimizer_step_pre_hook(halve)
        if whose == "of all optimizers"
        else None
    )
    try:
        found = fit(hooked, tmp_path)
    finally:
        if handle is not None:
            handle.remove()

    class Half(torch.optim.SGD):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    assert found == fit(lambda parameters, lr: Half(parameters, lr=lr), tmp_path)
    assert found != fit(torch.optim.SGD, tmp_path)


def test_a_hook_after_the_step_that_comes_within_a_run_is_called_from_then_on(tmp_path):
    made, calls, heard = [], itertools.count(1), []

    def sgd(parameters, lr):
        made.append(torch.optim.SGD(parameters, lr=lr))
        return made[-1]

    def loss(output, target):
        if next(calls) == 4:
            made[-1].register_step_post_hook(lambda *_: heard.append(True))
        return F.cross_entropy(output, target)

    fit(sgd, tmp_path, loss=loss)
    assert len(heard) == 3  # of updates 4 to 6


def test_a_profiler_within_a_run_sees_its_steps_and_its_batches(tmp_path):
    calls, profile = (
        itertools.count(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    )

    def loss(output, target):
        number = next(calls)
        if number == 10:
            profile.start()
        if number == 13:
            profile.stop()
        return F.cross_entropy(output, target)

    fit(torch.optim.SGD, tmp_path, updates=20, loss=loss)
    names = [event.name for event in profile.events()]
    assert names.count("Optimizer.step#SGD.step") == 3
    assert names.count("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__") == 3
