"""When a fit ends, when it checks the validation data and how much of the data it reads, against the slow twin."""

import datetime
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import workbench as wb
from tests.combinations import pairs
from tests.engine.learners import (
    Learner,
    assert_same,
    assert_same_checks,
    checker,
    column,
    copied,
    fitted,
    supervised,
    twin_run,
)
from tests.engine.problems import labelled, noisy_net, plain_net, sgd
from tests.reference import loop
from tests.reference.technique_parts import Average, multiplier
from tests.reference.techniques import train
from workbench.engine.metrics import meter

pytestmark = pytest.mark.usefixtures("one_thread")
CE = F.cross_entropy
VAL = labelled(21, seed=5)


class Listed(Dataset):
    """The samples of an iterable data set, with a length."""

    def __init__(self, samples):
        self.samples = list(samples)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Endless(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(3)
        while True:
            x = torch.randn(6, generator=g)
            yield x, (x[0] > 0).long()


def compare(tmp_path, techniques, *, epochs=3, loader=None, average=None, **settings):
    model, data = plain_net(), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, loss=CE, val=VAL, max_epochs=epochs, **settings)
    loader = (
        loop.loader_of(data, 8, shuffle=settings.get("shuffle", True)) if loader is None else loader
    )
    record = train(twin, loader, supervised(twin, CE), [sgd(twin.parameters(), lr=0.05)], epochs=epochs, average=average,
                   check=checker(VAL, lambda m, b: CE(m(b[0]), b[1])), **techniques)  # fmt: skip
    assert_same(run, record, model)
    assert run.step == len(record.losses)
    return run, record


# -- validation: 7 batches of 8 an epoch


@pairs("interval, windows", [0.1, 0.3, 0.5, 1.0, 3, 10], [1, 2])
@pytest.mark.parametrize("every", [1, 2])
def test_checks_come_when_they_are_due(interval, windows, every, tmp_path):
    compare(tmp_path, {"check_interval": interval, "check_every_n_epoch": every, "accumulate": windows},
            val_check_interval=interval, check_val_every_n_epoch=every, accumulate_grad_batches=windows)  # fmt: skip


def test_an_int_counts_updates_across_epochs(tmp_path):
    run, _ = compare(tmp_path, {"check_interval": 4}, val_check_interval=4)
    assert run.validation["step"].tolist() == [4, 8, 12, 16, 20, 21]


def test_an_update_is_checked_once(tmp_path):
    """Batches that are left out between two updates are no reason to look again, nor to look before the first."""
    run = fitted(
        Learner(drops=(0, 3)),
        labelled(),
        tmp_path,
        val=VAL,
        val_check_interval=2,
        shuffle=False,
        max_epochs=1,
    )
    assert run.validation["step"].tolist() == [2, 4, 5]


def test_every_moment_is_a_time_to_check(tmp_path):
    run = fitted(
        plain_net(),
        labelled(),
        tmp_path,
        loss=CE,
        val=VAL,
        val_check_interval={"microseconds": 1},
        max_epochs=2,
    )
    assert run.validation["step"].tolist() == list(range(1, 15))


def test_the_end_of_an_epoch_comes_before_its_check(tmp_path):
    """Data without a length: that an update was the epoch's last shows when there is no other."""

    class Sixteen(Endless):
        def __iter__(self):
            return itertools.islice(super().__iter__(), 16)

    seen = {}
    for name, data in {"sized": Listed(Sixteen()), "unsized": Sixteen()}.items():
        run = fitted(plain_net(), data, tmp_path / name, loss=CE, val=VAL, shuffle=False, val_check_interval=2, batch_size=4,
                     weight_averaging="swa", swa_epoch_start=1)  # fmt: skip
        seen[name] = run.validation
    for name in seen["sized"]:
        np.testing.assert_array_equal(seen["sized"][name], seen["unsized"][name], err_msg=name)


def test_a_fraction_counts_within_the_epoch(tmp_path):
    run, _ = compare(tmp_path, {"check_interval": 0.5}, val_check_interval=0.5)
    assert run.validation["step"].tolist() == [3, 6, 10, 13, 17, 20, 21]


def test_the_end_is_always_checked(tmp_path):
    run, _ = compare(tmp_path, {"max_steps": 10}, max_steps=10)
    assert run.validation["step"].tolist() == [7, 10]


def test_no_validation_where_no_batch_of_it_is_wanted(tmp_path):
    run = fitted(plain_net(), labelled(), tmp_path, loss=CE, val=VAL, limit_val_batches=0)
    assert "val_loss" not in run.validation


# -- early stopping


def stops(**values):
    return wb.EarlyStopping(**{"monitor": "val_loss", **values})


STOPPING = {
    "patience": ([stops(patience=2, min_delta=0.02)], {}),
    "patience of none": ([stops(patience=0, min_delta=0.02)], {}),
    "mode max": ([stops(mode="max", patience=2)], {}),
    "good enough": ([stops(stopping_threshold=0.6)], {}),
    "worse than ever": ([stops(divergence_threshold=0.6)], {}),
    "train_loss": ([stops(monitor="train_loss", patience=1, min_delta=0.05)], {}),
    "two": ([stops(patience=50), stops(patience=2, min_delta=0.03)], {}),
    "not before min_epochs": ([stops(mode="max", patience=2)], {"min_epochs": 6}),
    "not before min_steps": ([stops(mode="max", patience=2)], {"min_steps": 42}),
    "max wins": ([stops(mode="max", patience=2)], {"min_epochs": 6, "max_steps": 20}),
}


@pytest.mark.parametrize("name", STOPPING)
def test_early_stopping(name, tmp_path):
    stopping, limits = STOPPING[name]
    run, _ = compare(
        tmp_path, {"stopping": stopping, **limits}, epochs=30, early_stopping=stopping, **limits
    )
    assert run.step < 30 * 7
    if name == "not before min_epochs":
        assert run.step == 6 * 7


@pytest.mark.parametrize("interval", [2, 0.5])
def test_early_stopping_in_the_middle_of_an_epoch(interval, tmp_path):
    stopping = [stops(mode="max", patience=4)]
    run, _ = compare(tmp_path, {"stopping": stopping, "check_interval": interval}, epochs=30,
                     early_stopping=stopping, val_check_interval=interval)  # fmt: skip
    assert run.step % 7


def test_early_stopping_hands_over_the_average(tmp_path):
    stopping, data = [stops(mode="max", patience=3)], labelled()
    average = Average("ema", lambda: loop.loader_of(data, 8, shuffle=False), decay=0.9)
    run, _ = compare(
        tmp_path, {"stopping": stopping}, epochs=30, average=average, early_stopping=stopping, weight_averaging="ema",
        ema_decay=0.9, shuffle=False,
    )  # fmt: skip
    assert run.step == 4 * 7


def test_a_metric_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)val_accuracy.*val_loss"):
        fitted(plain_net(), labelled(), tmp_path, loss=CE, val=VAL, early_stopping="val_accuracy")


def test_stop_hands_over_the_average(tmp_path):
    """A Stop that is asked for during update 9 takes effect behind it."""

    class Asks(Learner):
        bench = None

        def training_step(self, batch, batch_idx):
            if self.bench is not None:
                self.seen += 1
                if self.seen == 10:
                    self.bench.job.stop()
            return super().training_step(batch, batch_idx)

    model, data = Asks(), labelled()
    twin = copied(model)
    bench = wb.Workbench(model, train=data, root=tmp_path, accelerator="cpu", batch_size=8, max_epochs=5, lr=0.05,
                         weight_averaging="ema", ema_decay=0.9)  # fmt: skip
    model.bench, model.seen = bench, 0
    run = bench.fit().result()
    assert (run.status, run.step) == ("stopped", 10)
    record = twin_run(twin, data, lambda batch, i, h: twin.training_step(batch, 0), [twin.configure_optimizers()], max_steps=10,
                      average=Average("ema", lambda: (), decay=0.9))  # fmt: skip
    for name, value in record.weights.items():
        assert torch.equal(model.state_dict()[name], value), name


# -- length


@pytest.mark.parametrize("nothing", [{"max_steps": 0}, {"max_time": "00:00:00:00"}], ids=str)
def test_a_length_of_nothing(nothing, tmp_path):
    model = plain_net()
    before = copied(model)
    run = fitted(model, labelled(), tmp_path, loss=CE, **nothing)
    assert run.step == 0
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)
    )


def test_max_time_ends_a_fit_that_would_not(tmp_path, monkeypatch):
    """A clock that goes on by 0.01 s whenever it is read: on a busy machine the time might be over before the first update."""
    monkeypatch.setattr(meter, "perf_counter", itertools.count(0.0, 0.01).__next__)
    run = fitted(
        plain_net(),
        labelled(),
        tmp_path,
        loss=CE,
        max_epochs=None,
        max_time=datetime.timedelta(seconds=0.5),
    )
    assert run.step > 0


# -- limits


@pairs("limited, windows", [(3, 3), (0.5, 3), (0.99, 6), (100, None), (1.0, None), (1, 1)], [1, 2])
def test_limited_training_data(limited, windows, tmp_path):
    limit, batches = limited
    """int() of the fraction; what is drawn in the next epoch is what a loop that breaks would draw."""
    compare(
        tmp_path,
        {"limit": batches, "accumulate": windows},
        limit_train_batches=limit,
        accumulate_grad_batches=windows,
    )


@pytest.mark.parametrize(("limit", "batches"), [(1, 1), (2, 2), (0.7, 2), (9, 3)], ids=str)
def test_limited_validation_data(limit, batches, tmp_path):
    run = fitted(plain_net(), labelled(), tmp_path, loss=CE, val=VAL, limit_val_batches=limit)
    twin, x, y = plain_net(), *VAL.tensors
    part = TensorDataset(x[: 8 * batches], y[: 8 * batches])
    record = twin_run(twin, labelled(), supervised(twin, CE), [sgd(twin.parameters(), lr=0.05)],
                      check=checker(part, lambda m, b: CE(m(b[0]), b[1])))  # fmt: skip
    assert_same_checks(run, record)


@pytest.mark.parametrize("name", ["limit_train_batches", "limit_val_batches"])
def test_a_fraction_of_nothing_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=name):
        fitted(plain_net(), labelled(), tmp_path, loss=CE, val=VAL, **{name: 0.01})


def test_data_without_a_length(tmp_path):
    model = plain_net()
    twin = copied(model)
    run = fitted(
        model, Endless(), tmp_path, loss=CE, limit_train_batches=5, accumulate_grad_batches=2
    )
    loader = torch.utils.data.DataLoader(Endless(), batch_size=8)
    record = train(
        twin,
        loader,
        supervised(twin, CE),
        [sgd(twin.parameters(), lr=0.05)],
        epochs=3,
        limit=5,
        accumulate=2,
    )
    assert_same(run, record, model)
    with pytest.raises(ValueError, match="limit_train_batches"):
        fitted(plain_net(), Endless(), tmp_path, loss=CE, limit_train_batches=0.5)
    with pytest.raises(ValueError, match="max_steps"):
        fitted(plain_net(), Endless(), tmp_path, loss=CE, lr_schedule="cosine", max_epochs=1)


def test_overfitting_some_batches(tmp_path):
    """The first two batches in the order of the data, whatever `shuffle` says; validation as many."""
    model, data = plain_net(), labelled()
    run = fitted(model, data, tmp_path, loss=CE, val=VAL, overfit_batches=2)
    twin, x, y = plain_net(), *VAL.tensors
    record = twin_run(twin, data, supervised(twin, CE), [sgd(twin.parameters(), lr=0.05)], shuffle=False, limit=2,
                      check=checker(TensorDataset(x[:16], y[:16]), lambda m, b: CE(m(b[0]), b[1])))  # fmt: skip
    assert_same(run, record, model)


def test_a_fast_dev_run(tmp_path):
    model = plain_net()
    run = fitted(
        model,
        labelled(),
        tmp_path,
        loss=CE,
        val=VAL,
        fast_dev_run=2,
        max_epochs=9,
        early_stopping="val_loss",
    )
    twin, x, y = plain_net(), *VAL.tensors
    record = twin_run(twin, labelled(), supervised(twin, CE), [sgd(twin.parameters(), lr=0.05)], epochs=1, limit=2,
                      check=checker(TensorDataset(x[:16], y[:16]), lambda m, b: CE(m(b[0]), b[1])))  # fmt: skip
    assert_same(run, record, model)
    assert run.folder is None
    assert not list(tmp_path.glob("runs/*"))


# -- numbers that are none


class Breaking(Learner):
    """The loss of the third batch of an epoch is infinite, in its first layer."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        return loss * math.inf if batch_idx == 2 else loss


@pytest.mark.parametrize("windows", [1, 2])
def test_an_update_that_is_no_number_is_left_out(windows, tmp_path):
    """Step counts on; the schedule, which the twin moves by hand, and the average do not."""
    model, data = Breaking(noisy_net()), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, on_nonfinite="skip", lr_schedule="linear", warmup=3, weight_averaging="ema",
                 ema_decay=0.9, shuffle=False, accumulate_grad_batches=windows)  # fmt: skip
    number = iter(list(range(7)) * 3)
    updates = 3 * -(-7 // windows)
    record = train(
        twin, loop.loader_of(data, 8, shuffle=False), lambda batch, i, h: twin.training_step(batch, next(number)),
        [twin.configure_optimizers()], epochs=3, skip_nonfinite=True, accumulate=windows, weigh=lambda batch: 1.0,
        multiplier=multiplier("linear", updates, 3),
        average=Average("ema", lambda: loop.loader_of(data, 8, shuffle=False), decay=0.9),
    )  # fmt: skip
    kept = run.history["skipped"] != 1  # the column is NaN where nothing was said
    assert kept.tolist() == [not skipped for skipped in record.columns["skipped"]]
    assert (~kept).sum() == 3
    np.testing.assert_array_equal(run.history["loss"][kept], column(record.losses)[kept])
    np.testing.assert_array_equal(run.history["lr"], column(record.lrs))
    for name, value in record.weights.items():
        assert torch.equal(model.state_dict()[name], value), name
    assert run.step == updates


def test_the_run_stops_before_an_update_that_is_no_number(tmp_path):
    model = Breaking()
    bench = wb.Workbench(
        model, train=labelled(), root=tmp_path, accelerator="cpu", batch_size=8, shuffle=False
    )
    job = bench.fit(max_epochs=1)
    with pytest.raises(Exception, match="update 2"):
        job.result()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
