"""Several ranks read what one process reads: every batch once, round by round, whatever it comes from."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

import workbench as wb
from tests.combinations import pairs
from tests.conftest import count
from tests.engine.problems import Augmented, labelled
from tests.task.data.test_spec import same
from workbench.engine.data.first_batches import close_workers, first_batches
from workbench.settings import Settings
from workbench.task.data.loader_parts import length_of
from workbench.task.data.sharding import RankShard
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError


class Stream(IterableDataset):
    """Samples without numbers. `sized`: it knows how many. `shuffled`: by the process's own random numbers."""

    def __init__(self, data, sized=False, shuffled=False):
        self.data, self.shuffled = data, shuffled
        if sized:
            type(self).__len__ = lambda self: len(self.data)

    def __new__(cls, data, sized=False, shuffled=False):
        return super().__new__(type("Sized", (cls,), {}) if sized else cls)

    def __iter__(self):
        order = list(range(len(self.data)))
        if self.shuffled:
            random.shuffle(order)
        for at in order:
            x, y = self.data[at]
            yield x + 0.1 * torch.randn(6) if self.shuffled else x, y


class Own(Sampler):
    """Numbers in an order of the user's, drawn as they are wanted. `seeded`: from a generator of its own."""

    def __init__(self, n, seeded=True):
        self.n, self.rng = n, np.random.default_rng(5) if seeded else np.random

    def __len__(self):
        return self.n

    def __iter__(self):
        left = list(range(self.n))
        while left:
            yield left.pop(int(self.rng.random() * len(left)))


class Groups(BatchSampler):
    """Batches of the user's own making."""


KINDS = {
    "set": lambda n, size: labelled(n),
    "arrays": lambda n, size: tuple(t.numpy() for t in labelled(n).tensors),
    "loader": lambda n, size: DataLoader(
        labelled(n), size, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "sampler": lambda n, size: DataLoader(labelled(n), size, sampler=Own(n)),
    "batch sampler": lambda n, size: DataLoader(
        labelled(n), batch_sampler=Groups(Own(n), size, False)
    ),
    "stream": lambda n, size: Stream(labelled(n)),
    "sized stream": lambda n, size: Stream(labelled(n), sized=True),
    "ready stream": lambda n, size: DataLoader(Stream(labelled(n)), batch_size=None),
    "ready": lambda n, size: wb.batches(list(DataLoader(labelled(n), size))),
    "ready by number": lambda n, size: DataLoader(list(labelled(n)), batch_size=None),
}


def passes(make, share, limit=None, count=2, drawn=0, **given):
    """What a rank reads in `count` epochs, other numbers having been `drawn` in its process."""
    torch.manual_seed(drawn), np.random.seed(drawn), random.seed(drawn)
    spec = DataSpec.of("train", make())
    spec.share = share
    loader = spec.loader(Settings(**{"persistent_workers": False, **given}), train=True)
    found = [list(first_batches(loader, limit)) for _ in range(count)]
    close_workers(loader)
    return found, length_of(loader), loader.generator.get_state()


def in_rounds(parts):
    """What the ranks have read, one after another in each round."""
    return [
        batch
        for together in itertools.zip_longest(*parts)
        for batch in together
        if batch is not None
    ]


@given(
    kind=st.sampled_from(sorted(KINDS)), n=st.integers(1, 40), size=st.integers(1, 9), world=st.integers(2, 5),
    drop_last=st.booleans(), shuffle=st.booleans(), limit=st.none() | st.integers(1, 6),
)  # fmt: skip
@example(kind="set", n=3, size=1, world=5, drop_last=False, shuffle=True, limit=None)
@example(kind="stream", n=17, size=4, world=2, drop_last=True, shuffle=True, limit=2)
@settings(deadline=None, max_examples=count(60, 1000), database=None)
def test_ranks_read_what_one_process_reads(kind, n, size, world, drop_last, shuffle, limit):
    size = min(size, n)
    given = {
        "batch_size": size,
        "drop_last": drop_last,
        "shuffle": shuffle or kind in ("sampler", "loader"),
    }
    cut = drop_last and "ready" not in kind and kind != "batch sampler"
    if cut and limit and limit >= n // size // world:
        limit = None  # it is the end of a pass, where a sampler draws on
    whole, length, state = passes(
        lambda: KINDS[kind](n, size), RankShard(), limit and limit * world, **given
    )
    ranks = [
        passes(lambda: KINDS[kind](n, size), RankShard(rank, world), limit, drawn=rank, **given)
        for rank in range(world)
    ]
    for epoch, expected in enumerate(whole):
        there = len(expected) // world * world if cut else len(expected)
        assert same(in_rounds([found[epoch] for found, *_ in ranks]), expected[:there])
    for _, rounds, after in ranks:
        assert rounds == (
            None if length is None else length // world if cut else -(-length // world)
        )
        assert torch.equal(after, state) or limit, "the ranks would deal the next epoch differently"
        assert torch.equal(after, ranks[0][2])


@pairs("kind, workers", ["set", "stream", "ready", "noise"], [1, 2])
def test_with_loader_workers(kind, workers):
    """The random numbers of a batch are those that it has in one process."""
    kinds = {**KINDS, "noise": lambda n, size: Augmented(labelled(n))}
    given = {"batch_size": 4, "num_workers": workers}
    whole, *_ = passes(lambda: kinds[kind](37, 4), RankShard(), **given)
    ranks = [
        passes(lambda: kinds[kind](37, 4), RankShard(rank, 2), drawn=rank, **given)[0]
        for rank in (0, 1)
    ]
    for epoch, expected in enumerate(whole):
        assert same(in_rounds([found[epoch] for found in ranks]), expected)


class Once(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.full((6,), float(index)), torch.rand(1)


SHUFFLES = {
    "sampler": lambda: DataLoader(Once(23), 3, sampler=Own(23, seeded=False)),
    "batch sampler": lambda: DataLoader(
        Once(23), batch_sampler=Groups(Own(23, seeded=False), 3, False)
    ),
    "stream": lambda: Stream(Once(23), shuffled=True),
}


@pytest.mark.parametrize("kind", SHUFFLES)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_order_drawn_from_the_processs_own_numbers_is_the_same_on_all_ranks(kind, workers):
    """Those of the ranks differ, and nobody sees a sample twice for that."""
    given = {"batch_size": 3, "num_workers": workers}
    ranks = [
        passes(SHUFFLES[kind], RankShard(rank, 3), drawn=rank, **given)[0] for rank in range(3)
    ]
    orders = []
    for epoch in range(2):
        batches = in_rounds([found[epoch] for found in ranks])
        orders.append([round(float(value)) for x, _ in batches for value in x.mean(1)])
        assert sorted(orders[-1]) == list(range(23))
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("kind", SHUFFLES)
def test_dealing_leaves_the_processs_own_numbers_where_they_are(kind):
    spec = DataSpec.of("train", SHUFFLES[kind]())
    spec.share = RankShard(1, 2)
    loader = spec.loader(Settings(batch_size=3), train=True)
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    list(loader)
    assert (np.random.rand(), random.random()) == expected


def test_samples_of_one_process_are_drawn_as_before():
    """Of a weighted sampler without a generator: from the process."""
    make = lambda: DataLoader(labelled(20), 4, sampler=WeightedRandomSampler([1.0] * 20, 20))  # noqa: E731
    ours, *_ = passes(make, RankShard(), count=1, drawn=4, batch_size=4)
    torch.manual_seed(4)
    loader = make()
    order = list(BatchSampler(loader.sampler, 4, False))
    assert same(ours[0], [[t[batch] for t in labelled(20).tensors] for batch in order])


@pytest.mark.parametrize("nested", [False, True])
def test_a_sampler_that_deals_to_ranks_itself_is_refused_by_name(nested):
    data = labelled(20)
    dealt = DistributedSampler(data, num_replicas=2, rank=0)
    loader = (
        DataLoader(data, batch_sampler=Grouped(dealt))
        if nested
        else DataLoader(data, 4, sampler=dealt)
    )
    spec = DataSpec.of("train", loader)
    assert len(list(spec.loader(Settings(batch_size=5)))) == 2
    spec.share = RankShard(0, 2)
    with pytest.raises(
        TaskError, match="the loader of train has a DistributedSampler: give the loader without it"
    ):
        spec.loader(Settings(batch_size=5))


class Grouped(Sampler):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return iter(BatchSampler(self.inner, 5, False))

    def __len__(self):
        return 2


@pytest.mark.parametrize("kind", KINDS)
def test_looking_at_a_batch_is_looking_at_the_first_of_all(kind):
    spec = DataSpec.of("train", KINDS[kind](20, 4))
    alone = spec.peek(4)
    spec.share = RankShard(1, 3)
    assert same(spec.peek(4), alone)


def test_the_end_of_a_pass_is_reached_by_all():
    """A sampler that draws a last number at its very end has drawn it on all ranks, the last round being whole or not."""
    for n in (20, 24, 28):
        states = []
        for rank in (0, 1):
            loader = DataLoader(
                labelled(n),
                4,
                sampler=RandomSampler(range(n), True, 33, torch.Generator().manual_seed(1)),
            )
            spec = DataSpec.of("train", loader)
            spec.share = RankShard(rank, 2)
            made = spec.loader(Settings(batch_size=4))
            list(made)
            states.append(made.batch_sampler.batches.sampler.generator.get_state())
        assert torch.equal(*states)
