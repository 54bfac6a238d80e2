"""At which rates an optimizer trains: what the user put into it, until `lr` is set; 0 is a rate."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, lr_scheduler

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.launch.turns import alone
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = labelled(24)


def bench(tmp_path, model=None, **options):
    options = {
        "loss": F.cross_entropy,
        "accelerator": "cpu",
        "batch_size": 8,
        "shuffle": False,
        "max_steps": 3,
    } | options
    return wb.Workbench(
        plain_net() if model is None else model, train=DATA, root=tmp_path, **options
    )


def twin(make, model=None, updates=3, schedule=None):
    """The losses and weights of a plain loop."""
    model = plain_net() if model is None else model
    optimizer = make(model)
    scheduler = None if schedule is None else schedule(optimizer, updates)
    losses = []
    for start in range(0, 8 * updates, 8):
        x, y = DATA[start : start + 8]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def same(b, expected):
    run = b.fit().result()
    assert run.history["loss"].tolist() == pytest.approx(expected[0], abs=0, rel=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(b.model.parameters(), expected[1], strict=True))
    return run


def halving(optimizer, updates):
    return lr_scheduler.StepLR(optimizer, 2, 0.5)


def own(params, lr=0.25):
    return SGD(params, lr=lr)


def without(params):
    return SGD(params, lr=0.25)


def deaf(params, **_):
    return SGD(params, lr=0.25)


class Tuned(SGD):
    def __init__(self, params, lr=0.25):
        super().__init__(params, lr=lr)


GIVEN = [functools.partial(SGD, lr=0.25), functools.partial(functools.partial(SGD, lr=7.0), lr=0.25), own, without, deaf,
         lambda params, lr: SGD(params, lr=0.25), Tuned]  # fmt: skip


@pytest.mark.parametrize("given", GIVEN)
def test_a_rate_that_is_in_the_optimizer_is_the_rate_until_lr_is_set(given, tmp_path):
    with bench(tmp_path / "own", optimizer=given) as b:
        assert b.settings.lr == 0.25
        run = same(b, twin(lambda model: SGD(model.parameters(), lr=0.25)))
        assert run.settings.lr == 0.25
        assert run.history["lr"].tolist() == [0.25] * 3
    with bench(tmp_path / "set", optimizer=given, lr=0.1) as b:
        same(b, twin(lambda model: SGD(model.parameters(), lr=0.1)))
        b.set(lr=0.05)
        assert b.fit().result().history["lr"].tolist() == pytest.approx([0.05] * 3)
        assert b.fit(lr=0.5).result().history["lr"].tolist() == [0.5] * 3


def test_an_optimizer_that_brings_no_rate_of_its_own_has_the_settings(tmp_path):
    for number, given in enumerate(
        (SGD, lambda params, lr: SGD(params, lr=lr), lambda params, **kw: SGD(params, **kw))
    ):
        with bench(tmp_path / str(number), optimizer=given) as b:
            assert b.settings.lr == 1e-3
            same(b, twin(lambda model: SGD(model.parameters(), lr=1e-3)))
    # at the rate that torch makes it with
    with bench(tmp_path / "adadelta", optimizer=torch.optim.Adadelta) as b:
        assert b.settings.lr == 1.0
        same(b, twin(lambda model: torch.optim.Adadelta(model.parameters())))


def groups_of(model, *rates):
    parts = [[*model[0].parameters()], [*model[2].parameters()]]
    return [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]


def by_rates(*rates):
    """A function that makes two groups at rates of their own, whatever `lr` says."""

    def make(params, **_):
        params = list(params)
        return SGD(
            [{"params": params[:2], "lr": rates[0]}, {"params": params[2:], "lr": rates[1]}], lr=9.0
        )

    return make


@pytest.mark.parametrize("rates", [(0.2, 0.02), (0.0, 0.2), (0.2, 0.0), (0.0, 0.0)])
def test_groups_keep_their_own_base_rates_and_0_stays_0(rates, tmp_path):
    first = next((rate for rate in rates if rate), 0.0)
    with bench(tmp_path / "own", optimizer=by_rates(*rates)) as b:
        assert b.settings.lr == first
        run = same(b, twin(lambda model: SGD(groups_of(model, *rates))))
        assert run.history["lr"].tolist() == pytest.approx([first] * 3)
    if first:
        half = [rate if rate == 0 else 0.5 * rate for rate in rates]
        with bench(tmp_path / "half", optimizer=by_rates(*rates), lr=0.5 * first) as b:
            same(b, twin(lambda model: SGD(groups_of(model, *half))))


@pytest.mark.parametrize("rates", [(0.0, 0.2), (0.2, 0.02)])
def test_a_scheduler_starts_from_the_rates_that_hold(rates, tmp_path):
    def falling(optimizer, updates):
        return lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / updates)

    half = [0.5 * rate for rate in rates]
    first = next(rate for rate in half if rate)
    with bench(tmp_path, optimizer=by_rates(*rates), lr=first, scheduler=falling) as b:
        same(b, twin(lambda model: SGD(groups_of(model, *half)), schedule=falling))


@pytest.mark.parametrize("rates", [(0.0, 0.2), (0.0, 0.0)])
def test_a_sweep_of_groups_at_0(rates, tmp_path):
    with bench(tmp_path, optimizer=by_rates(*rates), max_steps=2) as b:
        curve = b.find_lr(num_training=5, min_lr=1e-3, max_lr=0.1).result()
        assert len(curve.lrs) == 5
        assert len(set(curve.losses.tolist())) == 5
        found = b.fit().result().history["loss"].tolist()
    with bench(tmp_path / "alone", optimizer=by_rates(*rates), max_steps=2) as b:
        assert b.fit().result().history["loss"].tolist() == found


def test_a_rate_of_0_trains_nothing_and_can_be_set(tmp_path):
    with bench(tmp_path, optimizer=SGD, lr=0) as b:
        before = [p.detach().clone() for p in b.model.parameters()]
        assert b.fit().result().history["lr"].tolist() == [0.0] * 3
        assert all(torch.equal(p, q) for p, q in zip(b.model.parameters(), before, strict=True))
        same_as = twin(lambda model: SGD(model.parameters(), lr=0.1))
        b.set(lr=0.1)
        same(b, same_as)


class Own(nn.Module):
    """Makes its optimizers itself. rates: of the two layers; scheduled: with a schedule of its own."""

    def __init__(self, make, **attributes):
        super().__init__()
        self.net = plain_net()
        self.make = make
        vars(self).update(attributes)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return self.make(self)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0)])
def test_an_object_that_makes_its_optimizer_with_rates_of_0(rates, tmp_path):
    first = next((rate for rate in rates if rate), 0.0)
    with bench(
        tmp_path / "own", Own(lambda self: SGD(groups_of(self.net, *rates))), loss=None
    ) as b:
        assert b.settings.lr == first
        same(b, twin(lambda model: SGD(groups_of(model, *rates))))
    scaled = [0.1 if rate == first else rate for rate in rates]
    with bench(
        tmp_path / "set", Own(lambda self: SGD(groups_of(self.net, *rates))), loss=None, lr=0.1
    ) as b:
        same(b, twin(lambda model: SGD(groups_of(model, *scaled))))
        curve = b.find_lr(num_training=4, min_lr=1e-3, max_lr=0.1).result()
        assert len(curve.lrs) == 4


def test_an_object_whose_rate_is_an_attribute_at_0(tmp_path):
    with bench(
        tmp_path, Own(lambda self: SGD(self.net.parameters(), lr=self.lr), lr=0.0), loss=None
    ) as b:
        assert b.settings.lr == 0.0
        b.set(lr=0.1)
        same(b, twin(lambda model: SGD(model.parameters(), lr=0.1)))


def test_a_schedule_is_not_raised_from_0(tmp_path):
    def make(self):
        optimizer = SGD(self.net.parameters(), lr=0.0)
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1)]

    with pytest.raises(
        TaskError, match=r"lr=0\.1: the optimizer is made at a rate of 0 and follows a schedule"
    ):
        bench(tmp_path, Own(make), loss=None, lr=0.1)


def test_a_fit_moves_between_rates_above_0(tmp_path):
    with bench(tmp_path, optimizer=by_rates(0.0, 0.2), max_steps=200) as b:
        with alone():  # the job waits until it is asked
            job = b.fit()
            with pytest.raises(
                wb.SettingsError, match="lr=0: the rate of a running run cannot become 0"
            ):
                job.change(lr=0)
            job.change(lr=0.1)
        run = job.result()
        assert run.history["lr"][-1] == pytest.approx(0.1)
        before = b.model[0].weight.clone()
        assert torch.equal(before, plain_net()[0].weight)


@pytest.mark.parametrize("schedule", [{}, {"warmup": 2}, {"warmup": 2, "scheduler": halving}])
def test_a_fit_goes_on_with_the_rate_that_was_in_the_optimizer(schedule, tmp_path):
    options = {"optimizer": by_rates(0.0, 0.2), **schedule}
    with bench(tmp_path / "whole", max_steps=6, **options) as b:
        b.fit().result()
        expected = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "parts", max_steps=3, **options) as b:
        run = b.fit().result()
    with bench(tmp_path / "parts", max_steps=6, **options) as b:
        b.fit(start=run.id, max_steps=6).result()
        assert all(torch.equal(p, q) for p, q in zip(b.model.parameters(), expected, strict=True))


def test_a_fit_goes_on_from_a_rate_of_0(tmp_path):
    with bench(tmp_path, optimizer=SGD, lr=0, max_steps=2) as b:
        first = b.fit().result()
        run = b.fit(start=first.id, lr=0.1, max_steps=4).result()
        assert run.history["lr"].tolist()[-2:] == pytest.approx([0.1, 0.1])
        down = b.fit(start=run.id, lr=0, max_steps=5).result()
        assert down.history["lr"].tolist()[-1] == 0.0


def test_on_two_processes(tmp_path):
    with bench(
        tmp_path, optimizer=by_rates(0.0, 0.2), devices=2, strategy="pool", batch_size=4
    ) as b:
        before = [p.detach().clone() for p in b.model.parameters()]
        assert b.fit().result().history["lr"].tolist() == pytest.approx([0.2] * 3)
        moved = [not torch.equal(p, q) for p, q in zip(b.model.parameters(), before, strict=True)]
        assert moved == [False, False, True, True]
