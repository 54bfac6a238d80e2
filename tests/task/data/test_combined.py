"""Several loaders as one, against Lightning's CombinedLoader and its Trainer."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import workbench as wb
from tests.engine.problems import labelled
from tests.lightning.both import boring, by_lightning, by_workbench, rows
from workbench.task.data.combined import Combined, CombinedBatches, combined_in
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError

combined_loader = importlib.import_module("lightning.pytorch.utilities").CombinedLoader
pytestmark = pytest.mark.usefixtures("one_thread")

MODES = ["max_size_cycle", "max_size", "min_size", "sequential"]
SHAPES = {
    "list": lambda a, b: [a, b], "dict": lambda a, b: {"a": a, "b": b}, "tuple": lambda a, b: (b, a),
    "nested": lambda a, b: {"pair": [a, b], "again": b},
}  # fmt: skip


def loaders(**more):
    return DataLoader(rows(7, 1, 3), batch_size=2, **more), DataLoader(
        rows(9, 2, 3), batch_size=1, **more
    )


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(same, one, other))
    return one is other if one is None or other is None else torch.equal(one, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_the_batches_are_lightnings(mode, shape):
    given = SHAPES[shape](*loaders(shuffle=True))
    torch.manual_seed(0)
    theirs = [batch for batch, *_ in combined_loader(given, mode)]
    torch.manual_seed(0)
    ours = combined_in(combined_loader(given, mode))
    assert len(ours) == len(theirs)
    assert all(map(same, list(ours), theirs))


class Pairs(boring.BoringModel):
    def training_step(self, batch, batch_idx):
        loss = self.step(batch["a"]) + 0.5 * self.step(batch["b"])
        self.log("loss_of_both", loss)
        return loss


def pair():
    return {"a": DataLoader(rows(8, 1), batch_size=2), "b": DataLoader(rows(6, 2), batch_size=1)}


@pytest.mark.parametrize("where", ["given", "module"])
def test_a_fit_takes_lightnings_steps(where, tmp_path):
    kind = (
        Pairs
        if where == "given"
        else type("Own", (Pairs,), {"train_dataloader": lambda self: pair()})
    )
    how = {"train": pair()} if where == "given" else {}
    how = {**how, "hooks": [], "max_epochs": 2, "limit_val_batches": 0}
    theirs = by_lightning(kind, **how)
    ours = by_workbench(kind, tmp_path, **how)
    assert ours.extra["result"].step == theirs.extra["trainer"].global_step == 12
    torch.testing.assert_close(ours.module.state_dict(), theirs.module.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["max_size_cycle", "sequential"])
def test_a_resumed_fit_goes_on_with_the_same_batches(mode, tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 3)

        def forward(self, *batch):
            pairs = batch if isinstance(batch[0], (list, tuple)) else [batch]
            return {"loss": sum(F.cross_entropy(self.layer(x), y) for x, y in pairs)}

    def fit(root, **more):
        given = combined_loader(
            [
                DataLoader(labelled(12), 2, shuffle=True),
                DataLoader(labelled(9, 1), 3, shuffle=True),
            ],
            mode,
        )
        with wb.Workbench(
            Net(), train=given, root=root, accelerator="cpu", max_epochs=2, **more
        ) as made:
            run = made.fit().result()
            return made.fit(start=run.id, max_steps=None).result() if more else run

    whole, rest = fit(tmp_path / "whole"), fit(tmp_path / "part", max_steps=4)
    assert len(whole.history["loss"]) == (12 if mode == "max_size_cycle" else 18)
    assert whole.history["loss"][-3:].tolist() == rest.history["loss"][-3:].tolist()


def test_samplers_and_data_sets_know_the_epoch():
    data = TensorDataset(rows(8))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    made = Combined([DataLoader(data, 2, sampler=sampler), DataLoader(data, 2)], "min_size")
    made.set_epoch(3)
    assert sampler.epoch == 3


def test_what_is_no_combination_of_loaders():
    data = labelled(8)
    assert combined_in([data, data]) is None
    assert isinstance(DataSpec.of("train", list(loaders())).parts.dataset, CombinedBatches)
    with pytest.raises(TaskError, match="ConcatDataset"):
        DataSpec.of("train", [data, data])
    with pytest.raises(TaskError, match=r"collate_fn= has no effect on train"):
        DataSpec.of("train", list(loaders()), collate_fn=lambda samples: samples)
    assert DataSpec.of("val", combined_loader(list(loaders()), "sequential")).several
    assert not DataSpec.of("val", combined_loader(list(loaders()), "min_size")).several


@pytest.mark.parametrize("given", [{"a": 2, "b": 3}, None])
def test_one_process_reads_loaders_that_draw_their_order(given):
    """Worker processes would each draw another order, and take their share of it."""
    data = TensorDataset(rows(8))
    train = (
        {key: DataLoader(data, size, shuffle=True) for key, size in given.items()}
        if given
        else wb.batches(DataLoader(data, 2, shuffle=True))
    )
    spec = DataSpec.of("train", train)
    assert spec.loader(wb.Settings(num_workers=2), train=True).num_workers == 0
    with pytest.raises(
        wb.SettingsError, match="num_workers=2 has no effect on train, since loaders of your own"
    ):
        spec.refuse_unused({"num_workers": 2}, train=True)


def test_export_refuses_them_by_name(tmp_path):
    both = pair()
    with wb.Workbench(
        Pairs(), train=both, root=tmp_path, accelerator="cpu", max_steps=1, limit_val_batches=0
    ) as made:
        made.fit().result()
        with pytest.raises(wb.ExportError, match="train has several loaders side by side"):
            made.script(format="script")


def test_a_plain_loss_needs_pairs(tmp_path):
    given = [DataLoader(labelled(8), 2), DataLoader(labelled(6), 2)]
    with pytest.raises(
        TaskError,
        match=r"train holds several loaders, and with loss= a batch must be \(x, y\).*ConcatDataset",
    ):
        wb.Workbench(nn.Linear(6, 3), train=given, loss=F.cross_entropy, root=tmp_path)
