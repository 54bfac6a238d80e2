"""How many samples a batch counts as: those that were drawn for it, whatever its tensors look like."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader as GraphLoader

import workbench as wb
from workbench.events import Message, Validated
from workbench.task.batch import sample_count

ROWS, STEPS = 7, 5
"""Batches of 3, 3 and 1: the last one must weigh a third."""


def sequences():
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(STEPS, 2, generator=g), torch.randn((), generator=g) + 5.0 * (i == ROWS - 1))
        for i in range(ROWS)
    ]


def time_first(samples):
    return torch.stack([x for x, _ in samples], dim=1), torch.stack([y for _, y in samples])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(sequences())


class Means(nn.Module):
    """(T, B, 2) → (B,)."""

    def __init__(self, batch_dim=1):
        super().__init__()
        torch.manual_seed(0)
        self.batch_dim, self.layer = batch_dim, nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x).mean(1 - self.batch_dim).squeeze(-1)


def losses(train, root, model=None, **given):
    """The losses of two epochs, the weights after them, and what each check came to."""
    own = isinstance(train, type(wb.batches([]))) or (
        isinstance(train, DataLoader) and type(train.batch_sampler) is not BatchSampler
    )
    given = {
        "loss": F.mse_loss,
        **({} if own else {"batch_size": 3}),
        "max_epochs": 2,
        "lr": 0.05,
        "shuffle": False,
        "accelerator": "cpu",
        **given,
    }
    model = model or Means()
    bench = wb.Workbench(model, train=train, optimizer=torch.optim.SGD, root=root, **given)
    job = bench.fit()
    run = job.result()
    checks = [event.metrics["val_loss"] for event in job.events if isinstance(event, Validated)]
    notes = [
        event.text
        for event in job.events
        if isinstance(event, Message) and "counts as" in event.text
    ]
    return (
        list(run.history["loss"]),
        [p.detach().clone() for p in model.parameters()],
        checks,
        notes,
    )


def alike(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert one[2] == pytest.approx(other[2], rel=1e-5)


def batch_first(root, **given):
    return losses(sequences(), root, Means(batch_dim=0), val=sequences(), **given)


class OwnBatches(BatchSampler):
    """One that nothing is known of but what it gives."""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["samples", "loader", "stream", "batch sampler"])
def test_time_first_batches(kind, workers, tmp_path):
    """One window of three batches is the mean over all samples, as it is with the batch in front; so is a check."""
    made = {
        "samples": sequences, "loader": lambda: DataLoader(sequences(), 3, collate_fn=time_first), "stream": Stream,
        "batch sampler": lambda: DataLoader(sequences(), batch_sampler=OwnBatches(SequentialSampler(sequences()), 3, False)),
    }[kind]  # fmt: skip
    given = {"accumulate_grad_batches": 3, "num_workers": workers}
    found = losses(
        made(), tmp_path / "a", val=made(), collate_fn=time_first, persistent_workers=False, **given
    )
    expected = batch_first(tmp_path / "b", accumulate_grad_batches=3)
    if kind == "batch sampler":
        assert len(expected[0]) == 2
    alike(found, expected)
    assert not found[3]


def test_a_check_weighs_samples(tmp_path):
    """Against the loss of all samples at once."""
    *_, checks, _ = losses(sequences(), tmp_path, val=sequences(), collate_fn=time_first, lr=1e-12)
    x, y = time_first(sequences())
    with torch.no_grad():
        assert checks == [pytest.approx(float(F.mse_loss(Means()(x), y)), rel=1e-5)] * 2


def test_bulk_loading_by_a_sampler_of_batches(tmp_path):
    """`sampler=BatchSampler(…)` with `batch_size=None`, as torch's documentation has it: batches of the data set's own making."""
    x, y = torch.randn(ROWS, 2), torch.randn(ROWS)
    data = TensorDataset(x, y)
    loader = DataLoader(
        data, sampler=BatchSampler(SequentialSampler(data), 3, False), batch_size=None
    )
    one = losses(
        loader, tmp_path / "a", nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), max_epochs=1
    )
    assert len(one[0]) == 3
    ready = [(x[:3], y[:3]), (x[3:6], y[3:6]), (x[6:], y[6:])]
    shuffled = DataLoader(ready, batch_size=None, shuffle=True)
    assert (
        len(
            losses(
                shuffled,
                tmp_path / "b",
                nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)),
                shuffle=True,
            )[0]
        )
        == 6
    )


# -- batches of the user's own


class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)

    def forward(self, batch):
        sums = torch.zeros(batch.num_graphs).index_add(
            0, batch.batch, self.layer(batch.x).squeeze(-1)
        )
        return {"loss": F.mse_loss(sums, batch.y)}


def graphs():
    g = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(1 + 3 * (i % 3), 2, generator=g),
            edge_index=torch.zeros(2, 0, dtype=torch.long),
            y=torch.randn(1, generator=g),
        )
        for i in range(ROWS)
    ]


def test_graphs(tmp_path):
    """By their loader, and as ready batches, which say how many graphs they hold."""
    ready = [Batch.from_data_list(graphs()[n : n + 3]) for n in (0, 3, 6)]
    assert [sample_count(batch) for batch in ready] == [3, 3, 1]
    given = {"loss": None, "accumulate_grad_batches": 3}
    loader = GraphLoader(graphs(), batch_size=3)
    one = losses(loader, tmp_path / "a", Graphs(), val=GraphLoader(graphs(), batch_size=3), **given)
    other = losses(wb.batches(ready), tmp_path / "b", Graphs(), val=wb.batches(ready), **given)
    whole = losses(GraphLoader(graphs(), batch_size=ROWS), tmp_path / "c", Graphs(), val=GraphLoader(graphs(), batch_size=ROWS),
                   loss=None, batch_size=ROWS)  # fmt: skip
    alike(one, other)
    alike(one, whole)
    assert not one[3]
    assert not other[3]


class Boxed:
    """As a tensordict: batch_size is a torch.Size."""

    def __init__(self, count):
        self.batch_size, self.x = torch.Size([count, 4]), torch.zeros(9, 9)


def test_what_a_batch_says_of_itself():
    assert sample_count(Boxed(3)) == 3
    assert sample_count({"first": torch.zeros(2), "x": torch.zeros(5, 2)}) == 2
    assert sample_count((torch.zeros(4, 2),)) == 4


def test_ready_batches_whose_tensors_differ_are_told_once(tmp_path):
    ready = [time_first(sequences()[n : n + 3]) for n in (0, 3, 6)]
    *_, notes = losses(
        wb.batches(ready), tmp_path / "a", val=wb.batches(ready), accumulate_grad_batches=3
    )
    assert len(notes) == 1
    assert "counts as 5 samples" in notes[0]
    assert '"weight"' in notes[0]
    plain = [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(1, 2), torch.zeros(1))]
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    assert not losses(
        wb.batches(plain), tmp_path / "b", model, val=wb.batches(plain), accumulate_grad_batches=2
    )[3]


def test_a_weight_of_the_loss_wins(tmp_path):
    ready = [time_first(sequences()[n : n + 3]) for n in (0, 3, 6)]

    def loss(output, y):
        return {"loss": F.mse_loss(output, y), "weight": float(len(y))}

    found = losses(
        wb.batches(ready),
        tmp_path / "a",
        val=wb.batches(ready),
        loss=loss,
        accumulate_grad_batches=3,
    )
    alike(found, batch_first(tmp_path / "b", accumulate_grad_batches=3))
    assert not found[3]


def test_a_dict_that_begins_with_something_else(tmp_path):
    def collate(samples):
        x, y = time_first(samples)
        return {"lengths": torch.tensor([STEPS]), "x": x, "y": y}

    class Named(Means):
        def forward(self, x, lengths):
            return super().forward(x)

    found = losses(
        sequences(),
        tmp_path / "a",
        Named(),
        val=sequences(),
        collate_fn=collate,
        accumulate_grad_batches=3,
    )
    alike(found, batch_first(tmp_path / "b", accumulate_grad_batches=3))


def test_a_run_that_goes_on_counts_on(tmp_path):
    """In the middle of an epoch, whose first batches are not read again."""
    order = itertools.count()

    def run(name, **given):
        data = DataLoader(
            sequences(),
            2,
            sampler=RandomSampler(sequences(), generator=torch.Generator().manual_seed(1)),
        )
        settings = {"loss": F.mse_loss, "collate_fn": time_first, "accumulate_grad_batches": 2, "max_epochs": 3, "lr": 0.05,
                    "accelerator": "cpu", **given}  # fmt: skip
        return wb.Workbench(
            Means(),
            train=data,
            optimizer=torch.optim.SGD,
            root=tmp_path / f"{name}{next(order)}",
            **settings,
        )

    whole = list(run("whole").fit().result().history["loss"])
    parts = run("parts", max_steps=3)
    parts.fit().result()
    assert list(parts.fit(start="continue", max_steps=6).result().history["loss"]) == whole
