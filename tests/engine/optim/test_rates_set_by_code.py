"""Learning rates that the user's code sets itself: in a hook, in the step, in the optimizer, in a tensor."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
PLACES = [
    "on_train_epoch_start",
    "on_train_batch_start",
    "training_step",
    "on_before_optimizer_step",
    "optimizer_step",
    "on_train_batch_end",
]


USED: list[float] = []
"""The rates of all steps; a class attribute is state, which a search would restore."""


class Watched(torch.optim.SGD):
    """Notes the rate of each of its steps."""

    def step(self, closure=None):
        loss = super().step(closure)
        USED.append(float(self.param_groups[0]["lr"]))
        return loss


class Module(nn.Module):
    """Sets its rate in the hook `place`."""

    def __init__(self, place, lr=0.01):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.count = nn.Linear(4, 1), 0
        if place != "training_step" and place:
            setattr(self, place, self.stepping if place == "optimizer_step" else self.put)
        self.place, self.made_at = place, lr

    def put(self, *_):
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * 0.9**self.count
        self.count += 1

    def stepping(self, epoch, batch_idx, optimizer, optimizer_closure):
        self.put()
        optimizer.step(closure=optimizer_closure)

    def training_step(self, batch, batch_idx):
        if self.place == "training_step":
            self.put()
        return F.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        self.optimizer = Watched(self.parameters(), lr=self.made_at)
        return self.optimizer


def bench(model, root, **settings):
    options = {"batch_size": 16, "max_epochs": 2, "accelerator": "cpu", **settings}
    data = (
        (X, X[:, :1])
        if "loss" in options
        else DataLoader(TensorDataset(X, X[:, :1]), options.pop("batch_size"))
    )
    return wb.Workbench(model, train=data, root=root, **options)


def told(job):
    """The messages about rates that code sets."""
    return [
        event.text
        for event in job.events
        if type(event).__name__ == "Message" and "sets the learning rate" in event.text
    ]


@pytest.mark.parametrize("place", PLACES)
def test_the_record_has_the_rate_of_the_step_itself(place, tmp_path):
    model = Module(place)
    made = bench(model, tmp_path)
    USED.clear()
    job = made.fit()
    run = job.result()
    np.testing.assert_allclose(run.history["lr"], USED[-run.step :], rtol=1e-6)
    assert len(set(USED)) > 1
    assert not told(job)
    job = made.fit(lr=0.5)
    job.result()
    (text,) = told(job)
    assert "lr=0.5" in text


@pytest.mark.parametrize("place", PLACES)
def test_a_sweep_steps_at_the_rates_that_it_reports(place, tmp_path):
    model = Module(place)
    made = bench(model, tmp_path)
    USED.clear()
    curve = made.find_lr(num_training=12, early_stop_threshold=None, max_lr=0.1).result()
    np.testing.assert_allclose(USED[-12:], curve.lrs, rtol=1e-6)
    by_update = place not in (
        "on_train_epoch_start",
        "on_train_batch_end",
    )  # there the sweep sets its rate afterwards
    assert any("sets the learning rate" in note for note in curve.notes) == by_update


def test_a_change_while_it_runs_that_has_no_effect_is_told(tmp_path):
    model = Module("training_step")
    jobs = []
    made = bench(
        model,
        tmp_path,
        max_epochs=20,
        listeners=[
            lambda event: (
                type(event).__name__ == "StepsDone" and event.step == 0 and jobs[0].change(lr=0.3)
            )
        ],
    )
    jobs.append(made.fit())
    jobs[0].wait()
    assert all("lr=0.3" in text for text in told(jobs[0]))


@pytest.mark.parametrize("settings", [
    {"lr_schedule": "cosine", "warmup": 3}, {"lr_schedule": "one_cycle"}, {}, {"weight_averaging": "swa", "swa_epoch_start": 1, "swa_lrs": 0.01},
    {"scheduler": lambda optimizer, n: torch.optim.lr_scheduler.StepLR(optimizer, 3)},
    {"scheduler": lambda optimizer, n: {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "train_loss"}},
    {"find_lr_at": (1,)},
])  # fmt: skip
def test_schedules_and_searches_are_no_code_of_the_user(settings, tmp_path):
    model = nn.Linear(4, 1)
    made = bench(
        model,
        tmp_path,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD,
        lr=0.05,
        max_epochs=3,
        **settings,
    )
    job = made.fit()
    job.result()
    assert not told(job)
    job = made.fit(start="continue", max_epochs=4)
    job.result()
    assert not told(job)


class Noam(Watched):
    """Computes its rate within its step."""

    def step(self, closure=None):
        self.count = getattr(self, "count", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.count
        return super().step(closure)


def test_an_optimizer_that_sets_its_own_rate(tmp_path):
    made = bench(nn.Linear(4, 1), tmp_path, loss=F.mse_loss, optimizer=Noam, lr=0.05)
    USED.clear()
    job = made.fit()
    run = job.result()
    np.testing.assert_allclose(run.history["lr"], USED[-run.step :], rtol=1e-6)
    assert told(job)
    with pytest.raises(TaskError, match=r"Noam\.step\(\) sets the learning rate itself"):
        made.find_lr(num_training=5).result()
    assert made.find_batch_size(max_trials=2).result().best


def test_a_rate_in_a_tensor_is_recorded_as_it_was_and_stays_the_same_tensor(tmp_path):
    model = Module("training_step")
    model.rate = torch.tensor(0.01)

    def configure_optimizers():
        model.optimizer = torch.optim.Adam(
            model.layer.parameters(), lr=model.rate, capturable=False, foreach=False
        )
        return model.optimizer

    def put():
        model.rate.fill_(0.1 * 0.9**model.count)
        model.count += 1

    model.configure_optimizers, model.put = configure_optimizers, put
    run = bench(model, tmp_path, max_epochs=1).fit().result()
    ratios = run.history["lr"][1:] / run.history["lr"][:-1]
    np.testing.assert_allclose(ratios, 0.9, rtol=1e-5)


def test_several_optimizers_have_the_rates_of_their_own_steps(tmp_path):
    module = Module("")

    def configure_optimizers():
        module.pair = [
            functools.partial(torch.optim.SGD, lr=0.1)([p]) for p in module.layer.parameters()
        ]
        return module.pair

    def training_step(batch, batch_idx, optimizer_idx):
        module.pair[optimizer_idx].param_groups[0]["lr"] = (
            0.1 * (1 + optimizer_idx) / (1 + batch_idx)
        )
        return F.mse_loss(module.layer(batch[0]), batch[1])

    module.configure_optimizers, module.training_step = configure_optimizers, training_step
    run = bench(module, tmp_path, max_epochs=1).fit().result()
    wanted = 0.1 / np.arange(1, 9)
    np.testing.assert_allclose(run.history["lr.0"], wanted, rtol=1e-6)
    np.testing.assert_allclose(run.history["lr.1"], 2 * wanted, rtol=1e-6)


@pytest.mark.parametrize("max_lr", [0.1, 0.5])
def test_a_rate_that_a_scheduler_of_ones_own_leaves_out_is_named(max_lr, tmp_path):
    def cycle(optimizer, updates):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=updates)

    with bench(nn.Linear(4, 1), tmp_path, loss=F.mse_loss, lr=0.5, scheduler=cycle) as b:
        texts = [event.text for event in b.fit().result().events if hasattr(event, "text")]
    assert sum(text.startswith("lr=0.5: the run's own code") for text in texts) == (max_lr != 0.5)
