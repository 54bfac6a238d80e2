"""Checks of the validation data: when they come, what they leave alone, and what they find before training begins."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import workbench as wb
from tests.engine.problems import labelled, noisy_net
from workbench.events import Message, StepsDone
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def bench(tmp_path, val=None, model=None, **settings):
    calm = {"max_epochs": 2, "batch_size": 10, "root": tmp_path}
    return wb.Workbench(
        model or noisy_net(),
        train=labelled(),
        val=val or labelled(30, seed=2),
        loss=F.cross_entropy,
        **{**calm, **settings},
    )


@pytest.mark.parametrize("steps", [0, 1, -1])
def test_the_check_before_the_first_update_leaves_no_trace(tmp_path, steps):
    """Also with a validation loader that shuffles, and a model that counts its forwards in evaluation mode."""

    def val():
        return DataLoader(
            labelled(30, seed=2), 10, shuffle=True, generator=torch.Generator().manual_seed(5)
        )

    b = bench(tmp_path, val(), num_sanity_val_steps=steps)
    run = b.fit().result()
    usual = bench(tmp_path, val(), num_sanity_val_steps=2).fit().result()
    np.testing.assert_array_equal(run.history["loss"], usual.history["loss"])
    np.testing.assert_array_equal(run.validation["val_loss"], usual.validation["val_loss"])
    assert list(run.validation["step"]) == [5, 10]


class LateTrouble(nn.Module):
    """Cannot be evaluated on a full batch; the two samples that are tried at once are no problem."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        if not self.training and len(x) > 2:
            raise RuntimeError("cannot evaluate")
        return self.last(x)


def test_a_mistake_in_validation_shows_before_the_first_update(tmp_path):
    job = bench(tmp_path, model=LateTrouble()).fit()
    with pytest.raises(RuntimeError, match="cannot evaluate"):
        job.result()
    assert not any(isinstance(event, StepsDone) for event in job.events)


@pytest.mark.parametrize("settings", [{}, {"limit_val_batches": 0}, {"weight_averaging": "ema"}])
def test_a_monitor_that_nothing_reports_is_named_before_the_first_update(tmp_path, settings):
    with pytest.raises(wb.SettingsError, match=r"'val_acuracy'.*train_loss"):
        bench(tmp_path, early_stopping="val_acuracy", **settings)


def test_averaged_metrics_can_be_monitored(tmp_path):
    b = bench(tmp_path, max_epochs=9, weight_averaging="ema", early_stopping=wb.EarlyStopping(
        monitor="val_loss_averaged", patience=1, min_delta=50.0))  # fmt: skip
    run = b.fit().result()
    assert len(run.validation["val_loss_averaged"]) == 2
    assert run.status == "finished"


def test_a_monitor_of_the_average_waits_for_the_first_one(tmp_path):
    """SWA from the third epoch on: the first two checks have nothing to say to it."""
    patient = wb.EarlyStopping(monitor="val_loss_averaged", patience=2, min_delta=50.0)
    run = (
        bench(
            tmp_path,
            max_epochs=9,
            weight_averaging="swa",
            swa_epoch_start=2,
            early_stopping=patient,
        )
        .fit()
        .result()
    )
    assert list(run.validation["step"]) == [5, 10, 15, 20, 25]


def test_a_monitor_of_the_training_loss_passes_over_epochs_without_a_recorded_update(tmp_path):
    """5 updates an epoch, and every seventh is recorded: 0, 7, 14, 21, 28 lie in all epochs but the fourth."""
    never = wb.EarlyStopping(monitor="train_loss", patience=3, min_delta=50.0)
    run = bench(tmp_path, max_epochs=9, log_every_n_steps=7, early_stopping=never).fit().result()
    assert list(run.validation["step"]) == [5, 10, 15, 20, 25]


def test_the_averaged_weights_are_scored_and_handed_over_the_same(tmp_path):
    """What the last check says of the average is what the model that comes back scores."""
    b = bench(tmp_path, weight_averaging="ema", ema_decay=0.8, lr=0.05)
    run = b.fit().result()
    again = b.validate().result()
    assert again["val_loss"] == pytest.approx(run.metrics["val_loss_averaged"], rel=1e-6)
    assert again["val_loss"] != pytest.approx(run.metrics["val_loss"], rel=1e-3)


class Stopper:
    """Hears the run and stops it after some updates."""

    def __init__(self):
        self.job = None

    def __call__(self, event):
        if isinstance(event, StepsDone) and event.step > 20 and self.job is not None:
            self.job.stop()


def test_a_stopped_run_hands_over_its_average(tmp_path):
    """SWA from the first epoch on: the model that comes back is the mean of epoch ends, not the last weights."""

    def stopped(**averaging):
        b = bench(tmp_path, max_epochs=100000, lr=0.05, shuffle=False, **averaging)
        stopper = Stopper()
        b.subscribe(stopper)
        stopper.job = b.fit()
        run = stopper.job.result()
        assert run.status == "stopped"
        return b.validate().result()["val_loss"], run

    score, run = stopped(weight_averaging="swa", swa_epoch_start=0)
    assert score != pytest.approx(float(run.validation["val_loss"][-1]), rel=1e-4)
    assert score == pytest.approx(float(run.validation["val_loss_averaged"][-1]), rel=0.2)


def test_several_monitors_each_can_end_the_run(tmp_path):
    never = wb.EarlyStopping(monitor="val_loss", patience=1000)
    soon = wb.EarlyStopping(monitor="train_loss", stopping_threshold=10.0)
    run = bench(tmp_path, max_epochs=9, early_stopping=[never, soon]).fit().result()
    assert list(run.validation["step"]) == [5]


def test_a_batch_of_none_and_a_step_of_none_are_left_out(tmp_path):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.last = nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            x = batch[0]
            return None if float(x[0, 0]) < 0 else self.last(x).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [3.0, 1.0], [4.0, 0.5]])
    data = DataLoader(TensorDataset(x), 1)
    run = (
        wb.Workbench(Picky(), train=data, root=tmp_path, max_epochs=1, track_grad_norm=None)
        .fit()
        .result()
    )
    model, losses = Picky(), []
    for row in (x[0:1], x[2:3], x[3:4]):
        loss = model.last(row).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        losses.append(loss.item())
    np.testing.assert_allclose(run.history["loss"], losses, rtol=1e-6)


def test_data_without_an_end_and_statistics_to_refresh(tmp_path):
    """One pass of such data is as long as the epoch was so far."""

    class Endless(IterableDataset):
        def __iter__(self):
            x, y = labelled().tensors
            while True:
                yield from zip(x, y, strict=True)

    b = wb.Workbench(
        noisy_net(), train=Endless(), val=labelled(30, seed=2), loss=F.cross_entropy, root=tmp_path, batch_size=10,
        max_steps=5, weight_averaging="ema", ema_decay=0.5,
    )  # fmt: skip
    run = b.fit().result(timeout=60)
    assert run.status == "finished"
    assert int(b.model[1].num_batches_tracked) == 5


def test_an_average_that_never_began_is_said(tmp_path):
    run = bench(tmp_path, weight_averaging="ema", averaging_start=1000).fit().result()
    assert any(
        "no weights were averaged" in event.text
        for event in run.events
        if isinstance(event, Message)
    )


@pytest.mark.parametrize(
    "avg_fn", [lambda average, current, count: average.sum(), lambda average, current, count: None]
)
def test_an_avg_fn_that_gives_something_else_is_named(tmp_path, avg_fn):
    b = wb.Workbench(
        noisy_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=tmp_path,
        avg_fn=avg_fn,
        weight_averaging="ema",
    )
    with pytest.raises(TaskError, match=r"avg_fn.*of the same shape"):
        b.fit(max_steps=3).result()
