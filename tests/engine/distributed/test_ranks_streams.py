"""Streams of which each rank reads its own share: every sample once, the losses of one process, epochs that end together."""

import os
import types

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import workbench as wb
from tests.engine.fit_results import fit
from tests.engine.problems import labelled, plain_net, sgd
from tests.on_ranks import on_ranks
from tests.reference import loop as reference
from workbench.task.errors import TaskError

PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0, "batch_size": 4, "accelerator": "cpu"}  # fmt: skip
SHARD = {**PLAIN, "streams": "shard"}
CE = {"loss": F.cross_entropy, "optimizer": sgd}


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


def place():
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Counted(IterableDataset):
    """The samples of `numbers(rank, world)`, or of all; it notes what is read. `sized`: it has a length."""

    def __init__(self, data, numbers=None, repeats=1, sized=False):
        self.data, self.numbers, self.repeats = data, numbers, repeats
        self.read = []
        if sized:
            self.__class__ = type("Sized", (Counted,), {"__len__": lambda self: len(self.own())})

    def own(self):
        return range(len(self.data)) if self.numbers is None else self.numbers(*place())

    def __iter__(self):
        for n in self.own():
            self.read.append(n)
            yield self.data[n]


def uneven(rank, world):
    """Of 37: 9 and 28 for two ranks, more for the first one."""
    return [n for n in range(37) if (0 if n % 4 else world - 1) == rank]


def even(rank, world):
    return range(rank, 37, world)


def one_has_none(rank, world):
    """Each has all until the fit begins: a bench needs a sample to look at."""
    return range(37) if rank == world - 1 or "FITS" not in os.environ else ()


FITS = {"environment": {"FITS": "1"}}


def of_rank(division, rank):
    """The numbers of the samples that a rank of two reads in a fit."""
    return [] if division is one_has_none and not rank else [*division(rank, 2)]


DIVISIONS = {"uneven": uneven, "even": even, "one has none": one_has_none}


def windows_of_all(division, size, batches):
    """What each update should be made of: the next `batches` batches of each rank, while it has any."""
    data = labelled(37)
    shares = [of_rank(division, rank) for rank in range(2)]
    step = size * batches
    for start in range(0, max(map(len, shares)), step):
        numbers = [n for share in shares for n in share[start : start + step]]
        yield data.tensors[0][numbers], data.tensors[1][numbers]


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize(("batches", "sized"), [(1, False), (3, True)])
def test_losses_are_those_of_a_plain_loop_over_the_batches_of_all_ranks(division, batches, sized):
    divide = DIVISIONS[division]

    def rank():
        stream = Counted(labelled(37), divide, sized=sized)
        result = fit(
            plain_net(),
            {"train": stream, **CE},
            {**SHARD, "accumulate_grad_batches": batches},
            **FITS,
        )
        return result, stream.read

    ranks = on_ranks(2, rank)
    net = plain_net()
    expected = reference.fit(
        net,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        sgd(net.parameters(), lr=0.05),
        [*windows_of_all(divide, 4, batches)] * 2,
        epochs=1,
    )
    for number, (result, read) in enumerate(ranks):
        np.testing.assert_allclose(result["loss"], expected["loss"], rtol=2e-4)
        np.testing.assert_allclose(result["norm"], expected["grad_norm"], rtol=2e-4)
        numbers = of_rank(divide, number)
        assert sorted(read[len(read) - 2 * len(numbers) :]) == sorted(numbers * 2)
        assert not [text for text in result["said"] if "len" in text]
    assert torch.equal(ranks[0][0]["weights"]["0.weight"], ranks[1][0]["weights"]["0.weight"])


def test_a_validation_counts_each_sample_once():
    """Its metrics are those of one process, whatever each rank has of it."""
    settings = {**SHARD, "max_epochs": 1, "lr": 0.0}
    given = {"train": labelled(16).tensors, **CE}
    ((_, expected),) = fit(plain_net(), {**given, "val": labelled(37)}, settings)["checks"]
    for divide in (uneven, one_has_none):

        def rank():
            val = Counted(labelled(37), divide)  # noqa: B023
            return fit(plain_net(), {**given, "val": val}, settings, **FITS)

        for result in on_ranks(2, rank):
            assert result["checks"][-1][1]["val_loss"] == pytest.approx(expected["val_loss"])


class ByWorker(IterableDataset):
    """Divided by rank and by loader worker, in an order drawn from the process's random numbers."""

    is_sharded = True

    def __iter__(self):
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        order = torch.randperm(37).tolist()
        for n in order[rank * workers + worker :: world * workers]:
            yield labelled(37)[n][0], torch.tensor(n)


@pytest.mark.parametrize("workers", [0, 1])
def test_all_ranks_divide_the_same_drawn_order(workers):
    """Each sample comes once an epoch, though the ranks draw unequal amounts of numbers; each epoch has another order."""
    seen = types.SimpleNamespace(batches=[])

    def loss(out, number):
        seen.batches.append(number.tolist())
        return out.square().mean()

    def rank():
        seen.batches.clear()
        settings = {**PLAIN, "num_workers": workers, "persistent_workers": False}
        fit(plain_net(), {"train": ByWorker(), **CE, "loss": loss}, {**settings, "max_epochs": 3})
        return [n for batch in seen.batches for n in batch]

    first, second = on_ranks(2, rank)
    each = [len(first) // 3, len(second) // 3]
    epochs = [
        [*first[-each[0] * (3 - e) :][: each[0]], *second[-each[1] * (3 - e) :][: each[1]]]
        for e in range(3)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(37))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


class Plain(Counted):
    """Yields all samples on each rank."""


class Constant(Counted):
    """All samples are alike, as in a benchmark."""

    def __iter__(self):
        yield from [(torch.ones(6), torch.tensor(1))] * 24


WRONG = {
    "in an update": ({"train": Plain(labelled(37)), **CE}, SHARD, "train"),
    "in loader workers": ({"train": Plain(labelled(37)), **CE}, {**SHARD, "num_workers": 1}, "train"),
    "in a short pass": ({"train": Plain(labelled(7)), **CE}, SHARD, "train"),
    "in a validation": ({"train": labelled(16).tensors, "val": Plain(labelled(37)), **CE}, SHARD, "val"),
    "in a short validation": ({"train": labelled(16).tensors, "val": Plain(labelled(7)), **CE}, SHARD, "val"),
    "of ready batches": ({"train": DataLoader(Plain(labelled(37)), batch_size=None), **CE}, SHARD, "train"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_stream_that_should_divide_itself_and_does_not_is_an_error(kind):
    given, settings, name = WRONG[kind]
    with pytest.raises(TaskError, match=rf"{name} \(Plain\) is read by rank .* ranks 0 and 1 read the same"):  # fmt: skip
        on_ranks(2, lambda: fit(plain_net(), given, settings))


def test_ranks_that_read_in_different_ways_are_an_error():
    def rank():
        stream = Counted(labelled(37), even)
        stream.is_sharded = place()[0] == 0
        return fit(plain_net(), {"train": stream, **CE}, PLAIN)

    with pytest.raises(TaskError, match=r"rank 0 reads its own share of train \(Counted\), and rank 1 all"):  # fmt: skip
        on_ranks(2, rank)


def test_no_alarm_for_samples_that_are_alike():
    given = {"train": Constant(()), "val": labelled(19), **CE}
    ranks = on_ranks(2, lambda: fit(plain_net(), given, SHARD))
    assert len(ranks[0]["loss"]) == 12


def test_a_stream_that_says_so_needs_no_setting_and_one_can_say_no():
    """Beside a list of ready batches, which is divided by its numbers."""

    def rank():
        train, val = Counted(labelled(37), even), Counted(labelled(19))
        train.is_sharded, val.is_sharded = True, False
        ready = wb.batches(list(DataLoader(labelled(19), 4)))
        by_attribute = fit(plain_net(), {"train": train, "val": val, **CE}, PLAIN)
        by_setting = fit(plain_net(), {"train": Counted(labelled(37), even), "val": ready, **CE}, SHARD)  # fmt: skip
        return by_attribute, by_setting

    (one, other), _ = on_ranks(2, rank)
    np.testing.assert_array_equal(one["loss"], other["loss"])
    assert [m for _, m in one["checks"]] == [pytest.approx(m) for _, m in other["checks"]]


@pytest.mark.parametrize("says", ["yes", 1.5])
def test_an_attribute_that_is_no_bool_is_refused(says):
    def rank():
        stream = Counted(labelled(37), even)
        stream.is_sharded = says
        return fit(plain_net(), {"train": stream, **CE}, PLAIN)

    with pytest.raises(TaskError, match=r"train\.is_sharded is .* it must be True"):
        on_ranks(2, rank)


def test_one_process_reads_all():
    stream = Counted(labelled(37), uneven)
    fit(plain_net(), {"train": stream, **CE}, SHARD)
    assert sorted(stream.read[-74:]) == sorted([*range(37)] * 2)
