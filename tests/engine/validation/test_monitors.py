"""A metric that is to be followed and that nothing reports is found before anything is lost."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import workbench as wb
from tests.lightning.both import boring, loader
from workbench.engine.metrics.epoch_loss import EpochLoss
from workbench.events import StepsDone, pack
from workbench.task.errors import TaskError

DATA = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def accuracy(output, y):
    return (output.argmax(-1) == y).float().mean()


def bench_of(root, val=DATA, **settings):
    torch.manual_seed(0)
    given = {
        "batch_size": 4,
        "max_epochs": 2,
        "accelerator": "cpu",
        "metrics": {"accuracy": accuracy},
        **settings,
    }
    return wb.Workbench(
        nn.Linear(4, 3), train=DATA, val=val, loss=nn.functional.cross_entropy, root=root, **given
    )


WRONG = {
    "monitor": ({"monitor": "val_acuracy"}, "val_accuracy"),
    "early stopping": ({"early_stopping": "val_acuracy"}, "val_accuracy"),
    "a name of the training": ({"early_stopping": wb.EarlyStopping("training_loss")}, "train_loss"),
    "averages": ({"monitor": "val_loss_averagd", "weight_averaging": "ema"}, "val_loss_averaged"),
}


@pytest.mark.parametrize(("settings", "near"), WRONG.values(), ids=WRONG)
def test_with_known_metrics_it_is_found_when_it_is_given(tmp_path, settings, near):
    with pytest.raises(wb.SettingsError, match=f"no such metric. Did you mean '{near}'"):
        bench_of(tmp_path, **settings)
    bench = bench_of(tmp_path)
    for call in (bench.set, bench.fit):
        with pytest.raises(wb.SettingsError, match=f"no such metric. Did you mean '{near}'"):
            call(**settings)
    assert bench.jobs == []


def test_a_plateau_is_looked_at_when_the_bench_is_made(tmp_path):
    def watching(optimizer, updates):
        return wb.Schedule(ReduceLROnPlateau(optimizer), monitor="val_acc")

    with pytest.raises(
        TaskError, match=r"the scheduler's monitor 'val_acc'.* Did you mean 'val_accuracy'"
    ):
        bench_of(tmp_path, scheduler=watching)


def test_without_validation_data_there_is_the_training_loss_alone(tmp_path):
    with pytest.raises(wb.SettingsError, match=r"Those of this run are: train_loss."):
        bench_of(tmp_path, val=None, monitor="val_loss")
    with pytest.raises(wb.SettingsError, match=r"Those of this run are: train_loss."):
        bench_of(tmp_path, early_stopping="val_accuracy", limit_val_batches=0)
    assert bench_of(tmp_path, val=None, monitor="train_loss").fit().result().step == 6


@pytest.mark.parametrize(
    "settings",
    [
        {"fast_dev_run": 1, "early_stopping": "nope"},
        {"monitor": "val_nope", "monitor_mode": "min", "save_top_k": 0},
    ],
)
def test_what_is_not_followed_is_not_looked_for(tmp_path, settings):
    bench_of(tmp_path, **settings).fit().result()


# ---- a module that logs, of whose metrics nobody knows beforehand --------------------------------


class Logs(boring.BoringModel):
    """Logs one metric in training and one in checks."""

    silent_in_sanity = False

    def training_step(self, batch, batch_idx):
        self.log("train_acc", 0.5, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)["loss"]

    def validation_step(self, batch, batch_idx):
        if not (self.silent_in_sanity and self.trainer.sanity_checking):
            self.log("val_acc", 0.5)


def module_bench(root, module=None, **settings):
    torch.manual_seed(0)
    given = {"max_epochs": 3, "accelerator": "cpu", **settings}
    return wb.Workbench(
        module or Logs(), train=loader(12), val=loader(8, seed=2), root=root, **given
    )


def updates_of(job):
    return sum(len(event.steps) for event in job.events if isinstance(event, StepsDone))


@pytest.mark.parametrize(
    "settings",
    [{"monitor": "val_accuracy"}, {"early_stopping": wb.EarlyStopping("val_accuracy", mode="max")}],
)
def test_the_sanity_check_shows_that_no_check_reports_it(tmp_path, settings):
    job = module_bench(tmp_path, **settings).fit()
    with pytest.raises(TaskError, match=r"no such metric. Did you mean 'val_acc'"):
        job.result()
    assert updates_of(job) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"monitor": "accuracy"},
        {"early_stopping": wb.EarlyStopping("accuracy", mode="max", patience=9)},
    ],
)
@pytest.mark.parametrize(
    "more", [{}, {"check_val_every_n_epoch": 3}, {"val_check_interval": 0.4}], ids=str
)
def test_what_training_might_have_logged_is_missed_when_an_epoch_is_over_and_nothing_is_lost(
    tmp_path, settings, more
):
    bench = module_bench(tmp_path, **settings, **more)
    job = bench.fit()
    with pytest.raises(
        TaskError,
        match=rf"'accuracy'.*train_acc.* A checkpoint of update 3 was saved: bench.fit\(start='{job.id}'",
    ):
        job.result()
    assert updates_of(job) == 3
    right = (
        {"monitor": "val_acc"}
        if "monitor" in settings
        else {"early_stopping": wb.EarlyStopping("val_acc", patience=9)}
    )
    run = bench.fit(start=job.id, **right).result()
    assert (run.step, run.status) == (9, "finished")
    whole = module_bench(tmp_path, **more).fit().result()
    assert run.history["loss"].tolist()[-6:] == whole.history["loss"].tolist()[-6:]


def test_without_a_sanity_check_it_is_missed_at_the_first_check(tmp_path):
    job = module_bench(
        tmp_path, num_sanity_val_steps=0, monitor="val_accuracy", val_check_interval=1
    ).fit()
    with pytest.raises(TaskError, match="A checkpoint of update 1 was saved"):
        job.result()


@pytest.mark.parametrize("name", ["train_acc", "val_acc"])
def test_a_metric_that_is_there_is_followed(tmp_path, name):
    stops = wb.EarlyStopping(name, mode="max", patience=1)
    run = (
        module_bench(tmp_path, early_stopping=stops, monitor=name, val_check_interval=0.4)
        .fit()
        .result()
    )
    assert run.step < 9


def test_a_module_that_is_silent_in_the_sanity_check_is_not_refused(tmp_path):
    module = Logs()
    module.silent_in_sanity = True
    run = module_bench(tmp_path, module, monitor="val_acc").fit().result()
    assert run.step == 9


def test_a_plateau_that_is_not_strict_waits(tmp_path):
    class Plateau(Logs):
        strict = False

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = ReduceLROnPlateau(optimizer, patience=0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": "val_x", "strict": self.strict},
            }

    class Strict(Plateau):
        strict = True

    run = module_bench(tmp_path, Plateau()).fit().result()
    assert run.history["lr"] == pytest.approx([0.1] * 9)
    with pytest.raises(TaskError, match=r"the scheduler's monitor 'val_x'"):
        module_bench(tmp_path, Strict()).fit().result()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_train_loss_does_not_depend_on_how_many_losses_land_at_once(kind):
    losses = np.random.default_rng(0).standard_normal(200).astype(kind)
    double = ("loss",) if kind is np.float64 else ()
    means = []
    for size in (200, 7):
        mean = EpochLoss()
        for begin in range(0, 200, size):
            part = losses[begin : begin + size]
            mean.add(
                StepsDone(
                    begin, 1, len(part), 0, 0.0, {"loss": pack(part, bool(double))}, double=double
                )
            )
        means.append(mean.metric()["train_loss"])
    assert means == [float(np.cumsum(losses, dtype=np.float64)[-1]) / 200] * 2
