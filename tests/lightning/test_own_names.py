"""What a module logs under a name wins over the workbench's own value of that name, wherever a metric is watched."""

import pytest
import torch
from torch import nn

import workbench as wb
from tests.lightning.both import boring, loader, pl, trainer


class Twice(boring.BoringModel):
    """Its own `train_loss` rises by one each epoch, whatever the loss does."""

    how = {"on_step": False, "on_epoch": True}  # noqa: RUF012

    def training_step(self, batch, batch_idx):
        self.log("train_loss", float(self.current_epoch), **self.how)
        return super().training_step(batch, batch_idx)["loss"]

    def validation_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class AtEachStep(Twice):
    how = {}  # noqa: RUF012  # as Lightning has it in training_step: of single updates


class Both(Twice):
    how = {"on_step": True, "on_epoch": True}  # noqa: RUF012


class Falling(Twice):
    """Under the name that the record has for its own loss."""

    def training_step(self, batch, batch_idx):
        self.log("loss", -float(self.current_epoch), **self.how)
        return boring.BoringModel.training_step(self, batch, batch_idx)["loss"]


def fitted(module, root, **settings):
    settings = {"max_epochs": 6, "accelerator": "cpu", **settings}
    return (
        wb.Workbench(module, train=loader(8), val=loader(8, seed=2), root=root, **settings)
        .fit()
        .result()
    )


@pytest.mark.parametrize("cls", [Twice, AtEachStep, Both])
def test_early_stopping_follows_what_the_module_logs(tmp_path, cls):
    run = fitted(cls(), tmp_path, early_stopping=wb.EarlyStopping("train_loss", patience=2))
    host = trainer(max_epochs=6, callbacks=[pl.callbacks.EarlyStopping("train_loss", patience=2)])
    host.fit(cls(), loader(8), loader(8, seed=2))
    assert run.epochs == host.current_epoch == 3  # best at epoch 0, then two without improvement


def test_early_stopping_follows_a_name_that_the_record_has_for_itself(tmp_path):
    run = fitted(
        Falling(), tmp_path, early_stopping=wb.EarlyStopping("loss", mode="max", patience=2)
    )
    assert run.epochs == 3


def test_the_best_checkpoint_is_by_what_the_module_logs(tmp_path):
    run = fitted(
        Twice(),
        tmp_path,
        monitor="train_loss",
        monitor_mode="min",
        save_top_k=1,
        checkpoint_every=2,
        max_epochs=3,
    )
    assert sorted(one.value for one in run.checkpoints) == [0.0, 2.0]  # the best, and the last
    assert run.metrics["train_loss"] == 2.0


@pytest.mark.parametrize("cls", [Twice, AtEachStep, Both])
def test_a_plateau_follows_what_the_module_logs(tmp_path, cls):
    class Plateau(cls):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, factor=0.5
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": self.plateau, "monitor": "train_loss"},
            }

    module = Plateau()
    fitted(module, tmp_path, max_epochs=3)
    assert module.plateau.best == 0.0
    # the loss falls; what it logs does not
    assert module.plateau.optimizer.param_groups[0]["lr"] == 0.01 / 4


def test_between_the_ends_of_epochs_a_value_of_epochs_is_waited_for(tmp_path):
    """At a check in the middle of an epoch our mean of the losses does not stand in for the module's own value."""
    stops = wb.EarlyStopping("train_loss", patience=2)
    run = fitted(Twice(), tmp_path, early_stopping=stops, val_check_interval=0.5)
    assert run.epochs == 3


def test_callback_metrics_have_the_modules_own_value(tmp_path):
    seen = []

    class Asks(Twice):
        def on_train_epoch_end(self):
            seen.append(float(self.trainer.callback_metrics["train_loss"]))

        def on_train_epoch_start(self):
            seen.append(self.trainer.callback_metrics.get("train_loss"))

    fitted(Asks(), tmp_path, max_epochs=2)
    assert seen[-4:] == [None, 0.0, 0.0, 1.0]


def test_without_a_value_of_its_own_train_loss_is_the_mean_of_the_epoch(tmp_path):
    net = nn.Linear(32, 1)
    data = torch.randn(8, 32), torch.randn(8, 1)
    bench = wb.Workbench(
        net,
        train=data,
        loss=nn.functional.mse_loss,
        batch_size=4,
        max_epochs=1,
        root=tmp_path,
        monitor="train_loss",
        accelerator="cpu",
    )
    run = bench.fit().result()
    assert run.checkpoints[-1].value == pytest.approx(float(run.history["loss"].mean()))
