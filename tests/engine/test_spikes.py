"""Spikes of the loss: reported, left out, and followed by earlier weights, as in a plain loop."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import workbench as wb
from tests.engine.fit_results import fit
from tests.engine.learners import TwoSided
from tests.engine.problems import plain_net
from tests.engine.resuming import Fit, assert_goes_on_as, learning, resumed, settings_of, supervised
from tests.on_ranks import on_ranks
from workbench.events import Message, Spiked
from workbench.task.errors import TaskError
from workbench.techniques.spikes import SpikeError

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, N = 8, 1760
BAD = 1300
"""The batch of this sample is update 162."""


def data(bad=(BAD,), n=N):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=g)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=g)
    y[list(bad)] = 500.0
    return x, y


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def falling(optimizer, updates):
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    return {"scheduler": schedule, "interval": "step"}


def bench(tmp_path, train=None, **settings):
    given = {"optimizer": adam, "batch_size": BATCH, "max_epochs": 1, "shuffle": False, **settings}
    return wb.Workbench(net(), train=train or data(), loss=F.mse_loss, root=tmp_path, **given)


def plain(train, back, updates):
    """The twin. back: for each update that is left out, the update whose weights are given back
    (None: none are).
    """
    model = net()
    optimizer = adam(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    losses, before = [], []
    for step in range(updates):
        x, y = (part[BATCH * step : BATCH * (step + 1)] for part in train)
        buffers = [buffer.clone() for buffer in model.buffers()]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        states = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
        before.append(states)
        if step not in back:
            optimizer.step()
            schedule.step()
        elif back[step] is None:
            with torch.no_grad():
                for buffer, value in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(value)
        else:
            weights, state = copy.deepcopy(before[back[step]])
            model.load_state_dict(weights)
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
    return model, losses


def test_a_report_changes_nothing_and_names_the_samples(tmp_path):
    b = bench(tmp_path)
    run = b.fit().result()
    _, losses = plain(data(), {}, 220)
    silent = bench(tmp_path, on_spike=None).fit().result()
    (spike,) = run.spikes
    step = BAD // BATCH
    assert (spike.step, spike.epoch, spike.action) == (step, 0, "report")
    assert spike.samples == tuple(range(BATCH * step, BATCH * (step + 1)))
    assert (spike.loss, spike.grad_norm) == (
        run.history["loss"][step],
        run.history["grad_norm"][step],
    )
    assert 0 < spike.expected < 1 < spike.loss
    # the twin's schedule falls, and this fit has none: the first losses alone are alike
    assert run.history["loss"][0] == np.float32(losses[0])
    np.testing.assert_array_equal(run.history["loss"], silent.history["loss"])
    assert not silent.spikes
    (said,) = [e for e in run.events if isinstance(e, Message) and "spiked" in e.text]
    assert f"spiked at update {step}" in said.text
    assert "Its samples: 1296, 1297" in said.text
    assert f"the loss spiked at update {step}" in str(run)
    assert run.skipped == 0


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_as_the_twin(tmp_path, action):
    train = data((BAD, BAD + 40, BAD + 41))
    b = bench(tmp_path, train, on_spike=action, scheduler=falling)
    run = b.fit().result()
    spikes = {spike.step: spike.back_to for spike in run.spikes}
    assert list(spikes) == [162, 167]
    assert set(spikes.values()) == ({None} if action == "skip" else {100})
    twin, losses = plain(train, spikes, 220)
    np.testing.assert_array_equal(run.history["loss"], np.float32(losses))
    for mine, its in zip(b.model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    assert np.flatnonzero(run.history["skipped"] == 1).tolist() == [*spikes]
    assert run.history["lr"][168] == run.history["lr"][167]  # its schedule has not stepped


@pytest.mark.parametrize("action", ["report", "skip"])
def test_the_spike_of_a_ready_batch_has_its_number(tmp_path, action):
    batches = [*zip(*(part.split(BATCH) for part in data()), strict=True)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    b = wb.Workbench(
        net(), train=loader, loss=F.mse_loss, optimizer=adam, max_epochs=1, on_spike=action,
        root=tmp_path,
    )  # fmt: skip
    run = b.fit().result()
    (spike,) = run.spikes
    assert (spike.step, spike.samples, spike.are_batches) == (162, (162,), True)
    (said,) = [e.text for e in run.events if isinstance(e, Message) and "spiked" in e.text]
    assert "Its batch: number 162 of the loader." in said
    assert "batch 162" in repr(run.spikes)
    assert "numbers of the batches" in run.health[0].advice


def test_rows_that_are_not_recorded_are_judged_too(tmp_path):
    run = bench(tmp_path, on_spike="skip", log_every_n_steps=5, track_grad_norm=None).fit().result()
    (spike,) = run.spikes
    assert (spike.step, spike.samples[0]) == (162, 1296)
    assert spike.grad_norm is not None


def test_several_batches_of_an_update_are_left_out_together(tmp_path):
    run = bench(tmp_path, on_spike="skip", batch_size=4, accumulate_grad_batches=2).fit().result()
    (spike,) = run.spikes
    assert (spike.step, spike.samples) == (162, tuple(range(1296, 1304)))
    once = bench(tmp_path, on_spike="skip").fit().result()
    assert [s.samples for s in once.spikes] == [spike.samples]


@pytest.mark.parametrize(
    "given",
    [
        {"weight_averaging": "ema", "ema_decay": 0.9},
        {"optimizer": {"0": torch.optim.SGD, "": torch.optim.Adam}},
        {"optimizer": "muon"},
    ],
    ids=["ema", "two kinds", "muon"],
)
def test_weights_are_as_they_were_before_the_spike(tmp_path, given):
    b = bench(tmp_path, on_spike="rollback", max_steps=163, **given)
    run = b.fit().result()
    (spike,) = run.spikes
    assert (spike.step, spike.back_to) == (162, 100)
    before = bench(tmp_path, on_spike="rollback", max_steps=100, **given)
    before.fit().result()
    for name, value in before.model.named_parameters():
        assert torch.equal(value, b.model.get_parameter(name))


@pytest.mark.parametrize("action", ["report", "skip", "rollback"])
def test_a_resumed_fit_is_the_rest_of_the_uninterrupted_one(tmp_path, action):
    """From before the first judgement, between snapshot and spike, and after it."""

    def make():
        return supervised(
            net(), train=TensorDataset(*data((BAD, BAD + 200))), loss=F.mse_loss, optimizer=adam
        )

    settings = settings_of(
        on_spike=action, max_epochs=1, shuffle=False, checkpoint_every=55, save_top_k=-1, lr=0.01
    )
    whole = Fit(make(), settings, tmp_path / "whole")
    spikes = [e for e in whole.events if isinstance(e, Spiked)]
    assert [spike.step for spike in spikes] == [162, 187]
    points = [point for point in whole.checkpoints if not point.end]
    assert [point.step for point in points] == [55, 110, 165, 220]
    for point in points[:3]:
        rest = resumed(make, settings, point, tmp_path / point.name)
        assert_goes_on_as(whole, rest, point.step, point.epoch)
        again = [e for e in rest.events if isinstance(e, Spiked)]
        assert again == [spike for spike in spikes if spike.step >= point.step]


class ByHand(nn.Module):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.manual_backward(loss)
        self.optimizers().step()
        return loss


class Wild(nn.Module):
    """After 150 passes its loss grows whenever its weights change."""

    def __init__(self):
        super().__init__()
        self.net, self.passes = net()[0], 0

    def forward(self, x):
        self.passes += 1
        out = self.net(x)[:, :1]
        return out * (100.0 if self.passes > 150 and self.passes % 3 == 0 else 1.0)


def test_it_goes_back_a_few_times_and_then_stops(tmp_path):
    b = wb.Workbench(
        Wild(), train=data(()), loss=F.mse_loss, optimizer=adam, batch_size=BATCH,
        max_epochs=1, shuffle=False, on_spike="rollback", root=tmp_path,
    )  # fmt: skip
    job = b.fit()
    with pytest.raises(
        SpikeError, match=r"training went back to the weights of update 100 3 times"
    ):
        job.result()
    run = b.runs[-1]
    assert [spike.back_to for spike in run.spikes] == [100] * 4
    assert len({spike.step for spike in run.spikes}) == 4


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_ranks_decide_alike(action):
    train = data()
    given = {"train": train, "loss": F.mse_loss, "optimizer": adam}
    settings = {
        "max_epochs": 1, "lr": 0.01, "num_sanity_val_steps": 0, "shuffle": False, "on_spike": action,
    }  # fmt: skip

    def rank():
        return fit(nn.Linear(4, 1), given, {**settings, "batch_size": BATCH // 2})

    torch.manual_seed(0)
    first, other = on_ranks(2, rank)
    np.testing.assert_array_equal(first["loss"], other["loss"])
    torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
    assert first["loss"][162] > 1000
    assert first["loss"][163:].max() < 1000


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: supervised(plain_net(), optimizer=torch.optim.LBFGS),
            "LBFGS evaluates the loss itself",
        ),
        (lambda: learning(ByHand()), "manual optimisation"),
        (lambda: learning(TwoSided()), "several optimizers"),
    ],
)
def test_what_cannot_leave_out_an_update_is_refused(make, why):
    with pytest.raises(
        TaskError, match=rf"on_spike='skip' is not possible: .*{why}.*Take 'report'"
    ):
        Fit(make(), settings_of(on_spike="skip"))
    Fit(make(), settings_of(on_spike="report", max_steps=2))
