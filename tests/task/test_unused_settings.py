"""A setting that cannot take effect on the data is an error where it was given, which says what decides instead."""

import pytest
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

import workbench as wb
from tests.engine.problems import labelled
from workbench.settings import SettingsError


class Groups(BatchSampler):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(labelled(20))


DATA = labelled(20)
OWN_BATCHES = DataLoader(DATA, batch_sampler=Groups(RandomSampler(DATA), 5, False))
OWN_SAMPLER = DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 20, 20))
RANDOM = DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True))
READY = list(DataLoader(DATA, 4))


def bench(root, train=DATA, **given):
    settings = {"loss": F.cross_entropy, "max_epochs": 1, "lr": 0.1, "accelerator": "cpu", **given}
    return wb.Workbench(nn.Linear(6, 3), train=train, root=root, **settings)


@pytest.mark.parametrize(("train", "given", "decides"), [
    (OWN_BATCHES, {"batch_size": 64}, "batch_sampler of its own (Groups)"),
    (OWN_BATCHES, {"drop_last": True}, "batch_sampler of its own (Groups)"),
    (OWN_BATCHES, {"shuffle": True}, "batch_sampler of its own (Groups)"),
    (OWN_SAMPLER, {"shuffle": True}, "sampler of its own (WeightedRandomSampler)"),
    (RANDOM, {"shuffle": False}, "RandomSampler of its own"),
    (wb.batches(READY), {"batch_size": 64}, "ready batches"),
    (wb.batches(READY), {"shuffle": True}, "ready batches"),
    (wb.batches(READY), {"drop_last": True}, "ready batches"),
    (DataLoader(READY, batch_size=None), {"batch_size": 64}, "ready batches"),
    (Stream(), {"shuffle": True}, "can only be iterated (Stream)"),
])  # fmt: skip
def test_it_is_refused_wherever_it_is_given(train, given, decides, tmp_path):
    ((name, value),) = given.items()
    words = rf"{name}={value} has no effect on train, since .*{decides.replace('(', '.').replace(')', '.')}.*Leave {name} out"
    with pytest.raises(SettingsError, match=words):
        bench(tmp_path, train, **given)
    b = bench(tmp_path, train)
    for call in (b.set, b.fit, b.find_lr):
        with pytest.raises(SettingsError, match=words):
            call(**given)
    assert not b.jobs
    b.fit(max_steps=1).result()  # what a loader implies is no setting that anybody gave


def test_workers_for_what_is_read_once(tmp_path):
    with pytest.raises(
        SettingsError, match="num_workers=2 has no effect on train, since it can be read only once"
    ):
        bench(tmp_path, iter(READY), num_workers=2)


def test_what_takes_effect_is_taken(tmp_path):
    assert (
        bench(
            tmp_path, OWN_SAMPLER, shuffle=False, batch_size=10, drop_last=True
        ).settings.batch_size
        == 10
    )
    assert bench(tmp_path, RANDOM, shuffle=True).settings.shuffle
    assert not bench(
        tmp_path, Stream(), shuffle=False, batch_size=5, drop_last=True
    ).settings.shuffle
    ready = bench(tmp_path, DataLoader(READY, batch_size=None, shuffle=True), shuffle=True)
    assert len(ready.fit().result().history["loss"]) == 5


def test_the_record_says_what_the_loader_has(tmp_path):
    run = bench(tmp_path, OWN_BATCHES).fit().result()
    assert run.settings.batch_size == 5


def test_validation_beside_ready_batches_has_the_size_of_its_loader(tmp_path):
    assert bench(tmp_path, wb.batches(READY), val=DataLoader(DATA, 7)).settings.batch_size == 7
    assert bench(tmp_path, DATA, val=DataLoader(DATA, 7)).settings.batch_size == 20


def test_evaluations(tmp_path):
    b = bench(tmp_path, val=wb.batches(READY), test=DATA)
    with pytest.raises(SettingsError, match="batch_size=8 has no effect on val"):
        b.validate(batch_size=8)
    assert b.test(batch_size=8).result()
    with pytest.raises(SettingsError, match="batch_size=8 has no effect on data"):
        b.predict(DataLoader(READY, batch_size=None), batch_size=8)


@pytest.mark.parametrize("name", ["shuffle", "drop_last"])
def test_only_training_data_are_shuffled_and_cut(name, tmp_path):
    b = bench(tmp_path, val=DATA, test=DATA, batch_size=4, **{name: True})
    for kind, call in {
        "val": b.validate,
        "test": b.test,
        "data": lambda **given: b.predict(DATA, **given),
    }.items():
        with pytest.raises(
            SettingsError, match=f"{name}=True has no effect on {kind}: only training data"
        ):
            call(**{name: True})


@pytest.mark.parametrize(
    "given",
    [
        {"lr": 3.0},
        {"max_epochs": 2},
        {"monitor": "val_loss"},
        {"weight_averaging": "ema"},
        {"gradient_clip_val": 1.0},
    ],
)
def test_settings_of_the_training_are_refused_where_nothing_is_trained(given, tmp_path):
    b = bench(tmp_path, val=labelled(8), test=labelled(8))
    for job in (b.validate, b.test, b.predict):
        with pytest.raises(
            SettingsError, match=rf"{next(iter(given))}=.* has no effect on {job.__name__}\(\)"
        ):
            job(**given)
    assert b.jobs == []
    assert b.validate(batch_size=4, precision="32-true", seed=3).result().keys() == {"val_loss"}
