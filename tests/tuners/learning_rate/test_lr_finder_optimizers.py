"""The finder with several optimizers: one is swept, by its own loss, and the others train on at their rates."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.learners import TwoSided
from tests.engine.problems import bench, labelled, plain_net, same_weights, sgd, weights
from tests.reference import loop
from tests.runs.records import read_events
from workbench.engine.setup import open_session
from workbench.events import CurveEnded, RunStarted
from workbench.settings import SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.learning_rate.lr_finder import LRRequest, run

pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(torch.nn.Module):
    """As a GAN: a maker that is judged, and a judge; each loss needs both nets."""

    def __init__(self, frequencies=None, groups=False):
        super().__init__()
        torch.manual_seed(0)
        self.maker, self.judge = (
            torch.nn.Linear(4, 6),
            torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
        )
        self.frequencies, self.groups = frequencies, groups

    def training_step(self, batch, batch_idx, optimizer_idx):
        x, _y = batch
        made = self.maker(x[:, :4])
        if optimizer_idx == 0:
            return F.softplus(-self.judge(made)).mean()
        return F.softplus(self.judge(made)).mean() + F.softplus(-self.judge(x)).mean()

    def configure_optimizers(self):
        judged = [
            {"params": self.judge[0].parameters(), "lr": 0.02},
            {"params": self.judge[2].parameters(), "lr": 0.002},
        ]
        made = [torch.optim.SGD(self.maker.parameters(), lr=0.05),
                torch.optim.SGD(judged if self.groups else self.judge.parameters(), lr=0.02)]  # fmt: skip
        if self.frequencies is None:
            return made
        return [
            {"optimizer": o, "frequency": f} for o, f in zip(made, self.frequencies, strict=True)
        ]


def plain_sweep(model, swept, n, lrs, batches, turns=lambda k: (0, 1)):
    """The losses of the swept optimizer, each optimizer stepping on its own loss and parameters alone."""
    optimizers = model.configure_optimizers()
    if isinstance(optimizers[0], dict):
        optimizers = [entry["optimizer"] for entry in optimizers]
    base = [g["lr"] for g in optimizers[swept].param_groups]
    losses, updates = [], 0
    while len(losses) < n:
        for group, own in zip(optimizers[swept].param_groups, base, strict=True):
            group["lr"] = lrs[len(losses)] * own / base[0]
        batch, point = next(batches), None
        for index in turns(updates):
            mine = [p for g in optimizers[index].param_groups for p in g["params"]]
            loss = model.training_step(batch, 0, index)
            for p, g in zip(mine, torch.autograd.grad(loss, mine), strict=True):
                p.grad = g
            optimizers[index].step()
            point = loss.item() if index == swept else point
        updates += 1
        if point is not None:
            losses.append(point)
    return losses


def cycled(data):
    loader = loop.loader_of(data, 8)
    while True:
        yield from loader


@pytest.mark.parametrize("groups", [False, True], ids=["one-group", "two-groups"])
@pytest.mark.parametrize("swept", [0, 1])
def test_the_curve_of_one_of_two_is_the_plain_loops(swept, groups, tmp_path):
    model, data = Pair(groups=groups), labelled()
    twin = copy.deepcopy(model)
    b = wb.Workbench(model, train=data, root=tmp_path, accelerator="cpu", batch_size=8)
    before = weights(model)
    curve = b.find_lr(
        optimizer=swept, num_training=30, max_lr=1.0, early_stop_threshold=None
    ).result()
    assert same_weights(before, weights(model))
    expected = plain_sweep(twin, swept, 30, curve.lrs, cycled(data))
    np.testing.assert_allclose(curve.losses, expected, rtol=1e-5)
    assert curve.lrs[0] == 1e-5
    assert any(f"rates of optimizer {swept} alone" in note for note in curve.notes)
    assert b.find_lr(num_training=3).result().losses[0] == pytest.approx(
        Pair(groups=groups).training_step(next(cycled(data)), 0, 0).item(), rel=1e-6
    )


def test_with_frequencies_a_point_is_an_update_of_its_own(tmp_path):
    """Two updates of the maker, then one of the judge: the judge's curve has a point for each third window."""
    model, data = Pair(frequencies=(2, 1)), labelled()
    twin = copy.deepcopy(model)
    b = wb.Workbench(model, train=data, root=tmp_path, accelerator="cpu", batch_size=8)
    curve = b.find_lr(optimizer=1, num_training=12, max_lr=0.5, early_stop_threshold=None).result()
    expected = plain_sweep(
        twin, 1, 12, curve.lrs, cycled(data), turns=lambda k: (0,) if k % 3 < 2 else (1,)
    )
    np.testing.assert_allclose(curve.losses, expected, rtol=1e-5)


def test_the_others_keep_their_rate_and_all_come_back(tmp_path):
    b = wb.Workbench(
        TwoSided(lr=0.05), train=labelled(), root=tmp_path, accelerator="cpu", batch_size=8
    )
    rates = []
    with open_session(b._task, b.settings) as session:
        session.optimizers[1].optimizer.register_step_pre_hook(
            lambda *_: rates.append(session.optimizers.lrs)
        )

        class Empty:
            def __bool__(self):
                return False

        run(
            session, LRRequest(num_training=5, max_lr=0.1, optimizer=1), lambda event: None, Empty()
        )
        assert session.optimizers.lrs == [0.05, 0.025]
    assert [first for first, _ in rates] == [0.05] * 5
    np.testing.assert_allclose([second for _, second in rates], np.geomspace(1e-5, 0.1, 5))


def test_one_group_is_swept_and_the_others_stay(tmp_path):
    """The losses are those of a plain loop that raises one group's rate; the model is as before, and the notes say whose it is."""
    net, data = plain_net(), labelled()
    twin = copy.deepcopy(net)

    def groups(params, lr):
        first, *others = params
        return torch.optim.SGD(
            [{"params": [first], "lr": 0.01, "name": "body"}, {"params": others, "lr": 0.1}]
        )

    b = bench(net, data, tmp_path, groups, lr=0.01)
    before = weights(net)
    curve = b.find_lr(group=1, num_training=12, max_lr=0.5, early_stop_threshold=None).result()
    assert same_weights(before, weights(net))
    optimizer, losses = groups([*twin.parameters()], 0.01), []
    for lr, (x, y) in zip(curve.lrs, cycled(data), strict=False):
        optimizer.param_groups[1]["lr"] = float(lr)
        loss = F.cross_entropy(twin(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-5)
    assert any("parameter group 1 alone" in note for note in curve.notes)
    raced = b.find_lr(group=0, num_training=30, race=True, race_updates=200).result()
    assert any("parameter group 0 (body) alone" in note for note in raced.notes)
    assert same_weights(before, weights(net))
    with pytest.raises(
        TaskError, match=r"find_lr\(group=2\): there are 2 parameter groups, 0 to 1"
    ):
        b.find_lr(group=2).result()
    for wrong in (-1, True, 1.0):
        with pytest.raises(
            SettingsError, match=f"group={wrong!r}: give the name of parameter groups"
        ):
            b.find_lr(group=wrong)


def test_an_optimizer_that_is_not_there(tmp_path):
    b = wb.Workbench(Pair(), train=labelled(), root=tmp_path, accelerator="cpu", batch_size=8)
    with pytest.raises(TaskError, match=r"find_lr\(optimizer=2\): there are 2 optimizers, 0 to 1"):
        b.find_lr(optimizer=2).result()
    with pytest.raises(SettingsError, match="optimizer='judge': should be one of"):
        b.find_lr(optimizer="judge")
    for wrong in (-1, True, 1.0):
        with pytest.raises(SettingsError, match=f"optimizer={wrong!r}: the number of an optimizer"):
            b.find_lr(optimizer=wrong)
    with pytest.raises(TaskError, match="there is one optimizer, 0"):
        bench(plain_net(), labelled(), tmp_path, sgd).find_lr(optimizer=1).result()


def test_the_record_says_what_was_swept_and_each_groups_share_of_the_setting(tmp_path):
    b = wb.Workbench(
        Pair(groups=True), train=labelled(), root=tmp_path, accelerator="cpu", batch_size=8
    )
    assert b.summary.optimizers == 2
    job = b.find_lr(optimizer=1, num_training=4, max_lr=0.1)
    curve, started = job.result(), next(e for e in job.events if isinstance(e, RunStarted))
    assert {"optimizer": 1, "min_lr": 1e-5, "max_lr": 0.1}.items() <= started.request.items()
    shares = [[ratio for _, ratio in own] for own in started.groups]
    assert shares == [[1.0], pytest.approx([0.4, 0.04])]  # of lr=0.05, the first optimizer's
    assert next(e for e in job.events if isinstance(e, CurveEnded)).diverged == curve.diverged
    recorded = read_events(job.folder.path)[0]
    assert (recorded.groups, recorded.request) == (started.groups, started.request)


def test_names_of_groups_and_a_schedule_that_begins_low(tmp_path):
    def named(params, lr):
        first, *others = params
        return torch.optim.SGD(
            [{"params": [first], "name": "first"}, {"params": others, "lr": 10 * lr}],
            lr=lr,
            momentum=0.9,
        )

    b = bench(plain_net(), labelled(), tmp_path, named, lr=0.01, lr_schedule="one_cycle")
    job = b.find_lr(num_training=3)
    job.result()
    ((first, other),) = next(e for e in job.events if isinstance(e, RunStarted)).groups
    assert first == ("first", 1.0)
    assert other == ("", pytest.approx(10.0))


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_targets_of_large_numbers_are_named_where_the_rate_is_beyond_the_weights(
    scale, race, tmp_path
):
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    data = x, scale * (3 + x[:, :1] + x[:, 1:2] * x[:, 2:3])
    net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    b = bench(net, data, tmp_path, torch.optim.Adam, loss=F.mse_loss, max_epochs=8, val=data)
    job = b.find_lr(race=race)
    doubts = [note for note in job.result().notes if "the weights themselves are about" in note]
    assert len(doubts) == (scale > 1)
    assert all("scale them" in note for note in doubts)
    assert next(e.doubts for e in job.events if isinstance(e, CurveEnded))[: len(doubts)] == tuple(
        doubts
    )


def test_weights_that_begin_at_zero_are_no_doubt(tmp_path):
    """As LoRA's second matrices do, and last layers: most matrices here."""
    model = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(5)], torch.nn.Linear(6, 3))
    for layer in list(model)[1:4]:
        torch.nn.init.eye_(layer.weight)
    adapters = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(4)])
    for layer in adapters:
        torch.nn.init.zeros_(layer.weight)

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.adapters = model, adapters

        def forward(self, x):
            return self.model(x + sum(adapter(x) for adapter in self.adapters))

    job = wb.Workbench(
        Adapted(), train=labelled(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu"
    ).find_lr(num_training=40)
    assert not [
        note
        for note in job.result().notes
        if "the weights themselves are about 0." in note or "about 0:" in note
    ]
    assert job.result().suggestion is not None
