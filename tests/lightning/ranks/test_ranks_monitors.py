"""Several processes: what a module logs wins on all of them, and a metric that nothing reports ends all of them alike."""

import pytest
import torch

import workbench as wb
from tests.lightning.both import boring, loader
from workbench.task.errors import TaskError


class Logs(boring.BoringModel):
    """Its own `train_loss` rises from epoch to epoch."""

    def training_step(self, batch, batch_idx):
        self.log("train_loss", float(self.current_epoch), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)["loss"]

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 0.5)

    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["layer.bias"]


def bench_of(root, **settings):
    torch.manual_seed(0)
    given = {"max_epochs": 6, "accelerator": "cpu", "devices": 2, **settings}
    return wb.Workbench(Logs(), train=loader(16), val=loader(8, seed=2), root=root, **given)


def test_all_processes_follow_the_modules_own_value(tmp_path):
    with bench_of(tmp_path, early_stopping=wb.EarlyStopping("train_loss", patience=2)) as bench:
        assert bench.fit().result().epochs == 3


def test_all_processes_end_behind_one_checkpoint(tmp_path):
    with bench_of(tmp_path, monitor="accuracy") as bench:
        job = bench.fit()
        with pytest.raises(TaskError, match=r"'accuracy'.* A checkpoint of update 2 was saved"):
            job.result()
        run = bench.fit(start=job.id, monitor="val_acc", max_epochs=2).result()
    assert (run.step, run.status) == (4, "finished")
