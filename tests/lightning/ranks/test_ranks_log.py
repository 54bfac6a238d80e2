"""What several ranks log: epochs and checks are over all samples, updates are rank 0's or (sync_dist) of all ranks."""

import importlib

import numpy as np
import pytest
import torch

from tests.lightning.ranks.rank_fits import Net, alone, batches, pairs, ranks, same
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def spread(values):
    return values.max() - values.min()


def total(values):
    return values.sum()


class Logs(Net):
    """One value of each kind."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("x", loss, on_step=True, on_epoch=True)
        self.log("synced", loss, sync_dist=True)
        self.log("worst", loss, sync_dist=True, reduce_fx="max")
        for how in ("mean", "sum", "min", "max"):
            self.log(
                f"epoch_{how}", batch[0].abs().sum(), on_step=False, on_epoch=True, reduce_fx=how
            )
        self.log("spread", batch[0].mean(), on_step=False, on_epoch=True, reduce_fx=spread)
        self.log("heavy", loss, on_step=False, on_epoch=True, batch_size=3)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))
        self.log("val_batches", 1.0, reduce_fx="sum")

    def on_validation_epoch_end(self):
        self.seen.append(("check", float(self.trainer.callback_metrics["val_loss"])))
        self.log("rank", float(self.global_rank))

    def on_train_epoch_end(self):
        self.seen.append(("epoch", float(self.trainer.callback_metrics["epoch_sum"])))


def by_hand(n=21, size=4):
    """What each batch logs, without training: sums of what lies in the data."""
    return list(batches(n, size))


def test_epochs_are_over_all_samples():
    """21 samples: six batches, three for each rank; the last one is of one sample."""
    first, _ = ranks(Logs, 21)
    data = by_hand()
    sums = torch.stack([x.abs().sum() for x, _ in data])
    weights = torch.tensor([float(len(x)) for x, _ in data])
    means = torch.stack([x.mean() for x, _ in data])
    assert len(first["epochs"]) == 2
    for _, metrics in first["epochs"]:
        assert metrics["epoch_mean"] == pytest.approx(
            float((sums * weights).sum() / weights.sum()), rel=1e-5
        )
        assert metrics["epoch_sum"] == pytest.approx(float(sums.sum()), rel=1e-5)
        assert metrics["epoch_min"] == pytest.approx(float(sums.min()))
        assert metrics["epoch_max"] == pytest.approx(float(sums.max()))
        assert metrics["spread"] == pytest.approx(float(means.max() - means.min()), rel=1e-5)


def test_as_one_process_has_it():
    found, other = ranks(Logs, 24, 11), alone(Logs, 24, 11)
    same(found[0], other)
    assert len(found[0]["epochs"]) == len(found[0]["checks"]) == 2
    for (_, ours), (_, one) in zip(found[0]["epochs"], other["epochs"], strict=True):
        assert ours["x_epoch"] == ours["x"] == pytest.approx(one["x_epoch"], rel=1e-4)
        assert ours["heavy"] == pytest.approx(one["heavy"], rel=1e-4)
    for (_, ours), (_, one) in zip(found[0]["checks"], other["checks"], strict=True):
        assert ours["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)
        assert (ours["val_batches"], ours["rank"]) == (3.0, 0.5)
    for rank in found:  # the hooks of an end find there what all have come to
        told = [value for kind, value in rank["seen"] if kind == "check"]
        assert told == pytest.approx(
            [metrics["val_loss"] for _, metrics in found[0]["checks"]], rel=1e-5
        )
        told = [value for kind, value in rank["seen"] if kind == "epoch"]
        assert told == pytest.approx(
            [metrics["epoch_sum"] for _, metrics in found[0]["epochs"]], rel=1e-5
        )


def test_updates():
    """Without sync_dist a rank has its own; with it all have the mean, also where a rank had no batch."""
    first, second = ranks(Logs, 20)  # five batches: the third update is rank 0's alone
    np.testing.assert_array_equal(first["steps"]["synced"], second["steps"]["synced"])
    whole, theirs = [0, 1, 3, 4], second["steps"]["x_step"]
    mine = first["steps"]["x_step"]
    own = np.stack([mine[whole], theirs[np.isfinite(theirs)]])
    assert np.abs(own[0] - own[1]).min() > 0
    np.testing.assert_allclose(first["steps"]["synced"][whole], own.mean(0), rtol=1e-5)
    np.testing.assert_allclose(first["steps"]["worst"][whole], own.max(0), rtol=1e-5)
    np.testing.assert_allclose(first["steps"]["synced"][[2, 5]], mine[[2, 5]], rtol=1e-5)


class Sees(Net):
    """Logs what one rank alone comes across, each in its way."""

    def __init__(self):
        super().__init__()
        self.metric = importlib.import_module("torchmetrics").MeanMetric()
        self.plain = Counts()

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1 and batch_idx == 1:
            self.log("of_one", 3.0, on_step=False, on_epoch=True)
            self.log("of_one_own", 3.0, on_step=False, on_epoch=True, reduce_fx=total)
        self.log(
            "of_first",
            float(self.global_rank + 1),
            on_step=False,
            on_epoch=True,
            rank_zero_only=True,
        )
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.metric.update(batch[0].sum(), weight=len(batch[0]))
        self.log("val_metric", self.metric)
        self.plain.update(len(batch[0]))
        self.log("val_plain", self.plain)
        self.log("val_loss", self.loss(batch))


class Counts:
    """A metric that knows nothing of ranks, but how often it is asked."""

    def __init__(self):
        self.total = self.asked = 0

    def update(self, value):
        self.total += value

    def compute(self):
        self.asked += 1
        if not self.total:
            raise ZeroDivisionError("nothing was seen")
        return self.total

    def reset(self):
        self.total = 0


class Asked(Sees):
    """Writes down how often its metric was asked."""

    def on_fit_start(self):
        self.plain.asked = 0

    def on_fit_end(self):
        self.seen.append(self.plain.asked)


def test_what_not_all_ranks_log():
    """One batch of validation data is rank 0's alone: nobody waits for ever, and metrics are asked on both ranks."""
    found = ranks(Asked, 16, 3)
    for _, metrics in found[0]["epochs"]:
        assert (metrics["of_one"], metrics["of_one_own"], metrics["of_first"]) == (3.0, 3.0, 1.0)
    whole = float(pairs(3, 2).tensors[0].sum())
    for _, metrics in found[0]["checks"]:
        assert metrics["val_metric"] == pytest.approx(whole, rel=1e-5)
        assert metrics["val_plain"] == 3.0
    assert found[0]["seen"] == found[1]["seen"] == [2]


def test_a_metric_that_gathers_its_state_is_over_all_samples():
    found = ranks(Sees, 16, 11)
    data = by_hand_of(11)
    whole = sum(float(x.sum()) * len(x) for x in data) / sum(len(x) for x in data)
    assert [metrics["val_metric"] for _, metrics in found[0]["checks"]] == pytest.approx(
        [whole] * 2, rel=1e-4
    )
    # the mean over ranks
    assert [metrics["val_plain"] for _, metrics in found[0]["checks"]] == [(4 + 3 + 4) / 2] * 2


def by_hand_of(n):
    return [x for x, _ in batches(n, 4, 2)]


def test_a_metric_that_the_others_do_not_find():
    class Fresh(Net):
        def validation_step(self, batch, batch_idx):
            metric = Counts()
            metric.update(1)
            self.log("val_fresh", metric)

    with pytest.raises(TaskError, match=r"val_fresh.*1 of 2 ranks.*attribute of the module"):
        ranks(Fresh, 16, 3)


def test_a_metric_that_keeps_a_list():
    """Its library would wait for ever."""

    class Lists(Net):
        def __init__(self):
            super().__init__()
            self.metric = importlib.import_module("torchmetrics").SpearmanCorrCoef()

        def validation_step(self, batch, batch_idx):
            self.metric.update(self.net(batch[0]).flatten(), batch[1].flatten())
            self.log("val_list", self.metric)

    with pytest.raises(
        TaskError, match=r"val_list.*SpearmanCorrCoef.*only 1 of 2 ranks had a batch"
    ):
        ranks(Lists, 16, 3)


class Stops(Net):
    """Asks for the end on one rank; watches a value that each rank has of its own."""

    def training_step(self, batch, batch_idx):
        self.log("own", float(self.global_rank - self.global_step), on_step=True)
        if self.global_rank == 1 and self.global_step == 5:
            self.trainer.should_stop = True
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def test_one_rank_asks_for_the_end():
    found = ranks(Stops, 32, 8, max_epochs=5)
    assert [len(rank["loss"]) for rank in found] == [6, 6]


def test_decisions_are_the_same_on_all_ranks():
    """Early stopping on a value of single updates, which is rank 0's for all."""
    found = ranks(
        Stops,
        16,
        8,
        max_epochs=2,
        early_stopping={"monitor": "own", "stopping_threshold": -0.5, "mode": "min"},
    )
    assert [len(rank["loss"]) for rank in found] == [2, 2]
