"""`self.trainer` and what else of Lightning's a module finds on itself: served, or refused by name."""

import copy
import importlib
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from tests.task.lightning.test_hooks import KINDS, Data, Duck, Module, running, task
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.lightning.trainer import UnsupportedTrainerAttribute

pl = importlib.import_module("lightning.pytorch")

pytestmark = pytest.mark.usefixtures("one_thread")


@KINDS
def test_how_far_it_is(base):
    with running(base(), epoch=2, step=7) as job:
        trainer = job.task.module.trainer
        assert (trainer.current_epoch, trainer.global_step) == (2, 7)
        assert trainer.estimated_stepping_batches == 6
        assert (trainer.num_training_batches, trainer.num_val_batches) == (3, [])
        assert (trainer.max_epochs, trainer.max_steps, trainer.min_epochs, trainer.min_steps) == (
            10,
            -1,
            None,
            None,
        )
        job.hooks.batch_started(None, 1)
        assert not trainer.is_last_batch
        job.hooks.batch_started(None, 2)
        assert trainer.is_last_batch


@KINDS
def test_data_without_a_length(base):
    with running(base(), updates=None, batches=(None, None)) as job:
        trainer = job.task.module.trainer
        assert trainer.num_training_batches == math.inf
        assert trainer.estimated_stepping_batches == math.inf
        with pytest.raises(TaskError, match=r"trainer\.is_last_batch: unknown"):
            trainer.is_last_batch
    with running(base(), updates=None, settings=Settings(max_steps=4)) as job:
        trainer = job.task.module.trainer
        assert (trainer.estimated_stepping_batches, trainer.max_epochs, trainer.max_steps) == (
            4,
            -1,
            4,
        )


@pytest.mark.parametrize(
    ("stage", "flag", "name", "evaluating"),
    [("train", "training", "train", False), ("sanity", "sanity_checking", "sanity_check", True),
     ("val", "validating", "validate", True), ("test", "testing", "test", True), ("predict", "predicting", "predict", False),
     ("", "training", "train", False)],
)  # fmt: skip
def test_stages(stage, flag, name, evaluating):
    flags = ("training", "sanity_checking", "validating", "testing", "predicting")
    with running(Duck(), stage=stage) as job:
        trainer = job.task.module.trainer
        assert [one for one in flags if getattr(trainer, one)] == [flag]
        assert trainer.evaluating is evaluating
        states = importlib.import_module("lightning.pytorch.trainer.states")
        assert trainer.state.stage == states.RunningStage(name)
        assert trainer.state.fn == states.TrainerFn.FITTING


@pytest.mark.parametrize(
    ("phase", "flag"), [("validate", "validating"), ("test", "testing"), ("predict", "predicting")]
)
def test_stages_of_other_jobs(phase, flag):
    with running(Duck(), phase, stage="") as job:
        assert getattr(job.task.module.trainer, flag)
        assert job.task.module.trainer.state.fn == phase


def test_settings():
    settings = Settings(
        accumulate_grad_batches={0: 4, 2: 1}, precision="bf16-mixed", log_every_n_steps=5, num_sanity_val_steps=-1,
        max_epochs=3, min_epochs=1, min_steps=2, gradient_clip_algorithm="value", limit_val_batches=0.5,
    )  # fmt: skip
    with running(Duck(), settings=settings, clip_val=0.5, epoch=1) as job:
        trainer = job.task.module.trainer
        assert trainer.accumulate_grad_batches == 4
        job.progress.state.epoch = 2
        assert trainer.accumulate_grad_batches == 1
        assert (trainer.precision, trainer.log_every_n_steps, trainer.num_sanity_val_steps) == (
            "bf16-mixed",
            5,
            math.inf,
        )
        assert (trainer.gradient_clip_val, trainer.gradient_clip_algorithm) == (0.5, "value")
        assert (trainer.max_epochs, trainer.min_epochs, trainer.min_steps) == (3, 1, 2)
        assert (
            trainer.limit_val_batches,
            trainer.check_val_every_n_epoch,
            trainer.fast_dev_run,
        ) == (0.5, 1, 0)
        assert not trainer.enable_validation  # there is no such data
        job.progress.state.clip_val = None
        assert trainer.gradient_clip_algorithm is None


@KINDS
def test_one_process(base):
    with running(base()) as job:
        trainer = job.task.module.trainer
        assert trainer.is_global_zero
        assert (trainer.global_rank, trainer.local_rank, trainer.node_rank) == (0, 0, 0)
        assert (trainer.world_size, trainer.num_devices, trainer.num_nodes, trainer.device_ids) == (
            1,
            1,
            1,
            [0],
        )
        assert (
            trainer.logger,
            trainer.loggers,
            trainer.callbacks,
            trainer.checkpoint_callback,
        ) == (None, [], [], None)


@KINDS
def test_metrics(base):
    with running(base(), metrics={"val_loss": 0.25, "loss_logged": 9.0}) as job:
        thing, log = job.task.module, job.task.preparation.log
        log.hook = "training_step"
        thing.log("acc", 0.5, prog_bar=True)
        thing.log("loss", 2.0)
        metrics = thing.trainer.callback_metrics
        assert {name: float(value) for name, value in metrics.items()} == {
            "val_loss": 0.25, "acc": 0.5, "loss": 2.0, "loss_logged": 2.0,
        }  # fmt: skip
        assert isinstance(metrics["val_loss"], torch.Tensor)
        assert thing.trainer.progress_bar_metrics == {"acc": 0.5}
        log.hook = None


@KINDS
def test_what_it_works_with(base):
    with running(base(), settings=Settings(batch_size=4)) as job:
        thing = job.task.module
        trainer = thing.trainer
        assert trainer.lightning_module is thing
        assert isinstance(trainer.model, nn.Module)
        assert [type(one) for one in trainer.optimizers] == [SGD]
        assert len(trainer.train_dataloader.dataset) == 8
        assert len(trainer.train_dataloader) == 2
        assert trainer.val_dataloaders is None
        assert trainer.datamodule is None
    data = Data(classes=3)
    with running(base(), train=data) as job:
        assert job.task.module.trainer.datamodule.classes == 3
        assert data.trainer is job.task.module.trainer
    assert not hasattr(data, "trainer")


@pytest.mark.parametrize(
    ("name", "instead"),
    [("save_checkpoint", "checkpoint_every"), ("fit", r"bench\.fit\(\)"), ("distributed_sampler_kwargs", "world_size"), ("num_test_batches", r"len\(self\.trainer\.test_dataloaders\)"),
     ("accelerator", r"self\.device"), ("ckpt_path", r"bench\.fit\(start=…\)")],
)  # fmt: skip
@KINDS
def test_what_is_not_served(base, name, instead):
    with running(base()) as job:
        trainer = job.task.module.trainer
        with pytest.raises(
            UnsupportedTrainerAttribute,
            match=rf"self\.trainer\.{name} is not supported\..*{instead}",
        ):
            getattr(trainer, name)
        assert not hasattr(trainer, name)  # modules ask before they reach
        with pytest.raises(
            UnsupportedTrainerAttribute,
            match=rf"self\.trainer\.{name} = … is not supported: only should_stop",
        ):
            setattr(trainer, name, 1)


# -- while nothing has begun


@KINDS
def test_configure_optimizers_may_ask_how_long_it_takes(base):
    asked: list[Any] = []

    def configure_optimizers(self):
        asked.append((self.trainer.estimated_stepping_batches, self.trainer.max_epochs))
        optimizer = SGD(self.net.parameters(), lr=0.1)
        cycle = lr_scheduler.OneCycleLR(
            optimizer, 0.2, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]

    t = task(
        type("Own", (base,), {"configure_optimizers": configure_optimizers})(),
        (torch.ones(100, 3),),
    )
    assert t.implied["lr"] == pytest.approx(0.2)
    assert asked == [(40, 10)]  # 4 batches of 32 in each of 10 epochs
    with t.running(Settings(max_epochs=2)):
        t.configure(Settings(max_epochs=2), 14)
    assert asked[1:] == [(14, 2)]


# -- on the module itself


@KINDS
def test_properties(base, capsys):
    thing = base()
    before = set(vars(thing))
    with running(thing, epoch=3, step=8) as job:
        assert (thing.current_epoch, thing.global_step, thing.global_rank, thing.local_rank) == (
            3,
            8,
            0,
            0,
        )
        assert (thing.logger, thing.loggers) == (None, [])
        assert thing.device == torch.device("cpu")
        thing.print("said")
        job.progress.state.epoch, job.progress.state.step = 4, 9
        job.task.training_step(torch.ones(2, 3), 0)
        assert (thing.current_epoch, thing.global_step) == (4, 9)
        gathered = thing.all_gather({"a": 1.5, "b": [torch.ones(2), 3]})
        assert gathered["a"] == torch.tensor(1.5)
        assert torch.equal(gathered["b"][0], torch.ones(2))
    assert capsys.readouterr().out == "said\n"
    # Lightning makes an empty one when it is looked at
    assert set(vars(thing)) - {"_hparams"} == before


def test_properties_of_its_own_stay():
    thing = Duck()
    vars(thing).update(device="my own", current_epoch=-5, trainer="a person")
    with running(thing, epoch=3) as job:
        job.task.training_step(torch.ones(2, 3), 0)
        assert (thing.device, thing.current_epoch, thing.trainer) == ("my own", -5, "a person")
        assert thing.global_step == 0
    assert thing.current_epoch == -5


@KINDS
def test_optimizers_and_schedulers_in_automatic_optimisation(base):
    def configure_optimizers(self):
        optimizer = SGD(self.net.parameters(), lr=0.1)
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1)]

    thing = type("Own", (base,), {"configure_optimizers": configure_optimizers})()
    with running(thing):
        assert isinstance(thing.optimizers(), SGD)
        assert isinstance(thing.optimizers(use_pl_optimizer=False), SGD)
        assert isinstance(thing.lr_schedulers(), lr_scheduler.StepLR)
        (config,) = thing.trainer.lr_scheduler_configs
        assert (config.interval, config.frequency, config.monitor) == ("epoch", 1, None)
    with running(base()) as job:
        assert job.task.module.lr_schedulers() is None
    t = task(base())
    with (
        t.running(Settings()),
        pytest.raises(TaskError, match="the optimizers exist while a job runs"),
    ):
        t.module.optimizers()


def test_toggling_in_automatic_optimisation():
    class Two(Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx, optimizer_idx):
            return self.net(batch).sum()

        def configure_optimizers(self):
            return SGD(self.net.parameters(), lr=0.1), SGD(self.other.parameters(), lr=0.1)

    thing = Two()
    with running(thing):
        first, _ = thing.optimizers()
        thing.toggle_optimizer(first)
        assert [p.requires_grad for p in thing.parameters()] == [True, True, False, False]
        thing.untoggle_optimizer(first)
    assert all(p.requires_grad for p in thing.parameters())


def test_modules_inside_find_the_trainer_too():
    class Outer(Module):
        def __init__(self):
            super().__init__()
            self.inner = Module()

    thing = Outer()
    with running(thing, epoch=2):
        assert thing.inner.current_epoch == 2
    assert thing.inner._trainer is None


@KINDS
def test_a_copy_of_the_module_is_no_copy_of_the_job(base):
    thing = base()
    with running(thing) as job:
        twin = copy.deepcopy(thing)  # a teacher, say
        assert twin.net.weight is not thing.net.weight
        assert twin.log.__self__ is job.task.preparation.log
        assert twin.optimizers() is thing.optimizers()


def test_hyperparameters():
    class Saves(Module):
        def __init__(self, width=3, lr=0.25):
            super().__init__()
            self.save_hyperparameters()

        def configure_optimizers(self):
            return SGD(self.net.parameters(), lr=self.hparams.lr)

    t = task(Saves())
    assert t.implied["lr"] == 0.25
    with t.running(Settings(lr=0.5)):
        assert t.module.hparams == {"width": 3, "lr": 0.5}
    assert t.module.hparams.lr == 0.25


def test_a_job_within_a_job():
    """A trial in the middle of a fit: the fit's own place is found again behind it."""
    thing = Duck()
    with running(thing, epoch=3) as job:
        outer = thing.optimizers()
        with job.task.running(Settings(max_epochs=1)):
            job.task.configure(Settings(max_epochs=1), 1)
            assert thing.trainer.max_epochs == 1
        assert (thing.trainer.current_epoch, thing.trainer.max_epochs) == (3, 10)
        assert thing.optimizers() is outer


def test_it_can_be_sent_to_another_process():
    t = pickle.loads(pickle.dumps(task(Module())))
    with t.running(Settings()):
        t.configure(Settings(), 1)
        assert t.module.trainer.max_epochs == 10
    with running(Duck()) as job:
        job.task.training_step(torch.ones(2, 3), 0)
        other = pickle.loads(pickle.dumps(job.task))
        assert other.preparation.trainer.progress.state.epoch == 0
