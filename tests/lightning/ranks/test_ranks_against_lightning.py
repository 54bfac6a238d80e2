"""Two processes of Lightning's DDP beside two ranks: the same weights, checks and logged values, hook by hook."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from tests.lightning.both import Losses, pl, trainer
from tests.lightning.ranks.rank_fits import Net, batches, fit, pairs
from tests.on_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")


class Both(Net):
    """Logs, clips and looks at gradients where both do it alike."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("synced", loss, sync_dist=True)
        self.log("train_mean", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("train_max", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        return loss

    def on_after_backward(self):
        self.seen.append(("backward", self.net[0].weight.grad.norm().item()))
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.3, 0.3)

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(("step", self.net[0].weight.grad.norm().item()))

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)
        self.log("val_sum", batch[0].sum(), sync_dist=True, reduce_fx="sum")

    def on_validation_epoch_end(self):
        self.log("val_rank", float(self.global_rank), sync_dist=True)

    def on_train_epoch_end(self):
        self.seen.append(
            ("epoch", self.global_step, self.trainer.world_size, self.trainer.num_training_batches)
        )


class Records(pl.Callback):
    """What Lightning says at the ends of epochs."""

    def __init__(self):
        self.checks, self.steps = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.steps.append(float(trainer.callback_metrics["synced"]))

    def on_train_end(self, trainer, module):
        self.ends = {name: float(value) for name, value in trainer.callback_metrics.items()}


def by_lightning():
    """This process as one of Lightning's, in the group that is there already, with its sampler."""
    rank = torch.distributed.get_rank()
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "1",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }
    os.environ.pop("WORKBENCH_RANK")
    torch.set_num_threads(1)
    module, records, losses = Both(), Records(), Losses()
    host = trainer(
        devices=2, strategy="ddp", max_epochs=2, num_sanity_val_steps=0, use_distributed_sampler=False,
        callbacks=[records, losses], gradient_clip_val=0.2,
    )  # fmt: skip

    def own(n, seed=1):
        data = pairs(n, seed)
        dealt = [i for start in range(4 * rank, n, 8) for i in range(start, min(start + 4, n))]
        return DataLoader(torch.utils.data.Subset(data, dealt), batch_size=4)

    host.fit(module, own(24), own(16, 2))
    return {
        "seen": module.seen,
        "weights": module.net.state_dict(),
        "ends": records.ends,
        "steps": records.steps,
    }


def by_workbench():
    found = fit(Both(), batches(24, 4), batches(16, 4, 2), gradient_clip_val=0.2)
    ends = {**found["epochs"][-1][1], **found["checks"][-1][1]}
    weights = {name.removeprefix("net."): value for name, value in found["weights"].items()}
    return {
        "seen": found["seen"],
        "weights": weights,
        "ends": ends,
        "steps": found["steps"]["synced"].tolist(),
    }


def test_as_two_processes_of_lightning():
    theirs, ours = on_ranks(2, by_lightning), on_ranks(2, by_workbench)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one["weights"], other["weights"], rtol=1e-5, atol=1e-7)
        assert [told[0] for told in one["seen"]] == [told[0] for told in other["seen"]]
        for a, b in zip(one["seen"], other["seen"], strict=True):
            assert a[1:] == pytest.approx(b[1:], rel=1e-4)
        assert one["steps"] == pytest.approx(other["steps"], rel=1e-4)
        for name in ("train_mean", "train_max", "val_loss", "val_sum", "val_rank"):
            assert one["ends"][name] == pytest.approx(other["ends"][name], rel=1e-4), name
