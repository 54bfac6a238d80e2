"""prepare_data, setup, teardown and configure_model: when each is called, in which order, and with what at hand."""

import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from tests.task.lightning.test_hooks import KINDS, Duck, Module, task
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

pl = importlib.import_module("lightning.pytorch")

ROWS = TensorDataset(torch.ones(8, 3))


class Noted:
    """Notes what is called, with the stage."""

    def prepare_data(self):
        self.calls.append((self.name, "prepare_data"))

    def setup(self, stage):
        self.calls.append((self.name, "setup", stage, self.trainer is not None))
        self.rows = ROWS

    def train_dataloader(self):
        return DataLoader(self.rows, batch_size=4)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Undoes(Noted):
    def teardown(self, stage):
        self.calls.append((self.name, "teardown", stage))
        del self.rows


def data_of(kind, calls, base=pl.LightningDataModule):
    class Made(kind, base):
        pass

    made = Made()
    made.calls, made.name = calls, "data"
    return made


DATA = pytest.mark.parametrize(
    "data_base", [pl.LightningDataModule, object], ids=["lightning's", "any"]
)


@DATA
@KINDS
def test_the_bench_sets_up_for_fits(base, data_base):
    calls: list[Any] = []

    class Own(base):
        def prepare_data(self):
            calls.append(("module", "prepare_data"))

        def setup(self, stage):
            calls.append(("module", "setup", stage, self.trainer.datamodule.rows is ROWS))

        def configure_model(self):
            calls.append(("module", "configure_model"))
            self.more = nn.Linear(3, 1)

        def configure_callbacks(self):
            return []

    data = data_of(Noted, calls, data_base)
    t = task(Own(), data)
    assert calls == [
        ("data", "prepare_data"), ("module", "prepare_data"), ("data", "setup", "fit", True), ("module", "setup", "fit", True),
        ("module", "configure_model"),
    ]  # fmt: skip
    assert len(t.train.parts.dataset) == 8
    for _ in range(2):
        with t.running(Settings()):
            t.hooks.fit_ended()
    assert len(calls) == 5  # nothing has undone it
    assert getattr(data, "trainer", None) is None
    assert isinstance(t.module.more, nn.Linear)


@DATA
@KINDS
def test_a_teardown_undoes_the_set_up(base, data_base):
    calls: list[Any] = []
    data = data_of(Undoes, calls, data_base)
    t = task(base(), data)
    calls.clear()
    with t.running(Settings()):
        t.train.refresh()
        assert len(t.train.parts.dataset) == 8
    assert calls == []  # a search, or a trial: no fit has ended
    with t.running(Settings()):
        t.hooks.fit_ended()
    assert calls == [("data", "teardown", "fit")]
    assert not hasattr(data, "rows")
    calls.clear()
    with t.running(Settings()):
        t.train.refresh()
        assert len(t.train.parts.dataset) == 8
        t.hooks.fit_ended()
    assert calls == [("data", "setup", "fit", True), ("data", "teardown", "fit")]


@DATA
@KINDS
def test_other_jobs_set_up_for_themselves(base, data_base):
    calls: list[Any] = []
    t = task(
        type("Own", (base,), {"test_step": lambda self, batch: None})(),
        data_of(Undoes, calls, data_base),
    )
    calls.clear()
    for phase in ("validate", "test", "predict"):
        with t.running(Settings(), phase):
            spec = {"test": t.test, "predict": t.predict}.get(phase)
            if spec is not None:
                spec.refresh()
                assert len(spec.parts.dataset) == 8  # set up already
        assert calls == [("data", "setup", phase, True), ("data", "teardown", phase)]
        calls.clear()


def test_an_error_tears_nothing_down():
    calls: list[Any] = []
    t = task(Duck(), data_of(Undoes, calls))
    calls.clear()

    job = t.running(Settings())
    job.__enter__()
    t.hooks.fit_ended()
    assert not job.__exit__(ArithmeticError, ArithmeticError(), None)
    assert calls == []


def test_data_that_no_job_has_set_up():
    """Asked for outside of a job of its own kind: it is set up then, once."""
    calls: list[Any] = []
    t = task(Duck(), data_of(Noted, calls))
    calls.clear()
    for _ in range(2):
        t.predict.refresh()
        assert len(t.predict.parts.dataset) == 8
    assert calls == [("data", "setup", "predict", True)]


def test_a_plain_network_with_a_data_module():
    calls: list[Any] = []

    class Shaped(Undoes):
        def setup(self, stage):
            super().setup(stage)
            self.rows = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))

    t = task_of(nn.Linear(3, 1), train=data_of(Shaped, calls), val=None, test=None, loss=nn.functional.mse_loss,
                optimizer=torch.optim.AdamW, scheduler=None, metrics=None, collate_fn=None)  # fmt: skip
    assert [call[1] for call in calls] == ["prepare_data", "setup"]
    assert t.hooks is not None
    with t.running(Settings()):
        t.hooks.fit_ended()
    assert calls[-1] == ("data", "teardown", "fit")


def test_several_data_modules():
    """Each brings its own data, and each is set up; the training data's is `self.trainer.datamodule`."""
    calls: list[Any] = []
    first, second = data_of(Noted, calls), data_of(Noted, calls)
    second.name = "second"
    t = task_of(Duck(), train=first, val=second, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None, metrics=None,
                collate_fn=None)  # fmt: skip
    assert [call[:2] for call in calls] == [
        ("data", "prepare_data"),
        ("second", "prepare_data"),
        ("data", "setup"),
        ("second", "setup"),
    ]
    assert t.preparation is not None
    assert t.preparation.trainer.datamodule is first


def test_the_settings_are_known_in_setup():
    asked: list[Any] = []

    class Asks(Module):
        def setup(self, stage):
            asked.append((self.trainer.max_epochs, self.trainer.training, self.trainer.world_size))

    task_of(Asks(), train=(torch.ones(8, 3),), val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None,
            metrics=None, collate_fn=None, settings=Settings(max_epochs=3))  # fmt: skip
    assert asked == [(3, True, 1)]


@KINDS
def test_loaders_find_the_trainer(base):
    class Own(base):
        def train_dataloader(self):
            assert self.trainer.world_size == 1
            return DataLoader(ROWS, batch_size=2)

    t = task_of(Own(), train=None, val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None, metrics=None,
                collate_fn=None)  # fmt: skip
    assert t.implied["batch_size"] == 2


def test_layers_that_are_made_at_set_up_are_trained():
    class Late(pl.LightningModule):
        def setup(self, stage):
            self.first = nn.Linear(3, 2)

        def configure_model(self):
            self.second = nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.second(self.first(batch[0])).sum()

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1)

    t: Any = task(Late())
    assert len(list(t.model.parameters())) == 4
    with t.running(Settings()):
        assert len(t.configure(Settings(), 1).optimizer.param_groups[0]["params"]) == 4


def test_callbacks_of_the_modules_own():
    class Own(Module):
        def configure_callbacks(self):
            return self.its

    own = Own()
    own.its = pl.callbacks.ModelPruning("l1_unstructured")
    with pytest.raises(
        TaskError,
        match=r"Own\.configure_callbacks\(\): ModelPruning of Lightning's is not used here",
    ):
        task(own)
    own.its = [object()]
    with pytest.raises(
        TaskError, match=r"Own\.configure_callbacks\(\): <object.*is not a callback of Lightning"
    ):
        task(own)
    own.its = pl.callbacks.EarlyStopping("val_loss")
    assert [one.monitor for one in task(own).implied["early_stopping"]] == ["val_loss"]


@DATA
@KINDS
def test_benches_may_share_the_data(base, data_base):
    calls: list[Any] = []
    data = data_of(Undoes, calls, data_base)
    one, other = task(base(), data), task(base(), data)
    calls.clear()
    with one.running(Settings()):
        one.hooks.fit_ended()
    assert calls == [("data", "teardown", "fit")]
    with other.running(Settings()):
        other.train.refresh()
        assert len(other.train.parts.dataset) == 8
    assert calls[1:] == [("data", "setup", "fit", True)]
    calls.clear()
    task(base(), data)  # made anew: what it reads may be something else by now
    assert [call[1] for call in calls] == ["prepare_data", "setup"]


def test_data_that_has_no_hash():
    class Plain(Noted):
        __hash__ = None

        def __eq__(self, other):
            return self is other

    data = Plain()
    data.calls, data.name, data.trainer = [], "data", None
    t = task(Duck(), data)
    with t.running(Settings()):
        t.hooks.fit_ended()
    assert data.calls == [("data", "prepare_data"), ("data", "setup", "fit", True)]
