"""LightningModules as they are: Lightning's own demo models, unchanged, beside Lightning's Trainer."""

import copy
import importlib
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from tests.engine.problems import same_weights, weights
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

pl = importlib.import_module("lightning.pytorch")
boring = importlib.import_module("lightning.pytorch.demos.boring_classes")

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def rows(n=64, seed=1):
    return torch.randn(n, 32, generator=torch.Generator().manual_seed(seed))


def bench(module, root, **more):
    return wb.Workbench(module, root=root, accelerator="cpu", **{"max_epochs": 2, **more})


def trainer(**more):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    return pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **{"max_epochs": 2, **more},
    )  # fmt: skip


class Losses(pl.Callback):
    """What Lightning's Trainer saw at each batch."""

    def __init__(self):
        self.values, self.lrs = [], []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.lrs.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.values.append(float(outputs["loss"]))


# -- unchanged


def test_boring_model_unchanged(tmp_path):
    model = seeded(boring.BoringModel)
    before, attributes = weights(model), sorted(vars(model))
    b = bench(model, tmp_path)
    assert b.settings.lr == pytest.approx(0.1)
    assert b.settings.batch_size == 1
    assert b.settings.shuffle is False
    run = b.fit().result()
    assert run.step == 128
    assert not same_weights(model, before)
    curve = b.find_lr(num_training=20).result()
    assert len(curve.lrs) > 10
    assert b.validate().result() == {}  # it logs nothing, and calls what it returns "x"
    # Lightning makes an empty one when it is looked at
    assert sorted(set(vars(model)) - {"_hparams"}) == attributes


def test_boring_data_module(tmp_path):
    data = boring.BoringDataModule()
    b = wb.Workbench(
        seeded(boring.BoringModel), train=data, root=tmp_path, accelerator="cpu", max_epochs=1
    )
    assert b.fit().result().step == 64
    assert b.fit(batch_size=16).result().step == 4
    assert b.find_lr(num_training=5).result().ended == "all points done"
    assert b.test().result() == {}  # its test data are made in setup("test"); it logs nothing
    assert b.jobs[-1].status == "finished"


def test_demo_model_with_a_learning_rate_of_its_own(tmp_path):
    model = seeded(boring.DemoModel)
    b = wb.Workbench(
        model, train=rows(), root=tmp_path, accelerator="cpu", batch_size=8, max_epochs=1
    )
    assert b.settings.lr == 0.02
    assert b.fit().result().history["lr"].tolist() == [np.float32(0.02)] * 8
    assert b.fit(lr=0.5).result().history["lr"].tolist() == [0.5] * 8
    assert model.learning_rate == 0.02
    assert len(b.find_lr(num_training=7).result().lrs) == 7


# -- the same as Lightning's own Trainer


class Fixed(boring.BoringModel):
    """The same rows each time they are asked for."""

    def train_dataloader(self):
        return DataLoader(rows(), batch_size=4)

    def val_dataloader(self):
        return None


Fixed.val_dataloader = None
Fixed.validation_step = None


@pytest.mark.parametrize("clip", [None, 0.5])
def test_losses_and_rates_are_lightnings(clip, tmp_path):
    ours, theirs = seeded(Fixed), seeded(Fixed)
    run = bench(ours, tmp_path, gradient_clip_val=clip).fit().result()
    seen = Losses()
    trainer(callbacks=[seen], gradient_clip_val=clip).fit(theirs)
    assert np.array_equal(run.history["loss"], np.float32(seen.values))
    np.testing.assert_allclose(run.history["lr"], seen.lrs, rtol=1e-6)  # StepLR: once per epoch
    assert same_weights(ours, theirs)


class Classifier(pl.LightningModule):
    """As people write them: hyperparameters, logging, dropout, validation and test."""

    def __init__(self, lr=0.05, batch_size=8):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 2),
        )  # fmt: skip
        self.seen = []

    def forward(self, x):
        return self.net(x)

    def _data(self, seed):
        x = rows(60, seed)
        return TensorDataset(x, (x[:, 0] > 0).long())

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def _score(self, batch, stage):
        x, y = batch
        output = self(x)
        self.log(f"{stage}_loss", F.cross_entropy(output, y))
        self.log_dict({f"{stage}_accuracy": (output.argmax(1) == y).float().mean()}, on_epoch=True)

    def validation_step(self, batch):
        self._score(batch, "val")

    def test_step(self, batch, batch_idx):
        self._score(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self):
        self.seen.append(self.hparams.batch_size)
        return DataLoader(self._data(1), batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self._data(2), batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self._data(3), batch_size=self.hparams.batch_size)


def test_a_classifier_is_trained_and_scored_as_by_lightning(tmp_path):
    ours, theirs = Classifier(), Classifier()
    for module in (ours, theirs):
        module.net[3].p = 0.0  # the Trainer draws other numbers before the first batch
    run = bench(ours, tmp_path).fit().result()
    seen = Losses()
    host = trainer(callbacks=[seen])
    torch.manual_seed(0)
    host.fit(theirs)
    assert np.array_equal(run.history["loss"], np.float32(seen.values))
    np.testing.assert_allclose(run.history["lr"], seen.lrs, rtol=1e-6)
    assert same_weights(ours, theirs)
    assert run.validation["val_loss"][-1] == pytest.approx(
        float(host.callback_metrics["val_loss"]), rel=1e-5
    )
    assert run.validation["val_accuracy"][-1] == pytest.approx(
        float(host.callback_metrics["val_accuracy"]), rel=1e-5
    )
    b = bench(ours, tmp_path / "b")
    (theirs_scores,) = host.test(theirs, verbose=False)
    assert b.test().result() == pytest.approx(theirs_scores, rel=1e-5)
    assert set(b.validate().result()) == {"val_loss", "val_accuracy"}


def test_hyperparameters_hold_while_the_job_runs_and_are_put_back(tmp_path):
    module = Classifier()
    b = bench(module, tmp_path)
    assert (b.settings.lr, b.settings.batch_size) == (0.05, 8)
    attributes = sorted(vars(module))
    module.seen.clear()
    run = b.fit(lr=0.2, batch_size=20, max_epochs=1).result()
    assert module.seen[-1] == 20  # train_dataloader saw it
    assert run.history["lr"][0] == np.float32(0.2)
    assert run.step == 3
    assert dict(module.hparams) == {"lr": 0.05, "batch_size": 8}
    assert sorted(vars(module)) == attributes
    assert "log" not in vars(module)
    b.find_lr(num_training=4, lr=0.3).result()
    b.find_batch_size(max_trials=1, steps_per_trial=1).result()
    assert dict(module.hparams) == {"lr": 0.05, "batch_size": 8}


def test_hyperparameters_are_put_back_after_a_failure(tmp_path):
    class Failing(Classifier):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise ArithmeticError("third batch")
            return super().training_step(batch, batch_idx)

    module = Failing()
    job = bench(module, tmp_path).fit(lr=0.9)
    with pytest.raises(ArithmeticError):
        job.result()
    assert dict(module.hparams) == {"lr": 0.05, "batch_size": 8}
    assert "log" not in vars(module)


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_attributes_too(name, tmp_path):
    class Own(boring.BoringModel):
        def __init__(self):
            super().__init__()
            setattr(self, name, 0.25)
            self.batch_size = 16

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=getattr(self, name))

        def train_dataloader(self):
            return DataLoader(rows(), batch_size=self.batch_size)

    module = seeded(Own)
    b = bench(module, tmp_path, max_epochs=1)
    assert (b.settings.lr, b.settings.batch_size) == (0.25, 16)
    run = b.fit(lr=0.5, batch_size=32).result()
    assert run.history["lr"].tolist() == [0.5, 0.5]
    assert (getattr(module, name), module.batch_size) == (0.25, 16)


def test_groups_and_one_cycle_are_what_the_object_made_of_its_rate(tmp_path):
    """The first group's rate, or a cycle's first, is not the rate that was asked for: nothing is scaled to it."""

    class Grouped(boring.BoringModel):
        def __init__(self, cycle):
            super().__init__()
            self.lr, self.cycle = 0.1, cycle

        def configure_optimizers(self):
            first, second = self.layer.weight, self.layer.bias
            optimizer = torch.optim.SGD(
                [{"params": [first], "lr": self.lr / 10}, {"params": [second], "lr": self.lr}]
            )
            if not self.cycle:
                return optimizer
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=64)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]

    run = bench(seeded(lambda: Grouped(False)), tmp_path, max_steps=3).fit().result()
    assert run.history["lr"].tolist() == [np.float32(0.01)] * 3
    run = bench(seeded(lambda: Grouped(False)), tmp_path, max_steps=3).fit(lr=1.0).result()
    assert run.history["lr"].tolist() == [np.float32(0.1)] * 3
    run = bench(seeded(lambda: Grouped(True)), tmp_path, max_epochs=1).fit().result()
    assert run.history["lr"].max() == pytest.approx(0.1, rel=1e-3)


def test_a_rate_written_in_the_code_is_scaled_to_what_is_asked(tmp_path):
    class Fixed2(boring.BoringModel):
        def configure_optimizers(self):
            first, second = self.layer.weight, self.layer.bias
            return torch.optim.SGD(
                [{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.02}]
            )

    module = seeded(Fixed2)
    twin = copy.deepcopy(module)
    b = wb.Workbench(
        module,
        train=rows(),
        root=tmp_path,
        accelerator="cpu",
        batch_size=8,
        max_steps=5,
        shuffle=False,
    )
    assert b.settings.lr == 0.1
    b.fit(lr=0.05).result()
    optimizer = torch.optim.SGD(
        [
            {"params": [twin.layer.weight], "lr": 0.05},
            {"params": [twin.layer.bias], "lr": 0.02 * (0.05 / 0.1)},
        ]
    )
    for batch in list(DataLoader(rows(), batch_size=8))[:5]:
        optimizer.zero_grad()
        twin.training_step(batch, 0)["loss"].backward()
        optimizer.step()
    assert same_weights(module, twin)


def test_find_then_fit_is_fit_alone(tmp_path):
    alone, module = Classifier(), Classifier()
    expected = bench(alone, tmp_path / "a").fit().result()
    b = bench(module, tmp_path / "b")
    b.find_lr(num_training=10).result()
    assert np.array_equal(b.fit().result().history["loss"], expected.history["loss"])
    assert same_weights(alone, module)


def test_a_plain_object_with_the_two_methods(tmp_path):
    """Not an nn.Module, and Lightning is nowhere in it."""

    class Plain:
        def __init__(self):
            torch.manual_seed(0)
            self.net, self.lr = torch.nn.Linear(32, 1), 0.01

        def training_step(self, batch, batch_idx):
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=self.lr)

    thing = Plain()
    b = wb.Workbench(
        thing, train=rows(), root=tmp_path, accelerator="cpu", batch_size=8, max_epochs=1
    )
    run = b.fit(lr=0.1).result()
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert thing.lr == 0.01
    assert "Plain" in repr(b)


def plain_object(**members):
    """An object with the two methods; `members` are added to it."""

    class Plain:
        def __init__(self):
            torch.manual_seed(0)
            self.net = torch.nn.Linear(32, 1)
            for name, value in members.get("attributes", {}).items():
                setattr(self, name, value)

        def training_step(self, batch, batch_idx):
            return members.get("step", lambda _, loss: loss)(self, self.net(batch).pow(2).mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=members["rate"](self))

    return Plain()


@pytest.mark.parametrize(
    ("attributes", "rate"),
    [({"lr": 0.1, "hparams": {"lr": 0.1}}, lambda o: o.hparams["lr"]),
     ({"lr": 0.1, "hparams": {"lr": 0.1}}, lambda o: o.lr),
     ({"lr": 0.3, "learning_rate": 0.1}, lambda o: o.learning_rate),
     ({"lr": 0.3}, lambda o: 0.1),
     ({"lr": 0.1}, lambda o: 0.1)],
    ids=["hparams", "attribute", "the other name", "not read", "not read, and the same"],
)  # fmt: skip
def test_the_rate_is_what_was_asked_wherever_it_is_read(attributes, rate, tmp_path):
    thing = plain_object(attributes=copy.deepcopy(attributes), rate=rate)
    b = bench(thing, tmp_path, train=rows(), batch_size=8, max_steps=2)
    assert b.settings.lr == 0.1  # what the user's own loop would train with
    assert b.fit().result().history["lr"].tolist() == [np.float32(0.1)] * 2
    assert b.fit(lr=0.5).result().history["lr"].tolist() == [0.5] * 2
    assert {name: getattr(thing, name) for name in attributes} == attributes


def test_all_homes_of_a_rate_are_named_for_the_script(tmp_path):
    thing = plain_object(
        attributes={"lr": 0.1, "hparams": {"lr": 0.1}, "batch_size": 4}, rate=lambda o: o.lr
    )
    task = task_of(
        thing, train=rows(), val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None, metrics=None,
        collate_fn=None,
    )  # fmt: skip
    assert task.homes == {
        "lr": "network.lr = network.hparams['lr']",
        "batch_size": "network.batch_size",
    }


def test_a_log_of_its_own_is_put_back(tmp_path):
    kept: list[Any] = []

    def step(self, loss):
        self.log.append(1)
        return loss

    thing = plain_object(attributes={"log": kept, "log_dict": print}, rate=lambda o: 0.1, step=step)
    bench(thing, tmp_path, train=rows(), max_steps=1).fit().result()
    assert thing.log is kept
    assert kept
    assert thing.log_dict is print


# -- refused by name


def test_an_optimizer_that_is_made_once(tmp_path):
    made: list[Any] = []

    def configure_optimizers(self):
        made.append(torch.optim.SGD(self.parameters(), lr=0.1)) if not made else None
        return made[0]

    with pytest.raises(
        TaskError, match=r"returned the same optimizer again.*make it in configure_optimizers"
    ):
        bench(variation(configure_optimizers=configure_optimizers), tmp_path)


def variation(**members):
    return seeded(type("Mine", (boring.BoringModel,), members))


def test_hooks_that_are_not_served(tmp_path):
    with pytest.raises(
        TaskError,
        match=r"Mine defines training_epoch_end, which is not called here:.*on_train_epoch_end",
    ):
        bench(variation(training_epoch_end=lambda self, outputs: None), tmp_path)

    class Old(boring.BoringDataModule):
        def on_epoch_end(self):
            """Of Lightning 1."""

    with pytest.raises(TaskError, match="Old defines on_epoch_end"):
        wb.Workbench(seeded(boring.BoringModel), train=Old(), root=tmp_path, accelerator="cpu")


def test_hooks_are_called_in_a_fit(tmp_path):
    calls: list[str] = []
    hooks = [
        "on_fit_start",
        "on_train_start",
        "on_train_epoch_start",
        "on_train_epoch_end",
        "on_train_end",
        "on_fit_end",
    ]
    members = {hook: lambda self, hook=hook: calls.append(hook) for hook in hooks}
    b = bench(variation(**members), tmp_path, limit_train_batches=2)
    calls.clear()
    b.fit().result()
    assert calls == [*hooks[:2], *hooks[2:4], *hooks[2:4], *hooks[4:]]
    calls.clear()
    b.find_lr(num_training=3).result()
    assert calls == hooks[:3]  # it counts on what a fit would have done, and ends none


def test_what_is_logged_is_recorded_and_monitored(tmp_path):
    class Logs(boring.BoringModel):
        def training_step(self, batch, batch_idx):
            loss = self.step(batch)
            self.log("loss", loss, on_epoch=True, prog_bar=True)
            self.log("twice", 2 * batch_idx)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.step(batch), on_step=True, on_epoch=True)

        def on_validation_epoch_end(self):
            self.log("checks", float(self.current_epoch))

    stop = wb.EarlyStopping(monitor="val_loss", mode="min", patience=10)
    run = bench(seeded(Logs), tmp_path, limit_train_batches=3, early_stopping=stop).fit().result()
    assert run.history["twice"].tolist() == [0.0, 2.0, 4.0] * 2
    assert np.array_equal(run.history["loss_step"], run.history["loss"])
    assert run.validation["checks"].tolist() == [0.0, 1.0]
    assert np.array_equal(run.validation["val_loss"], run.validation["val_loss_epoch"])
    epochs = run.history["loss"].reshape(2, 3).mean(1)
    assert run.metrics["loss_logged"] == pytest.approx(epochs[1], rel=1e-5)


def test_several_optimizers_that_no_step_can_tell_apart(tmp_path):
    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.parameters(), lr=0.1),
            torch.optim.SGD(self.parameters(), lr=0.2),
        ]

    with pytest.raises(
        TaskError, match="returned 2 optimizers: let training_step take optimizer_idx"
    ):
        bench(variation(configure_optimizers=configure_optimizers), tmp_path)


def test_a_scheduler_that_watches_no_metric(tmp_path):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]

    with pytest.raises(TaskError, match="ReduceLROnPlateau without a monitor"):
        bench(variation(configure_optimizers=configure_optimizers), tmp_path)


def test_half_a_module(tmp_path):
    class NoStep(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(32, 2)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class NoOptimizer(boring.BoringModel):
        def configure_optimizers(self):
            return None

    with pytest.raises(TaskError, match="NoStep defines no training_step"):
        wb.Workbench(NoStep(), train=rows(), root=tmp_path, accelerator="cpu")
    with pytest.raises(
        TaskError,
        match="returned None, with which Lightning trains nothing, and an optimizer is needed",
    ):
        bench(NoOptimizer(), tmp_path)


def test_what_the_module_brings_is_not_given_twice(tmp_path):
    with pytest.raises(TaskError, match="loss= is given, but BoringModel brings its own"):
        bench(seeded(boring.BoringModel), tmp_path, loss=F.mse_loss)
    with pytest.raises(TaskError, match="optimizer= is given, but BoringModel brings its own"):
        bench(seeded(boring.BoringModel), tmp_path, optimizer=torch.optim.SGD)


def test_a_module_without_data(tmp_path):
    with pytest.raises(TaskError, match="no training data: give train="):
        wb.Workbench(seeded(boring.DemoModel), root=tmp_path, accelerator="cpu")


def test_a_step_that_returns_no_loss(tmp_path):
    with pytest.raises(
        TaskError, match=r"training_step returned a dict with .'wrong'.: it must return the loss"
    ):
        bench(variation(training_step=lambda self, batch, i: {"wrong": self.step(batch)}), tmp_path)


def test_the_module_is_told_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Annealed(boring.BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, self.global_step))
            return super().training_step(batch, batch_idx)

    model = Annealed()
    bench = wb.Workbench(model, root=tmp_path)
    seen.clear()
    bench.fit(max_epochs=2).result()
    updates = len(seen) // 2
    assert seen == [(step // updates, step) for step in range(2 * updates)]
    assert model.current_epoch == 0  # and afterwards it has no trainer, as before
    assert model._trainer is None


def test_what_the_trainer_lacks_is_named(tmp_path: Path) -> None:
    class Asking(boring.BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.fit_loop.epoch_loop
            return super().training_step(batch, batch_idx)

    with pytest.raises(
        ValueError,
        match=r"trainer\.fit_loop\.epoch_loop is not supported\. Supported is epoch_progress",
    ):
        wb.Workbench(Asking(), root=tmp_path)
