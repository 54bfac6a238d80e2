"""What a tuning trains: its stretches are plain loops of equal samples, and only what shows its worth stays."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tests.engine.problems import (
    adam,
    labelled,
    loss_of,
    plain_net,
    same_weights,
    sgd,
    twin_of,
    weights,
)
from tests.engine.resuming import settings_of, supervised
from tests.on_ranks import on_ranks
from tests.reference import loop
from workbench.commands import Mailbox, Stop
from workbench.events import CurvePoint, RaceTrial, TuneTrial
from workbench.tuners.plan import Plan
from workbench.tuners.plan_search import RUNS, PlanRequest, PlanSearch

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = ("find_lr", "find_batch_size", "find_clip_val")
SPEEDS = {8: 1.0, 16: 2.0, 32: 4.0}


def searched(task, request, inbox=None, **settings):
    """The plan of a search, whether it ended by itself, and its events."""
    events = []
    ended = PlanSearch(
        task, settings_of(**settings), request, events.append, inbox or Mailbox()
    ).run()
    return Plan.from_events(events), ended, events


def nothing_to_learn(n=800):
    return TensorDataset(torch.zeros(n, 6), torch.arange(n) % 3)


@pytest.mark.parametrize("judge", ["val", "training batches"])
def test_each_stretch_is_a_plain_loop_of_as_many_samples(judge):
    """An unclipped spike every tenth batch gives norms that stand out, so that a clip value is tried, too."""
    x, y = labelled(2400).tensors
    spikes = torch.rand(2400, 1, generator=torch.Generator().manual_seed(0)) < 0.02
    data, val = TensorDataset(x * (1 + 30.0 * spikes), y), labelled(96, seed=2)
    model = plain_net()
    task = supervised(model, train=data, val=val if judge == "val" else None, optimizer=adam)
    before = weights(model)
    plan, ended, _ = searched(task, PlanRequest(ALL, {}, SPEEDS), lr=1e-3, max_epochs=3)
    assert ended
    assert same_weights(before, weights(model))
    tried = [set(trial.values) for trial in plan.trials]
    assert {"lr", "batch_size"} in tried
    assert set() in tried
    assert judge != "val" or any("gradient_clip_val" in names for names in tried)
    samples = {trial.updates * trial.values.get("batch_size", 8) // 32 for trial in plan.trials}
    assert len(samples) == 1  # up to a batch
    for trial in plan.trials:
        size, twin = trial.values.get("batch_size", 8), twin_of(model)
        optimizer = adam(twin.parameters(), lr=trial.values.get("lr", 1e-3))
        feed = itertools.chain.from_iterable(itertools.repeat(loop.loader_of(data, size)))
        held = (
            list(loop.loader_of(val, size, shuffle=False))
            if judge == "val"
            else list(itertools.islice(feed, 16 * 8 // size))
        )
        twin.train()
        for batch in itertools.islice(feed, trial.updates):
            loss_of(twin, batch).backward()
            if "gradient_clip_val" in trial.values:
                torch.nn.utils.clip_grad_norm_(twin.parameters(), trial.values["gradient_clip_val"])
            optimizer.step()
            optimizer.zero_grad()
        twin.eval()
        with torch.no_grad():
            expected = [loss_of(twin, batch).item() for batch in held]
        assert trial.loss == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_a_plan_that_is_not_clearly_better_leaves_the_present_settings():
    task = supervised(plain_net(), train=nothing_to_learn(), val=nothing_to_learn(96))
    plan, _, _ = searched(
        task, PlanRequest(("find_lr",), {"num_workers": 0}), max_epochs=6, lr=6e-3
    )
    [rate, check] = plan.steps
    assert "lr" in rate.values
    assert plan.settings == {"num_workers": 0}
    assert "The plan's are not clearly better, so yours stay" in check.reason
    losses = [f"{trial.loss:.3g}" for trial in plan.trials if trial.values in ({}, rate.values)]
    assert len(losses) == 2
    assert all(loss[:4] in check.reason for loss in losses)


def test_a_faster_batch_size_stays_where_it_loses_nothing():
    task = supervised(plain_net(), train=nothing_to_learn())
    request = PlanRequest(("find_batch_size",), {}, SPEEDS)
    plan, _, _ = searched(task, request, lr=1e-4, max_epochs=6)
    assert plan.settings["batch_size"] == 32
    assert plan.settings["lr"] == pytest.approx(4e-4)  # SGD: the linear rule
    assert "The plan's are as good, and faster" in plan.steps[-1].reason
    slower = PlanRequest(("find_batch_size",), {}, {8: 1.0, 16: 1.02, 32: 1.03})
    plan, _, _ = searched(task, slower, lr=1e-4, max_epochs=6)
    assert (plan.settings, plan.trials) == ({}, ())
    assert plan.steps[0].reason.startswith("no larger batch is faster than 8")


def test_a_batch_size_that_needs_its_updates_stays():
    """The fall takes updates, not samples: twice the rate is too high where the present one is at the edge."""
    x, y = labelled(800).tensors
    task = supervised(plain_net(), train=TensorDataset(3 * x, y), val=labelled(96, seed=2))
    request = PlanRequest(("find_batch_size",), {}, SPEEDS)
    plan, _, _ = searched(task, request, lr=0.5, max_epochs=6)
    by_size = {trial.values.get("batch_size", 8): trial.loss for trial in plan.trials}
    assert by_size[16] > by_size[8]
    assert plan.settings == {}
    assert "8 stays" in plan.steps[0].reason


@pytest.mark.parametrize("planned", [60, 100, 250, 300, 400, 700])
def test_all_of_it_trains_at_most_one_and_a_half_runs(planned):
    seen = []

    def counting(output, y):
        seen.append(len(y) if output.requires_grad else 0)
        return F.cross_entropy(output, y)

    task = supervised(plain_net(), train=labelled(160), optimizer=adam, loss=counting)
    plan, _, events = searched(
        task, PlanRequest(ALL, {}, SPEEDS), max_steps=planned, max_epochs=None
    )
    assert sum(seen) <= RUNS * planned * 8
    assert bool(plan.curve.race) == (planned >= 300)
    assert sum(isinstance(event, CurvePoint) for event in events) <= max(planned / 2, 20)
    assert {} in [trial.values for trial in plan.trials]
    assert plan.steps[-1].is_check


def test_what_cannot_be_compared_is_not_recommended():
    data = labelled(8)  # one batch an epoch: nothing is left to train on
    task = supervised(plain_net(), train=data, optimizer=sgd)
    plan, _, _ = searched(task, PlanRequest(ALL, {}, SPEEDS), max_steps=400, max_epochs=None)
    assert plan.settings == {}
    assert "an epoch has one update" in plan.steps[-1].reason


def test_a_stop_ends_it_and_a_group_of_ranks_agrees():
    inbox = Mailbox()
    inbox.put(Stop())
    task = supervised(plain_net(), train=labelled(800))
    plan, ended, _ = searched(task, PlanRequest(ALL, {}, SPEEDS), inbox, max_epochs=6)
    assert (ended, plan.trials) == (False, ())

    def of_rank():
        task = supervised(plain_net(), train=labelled(800), optimizer=adam)
        plan, _, events = searched(
            task, PlanRequest(ALL, {}, {4: 1.0, 8: 2.0}), batch_size=4, max_epochs=3, lr=1e-3
        )
        kinds = (RaceTrial, TuneTrial)
        return (
            plan.settings,
            [step.reason for step in plan.steps],
            [(event.updates, event.loss) for event in events if isinstance(event, kinds)],
        )

    first, second = on_ranks(2, of_rank)
    assert first == second
    assert "lr" in first[0]
    assert all(math.isfinite(loss) for _, loss in first[2])
