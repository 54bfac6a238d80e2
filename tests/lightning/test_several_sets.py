"""Several validation and test loaders of a module: names, values and hooks as with Lightning's Trainer."""

import importlib

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, SumMetric

import workbench as wb
from tests.lightning.both import boring, by_lightning, by_workbench, loader, rows, same_order
from workbench.task.errors import TaskError

combined_loader = importlib.import_module("lightning.pytorch.utilities").CombinedLoader
pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("clean", "shifted")


def held_out():
    return [loader(12, 4, 3), loader(10, 4, 4)]


class Several(boring.BoringModel):
    """Logs in all places, in all ways."""

    def __init__(self):
        super().__init__()
        self.shared, self.own = SumMetric(), torch.nn.ModuleList([MeanMetric(), MeanMetric()])

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = self.step(batch)
        self.log("val_loss", loss)
        self.log("largest", batch.max(), on_epoch=True, reduce_fx="max", prog_bar=True)
        self.log(f"{NAMES[dataloader_idx]}_loss", loss, add_dataloader_idx=False)
        self.shared.update(batch.sum())
        self.own[dataloader_idx].update(loss)
        self.log("shared", self.shared)
        self.log("own", self.own[dataloader_idx])
        return {"x": loss}

    def test_step(self, batch, batch_idx, dataloader_idx):
        self.log("test_loss", self.step(batch) + dataloader_idx)

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("at_end", float(batch_idx + 10 * dataloader_idx))

    def on_validation_epoch_end(self):
        found = self.trainer.callback_metrics
        if "val_loss/dataloader_idx_0" in found:
            self.log(
                "both", found["val_loss/dataloader_idx_0"] + found["val_loss/dataloader_idx_1"]
            )

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch + dataloader_idx


def numbers(metrics):
    return {name: pytest.approx(float(value), rel=1e-5) for name, value in metrics.items()}


def test_names_and_values(tmp_path):
    how = {"train": loader(), "val": held_out(), "max_epochs": 2}
    theirs = by_lightning(Several, hooks=[], **how).extra["trainer"].callback_metrics
    ours = by_workbench(Several, tmp_path, hooks=[], **how).extra["result"].metrics
    assert {
        "val_loss/dataloader_idx_1",
        "largest/dataloader_idx_0",
        "shifted_loss",
        "shared/dataloader_idx_1",
        "both",
    } <= set(theirs)
    assert {name: ours[name] for name in theirs if name in ours} == numbers(theirs)
    assert set(theirs) <= set(ours)
    assert {name for name in ours if "/" in name} == {name for name in theirs if "/" in name}


@pytest.mark.parametrize(
    "given",
    [
        held_out,
        lambda: dict(zip("ab", held_out(), strict=True)),
        lambda: combined_loader(held_out(), "sequential"),
    ],
    ids=["list", "dict", "combined"],
)
def test_loaders_of_the_module_itself(given, tmp_path):
    class Own(Several):
        def train_dataloader(self):
            return loader()

        def val_dataloader(self):
            return given()

        test_dataloader = val_dataloader

    theirs = by_lightning(Own, "test", hooks=[]).extra["result"]
    ours = by_workbench(Own, tmp_path, "test", hooks=[]).extra["result"]
    assert ours == numbers({name: value for one in theirs for name, value in one.items()})
    fitted = by_workbench(Own, tmp_path, hooks=[]).extra["result"].metrics
    assert "val_loss/dataloader_idx_1" in fitted


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_hooks_in_lightnings_order(verb, tmp_path):
    same_order(
        Several, tmp_path, verb, train=loader(), val=held_out(), limit_val_batches=2, values=False
    )


class Returns(boring.BoringModel):
    """Logs nothing; what the step returns is recorded."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return self.step(batch)


def test_a_returned_loss_has_the_number_of_its_set(tmp_path):
    found = (
        by_workbench(Returns, tmp_path, train=loader(), val=held_out(), hooks=[])
        .extra["result"]
        .metrics
    )
    assert {"val_loss/dataloader_idx_0", "val_loss/dataloader_idx_1"} <= set(found)


@pytest.mark.parametrize(
    "hook", ["validation_step", "on_validation_batch_start", "on_validation_batch_end"]
)
def test_a_hook_that_takes_no_number_is_refused(hook, tmp_path):
    arguments = {
        "validation_step": lambda self, batch, batch_idx: self.step(batch),
        "on_validation_batch_start": lambda self, batch, batch_idx: None,
    }
    function = arguments.get(hook, lambda self, outputs, batch, batch_idx: None)
    function.__name__ = hook
    thing = type("Mine", (Returns,), {hook: function})
    with pytest.raises(RuntimeError, match="no `dataloader_idx`"):
        by_lightning(thing, train=loader(), val=held_out(), hooks=[])
    with pytest.raises(
        TaskError, match=rf"Mine\.{hook} takes no dataloader_idx: add dataloader_idx=0"
    ):
        wb.Workbench(thing(), train=loader(), val=held_out(), root=tmp_path)


def test_a_name_of_several_sets_without_their_number_is_refused(tmp_path):
    class Same(Returns):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", self.step(batch), add_dataloader_idx=False)

    with pytest.raises(Exception, match="twice in `validation_step`"):
        by_lightning(Same, train=loader(), val=held_out(), hooks=[])
    with pytest.raises(
        TaskError, match=r"self\.log\('val_loss', add_dataloader_idx=False\).*several sets"
    ):
        wb.Workbench(Same(), train=loader(), val=held_out(), root=tmp_path)


@pytest.mark.parametrize(
    ("name", "near"), [("val_loss", "_[01]"), ("val_loss/1", "_1"), ("val_loss/clean", "_[01]")]
)
def test_an_unknown_monitor_suggests_the_name_of_a_set(name, near, tmp_path):
    class Plain(boring.BoringModel):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("val_loss", self.step(batch))

    made = wb.Workbench(
        Plain(), train=loader(8), val=held_out(), root=tmp_path, accelerator="cpu", max_epochs=1
    )
    with pytest.raises(TaskError, match=f"Did you mean 'val_loss/dataloader_idx{near}'"):
        made.fit(monitor=name).result()


def test_a_sanity_check_and_the_numbers_of_batches(tmp_path):
    seen = []

    class Counts(Returns):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            if self.trainer.sanity_checking:
                seen.append(
                    (
                        dataloader_idx,
                        batch_idx,
                        tuple(self.trainer.num_val_batches),
                        tuple(self.trainer.num_sanity_val_batches),
                    )
                )
            return self.step(batch)

    by_lightning(Counts, train=loader(), val=held_out(), hooks=[], num_sanity_val_steps=2)
    theirs, seen[:] = list(seen), []
    by_workbench(Counts, tmp_path, train=loader(), val=held_out(), hooks=[], num_sanity_val_steps=2)
    assert (
        seen
        == theirs
        == [
            (0, 0, (3, 3), (2, 2)),
            (0, 1, (3, 3), (2, 2)),
            (1, 0, (3, 3), (2, 2)),
            (1, 1, (3, 3), (2, 2)),
        ]
    )


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])
def test_a_combined_loader_gives_its_batches_together(mode, tmp_path):
    class Together(boring.BoringModel):
        def validation_step(self, batch, batch_idx):
            there = [one for one in batch if one is not None]
            self.log("val_loss", sum(self.step(one) for one in there) / len(there), batch_size=4)

        def val_dataloader(self):
            return combined_loader([loader(), loader(12, seed=5)], mode)

    theirs = by_lightning(Together, train=loader(), hooks=[]).extra["trainer"].callback_metrics
    ours = by_workbench(Together, tmp_path, train=loader(), hooks=[]).extra["result"].metrics
    assert ours["val_loss"] == numbers(theirs)["val_loss"]


def test_loaders_that_are_no_sets_are_refused(tmp_path):
    for returned in ([rows(4), rows(4)], [loader(), [loader()]], {}):

        class Wrong(Returns):
            def val_dataloader(self, made=returned):
                return made

        with pytest.raises(
            TaskError, match=r"val_dataloader\(\) returned \w+; one DataLoader is needed"
        ):
            wb.Workbench(Wrong(), train=DataLoader(rows(), 4), root=tmp_path)
