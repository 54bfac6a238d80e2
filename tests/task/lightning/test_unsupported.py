"""What is not served is refused by name, with what to use instead."""

import importlib

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from tests.task.lightning.test_hooks import KINDS, Duck, Module, task
from workbench.task.errors import TaskError
from workbench.task.lightning.unsupported import CALLBACKS, UNSUPPORTED_HOOKS, refuse_callbacks

pl = importlib.import_module("lightning.pytorch")
callbacks = pl.callbacks


@pytest.mark.parametrize("hook", UNSUPPORTED_HOOKS)
@KINDS
def test_hooks(base, hook):
    thing = type("Mine", (base,), {hook: lambda self, *a: None})()
    with pytest.raises(TaskError, match=f"Mine defines {hook}, which is not called here: .{{10}}"):
        task(thing)


def test_hooks_of_a_data_module():
    class Old(pl.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(TensorDataset())

        def on_epoch_end(self):
            """Of Lightning 1."""

    with pytest.raises(TaskError, match="Old defines on_epoch_end"):
        task(Duck(), Old())


@pytest.mark.parametrize("method", ["log", "log_dict"])
def test_logging_its_own_way(method):
    thing = type("Mine", (Module,), {method: lambda self, *a: None})()
    with pytest.raises(
        TaskError, match=f"Mine defines {method}, in place of Lightning's: give yours another name"
    ):
        task(thing)


@KINDS
def test_steps_that_read_the_data_themselves(base):
    thing = type("Mine", (base,), {"training_step": lambda self, dataloader_iter: None})()
    with pytest.raises(
        TaskError, match=r"Mine\.training_step takes dataloader_iter, which is not supported"
    ):
        task(thing)


def test_several_loaders():
    loader = DataLoader(TensorDataset())
    for returned in ([loader, loader], {"a": loader, "b": loader}):
        thing = Duck()
        thing.predict_dataloader = lambda made=returned: made
        with pytest.raises(
            TaskError,
            match=r"predict_dataloader\(\) returned \w+; one DataLoader is needed\. .*StackDataset",
        ):
            task(thing).predict.parts


class Own(callbacks.Callback):
    """As people write them."""


GIVEN = [
    (callbacks.ModelCheckpoint(), "ModelCheckpoint of.*checkpoint_every, save_top_k and monitor"),
    (callbacks.EarlyStopping("val_loss"), "EarlyStopping of.*early_stopping=wb.EarlyStopping"),
    (callbacks.LearningRateMonitor(), "LearningRateMonitor of.*recorded anyway"),
    (callbacks.GradientAccumulationScheduler({0: 2}), "accumulate_grad_batches="),
    (callbacks.StochasticWeightAveraging(1e-2), "weight_averaging='swa'"),
    (callbacks.EMAWeightAveraging(), "weight_averaging='ema'"),
    (callbacks.LearningRateFinder(), r"bench.find_lr\(\)"),
    (callbacks.BatchSizeFinder(), r"bench.find_batch_size\(\)"),
    (callbacks.Timer(), "max_time"),
    (callbacks.TQDMProgressBar(), "TQDMProgressBar, a ProgressBar of.*the panel"),
    (callbacks.RichModelSummary(), "bench.summary"),
    (callbacks.DeviceStatsMonitor(), "memory"),
    (callbacks.LambdaCallback(), r"callbacks=\[…\] of wb.Workbench calls its hooks"),
    (Own(), r"Own of.*callbacks=\[…\] of wb.Workbench.*listeners=\[f\]"),
    (pl.loggers.CSVLogger("."), "CSVLogger of.*trackers="),
]


@pytest.mark.parametrize(("given", "message"), GIVEN, ids=lambda one: type(one).__name__)
def test_callbacks_and_loggers(given, message):
    with pytest.raises(TaskError, match=f"listeners=: .*{message}"):
        refuse_callbacks([print, given], "listeners=")
    with pytest.raises(TaskError, match=message):
        refuse_callbacks(given, "callbacks=")


def test_every_callback_of_lightnings_has_its_own_word():
    """But those whose hooks are called. One that comes to be in a later version is at least a Callback."""
    generic = {"Callback", "LambdaCallback", "BaseFinetuning", "BackboneFinetuning"}
    for name in callbacks.__all__:
        bases = [base.__name__ for base in getattr(callbacks, name).__mro__]
        assert next(one for one in CALLBACKS if one in bases) not in generic or name in generic, (
            name
        )


def test_listeners_stay():
    refuse_callbacks([print, Duck(), lambda event: None], "listeners=")


def fitted(module, root):
    batches = DataLoader(torch.ones(8, 3), batch_size=4)
    with wb.Workbench(
        module, train=batches, val=batches, root=root, accelerator="cpu", max_epochs=1
    ) as bench:
        return bench.fit().result()


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_validation_epoch_end", "training_step"])
def test_a_module_that_counts_on_a_logger_is_told(hook, tmp_path):
    def logs(self, *_):
        self.logger.experiment.add_scalar("a", 1.0)

    class Own(Module):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.training_step(batch, batch_idx))

    setattr(Own, hook, logs)
    with pytest.raises((TaskError, AttributeError)) as caught:
        fitted(Own(), tmp_path)
    assert "trackers=" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_another_missing_attribute_is_no_matter_of_loggers(tmp_path):
    class Own(Module):
        best = None

        def on_train_epoch_end(self):
            self.best.score()

    with pytest.raises(AttributeError, match="score") as caught:
        fitted(Own(), tmp_path)
    assert not any("logger" in note for note in getattr(caught.value, "__notes__", ()))
