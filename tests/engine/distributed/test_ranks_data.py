"""The data of one rank of several: where it is in them, and what becomes of data that the ranks have unequal parts of."""

import contextlib
import functools
import itertools
import os
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

import workbench as wb
from tests.combinations import every, pairs
from tests.engine.data.test_loaders_position import Given, Noisy, copied, through_a_file
from tests.engine.fit_results import fit, same
from tests.engine.problems import Augmented, Stream, labelled, plain_net, sgd
from tests.on_ranks import on_ranks
from tests.task.data import test_spec
from tests.task.data.test_sharding import Own
from tests.task.data.test_sharding import Stream as Shuffled
from workbench.engine.data.loaders import Loaders
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.data.sharding import RankShard
from workbench.task.errors import TaskError
from workbench.task.rng import seed


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


class Sentences(Dataset):
    def __len__(self):
        return 13

    def __getitem__(self, index):
        return torch.full((7, 2), float(index)) + torch.rand(7, 1), torch.full((7,), index)


@contextlib.contextmanager
def feeds(make, share, drawn=0, **settings):
    """A rank's, which has drawn other numbers than the others."""
    seed(drawn)
    task = Given(make(), labelled(19))
    task.train.share = task.val.share = share
    opened = Loaders(task, Settings(**{"accelerator": "cpu", "batch_size": 4, **settings}))
    seed(1000 + 7 * share.rank)
    try:
        yield opened
    finally:
        opened.close()


def epoch(data):
    """The batches of an epoch and those of a check, with random numbers drawn in between as dropout does."""
    for batch in data.train():
        torch.rand(3), np.random.rand(3), random.random()
        yield copied(batch)
    yield [copied(batch) for _, batches in data.val() for batch in batches]
    data.checked()


def place(data, taken, cut):
    return (
        data.position(data.batches_read if cut else taken, data.begun)
        if taken
        else data.position(0)
    )


def goes_on(make, share, points, **settings):
    """What comes behind each of these points, in an epoch and behind it, is what would have come."""
    cut, workers = "truncated_bptt_steps" in settings, settings.get("num_workers")
    epochs = 2 if workers else 3  # with that of the point; processes take long to start
    with feeds(make, share, **settings) as data:
        whole = [list(epoch(data)) for _ in range(1 + epochs)]
    for before, taken in points:
        with feeds(make, share, **settings) as data:
            for _ in itertools.chain.from_iterable(epoch(data) for _ in range(before)):
                pass
            begun = epoch(data)
            for _ in range(taken):
                next(begun)
            position, state = through_a_file(place(data, taken, cut)), rng.RandomState.capture()
            begun.close()
        with feeds(make, share, drawn=99, **settings) as data:
            torch.rand(5), np.random.rand(5), random.random()
            assert data.place(position) == []
            again = through_a_file(place(data, taken, cut))
            state.restore()
            found = [list(epoch(data)) for _ in range(epochs)]
        assert test_spec.same(
            found, [whole[before][taken:], *whole[before + 1 : before + epochs]]
        ), (share, before, taken)
        if workers:
            continue
        with feeds(make, share, drawn=98, **settings) as data:
            data.place(again)
            state.restore()
            assert test_spec.same(list(epoch(data)), whole[before][taken:])
    return whole


KINDS = {
    "set": lambda: labelled(37),
    "noise": lambda: Augmented(labelled(37)),
    "noise of its own": lambda: Noisy(labelled(37)),
    "weighted": lambda: DataLoader(labelled(37), 4, sampler=WeightedRandomSampler([1.0] * 37, 37)),
    "drawn as wanted": lambda: DataLoader(
        labelled(37), batch_sampler=BatchSampler(Own(37, seeded=False), 4, False)
    ),
    "a last number": lambda: DataLoader(
        labelled(37), 4, sampler=RandomSampler(range(37), False, 50)
    ),
    "stream": lambda: Stream(labelled(37)),
    "stream that knows": lambda: Stream(labelled(37), knows=True),
    "shuffled stream": lambda: Shuffled(labelled(37), shuffled=True),
    "ready": lambda: wb.batches(list(DataLoader(labelled(37), 4))),
    "ready by number": lambda: DataLoader(list(DataLoader(labelled(37), 4)), batch_size=None),
}  # of 10 batches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1.0, 2])
def test_each_rank_goes_on_with_its_own(kind, limit):
    for share in (RankShard(0, 3), RankShard(2, 3)):
        points = (
            [(0, 1), (0, 2), (1, 0), (1, 2)]
            if limit == 2
            else [(0, 1), (1, 0), (1, 3), (0, 4 - (share.rank > 0))]
        )
        if kind == "stream that knows" and limit == 2:
            points = [(0, 1)]  # behind that it begins anew, and says so
        goes_on(KINDS[kind], share, points, limit_train_batches=limit)


@pairs("kind, persistent", every(2, ["noise", "set", "ready", "weighted", "stream"]), [False, True])
def test_with_loader_workers(kind, persistent):
    if kind == "stream" and persistent:
        return  # its generator goes on in a worker, which nobody can repeat
    settings = {"num_workers": 1, "persistent_workers": persistent}
    goes_on(KINDS[kind], RankShard(1, 2), [(0, 2), (1, 0), (1, 5)], **settings)


@pytest.mark.parametrize(
    "make",
    [Sentences, lambda: wb.batches([(torch.full((2, 7, 2), float(n)),) for n in range(7)])],
    ids=["set", "ready"],
)
def test_within_a_batch(make):
    for share in (RankShard(0, 2), RankShard(1, 2)):
        goes_on(make, share, [(0, 1), (0, 2), (1, 4)], truncated_bptt_steps=3, batch_size=2)


def test_a_rank_without_a_batch_of_the_epoch_is_in_it_all_the_same():
    """The others have taken one: behind it comes the next epoch, in another order."""
    make = functools.partial(labelled, 10)
    with feeds(make, RankShard(2, 3), batch_size=5) as data:
        whole = [list(epoch(data)) for _ in range(3)]
    with feeds(make, RankShard(2, 3), batch_size=5) as data:
        begun = data.train()
        assert next(begun, None) is None
        position = through_a_file(data.position(0, data.begun))
        expected = data._train.loader.generator.get_state()
    assert position["inside"]
    with feeds(make, RankShard(2, 3), batch_size=5) as data:
        data.place(position)
        assert test_spec.same([list(epoch(data)) for _ in range(3)], whole)
    with feeds(make, RankShard(2, 3), batch_size=5) as data:
        data.place(position)
        assert list(data.train()) == []
        assert torch.equal(data._train.loader.generator.get_state(), expected)


PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0, "batch_size": 4}
CE = {"loss": F.cross_entropy, "optimizer": sgd}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stream(labelled(37)),
        lambda: wb.batches(list(DataLoader(labelled(37), 4))),
        lambda: labelled(5),
    ],
)
def test_data_without_numbers_train_as_in_one_process(make):
    """Each rank's round is a window of one process; a validation counts every sample once."""
    given = {"val": labelled(19, 1).tensors, **CE}
    ranks = on_ranks(2, lambda: fit(plain_net(), {**given, "train": make()}, PLAIN))
    alone = fit(plain_net(), {**given, "train": make()}, {**PLAIN, "accumulate_grad_batches": 2})
    same(ranks[0], alone)
    assert torch.equal(ranks[0]["weights"]["0.weight"], ranks[1]["weights"]["0.weight"])


class ByRank(IterableDataset):
    """Each rank reads its own share, as `DistributedSampler` does for data with indices."""

    def __iter__(self):
        yield from itertools.islice(labelled(37), int(os.environ.get("RANK", 0)), None, 2)


class Within(IterableDataset):
    """A stream whose reader, deep inside, is another one."""

    def __init__(self, reader):
        self.reader = reader

    def __iter__(self):
        yield from self.reader


class NoSeed(IterableDataset):
    """Each process draws other samples."""

    def __iter__(self):
        for number in np.random.default_rng().permutation(37):
            yield labelled(37)[number]


class ByWorker(IterableDataset):
    """Loader workers divide it, which is right."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from itertools.islice(labelled(37), first, None, step)


DIFFERENT = {
    "by rank": (ByRank, {}),
    "by rank in loader workers": (ByRank, {"num_workers": 1}),
    "within another": (
        lambda: Within(DataLoader(Within(ByRank()), batch_size=None)),
        {"accumulate_grad_batches": 2},
    ),
    "ready batches": (lambda: DataLoader(Within(DataLoader(ByRank(), 4)), batch_size=None), {}),
    "no seed": (NoSeed, {}),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_ranks_that_read_different_samples_stop_before_an_update(kind):
    make, settings = DIFFERENT[kind]
    with pytest.raises(
        TaskError,
        match=r"the ranks read different samples of train .* says so, with streams='shard'",
    ):
        on_ranks(2, lambda: fit(plain_net(), {"train": make(), **CE}, {**PLAIN, **settings}))


def test_ranks_that_evaluate_different_samples_stop():
    given = {"train": labelled(16).tensors, "val": ByRank(), **CE}
    with pytest.raises(TaskError, match=r"the ranks read different samples of val \(ByRank"):
        on_ranks(2, lambda: fit(plain_net(), given, PLAIN))


def test_loader_workers_may_divide_a_stream():
    given = {"train": ByWorker(), "val": ByWorker(), **CE}
    ranks = on_ranks(2, lambda: fit(plain_net(), given, {**PLAIN, "num_workers": 2}))
    same(
        ranks[0], fit(plain_net(), given, {**PLAIN, "num_workers": 2, "accumulate_grad_batches": 2})
    )


class OneBuffer(IterableDataset):
    """Fills the same memory with each batch."""

    def __iter__(self):
        x, y = torch.empty(4, 6), torch.empty(4, dtype=torch.long)
        for own_x, own_y in DataLoader(labelled(40), 4):
            x.copy_(own_x)
            y.copy_(own_y)
            yield {"x": x, "y": [y]}


class OfDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch["x"]), batch["y"][0])

    def configure_optimizers(self):
        return sgd(self.parameters(), lr=0.05)


@pytest.mark.parametrize("windows", [1, 2])
def test_a_batch_is_kept_while_those_of_other_ranks_are_read(windows):
    given, settings = (
        {"train": DataLoader(OneBuffer(), batch_size=None)},
        {**PLAIN, "batch_size": 1},
    )
    ranks = on_ranks(
        2, lambda: fit(OfDict(), given, {**settings, "accumulate_grad_batches": windows})
    )
    batches = wb.batches([{"x": x, "y": [y]} for x, y in DataLoader(labelled(40), 4)])
    alone = fit(OfDict(), {"train": batches}, {**settings, "accumulate_grad_batches": 2 * windows})
    same(ranks[0], alone)


class Unseeded(RandomSampler):
    def __iter__(self):
        return iter(np.random.default_rng().permutation(len(self)).tolist())


def test_an_order_that_no_two_processes_have_alike_is_refused():
    def rank():
        train = DataLoader(labelled(37), 4, sampler=Unseeded(labelled(37)))
        return fit(plain_net(), {"train": train, **CE}, PLAIN)

    with pytest.raises(TaskError, match="sharded the training data in different orders"):
        on_ranks(2, rank)
