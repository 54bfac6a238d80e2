"""A fit that goes on from a checkpoint is the rest of the uninterrupted one, to the last bit."""

import functools
import random

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import MeanMetric

from tests.combinations import every, pairs
from tests.conftest import SOAK
from tests.engine.learners import Learner, SpellingLearner, TwoSided, TwoSpellers, sentences
from tests.engine.problems import (
    Augmented,
    adamw,
    labelled,
    noisy_net,
    plain_net,
    sgd,
    stepped_by_hand,
)
from tests.engine.resuming import (
    Fit,
    assert_goes_on_as,
    learning,
    resumed,
    same,
    settings_of,
    supervised,
)
from workbench.commands import Change, Stop
from workbench.engine.checkpoint.files import load_weights, read_state
from workbench.engine.setup import open_session
from workbench.engine.validation.validate import validate
from workbench.runs.checkpoints import list_checkpoints
from workbench.settings import Settings
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

lbfgs = functools.partial(torch.optim.LBFGS, max_iter=4, history_size=3)
val = functools.partial(labelled, 20, seed=2)


class Counting(nn.Module):
    """A forward moves a number, a tensor, a list of tensors, a buffer that no state_dict has, and draws numbers of its own. It holds a generator without a state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6), persistent=False)
        self.register_buffer("kept", None)
        self.calls, self.best, self.names = 0, None, {"first": 0}
        self.total = torch.zeros(())
        self.outputs = []
        self.generator, self.system = torch.Generator().manual_seed(3), random.SystemRandom()

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.total = self.total + x.detach().mean()
            self.seen += x.detach().mean(0)
            self.kept = x.detach().sum(0) if self.kept is None else self.kept + x.detach().sum(0)
            self.names["first"] += 1
            self.outputs.append(self.total.clone())
            self.best = max(self.best or 0.0, float(x.detach().max()))
        noise = torch.randn(6, generator=self.generator) * 0.1
        scale = (
            1
            + 0.01 * self.calls
            + 0.01 * torch.tanh(sum(self.outputs, self.total))
            + 0.001 * self.names["first"]
        )
        return self.layer(x + noise + 0.01 * self.seen) * scale


class Scaled(nn.Module):
    """A loss with a weight and a statistic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, output, y):
        loss = F.cross_entropy(output, y)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / self.mean


class Picky(nn.Module):
    """Now and then a batch whose loss is not finite."""

    def __init__(self):
        super().__init__()
        self.net = noisy_net()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return self.net(x) * (float("nan") if self.training and self.calls % 4 == 0 else 1.0)


class ByHand(nn.Module):
    """Manual optimisation with two optimizers, schedulers of its own, and gradients added up over updates."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.b(torch.tanh(self.a(batch[0]))), batch[1])
        if stepped_by_hand(self, loss, batch_idx):
            self.lr_schedulers().step()
        return loss

    def configure_optimizers(self):
        one, two = adamw(self.a.parameters(), lr=0.05), sgd(self.b.parameters(), lr=0.05)
        return [one, two], [torch.optim.lr_scheduler.StepLR(two, 2, 0.5)]


class Logging(lightning.LightningModule):
    """Hooks within an update, values logged over an epoch, state of its own in a checkpoint."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen, self.losses, self.metric = noisy_net(), 0, [], MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.metric(loss.detach())
        self.losses.append(loss.detach())
        self.log_dict({"step_loss": loss, "seen": float(self.seen)}, on_step=True, on_epoch=True)
        self.log("metric", self.metric, on_step=False, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += len(batch[0])

    def on_train_epoch_end(self):
        self.log("mean", torch.stack(self.losses).mean())
        self.losses.clear()

    def on_before_optimizer_step(self, optimizer):
        self.net[0].weight.grad.add_(0.001 * self.seen)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]

    def configure_optimizers(self):
        optimizer = adamw(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "mean"}}


class Freezing(Learner):
    """From its second epoch on a layer rests, and statistics stay."""

    def on_train_epoch_start(self):
        if self.trainer.current_epoch == 1:
            self.net[0].requires_grad_(False)
            self.net[1].eval()


def step_lr(optimizer, updates):
    return torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
                    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)], [4],
    )  # fmt: skip


def plateau(optimizer, updates):
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, threshold=0.2
    )
    return {"scheduler": scheduler, "monitor": "val_loss"}


def two_sided(**options):
    return learning(TwoSided(**options), val=val())


CASES = {
    "momentum": (lambda: supervised(plain_net()), {}),
    "adam": (
        lambda: supervised(noisy_net(), val=val(), optimizer=adamw),
        {"gradient_clip_val": 0.5, "weight_decay": 0.1},
    ),
    "augmentation": (lambda: supervised(noisy_net(), train=Augmented(labelled())), {}),
    "workers": (
        lambda: supervised(noisy_net(), train=Augmented(labelled())),
        {"num_workers": 2, "max_epochs": 2},
    ),
    "ema": (
        lambda: supervised(noisy_net(), val=val()),
        {
            "weight_averaging": "ema",
            "ema_decay": 0.8,
            "averaging_start": 3,
            "averaging_every_n_steps": 2,
        },
    ),
    "swa": (
        lambda: supervised(noisy_net(), val=val(), optimizer=adamw),
        {
            "weight_averaging": "swa",
            "swa_epoch_start": 1,
            "swa_lrs": 0.01,
            "annealing_epochs": 2,
            "max_epochs": 4,
            "lr_schedule": "cosine",
        },
    ),
    "cosine": (lambda: supervised(plain_net()), {"lr_schedule": "cosine", "warmup": 5}),
    "one_cycle": (lambda: supervised(plain_net(), optimizer=adamw), {"lr_schedule": "one_cycle"}),
    "warmup": (lambda: supervised(plain_net()), {"warmup": 0.5}),
    "own scheduler": (lambda: supervised(plain_net(), scheduler=step_lr), {}),
    "plateau": (
        lambda: supervised(plain_net(), val=val(), scheduler=plateau),
        {"val_check_interval": 3},
    ),
    "turns": (lambda: two_sided(make=adamw, frequencies=(2, 1)), {"lr_schedule": "cosine"}),
    "two optimizers": (lambda: two_sided(), {"accumulate_grad_batches": 2}),
    "lbfgs": (lambda: supervised(plain_net(), optimizer=lbfgs), {"lr": 0.3}),
    "accumulation": (
        lambda: supervised(noisy_net(), val=val()),
        {"accumulate_grad_batches": {0: 2, 1: 3}, "val_check_interval": 0.5},
    ),
    "dropped batches": (lambda: learning(Learner(noisy_net(), drops=(2, 5))), {}),
    "pieces": (lambda: learning(SpellingLearner(), train=sentences()), {"truncated_bptt_steps": 3}),
    "pieces of two": (
        lambda: learning(TwoSpellers(frequencies=(1, 1)), train=sentences()),
        {"truncated_bptt_steps": 4, "accumulate_grad_batches": 2},
    ),
    "skipped updates": (lambda: supervised(Picky()), {"on_nonfinite": "skip"}),
    "manual": (lambda: learning(ByHand()), {}),
    "counters": (lambda: supervised(Counting()), {}),
    "a loss with a state": (lambda: supervised(plain_net(), val=val(), loss=Scaled()), {}),
    "every third row": (
        lambda: supervised(noisy_net()),
        {"log_every_n_steps": 3, "max_steps": 15, "max_epochs": None},
    ),
    "checks in between": (
        lambda: supervised(noisy_net(), val=val()),
        {"val_check_interval": 2, "check_val_every_n_epoch": 1},
    ),
    "logging": (
        lambda: learning(Logging(), val=val()),
        {"accumulate_grad_batches": 2, "max_epochs": 4},
    ),
    "freezing": (lambda: learning(Freezing(noisy_net())), {}),
    "bf16": (lambda: supervised(noisy_net(), optimizer=adamw), {"precision": "bf16-mixed"}),
}


@pytest.mark.parametrize("name", every(3, [*CASES]))
def test_from_each_of_its_checkpoints_it_is_the_rest_of_the_uninterrupted_fit(name, tmp_path):
    make, given = CASES[name]
    settings = settings_of(checkpoint_every=1, save_top_k=-1, **given)
    whole = Fit(make(), settings, tmp_path / "whole")
    assert_goes_on_as(whole, Fit(make(), settings), 0)  # writing leaves no trace
    points = [point for point in whole.checkpoints if not point.end]
    assert [point.step for point in points] == list(range(1, whole.counters[0] + 1))
    assert all(point.resumable for point in points)
    wanted = points if SOAK else points[1 :: len(points) // 2]
    for point in wanted:
        rest = resumed(make, settings, point, tmp_path / point.name)
        assert_goes_on_as(whole, rest, point.step, point.epoch)
        assert not [text for text in (*whole.said, *rest.said) if "exact" in text or "kept" in text]


@pytest.mark.parametrize(
    "name", ["ema", "swa", "augmentation", "accumulation", "pieces", "workers", "counters"]
)
def test_from_where_it_was_stopped(name, tmp_path):
    """Then batches may have been read that the next update is to have, and averaged weights have been handed over."""
    make, given = CASES[name]
    settings = settings_of(**given)
    whole = Fit(make(), settings)
    for step in (3, 9):
        stopped = Fit(make(), settings, tmp_path / str(step), commands={step: Stop()})
        (end,) = [point for point in stopped.checkpoints if point.end]
        assert (stopped.status, end.step, end.name) == ("stopped", step, f"{step:08d}-end")
        assert_goes_on_as(whole, resumed(make, settings, end, tmp_path / f"{step}-on"), step)


@pytest.mark.parametrize("name", ["augmentation", "ema", "accumulation", "plateau"])
def test_from_a_check_in_the_middle_of_an_epoch(name, tmp_path):
    """When it is written the next batches have been read already, and have drawn random numbers."""
    make, given = CASES[name]

    def checked():
        task = make()
        task.val = supervised(plain_net(), val=val()).val
        return task

    settings = settings_of(**{**given, "val_check_interval": 3}, save_top_k=-1)
    whole = Fit(checked(), settings, tmp_path / "whole")
    points = [point for point in whole.checkpoints if not point.end]
    assert len(points) == len(whole.validations())
    assert all(point.value is not None for point in points)
    for point in points if SOAK else points[::2]:
        assert_goes_on_as(
            whole, resumed(checked, settings, point, tmp_path / point.name), point.step
        )


def test_the_weights_of_a_best_average_are_the_averaged_ones(tmp_path):
    def make():
        return supervised(noisy_net(), val=val())

    settings = settings_of(
        weight_averaging="ema",
        ema_decay=0.7,
        monitor="val_loss_averaged",
        save_top_k=-1,
        val_check_interval=3,
    )
    whole = Fit(make(), settings, tmp_path / "whole")
    for point in [point for point in whole.checkpoints if point.value is not None]:
        task = make()
        load_weights(task.model, point.path / "model.safetensors")
        with open_session(task, settings) as session:
            assert validate(session, session.data.val())["val_loss"] == point.value
        if not point.end:
            assert_goes_on_as(
                whole, resumed(make, settings, point, tmp_path / point.name), point.step
            )


@pytest.mark.parametrize(
    "name", ["momentum", "augmentation", "ema", "own scheduler", "pieces", "workers", "manual"]
)
def test_a_finished_fit_goes_on_to_a_greater_length(name, tmp_path):
    make, given = CASES[name]
    settings = settings_of(**{**given, "max_epochs": 3})
    whole = Fit(make(), settings)
    short = Fit(make(), settings.replace(max_epochs=2), tmp_path / "short")
    end = short.checkpoints[-1]
    assert (end.end, end.epoch) == (True, 2)
    assert_goes_on_as(whole, resumed(make, settings, end, tmp_path / "on"), end.step)


@pairs("name, steps", [
    "augmentation", "ema", "swa", "accumulation", "own scheduler", "pieces", "plateau", "manual", "logging", "workers",
], [5, 7, 10])  # fmt: skip
def test_a_fit_that_a_number_of_updates_has_ended_goes_on_where_it_was(name, steps, tmp_path):
    """Also in the middle of an epoch, which counts as over for the one and goes on for the other."""
    make, given = CASES[name]
    # else the last check of the shorter one is one more
    often = {"val_check_interval": 1} if name == "plateau" else {}
    settings = settings_of(
        **{**given, "max_epochs": 4, "max_steps": 19, "lr_schedule": "constant", **often}
    )
    whole = Fit(make(), settings)
    short = Fit(make(), settings.replace(max_steps=steps), tmp_path / "short")
    end = short.checkpoints[-1]
    assert (short.status, end.step, end.end) == ("finished", steps, True)
    assert_goes_on_as(whole, resumed(make, settings, end, tmp_path / "on"), steps)


def test_live_changes_hold_on(tmp_path):
    def make():
        return supervised(noisy_net(), optimizer=adamw)

    changes = {4: Change({"lr": 0.02, "gradient_clip_val": 0.1}), 9: Change({"batch_size": 12})}
    settings = settings_of(lr_schedule="cosine", checkpoint_every=1, save_top_k=-1, max_epochs=4)
    whole = Fit(make(), settings, tmp_path / "whole", commands=changes)
    points = [point for point in whole.checkpoints if not point.end]
    for point in points[4:] if SOAK else points[4::4]:  # 5, 9, 13, …
        state = read_state(point.path)
        assert state["settings"]["lr"] == 0.02
        assert state["settings"]["batch_size"] == (8 if point.step < 9 else 12)
        rest = Fit(
            make(), Settings.make(**state["settings"]), tmp_path / point.name, state=state,
            commands={9: changes[9]} if point.step < 9 else {},
        )  # fmt: skip
        assert_goes_on_as(whole, rest, point.step)


def rates_of(fit):
    return {step: np.frombuffer(row["lr"], "<f4")[0] for step, row in fit.rows().items()}


@pytest.mark.parametrize("schedule", [{"lr_schedule": "cosine", "warmup": 3}, {"lr_schedule": "linear"},
                                      {"lr_schedule": "one_cycle"}, {"warmup": 0.2}])  # fmt: skip
@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_a_longer_run_has_its_rates_from_there_on(schedule, optimizer, tmp_path):
    def make():
        return supervised(plain_net(), optimizer=optimizer)

    settings = settings_of(**schedule, max_epochs=5)
    long = rates_of(Fit(make(), settings))
    short = Fit(make(), settings.replace(max_epochs=2), tmp_path / "short", commands={9: Stop()})
    rest = resumed(make, settings, short.checkpoints[-1], tmp_path / "on")
    found = rates_of(rest)
    assert list(found) == list(range(9, 35))
    assert found == {step: long[step] for step in found}
    groups = rest.optimizers[0]["param_groups"]
    assert groups == Fit(make(), settings).optimizers[0]["param_groups"]


@pytest.mark.parametrize(("was", "edits"), [
    ({}, {"lr": 0.01}),
    ({"lr_schedule": "cosine"}, {"lr": 0.01}),
    ({"lr_schedule": "one_cycle"}, {"lr": 0.01}),
    ({}, {"lr_schedule": "cosine"}),
    ({"warmup": 12}, {"lr_schedule": "linear", "lr": 0.2}),
    ({"lr_schedule": "cosine"}, {"lr_schedule": "constant"}),
    ({"lr_schedule": "one_cycle"}, {"lr_schedule": "cosine", "warmup": 0.5}),
    ({"lr_schedule": "one_cycle"}, {"lr_schedule": "constant"}),
])  # fmt: skip
def test_edited_rates_are_those_of_a_run_that_had_them_from_its_beginning(was, edits, tmp_path):
    def make():
        return supervised(plain_net(), optimizer=adamw)

    before, now = settings_of(**was), settings_of(**{**was, **edits})
    stopped = Fit(make(), before, tmp_path / "before", commands={10: Stop()})
    rest = resumed(make, now, stopped.checkpoints[-1], tmp_path / "on")
    expected = rates_of(Fit(make(), now))
    for step, rate in rates_of(rest).items():
        assert rate == pytest.approx(expected[step], rel=1e-6), step
    betas = [group["betas"] for group in rest.optimizers[0]["param_groups"]]
    assert betas == [group["betas"] for group in Fit(make(), now).optimizers[0]["param_groups"]]


def test_an_edited_rate_multiplies_what_the_users_own_scheduler_has_come_to(tmp_path):
    def make():
        return supervised(plain_net(), scheduler=step_lr)

    settings = settings_of()
    whole = rates_of(Fit(make(), settings))
    stopped = Fit(make(), settings, tmp_path / "before", commands={10: Stop()})
    rest = rates_of(
        resumed(make, settings.replace(lr=0.1), stopped.checkpoints[-1], tmp_path / "on")
    )
    for step, rate in rest.items():
        assert rate == pytest.approx(2 * whole[step], rel=1e-6)


def test_an_edited_weight_decay_goes_where_the_settings_put_it(tmp_path):
    def make():
        return supervised(plain_net(), optimizer=adamw)

    settings = settings_of(weight_decay=0.1)
    stopped = Fit(make(), settings, tmp_path / "before", commands={10: Stop()})
    point = stopped.checkpoints[-1]
    rest = resumed(make, settings.replace(weight_decay=0.3), point, tmp_path / "on")
    assert rest.optimizers[0]["param_groups"][0]["weight_decay"] == 0.3
    default = resumed(make, settings.replace(weight_decay=None), point, tmp_path / "default")
    assert default.optimizers[0]["param_groups"][0]["weight_decay"] == 0.01  # AdamW's own


@pytest.mark.parametrize("edits", [
    {"swa_lrs": 0.02}, {"annealing_epochs": 1}, {"weight_averaging": None}, {"weight_averaging": "ema"}, {"swa_epoch_start": 3},
])  # fmt: skip
def test_swa_that_is_edited_after_it_has_begun(edits, tmp_path):
    make, given = CASES["swa"]
    settings = settings_of(**given)
    stopped = Fit(make(), settings, tmp_path / "before", commands={17: Stop()})
    now = settings.replace(**edits)
    rest = resumed(make, now, stopped.checkpoints[-1], tmp_path / "on")
    last = rates_of(rest)[27]
    if now.weight_averaging == "swa" and now.swa_epoch_start == 1:
        assert last == pytest.approx(now.swa_lrs if now.annealing_epochs == 1 else last)
        assert rest.average["count"] == 3
    else:
        own = rates_of(Fit(make(), now))
        assert last == pytest.approx(own[27], rel=1e-6)


def test_what_the_user_sets_on_the_model_between_the_runs_holds(tmp_path):
    settings = settings_of()
    stopped = Fit(supervised(noisy_net()), settings, tmp_path / "before", commands={10: Stop()})
    task = supervised(noisy_net())
    task.model[3].p = 0.9
    Fit(task, settings, tmp_path / "on", state=read_state(stopped.checkpoints[-1].path))
    assert task.model[3].p == 0.9


def test_a_resumed_run_keeps_what_its_first_run_moved(tmp_path):
    """An attribute that moved long ago, in the same process or in another one, is in every later checkpoint."""

    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.shift = nn.Linear(6, 3), None

        def forward(self, x):
            self.shift = x.detach().mean() if self.shift is None else self.shift
            return self.layer(x) + self.shift

    def make():
        return supervised(Once())

    settings = settings_of(checkpoint_every=4, save_top_k=-1)
    whole = Fit(make(), settings, tmp_path / "whole")
    task = make()
    Fit(task, settings, tmp_path / "one", commands={6: Stop()})
    last = list_checkpoints(tmp_path / "one")[-1]
    Fit(task, settings, tmp_path / "two", state=read_state(last.path))  # the same model goes on
    point = next(p for p in list_checkpoints(tmp_path / "two") if p.step == 12)
    assert_goes_on_as(whole, resumed(make, settings, point, tmp_path / "three"), 12)


class Wider(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 4)])

    def forward(self, x):
        return self.layers[1](torch.tanh(self.layers[0](x)))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: supervised(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))),
     r"'2.bias' has shape \(3,\) there and \(4,\) here"),
    (lambda: supervised(Wider()), "they have '0.bias', which Wider does not have"),
    (lambda: supervised(nn.Sequential(*plain_net(), nn.Linear(3, 3))), "Sequential has '3.weight', which they do not have"),
    (lambda: supervised(plain_net(), optimizer=adamw), "the optimizer was SGD and is AdamW here"),
    (lambda: supervised(plain_net(), scheduler=step_lr), "followed no scheduler and follows SequentialLR here"),
    (lambda: supervised(plain_net(), loss=Scaled()), "it has 0 modules besides the model, and here there are 1"),
    (lambda: supervised(plain_net(), optimizer=lambda ps, lr: sgd([{"params": [p]} for p in ps], lr=lr)),
     "the optimizer had 1 parameter group and has 4 here"),
])  # fmt: skip
def test_another_model_is_refused_by_its_first_difference_and_stays_as_it_is(make, words, tmp_path):
    stopped = Fit(supervised(plain_net()), settings_of(), tmp_path / "before", commands={5: Stop()})
    task = make()
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    with pytest.raises(TaskError, match=words):
        Fit(task, settings_of(), state=read_state(stopped.checkpoints[-1].path))
    assert same(dict(task.model.state_dict()), before)


def test_optimizers_of_another_number_are_refused(tmp_path):
    stopped = Fit(learning(TwoSided()), settings_of(), tmp_path / "before", commands={5: Stop()})
    state = read_state(stopped.checkpoints[-1].path)
    state["optimizers"].pop()
    with pytest.raises(TaskError, match="it has 1 optimizer, and here there are 2"):
        Fit(learning(TwoSided()), settings_of(), state=state)


class Wrapped(torch.optim.SGD):
    """Has an object in its state."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = object()
        return super().step(closure)


def test_what_has_no_plain_form_leaves_weights_alone_and_is_said_once(tmp_path):
    whole = Fit(
        supervised(plain_net(), optimizer=Wrapped),
        settings_of(checkpoint_every=5, save_top_k=-1),
        tmp_path / "whole",
    )
    assert len(whole.checkpoints) > 2
    for point in whole.checkpoints:
        assert not point.resumable
        assert point.why == "the state of Wrapped holds an object under 'state.0.seen'"
        assert not (point.path / "state.pt").exists()
        load_weights(plain_net(), point.path / "model.safetensors")
    assert len([text for text in whole.said if "weights alone" in text]) == 1


class Collecting(nn.Module):
    """Keeps objects that no file can."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.seen, self.helper = nn.Linear(6, 3), [], object()

    def forward(self, x):
        self.seen.append(object())
        return self.layer(x)


def test_an_attribute_that_cannot_be_kept_is_said_once_and_the_rest_is(tmp_path):
    settings = settings_of(checkpoint_every=5, save_top_k=-1)
    whole = Fit(supervised(Collecting()), settings, tmp_path / "whole")
    assert [text for text in whole.said if "cannot be stored" in text] == [
        "Collecting.seen (an object under '[0]') cannot be stored in a checkpoint: a fit that continues from one begins with "
        "its value at that time."
    ]
    point = whole.checkpoints[0]
    assert_goes_on_as(
        whole,
        resumed(lambda: supervised(Collecting()), settings, point, tmp_path / "on"),
        point.step,
    )
