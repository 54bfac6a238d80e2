"""The hooks of an object as hooks of a job: which it has, what arguments they get, and what is restored."""

import importlib
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

pl = importlib.import_module("lightning.pytorch")

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = torch.ones(4, 3)
CPU = torch.device("cpu")


class Duck:
    """The two methods, and nothing of Lightning's."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return SGD(self.net.parameters(), lr=0.1)


class Module(pl.LightningModule):
    """The same as a LightningModule."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1)

    training_step = Duck.training_step
    configure_optimizers = Duck.configure_optimizers


KINDS = pytest.mark.parametrize("base", [Duck, Module], ids=["duck", "module"])


def task(thing, train: Any = None) -> Any:
    return task_of(thing, train=train or (torch.ones(8, 3),), val=None, test=None, loss=None, optimizer=torch.optim.AdamW,
                   scheduler=None, metrics=None, collate_fn=None)  # fmt: skip


class Progress(SimpleNamespace):
    """How far a session is."""

    def __init__(self, **how):
        counters = {
            "step": 0,
            "epoch": 0,
            "batch_idx": 0,
            "stage": "train",
            "metrics": {},
            "clip_val": None,
        }
        state = SimpleNamespace(**{name: how.pop(name, value) for name, value in counters.items()})
        known = {
            "settings": Settings(),
            "device": CPU,
            "updates": 6,
            "batches": (3, 2),
            "optimizations": (),
            "ranks": ProcessGroup(),
        }
        super().__init__(state=state, **{**known, **how})


class running:
    """A job of a task, as far as the hooks need it."""

    def __init__(self, thing, phase="fit", train=None, **how):
        self.task, self.phase, self.progress = task(thing, train), phase, Progress(**how)

    def __enter__(self):
        settings = self.progress.settings
        self._running = self.task.running(settings, self.phase)
        self._running.__enter__()
        self.task.configure(settings, self.progress.updates)
        self.task.follow(self.progress)
        return self

    def __exit__(self, *error):
        return self._running.__exit__(*error)

    @property
    def hooks(self):
        return self.task.hooks


def with_hooks(base, *names, **hooks):
    """An object that writes down which of these hooks is called with what."""
    calls: list[Any] = []

    def noted(name):
        def hook(self, *arguments, **named):
            calls.append((name, *arguments, *named.items()))
            return hooks[name](self, *arguments, **named) if name in hooks else None

        return hook

    members = {name: noted(name) for name in (*names, *hooks)}
    thing = type("Mine", (base,), members)()
    return thing, calls


# -- which there are


@KINDS
def test_an_object_without_hooks_takes_the_short_way(base):
    hooks = task(base()).hooks
    assert (hooks.within, hooks.clips, hooks.transfers, hooks.zeroes) == (False,) * 4


@pytest.mark.parametrize(
    "hook",
    ["on_train_batch_start", "on_train_batch_end", "on_before_backward", "backward", "on_after_backward",
     "on_before_zero_grad", "optimizer_zero_grad", "on_before_optimizer_step", "optimizer_step",
     "configure_gradient_clipping", "lr_scheduler_step"],
)  # fmt: skip
@KINDS
def test_hooks_within_an_update(base, hook):
    hooks = task(with_hooks(base, hook)[0]).hooks
    assert hooks.within
    assert hooks.clips is (hook == "configure_gradient_clipping")
    assert hooks.zeroes is (hook == "optimizer_zero_grad")
    manual = with_hooks(base, hook)[0]
    manual.automatic_optimization = False
    stays = hook in ("on_train_batch_start", "on_train_batch_end", "on_before_backward", "backward", "on_after_backward",
                     "on_before_optimizer_step")  # fmt: skip
    assert task(manual).hooks.within is stays
    assert not task(manual).hooks.clips
    assert not task(manual).hooks.zeroes


@KINDS
def test_hooks_around_updates(base):
    names = [
        "on_fit_start",
        "on_fit_end",
        "on_train_start",
        "on_train_end",
        "on_train_epoch_start",
        "on_train_epoch_end",
    ]
    thing, calls = with_hooks(base, *names)
    with running(thing) as job:
        hooks = job.hooks
        assert not hooks.within
        for moment in (hooks.fit_started, hooks.train_started, hooks.epoch_started, hooks.epoch_ended,
                       hooks.train_ended, hooks.fit_ended):  # fmt: skip
            moment()
    assert [call[0] for call in calls] == [names[n] for n in (0, 2, 4, 5, 3, 1)]


@pytest.mark.parametrize("stage", ["val", "test", "predict"])
@KINDS
def test_hooks_of_an_evaluation(base, stage):
    name = {"val": "validation"}.get(stage, stage)
    ends = (
        "model_eval",
        "start",
        "epoch_start",
        "batch_start",
        "batch_end",
        "epoch_end",
        "end",
        "model_train",
    )
    thing, calls = with_hooks(base, *(f"on_{name}_{end}" for end in ends), f"{name}_step")
    with running(thing, train=DataLoader(TensorDataset(torch.ones(8, 3)))) as job:
        hooks = job.hooks
        assert hooks.evaluation_mode(stage)
        hooks.evaluation_started(stage)
        hooks.evaluation_batch_started(stage, BATCH, 0)
        step = (
            job.task.predict_step
            if stage == "predict"
            else lambda *a: job.task.validation_step(*a, stage)
        )
        step(BATCH, 0)
        hooks.evaluation_batch_ended(stage, "what the engine knows of it", BATCH, 0)
        hooks.evaluation_ended(stage)
        hooks.training_mode(stage)
    # Lightning has no hook for the end of a prediction's mode
    assert [call[0] for call in calls] == [
        f"{name}_step" if end == "step" else f"on_{name}_{end}"
        for end in (*ends[:4], "step", *(ends[4:7] if stage == "predict" else ends[4:]))
    ]


@KINDS
def test_the_mode_is_the_engines_where_no_hook_sets_it(base):
    with running(base()) as job:
        assert not job.hooks.evaluation_mode("val")


@KINDS
def test_what_validation_step_returns_is_handed_on(base):
    returned = {"preds": BATCH, "loss": torch.ones(())}
    thing, calls = with_hooks(
        base, "on_validation_batch_end", validation_step=lambda self, batch, i: returned
    )
    with running(thing) as job:
        job.hooks.evaluation_batch_started("val", BATCH, 1)
        scores = job.task.validation_step(BATCH, 1)
        job.hooks.evaluation_batch_ended("val", scores, BATCH, 1)
    assert calls[1] == ("on_validation_batch_end", returned, BATCH, 1)
    assert calls[1][1] is returned
    assert scores.values == {"val_loss": returned["loss"]}


# -- a batch


@pytest.mark.parametrize(("returned", "goes_on"), [(None, True), (-1, False), (1, True)])
@KINDS
def test_a_batch_may_be_the_end_of_an_epoch(base, returned, goes_on):
    thing, calls = with_hooks(base, on_train_batch_start=lambda self, batch, i: returned)
    with running(thing) as job:
        assert job.hooks.batch_started(BATCH, 2) is goes_on
    assert calls == [("on_train_batch_start", BATCH, 2)]


@pytest.mark.parametrize(
    ("returned", "size", "told"),
    [(torch.ones((), requires_grad=True) * 3, 1, {"loss": 3.0}),
     (torch.ones((), requires_grad=True) * 3, 2, {"loss": 1.5}),
     ({"loss": torch.ones((), requires_grad=True) * 3, "preds": "p"}, 1, {"loss": 3.0, "preds": "p"}),
     (None, 1, {})],
)  # fmt: skip
@KINDS
def test_the_outputs_of_a_batch_are_lightnings(base, returned, size, told):
    """The loss detached, and divided by the batches of a window; {} where there was nothing to learn from."""
    thing, calls = with_hooks(
        base, "on_train_batch_end", training_step=lambda self, batch, i: returned
    )
    with running(thing, settings=Settings(accumulate_grad_batches=size)) as job:
        job.hooks.batch_started(BATCH, 1)
        result = job.task.training_step(BATCH, 1)
        job.hooks.batch_ended(result, BATCH, 1)
    (outputs,) = [call[1] for call in calls if call[0] == "on_train_batch_end"]
    assert outputs == told
    assert not getattr(outputs.get("loss"), "requires_grad", False)
    assert not job.hooks.outputs


@KINDS
def test_backward_and_what_is_around_it(base):
    thing, calls = with_hooks(
        base,
        "on_before_backward",
        "on_after_backward",
        backward=lambda self, loss, **options: loss.backward(**options),
    )
    with running(thing) as job:
        loss = thing.net(BATCH).sum()
        job.hooks.backward(loss, retain_graph=True)
        job.hooks.after_backward()
        assert thing.net.weight.grad is not None
    assert calls == [
        ("on_before_backward", loss),
        ("backward", loss, ("retain_graph", True)),
        ("on_after_backward",),
    ]


@KINDS
def test_backward_without_a_hook_of_its_own(base):
    thing, _ = with_hooks(base, "on_after_backward")
    with running(thing) as job:
        job.hooks.backward(thing.net(BATCH).sum())
    assert thing.net.weight.grad is not None


def test_backward_as_inherited_from_lightning():
    class Inherits(Module):
        def backward(self, loss, *arguments, **options):
            super().backward(loss * 2, *arguments, **options)

    thing = Inherits()
    with running(thing) as job:
        job.hooks.backward(thing.net(BATCH).sum())
    assert thing.net.bias.grad.item() == 8.0


@KINDS
def test_gradients_are_dropped_its_own_way(base):
    thing, calls = with_hooks(
        base, "on_before_zero_grad", optimizer_zero_grad=lambda self, e, i, o: o.zero_grad(False)
    )
    with running(thing, epoch=2) as job:
        thing.net(BATCH).sum().backward()
        (optimizer,) = thing.trainer.optimizers
        job.hooks.zero_grad(0, 5)
        assert not thing.net.weight.grad.any()
    assert calls == [("on_before_zero_grad", optimizer), ("optimizer_zero_grad", 2, 5, optimizer)]


@KINDS
def test_gradients_before_a_check(base):
    thing, calls = with_hooks(base, "on_validation_model_zero_grad")
    with running(thing) as job:
        thing.net(BATCH).sum().backward()
        job.hooks.validation_begins()
        assert thing.net.weight.grad is not None
    assert [call[0] for call in calls] == ["on_validation_model_zero_grad"]
    keeps, _ = with_hooks(base, "optimizer_zero_grad")
    with running(keeps) as job:
        keeps.net(BATCH).sum().backward()
        job.hooks.validation_begins()
        assert keeps.net.weight.grad is None


# -- the step


def engine_step(job, closure):
    """What the engine gives `step`: closure and take, and what was taken."""
    taken: list[Any] = []

    def take(evaluate):
        taken.append(evaluate())
        return taken[-1]

    job.hooks.step(0, 3, closure, take)
    return taken


@KINDS
def test_no_step_of_its_own(base):
    with running(base()) as job:
        assert engine_step(job, lambda: "loss") == ["loss"]


STEPS = {
    "handed on": lambda self, e, i, optimizer, closure: optimizer.step(closure=closure),
    "around it": lambda self, e, i, optimizer, closure: optimizer.step(lambda: closure() and None),
    "by hand": lambda self, e, i, optimizer, closure: (closure(), optimizer.step()),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@KINDS
def test_a_step_of_its_own(base, step):
    thing, calls = with_hooks(base, optimizer_step=step)
    evaluated: list[bool] = []

    def closure():
        evaluated.append(torch.is_grad_enabled())
        return torch.ones(())

    with running(thing, epoch=1) as job, torch.no_grad():
        assert engine_step(job, closure) == [torch.ones(())]
    assert evaluated == [True]
    _, epoch, batch_idx, optimizer, _ = calls[0]
    assert (epoch, batch_idx) == (1, 3)
    assert isinstance(optimizer, SGD)
    assert isinstance(optimizer, Optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert isinstance(optimizer.optimizer, SGD)
    assert repr(optimizer) == repr(optimizer.optimizer)


@KINDS
def test_steps_that_are_not_taken_or_taken_twice(base):
    skips, _ = with_hooks(base, optimizer_step=lambda self, e, i, optimizer, closure: closure())
    with running(skips) as job:
        assert engine_step(job, lambda: 1.0) == []
    twice, _ = with_hooks(
        base, optimizer_step=lambda self, e, i, o, closure: [o.step(closure), o.step(closure)]
    )
    with running(twice) as job:
        assert engine_step(job, lambda: 1.0) == [1.0, 1.0]


@KINDS
def test_a_step_that_never_evaluates(base):
    thing, _ = with_hooks(base, "optimizer_step")
    with (
        running(thing) as job,
        pytest.raises(TaskError, match=r"Mine\.optimizer_step never called its optimizer_closure"),
    ):
        engine_step(job, lambda: 1.0)
    thing, _ = with_hooks(
        base, optimizer_step=lambda self, e, i, o, closure: o.step(closure, grad_scaler=1)
    )
    # it is handed on, and nobody takes it
    with running(thing) as job, pytest.raises(TypeError, match="grad_scaler"):
        engine_step(job, lambda: 1.0)


def test_a_step_as_inherited_from_lightning():
    class Inherits(Module):
        def optimizer_step(self, *arguments, **options):
            return super().optimizer_step(*arguments, **options)

    with running(Inherits()) as job:
        assert engine_step(job, lambda: 1.0) == [1.0]


@KINDS
def test_a_step_as_lightning_1_had_it(base):
    told: list[Any] = []

    class Old(base):
        def optimizer_step(
            self,
            epoch,
            batch_idx,
            optimizer,
            optimizer_idx,
            optimizer_closure,
            on_tpu,
            using_native_amp=True,
        ):
            told.append((epoch, batch_idx, optimizer_idx, on_tpu, using_native_amp))
            optimizer.step(closure=optimizer_closure)

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer, optimizer_idx):
            told.append(optimizer_idx)

        def on_before_optimizer_step(self, optimizer, optimizer_idx):
            told.append((type(optimizer), optimizer_idx))

        def configure_gradient_clipping(
            self, optimizer, optimizer_idx, gradient_clip_val, gradient_clip_algorithm
        ):
            told.append((optimizer_idx, gradient_clip_val, gradient_clip_algorithm))

        def lr_scheduler_step(self, scheduler, optimizer_idx, metric):
            told.append((scheduler, optimizer_idx, metric))

        def on_train_batch_end(self, outputs, batch, batch_idx, dataloader_idx):
            told.append(("end", batch_idx, dataloader_idx))

        def backward(self, loss, optimizer, optimizer_idx):
            told.append((loss, type(optimizer), optimizer_idx))

    with running(Old()) as job:
        engine_step(job, lambda: 1.0)
        job.hooks.zero_grad(0, 1)
        job.hooks.before_step(0)
        job.hooks.clip(0, 0.5, "norm")
        job.hooks.step_schedule("schedule", 1.5, lambda: None)
        job.hooks.batch_ended(None, BATCH, 7)
        job.hooks.backward("loss")
    assert told == [
        (0, 3, 0, False, False),
        0,
        (SGD, 0),
        (0, 0.5, "norm"),
        ("schedule", 0, 1.5),
        ("end", 7, 0),
        ("loss", SGD, 0),
    ]


# -- clipping


@KINDS
def test_clipping_its_own_way(base):
    def clips(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val=0.25)
        self.clip_gradients(optimizer, gradient_clip_val=0, gradient_clip_algorithm="value")
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    thing, calls = with_hooks(base, configure_gradient_clipping=clips)
    asked: list[Any] = []
    with running(thing, clip_val=2.0, settings=Settings(gradient_clip_algorithm="value")) as job:
        job.hooks.clipper = lambda *how: asked.append(how)
        job.hooks.clip(0, 2.0, "value")
        (optimizer,) = job.task.preparation.trainer.optimizers
    assert asked == [(0, 0.25, "value"), (0, 2.0, "value")]
    assert calls == [
        (
            "configure_gradient_clipping",
            optimizer,
            ("gradient_clip_val", 2.0),
            ("gradient_clip_algorithm", "value"),
        )
    ]


def test_clipping_as_inherited_from_lightning():
    class Inherits(Module):
        def configure_gradient_clipping(self, *arguments, **options):
            super().configure_gradient_clipping(*arguments, **options)

    asked: list[Any] = []
    with running(Inherits(), clip_val=0.5) as job:
        job.hooks.clipper = lambda *how: asked.append(how)
        job.hooks.clip(0, 0.5, "norm")
        job.hooks.clip(0, None, "norm")  # off: the setting holds, as in Lightning
    assert asked == [(0, 0.5, "norm")] * 2


@KINDS
def test_clipping_where_it_cannot_be(base):
    thing = base()
    with running(thing) as job:
        (optimizer,) = thing.trainer.optimizers
        with pytest.raises(TaskError, match="exist only while a batch is trained"):
            thing.clip_gradients(optimizer, 0.5)
        job.hooks.clipper = lambda *how: None
        with pytest.raises(TaskError, match="SGD is not an optimizer of this run"):
            thing.clip_gradients(SGD(thing.net.parameters(), lr=1), 0.5)
        with pytest.raises(TaskError, match="gradient_clip_algorithm='max'"):
            thing.clip_gradients(optimizer, 0.5, "max")


# -- schedules


class Halves:
    """A scheduler of the user's own, which torch knows nothing of."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self, epoch):
        self.count = epoch
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / 2**epoch

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@KINDS
def test_a_scheduler_of_its_own_kind(base):
    def configure_optimizers(self):
        optimizer = SGD(self.net.parameters(), lr=0.1)
        return [optimizer], [Halves(optimizer)]

    thing = type("Own", (base,), {"configure_optimizers": configure_optimizers})()
    with pytest.raises(TaskError, match=r"a Halves, no torch\.optim.lr_scheduler.LRScheduler"):
        task(thing).configure(Settings(), None)
    thing, _ = with_hooks(
        type("Own", (base,), {"configure_optimizers": configure_optimizers}),
        lr_scheduler_step=lambda self, scheduler, metric: scheduler.step(self.current_epoch + 1),
    )
    with running(thing, epoch=1) as job:
        scheduler = thing.lr_schedulers()
        job.hooks.step_schedule(scheduler, None, lambda: None)
        assert thing.optimizers().param_groups[0]["lr"] == 0.025
    Stateless = type("Stateless", (Halves,), {"state_dict": None})
    thing.configure_optimizers = lambda: (
        [o := SGD(thing.net.parameters(), lr=0.1)],
        [Stateless(o)],
    )
    with pytest.raises(TaskError, match="a Stateless without state_dict"):
        task(thing).configure(Settings(), None)


@KINDS
def test_a_schedule_steps_as_usual(base):
    thing = base()
    scheduler = lr_scheduler.StepLR(SGD(thing.net.parameters(), lr=1.0), 1, 0.5)
    with running(thing) as job:
        scheduler.optimizer.step()
        job.hooks.step_schedule(scheduler, None, scheduler.step)
    assert scheduler.get_last_lr() == [0.5]


def test_a_monitor_finds_the_name_that_is_recorded():
    def configure_optimizers(self):
        optimizer = SGD(self.net.parameters(), lr=0.1)
        plateau = {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "loss"}
        return {"optimizer": optimizer, "lr_scheduler": plateau}

    made = task(type("Own", (Duck,), {"configure_optimizers": configure_optimizers})()).configure(
        Settings(), None
    )
    assert made.schedules[0].monitor == "loss_logged"


# -- logging


@KINDS
def test_what_hooks_log_is_of_their_kind(base):
    def logs(name):
        return lambda self, *arguments: self.log(name, 1.0)

    thing, _ = with_hooks(
        base, on_train_epoch_start=logs("a"), on_train_batch_start=logs("b"), on_after_backward=logs("c"),
        on_validation_epoch_end=logs("d"), on_train_epoch_end=logs("e"),
    )  # fmt: skip
    with running(thing) as job:
        hooks = job.hooks
        assert hooks.logged() == {}
        hooks.epoch_started()
        hooks.batch_started(BATCH, 0)
        hooks.after_backward()
        assert hooks.logged() == {"b": 1.0, "c": 1.0}
        hooks.evaluation_ended("val")
        assert hooks.evaluated("val") == {"d": 1.0}
        assert hooks.evaluated("val") == {}
        hooks.epoch_ended()
        assert hooks.epoch_logged() == {"a": 1.0, "e": 1.0}
        assert hooks.epoch_logged() == {}
    with running(thing) as job:  # another job hears nothing of it
        assert job.task.preparation.log.latest == {}


@KINDS
def test_logging_where_nothing_can_be_logged(base):
    thing, _ = with_hooks(base, on_fit_start=lambda self: self.log("a", 1.0))
    with running(thing) as job:
        with pytest.raises(
            TaskError, match=r"self\.log\('a'\) in on_fit_start: nothing can be logged there"
        ):
            job.hooks.fit_started()
        with pytest.raises(TaskError, match=r"self\.log\('b'\) in no hook of a running job"):
            thing.log("b", 1.0)


@KINDS
def test_weights_of_a_batch(base):
    def training_step(self, batch, batch_idx):
        self.log("size", float(len(batch)), on_step=False, on_epoch=True)
        return self.net(batch).sum()

    thing = type("Own", (base,), {"training_step": training_step})()
    with running(thing) as job:
        for size in (3, 1):
            job.task.training_step(torch.ones(size, 3), 0)
        assert job.task.preparation.log.batch is None  # it is let go of
        assert float(job.hooks.epoch_logged()["size"]) == (3 * 3 + 1) / 4
    thing, _ = with_hooks(
        base,
        on_train_batch_end=lambda self, outputs, batch, i: self.log(
            "n", len(batch), on_step=False, on_epoch=True
        ),
    )
    with running(thing) as job:
        for number, size in enumerate((3, 1)):
            batch = torch.ones(size, 3)
            job.hooks.batch_started(batch, number)
            job.hooks.batch_ended(job.task.training_step(batch, number), batch, number)
        assert float(job.hooks.epoch_logged()["n"]) == (3 * 3 + 1) / 4


@KINDS
def test_a_returned_loss_that_was_logged_too(base):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.tensor(2.0), on_step=True, on_epoch=True)
        return {"loss": torch.tensor(3.0), "weight": 10.0}

    thing = type("Own", (base,), {"validation_step": validation_step})()
    with running(thing) as job:
        assert job.task.validation_step(BATCH, 0).values == {}
        assert {n: float(v) for n, v in job.hooks.evaluated("val").items()} == {
            "val_loss": 2.0,
            "val_loss_epoch": 2.0,
        }


@KINDS
def test_what_is_tried_is_not_heard(base):
    thing, _ = with_hooks(base, on_train_epoch_start=lambda self: self.log("a", 1.0))
    with running(thing) as job:
        job.hooks.epoch_started()
        with job.hooks.discarding_logs():
            job.hooks.epoch_started()
            thing.trainer.should_stop = True
            job.hooks.forget()
        assert not job.hooks.stop_requested
        assert job.hooks.epoch_logged() == {"a": 1.0}


# -- data


class Data:
    """Makes loaders, and has hooks for batches and its state."""

    def __init__(self, **members):
        vars(self).update(members)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4)


@KINDS
def test_transfers(base):
    def before(self, batch, dataloader_idx):
        return batch + dataloader_idx + 1

    thing, _ = with_hooks(
        base,
        on_before_batch_transfer=before,
        on_after_batch_transfer=lambda self, batch, i: batch * 10,
    )
    with running(thing) as job:
        assert job.hooks.transfers
        assert not job.hooks.within
        assert job.hooks.transfer(BATCH, CPU, "train")[0, 0] == 20
    data = Data(
        on_after_batch_transfer=lambda batch, i: batch * 3,
        transfer_batch_to_device=lambda b, device, i: b.to(device) + 2,
    )
    with running(thing, train=data) as job:  # its hooks win; the module's other ones stay
        assert job.hooks.transfer(BATCH, CPU, "val")[0, 0] == (1 + 1 + 2) * 3


def test_transfers_as_inherited_from_lightning():
    class Inherits(Module):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return super().transfer_batch_to_device(batch, device, dataloader_idx) + 1

    with running(Inherits()) as job:
        assert torch.equal(job.hooks.transfer(BATCH, CPU, "test"), BATCH + 1)


def test_data_of_a_plain_network_has_its_hooks_too():
    heard: list[Any] = []
    data = Data(on_after_batch_transfer=lambda batch, i: [part * 3 for part in batch], on_exception=heard.append,
                state_dict=lambda: {"at": 3}, load_state_dict=heard.append)  # fmt: skip
    found = task_of(nn.Linear(3, 1), train=data, val=None, test=None, loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW,
                    scheduler=None, metrics=None, collate_fn=None)  # fmt: skip
    hooks = found.hooks
    assert hooks is not None
    assert hooks.transfers
    assert hooks.transfer([BATCH], CPU, "train")[0][0, 0] == 3
    error = ArithmeticError()
    hooks.failed(error)
    assert hooks.state() == {"data": {0: {"at": 3}}, "lightning": {"data": ["Data"]}}
    hooks.load_state(hooks.state())
    assert heard == [error, {"at": 3}]


# -- the end, and a checkpoint


@KINDS
def test_the_end_is_asked_for(base):
    thing = base()
    with running(thing) as job:
        assert not job.hooks.stop_requested
        thing.trainer.should_stop = True
        assert job.hooks.stop_requested
        state = job.hooks.state()
        job.hooks.forget()
        assert not job.hooks.stop_requested
        job.hooks.load_state(state)
        assert job.hooks.stop_requested
    with running(thing) as job:
        assert not job.hooks.stop_requested


@KINDS
def test_what_a_checkpoint_keeps(base):
    loaded: list[Any] = []

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = [1, 2]
        del checkpoint["callbacks"]

    thing, calls = with_hooks(
        base,
        on_save_checkpoint=on_save_checkpoint,
        on_load_checkpoint=lambda self, c: loaded.append(c),
    )
    data = Data(state_dict=lambda: {"at": 3}, load_state_dict=loaded.append)
    with running(thing, epoch=2, step=9, train=data) as job:
        state = job.hooks.state()
        assert state["module"] == {"seen": [1, 2]}
        assert calls[0][1]["epoch"] == 2
        job.hooks.restoring({"epoch": 2, "global_step": 9}, state)
        job.hooks.load_state(state)
    assert "callbacks" not in loaded[0]
    assert (loaded[0]["epoch"], loaded[0]["global_step"], loaded[0]["seen"]) == (2, 9, [1, 2])
    assert any(name.endswith("weight") for name in loaded[0]["state_dict"])
    assert loaded[1] == {"at": 3}


@KINDS
def test_errors_are_the_data_modules_to_hear_of(base):
    heard: list[Any] = []
    thing, _ = with_hooks(base, "on_exception")
    with running(thing, train=Data(on_exception=heard.append)) as job:
        error = ArithmeticError()
        job.hooks.failed(error)
    assert heard == [error]


def test_what_a_step_returned_is_let_go_also_where_the_window_was_evaluated_again(tmp_path):
    given, alive = [], []

    class Own(Module):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            given.append(weakref.ref(loss))
            return loss

        def on_train_batch_start(self, batch, batch_idx):
            alive.append(sum(ref() is not None for ref in given))

        def on_train_batch_end(self, outputs, batch, batch_idx):
            """What makes outputs be kept."""

    train = DataLoader(torch.ones(24, 3), batch_size=4)
    with wb.Workbench(
        Own(),
        train=train,
        root=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
    ) as bench:
        given.clear()
        alive.clear()
        bench.fit().result()
    assert len(given) > len(alive) == 6  # evaluated again
    assert alive[::2] == [0, 0, 0]
