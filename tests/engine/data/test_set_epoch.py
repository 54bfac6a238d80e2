"""`set_epoch`: samplers, batch samplers and data sets that ask for it are told of each epoch before it is read."""

import queue

import datasets
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    TensorDataset,
)

import workbench as wb
from workbench.task.errors import TaskError

ROWS = 12


class Seen(nn.Module):
    """Remembers what it has been trained on, and what it has been checked on."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.rows, self.checked = [], []

    def forward(self, x):
        (self.rows if torch.is_grad_enabled() else self.checked).append(x.flatten().tolist())
        return {"loss": (self.weight * x.float()).square().mean()}


def numbers():
    return TensorDataset(torch.arange(float(ROWS))[:, None])


def distributed():
    data = numbers()
    return DataLoader(
        data, 4, sampler=DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
    )


class Groups(Sampler):
    """Batches of its own, another order in each epoch that it is told of."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 3

    def __iter__(self):
        order = np.random.RandomState(self.epoch).permutation(ROWS).tolist()
        return iter([order[:4], order[4:8], order[8:]])

    def set_epoch(self, epoch):
        self.epoch = epoch


class Inner(Groups):
    def __len__(self):
        return ROWS

    def __iter__(self):
        return iter(np.random.RandomState(self.epoch).permutation(ROWS).tolist())


class OwnBatches(BatchSampler):
    """A subclass of torch's, whose sampler is the one that asks."""


class Told(Dataset):
    """Other samples in each epoch."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.tensor([float(index + 100 * self.epoch)])

    def set_epoch(self, epoch):
        self.epoch = epoch


LOADERS = {
    "a distributed sampler": distributed,
    "a batch sampler": lambda: DataLoader(numbers(), batch_sampler=Groups()),
    "a sampler": lambda: DataLoader(numbers(), 4, sampler=Inner()),
    "the sampler in a batch sampler": lambda: DataLoader(
        numbers(), batch_sampler=OwnBatches(Inner(), 4, False)
    ),
    "a data set": lambda: DataLoader(Told(), 4),
}


def expected(make, epochs):
    """As Lightning and the data set's users do it."""
    loader, found = make(), []
    for epoch in range(epochs):
        _set_sampler_epoch(loader, epoch)
        for part in (loader.batch_sampler, loader.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        found += [
            (batch[0] if isinstance(batch, list) else batch).flatten().tolist() for batch in loader
        ]
    return found


def bench(make, root, model, **given):
    settings = {
        "max_epochs": 4,
        "lr": 1e-6,
        "accelerator": "cpu",
        "root": root,
        "num_sanity_val_steps": 0,
        **given,
    }
    found = wb.Workbench(model, train=make(), optimizer=torch.optim.SGD, **settings)
    model.rows.clear()
    model.checked.clear()
    return found


@pytest.mark.parametrize("kind", LOADERS)
def test_each_epoch_has_its_own_order(kind, tmp_path):
    model, make = Seen(), LOADERS[kind]
    bench(make, tmp_path, model).fit().result()
    assert model.rows == expected(make, 4)
    assert model.rows[:3] != model.rows[3:6]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["a batch sampler", "a data set"])
def test_in_workers_that_end_with_their_pass(kind, workers, tmp_path):
    model, make = Seen(), LOADERS[kind]
    bench(
        make, tmp_path, model, num_workers=workers, persistent_workers=False, max_epochs=2
    ).fit().result()
    assert model.rows == expected(make, 2)


@pytest.mark.parametrize("steps", [3, 4, 8])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_that_goes_on_is_exact(kind, steps, tmp_path):
    make, model = LOADERS[kind], Seen()
    run = bench(make, tmp_path, model, max_steps=steps).fit().result()
    job = bench(make, tmp_path, model).fit(start=run.id, max_steps=12)
    job.result()
    assert model.rows == expected(make, 4)  # those before come back with the model
    assert not [
        event.text
        for event in job.events
        if "may not continue exactly" in getattr(event, "text", "")
    ]


@pytest.mark.parametrize("kind", ["a batch sampler", "a data set", "a distributed sampler"])
def test_validation_is_told_too(kind, tmp_path):
    model = Seen()
    bench(numbers, tmp_path, model, batch_size=4, val=LOADERS[kind](), max_epochs=3).fit().result()
    assert model.checked == expected(LOADERS[kind], 3)


def test_a_stream_of_hugging_face(tmp_path):
    def make():
        ds = datasets.Dataset.from_dict(
            {"x": [float(i) for i in range(ROWS)]}
        ).to_iterable_dataset()
        return ds.shuffle(seed=5, buffer_size=ROWS).with_format("torch")

    twin, found = make(), []
    for epoch in range(3):
        twin.set_epoch(epoch)
        found += [batch["x"].tolist() for batch in DataLoader(twin, 4)]
    model = Seen()
    bench(make, tmp_path, model, batch_size=4, max_epochs=3).fit().result()
    assert model.rows == found
    assert model.rows[:3] != model.rows[3:6]


def test_a_search_leaves_the_fit_as_it_was(tmp_path):
    """It goes through one epoch after another; the fit begins at epoch 0 all the same."""
    told = []

    class Tells(Groups):
        def set_epoch(self, epoch):
            told.append(epoch)
            super().set_epoch(epoch)

    model = Seen()
    b = bench(lambda: DataLoader(numbers(), batch_sampler=Tells()), tmp_path, model)
    b.find_lr(num_training=7, early_stop_threshold=None).result()
    assert told == [0, 1, 2, 0]  # and back
    b.fit().result()
    assert told[4:] == [0, 1, 2, 3]
    assert model.rows == expected(LOADERS["a batch sampler"], 4)


def test_a_loader_of_ones_own(tmp_path):
    class Own:
        def __init__(self):
            self.sampler = Inner()

        def __iter__(self):
            order = list(self.sampler)
            return iter([torch.tensor(order[:6]), torch.tensor(order[6:])])

    model = Seen()
    bench(Own, tmp_path, model, max_epochs=3).fit().result()
    assert [model.rows[n] + model.rows[n + 1] for n in (0, 2, 4)] == [
        np.random.RandomState(epoch).permutation(ROWS).tolist() for epoch in range(3)
    ]


def test_preload_would_freeze_an_epoch(tmp_path):
    with pytest.raises(
        TaskError, match=r"preload=True: train asks which epoch it is \(set_epoch\)"
    ):
        bench(Told, tmp_path, Seen(), batch_size=4, preload=True).fit().result()


class Growing(Groups):
    """One more batch in each epoch."""

    def __len__(self):
        return 1 + self.epoch

    def __iter__(self):
        return iter([[2 * n, 2 * n + 1] for n in range(len(self))])


def test_a_validation_reads_all_batches_of_its_epoch(tmp_path):
    model = Seen()
    val = DataLoader(numbers(), batch_sampler=Growing())
    bench = wb.Workbench(
        model,
        train=numbers(),
        val=val,
        batch_size=6,
        max_epochs=3,
        num_sanity_val_steps=0,
        root=tmp_path,
    )
    model.checked.clear()
    assert bench.fit().result().status == "finished"
    assert model.checked == [[0, 1], [0, 1], [2, 3], [0, 1], [2, 3], [4, 5]]
    bench.close()


def test_a_validation_that_is_asked_for_reads_all_batches_of_its_epoch(tmp_path):
    jobs = queue.Queue()

    class Asks(Seen):
        def forward(self, x):
            # the first update of the third epoch
            if len(self.rows) == 4 and torch.is_grad_enabled():
                jobs.get(timeout=60).validate()
            return super().forward(x)

    model = Asks()
    val = DataLoader(numbers(), batch_sampler=Growing())
    with wb.Workbench(
        model,
        train=numbers(),
        val=val,
        batch_size=6,
        max_epochs=3,
        num_sanity_val_steps=0,
        root=tmp_path,
        dry_run=False,
    ) as bench:
        job = bench.fit()
        jobs.put(job)
        assert job.result().status == "finished"
    third = [[0, 1], [2, 3], [4, 5]]
    assert model.checked == [[0, 1], [0, 1], [2, 3], *third, *third]
