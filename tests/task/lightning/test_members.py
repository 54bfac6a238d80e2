"""Manual optimisation: what the object calls goes through the engine's handle, and nothing stays on the object."""

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer, lr_scheduler

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorded:
    """A handle that writes down what it is asked, and takes steps where `last` says so."""

    def __init__(self, optimizers, last=True, scheduling=True):
        self.optimizers, self.last, self.scheduling, self.calls = optimizers, last, scheduling, []

    def backward(self, loss, **options):
        self.calls.append(("backward", *options))
        loss.backward(**options)

    def step(self, optimizer=0):
        self.calls.append(("step", optimizer))
        if self.last:
            self.optimizers[optimizer].step()

    def clip(self, optimizer, clip_val, algorithm):
        self.calls.append(("clip", optimizer, clip_val, algorithm))

    def zero_grad(self, optimizer=0, set_to_none=True):
        self.calls.append(("zero_grad", optimizer))
        self.optimizers[optimizer].zero_grad(set_to_none)

    def toggle(self, optimizer):
        self.calls.append(("toggle", optimizer))

    def untoggle(self, optimizer):
        self.calls.append(("untoggle", optimizer))


class Gan:
    """A plain object; `play` is its training_step."""

    automatic_optimization = False

    def __init__(self, play, schedules=lambda g, d: []):
        torch.manual_seed(0)
        self.g, self.d = nn.Linear(4, 2), nn.Linear(4, 1)
        self.play, self.schedules = play, schedules

    def training_step(self, batch, batch_idx):
        return self.play(self, batch)

    def configure_optimizers(self):
        g, d = SGD(self.g.parameters(), lr=0.1), SGD(self.d.parameters(), lr=0.1)
        return [g, d], self.schedules(g, d)


def task(thing) -> Any:
    return task_of(thing, train=(torch.ones(8, 4),), val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None,
                   metrics=None, collate_fn=None)  # fmt: skip


def played(play, last=True, schedules=lambda g, d: [], batches=1, scheduling=True, **settings):
    """What one training step asked of its handle, and what it returned."""
    thing = Gan(play, schedules)
    t, chosen = task(thing), Settings(lr=0.1, **settings)
    before = dict(vars(thing))
    with t.running(chosen):
        handle = Recorded([one.optimizer for one in t.configure(chosen, None)], last, scheduling)
        t.drive(handle)
        returned = [t.training_step(torch.ones(8, 4), number) for number in range(batches)]
    assert vars(thing) == before
    return handle.calls, returned[-1]


def test_a_step_goes_through_the_handle():
    def play(self, batch):
        g, d = self.optimizers()
        assert isinstance(g, Optimizer)
        assert isinstance(d, SGD)
        assert g.param_groups[0]["lr"] == 0.1
        assert len(g.state_dict()["param_groups"]) == 1
        assert repr(g) == repr(g.optimizer)
        for optimizer, net in ((g, self.g), (d, self.d)):
            optimizer.zero_grad()
            self.manual_backward(net(batch).square().mean(), retain_graph=True)
            optimizer.step()

    calls, returned = played(play)
    assert calls == [
        ("zero_grad", 0), ("backward", "retain_graph"), ("step", 0),
        ("zero_grad", 1), ("backward", "retain_graph"), ("step", 1),
    ]  # fmt: skip
    assert returned is None


def test_toggling():
    def play(self, batch):
        g, d = self.optimizers()
        self.toggle_optimizer(g)
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d, 1)  # as Lightning 1 called it
        self.untoggle_optimizer(1)
        self.toggle_optimizer(d.optimizer)
        d.untoggle()
        with self.toggled_optimizer(g):
            pass
        with pytest.raises(ArithmeticError), g.toggle_model(sync_grad=False):
            raise ArithmeticError
        with pytest.raises(TaskError, match="SGD is not an optimizer of this run"):
            self.toggle_optimizer(SGD(self.g.parameters()))

    toggled = [("toggle", n) for n in (0, 1, 1, 0, 0)]
    calls, _ = played(play)
    assert calls == [
        call
        for pair in zip(toggled, [("untoggle", n) for _, n in toggled], strict=True)
        for call in pair
    ]


def test_a_closure_is_called_with_gradients_before_the_step():
    def play(self, batch):
        g, _ = self.optimizers()

        def closure():
            loss = self.g(batch).square().mean()
            self.manual_backward(loss)
            return loss

        with torch.no_grad():
            return g.step(closure=closure)

    calls, returned = played(play)
    assert calls == [("backward",), ("step", 0)]
    assert returned.requires_grad


def test_one_optimizer_and_no_schedulers():
    class One(Gan):
        def configure_optimizers(self):
            return SGD(self.g.parameters(), lr=0.1)

    def play(self, batch):
        assert isinstance(self.optimizers(use_pl_optimizer=False), SGD)
        assert self.lr_schedulers() is None
        return {"loss": torch.zeros(()), "generated": batch}

    t = task(One(play))
    with t.running(Settings(lr=0.1)):
        t.drive(Recorded([t.configure(Settings(lr=0.1), None).optimizer]))
        assert isinstance(t.training_step(torch.ones(8, 4), 0), torch.Tensor)


# -- schedulers are the object's to step


def halving(g, d):
    return [
        lr_scheduler.ExponentialLR(g, 0.5),
        {"scheduler": lr_scheduler.ReduceLROnPlateau(d), "interval": "step"},
    ]


def test_schedulers_belong_to_the_object():
    def play(self, batch):
        first, second = self.lr_schedulers()
        assert isinstance(first, lr_scheduler.ExponentialLR)
        assert isinstance(second, lr_scheduler.ReduceLROnPlateau)
        g, d = self.optimizers()
        for optimizer, scheduler, given in ((g, first, ()), (d, second, (1.0,))):
            optimizer.step()
            scheduler.step(*given)
        rates.append(g.param_groups[0]["lr"])

    rates: list[float] = []
    played(play, schedules=halving, batches=3)
    assert rates == [0.05, 0.025, 0.0125]
    rates.clear()
    # the fake handle steps at every batch
    played(play, schedules=halving, batches=3, accumulate_grad_batches=2)
    assert rates == [0.05, 0.025, 0.0125]
    rates.clear()
    played(play, last=False, schedules=halving, batches=3, accumulate_grad_batches=2)
    assert rates == [0.1] * 3  # in the middle of a window no optimizer steps, and so no scheduler
    rates.clear()
    played(play, schedules=halving, batches=3, scheduling=False)
    assert rates == [0.1] * 3  # nor while rates are being searched for
    made = task(Gan(play, halving)).configure(Settings(lr=0.1), None)
    # the engine steps none
    assert [s.interval for one in made for s in one.schedules] == ["manual", "manual"]


# -- what is refused, what stays


def test_clipping_is_asked_for():
    """The handle clips at the optimizer's next step; the settings hold where nothing is said, and 0 asks for nothing."""

    def play(self, batch):
        g, d = self.optimizers()
        self.clip_gradients(g, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        self.clip_gradients(d, 0.25)
        self.clip_gradients(d.optimizer, gradient_clip_val=0)
        self.clip_gradients(d)

    calls, _ = played(play, gradient_clip_val=2.0, gradient_clip_algorithm="value")
    assert calls == [
        ("clip", 0, 0.5, "norm"),
        ("clip", 1, 0.25, "value"),
        ("clip", 1, 2.0, "value"),
    ]
    calls, _ = played(lambda self, batch: self.clip_gradients(self.optimizers()[0]))
    assert calls == []


def test_optimizers_outside_of_training():
    t = task(Gan(lambda self, batch: self.optimizers()))
    with (
        t.running(Settings(lr=0.1)),
        pytest.raises(TaskError, match="exist only while a batch is trained"),
    ):
        t.training_step(None, 0)


def test_methods_of_the_objects_own_stay():
    class Own(Gan):
        def lr_schedulers(self):
            return "mine"

    def play(self, batch):
        return (
            {"loss": torch.zeros(()), "weight": len(self.optimizers)}
            if self.lr_schedulers() == "mine"
            else None
        )

    thing = Own(play)
    thing.optimizers = ["a list", "of its own"]
    t = task(thing)
    with t.running(Settings(lr=0.1)):
        assert t.training_step(None, 0)["weight"] == 2.0
    assert thing.optimizers == ["a list", "of its own"]


def nothing(self, batch):
    return None


def test_it_can_be_sent_to_another_process():
    thing = Gan(nothing, nothing_made)
    t = task(thing)
    with t.running(Settings(lr=0.1)):
        t.drive(Recorded([one.optimizer for one in t.configure(Settings(lr=0.1), None)]))
        t.module.optimizers()
        copy = pickle.loads(pickle.dumps(t))
    assert copy.manual
    with copy.running(Settings(lr=0.1)):
        copy.drive(Recorded([one.optimizer for one in copy.configure(Settings(lr=0.1), None)]))
        assert len(copy.module.optimizers()) == 2


def nothing_made(g, d):
    return []
