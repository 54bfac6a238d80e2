"""Loaders: what a batch is, whose random numbers it draws, and that looking moves nothing."""

import dataclasses
import gc
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import workbench as wb
from tests.engine.problems import Augmented, labelled
from workbench.settings import Settings
from workbench.task.batch import sample_count, to_device
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b)


def epochs(spec, count=2, **settings):
    loader = spec.loader(Settings(**{"batch_size": 8, **settings}), train=True)
    return [list(loader) for _ in range(count)]


def plain(dataset, count=2, seed=0, **options):
    loader = DataLoader(
        dataset,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        **{"batch_size": 8, **options},
    )
    return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_of_moved_dimensions_lie_in_memory_like_those_of_a_plain_loader(channels):
    images = torch.randn(30, 4, 4, channels).permute(0, 3, 1, 2)
    theirs = [batch.stride() for epoch in plain(TensorDataset(images)) for (batch,) in epoch]
    for data in (TensorDataset(images), (images,), {"x": images}):
        ours = epochs(DataSpec.of("train", data))
        assert [
            next(iter(b.values() if isinstance(b, dict) else b)).stride()
            for epoch in ours
            for b in epoch
        ] == theirs


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_a_plain_loader(drop_last):
    """Indexed whole or collated one by one, in the same containers and the same order, epoch after epoch."""
    data = labelled(30)
    assert same(
        epochs(DataSpec.of("train", data), drop_last=drop_last), plain(data, drop_last=drop_last)
    )
    x, y = data.tensors
    ours = epochs(DataSpec.of("train", (x.numpy(), y)), drop_last=drop_last)
    theirs = plain(data, drop_last=drop_last)
    assert same([[list(b) for b in e] for e in ours], theirs)
    assert all(isinstance(b, tuple) for e in ours for b in e)
    named = epochs(DataSpec.of("train", {"x": x, "y": y}), drop_last=drop_last)
    assert same([[list(b.values()) for b in e] for e in named], theirs)


def test_a_subclass_of_tensor_dataset_is_asked_for_its_samples():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return 2 * x, y

    data = Doubled(*labelled(20).tensors)
    assert same(epochs(DataSpec.of("train", data)), plain(data))


def test_a_collate_function_gets_a_list_of_samples():
    def collate(samples):
        assert isinstance(samples, list)
        return torch.stack([x for x, _ in samples]) + 1, torch.stack([y for _, y in samples])

    x, y = labelled(20).tensors
    ours = epochs(DataSpec.of("train", (x, y), collate))
    assert same(ours, plain(TensorDataset(x, y), collate_fn=collate))


@pytest.mark.parametrize("persistent", [False, True])
def test_augmentation_in_workers_is_by_seed_epoch_and_batch(persistent):
    """However many workers, each batch draws the same; another epoch, another seed draw others."""
    spec = DataSpec.of("train", Augmented(labelled(20)))
    one = epochs(spec, num_workers=1, persistent_workers=persistent)
    two = epochs(spec, num_workers=2, persistent_workers=persistent)
    assert same(one, two)
    assert not same(one[0], one[1])
    assert not same(one, epochs(spec, num_workers=1, seed=1))
    still = epochs(spec, num_workers=1, shuffle=False)
    assert not same(still[0], still[1])


def test_looking_at_data_moves_no_generator():
    loader = DataLoader(
        labelled(20), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    weighted = DataLoader(
        labelled(20), batch_size=4,
        sampler=RandomSampler(labelled(20), replacement=True, generator=torch.Generator().manual_seed(4)),
    )  # fmt: skip
    for given in (loader, weighted):
        generator = given.generator or given.sampler.generator
        state, process = generator.get_state(), torch.get_rng_state()
        spec = DataSpec.of("train", given)
        assert sample_count(spec.peek(2)) == 2
        first = epochs(spec, batch_size=4)
        assert same(first, epochs(spec, batch_size=4))
        assert torch.equal(generator.get_state(), state)
    # and is the order that the user's loader would have
    assert same(first, [list(weighted), list(weighted)])
    # that loader drew from the process, ours did not
    assert not torch.equal(torch.get_rng_state(), process)


def test_a_users_batch_sampler_stays_his():
    data = labelled(20)
    sampler = BatchSampler(torch.utils.data.SequentialSampler(data), 6, drop_last=True)

    class Own(BatchSampler):
        pass

    assert DataSpec.of("train", DataLoader(data, batch_sampler=sampler)).parts.own_batches is None
    own = DataSpec.of("train", DataLoader(data, batch_sampler=Own(RandomSampler(data), 6, False)))
    assert "Own" in own.parts.own_batches
    assert [sample_count(b) for b in epochs(own, 1, batch_size=2)[0]] == [6, 6, 6, 2]


def test_a_plain_batch_sampler_is_taken_apart():
    """The loader that holds it says neither its size nor its order; it does."""
    data = labelled(20)
    spec = DataSpec.of(
        "train", DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, True))
    )
    assert spec.defaults == {"batch_size": 8, "shuffle": True, "drop_last": True, "num_workers": 0}
    assert same(epochs(spec, drop_last=True), plain(data, drop_last=True))
    weighted = WeightedRandomSampler(torch.ones(20), 40)
    spec = DataSpec.of("train", DataLoader(data, batch_sampler=BatchSampler(weighted, 4, False)))
    assert spec.parts.sampler is weighted
    assert len(spec.loader(Settings(batch_size=8), train=True)) == 5
    few = DataLoader(data, sampler=RandomSampler(range(5)), batch_size=5)  # of the first five alone
    assert len(epochs(DataSpec.of("train", few), 1, batch_size=5)[0]) == 1


@pytest.mark.parametrize("numpy", [False, True])
def test_a_batch_samplers_own_generator_stays_where_it_is(numpy):
    class Own(Sampler):
        def __init__(self):
            self.inner = RandomSampler(range(20), generator=torch.Generator().manual_seed(3))
            self.generator = np.random.default_rng(3) if numpy else self.inner.generator

        def __iter__(self):
            self.generator.random(1) if numpy else torch.rand(1, generator=self.generator)
            yield from BatchSampler(self.inner, 6, False)

    data, sampler = labelled(20), Own()
    spec = DataSpec.of("train", DataLoader(data, batch_sampler=sampler))
    first = epochs(spec)
    spec.peek(2)
    assert same(first, epochs(spec))
    # the order of the user's own loop
    assert same(first[0], list(DataLoader(data, batch_sampler=sampler)))


def test_a_random_samplers_own_generator_gives_the_users_order():
    data = labelled(20)

    def given():
        return DataLoader(
            data, 8, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(3))
        )

    spec = DataSpec.of("train", given())
    theirs = given()
    assert same(epochs(spec), [list(theirs), list(theirs)])
    with pytest.raises(
        TaskError, match="shuffle=False: the loader of train has a RandomSampler of its own"
    ):
        spec.loader(Settings(shuffle=False, batch_size=8), train=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_batches_are_dealt_out_to_workers(workers):
    batches = [[torch.full((2, 1), float(i)), torch.zeros(2)] for i in range(5)]
    spec = DataSpec.of("train", wb.batches(batches))
    assert same(epochs(spec, 1, num_workers=workers, persistent_workers=False)[0], batches)
    once = DataSpec.of("train", iter(batches)).loader(Settings(num_workers=workers))
    assert once.num_workers == 0
    assert same(list(once), batches)


def saw_its_data(worker):
    data = get_worker_info().dataset
    data.tensors[0].fill_(float(type(data) is TensorDataset))


def test_options_of_a_users_workers():
    """They are kept, and `worker_init_fn` finds the user's own data set, which is the one that is read."""
    given = DataLoader(
        labelled(20), 8, num_workers=1, prefetch_factor=7, timeout=333, multiprocessing_context="spawn",
        worker_init_fn=saw_its_data,
    )  # fmt: skip
    spec = DataSpec.of("train", given)
    loader = spec.loader(
        Settings(batch_size=8, num_workers=1, persistent_workers=False), train=True
    )
    assert (loader.prefetch_factor, loader.timeout) == (7, 333)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert spec.loader(Settings(num_workers=1, prefetch_factor=3)).prefetch_factor == 3
    assert all((x == 1).all() for x, _ in loader)
    assert sample_count(next(iter(spec.loader(Settings(num_workers=0))))) == 20


def test_pinning_is_left_out_where_it_cannot_be(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    away = torch.zeros(4, 2, device="meta")
    for data in ((away, away), {"x": away}, TensorDataset(away), Subset(TensorDataset(away), [0])):
        assert not DataSpec.of("train", data).loader(Settings()).pin_memory
    spec = DataSpec.of("train", labelled(4))
    assert spec.loader(Settings()).pin_memory
    assert not spec.loader(Settings(accelerator="cpu")).pin_memory
    made = []
    monkeypatch.setattr(
        spec, "_loader", lambda settings, share: made.append(settings.pin_memory) or [1]
    )
    spec.peek(2)
    assert made == [False]


def test_a_one_shot_iterable_gives_its_batch_back():
    batches = [[torch.full((2, 1), float(i)), torch.zeros(2)] for i in range(3)]
    spec = DataSpec.of("train", iter(batches))
    assert spec.one_shot
    assert same(spec.peek(2), batches[0])
    assert same(spec.peek(2), batches[0])
    assert same(list(spec.loader(Settings())), batches)
    assert not DataSpec.of("train", wb.batches(batches)).one_shot


class Unreadable(Dataset):
    """Samples of which the first ones are None."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 300

    def __getitem__(self, index):
        return None if index < self.bad else torch.full((3,), float(index))


def readable(samples):
    kept = [sample for sample in samples if sample is not None]
    return torch.stack(kept) if kept else None


@pytest.mark.parametrize(
    ("bad", "first"),
    [(0, [0.0, 1.0]), (1, [2.0, 3.0]), (2, [2.0, 3.0]), (5, [6.0, 7.0]), (150, [150.0, 151.0])],
)
def test_samples_that_cannot_be_read_are_passed_over_in_search_of_a_batch(bad, first):
    batch = DataSpec.of("train", Unreadable(bad), readable).peek(2)
    assert batch[:, 0].tolist() == first


def test_batches_of_none_are_passed_over_and_none_is_lost():
    batches = [None, None, torch.ones(2), torch.zeros(2)]
    for data in (iter(batches), wb.batches(batches)):
        spec = DataSpec.of("train", data)
        assert torch.equal(spec.peek(2), torch.ones(2))
        assert len(list(spec.loader(Settings(), train=True))) == 4
    with pytest.raises(
        TaskError,
        match=r"train has 300 samples, and its first batches .up to 100 were read. are None",
    ):
        DataSpec.of("train", Unreadable(300), readable).peek(2)
    with pytest.raises(
        TaskError, match="train is empty: it gave no batch, or None for each of the first 100"
    ):
        DataSpec.of("train", iter([None] * 200)).peek(2)


def test_ready_batches_are_looked_at_as_they_will_be_given():
    """torch's loader makes tensors of arrays; so does the look at the first batch."""
    spec = DataSpec.of(
        "train", wb.batches([(np.full((2, 1), i, "float32"), np.zeros(2)) for i in range(3)])
    )
    assert same(spec.peek(2), next(iter(spec.loader(Settings()))))
    assert isinstance(spec.peek(2)[0], torch.Tensor)


def test_what_a_loader_implies():
    loader = DataLoader(
        labelled(20),
        batch_size=5,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    assert DataSpec.of("train", loader).defaults == {
        "batch_size": 5, "shuffle": True, "drop_last": True, "num_workers": 2, "persistent_workers": True,
    }  # fmt: skip


def test_a_batch_size_above_the_data():
    spec = DataSpec.of("train", labelled(20))
    with pytest.raises(TaskError, match="batch_size=21 is larger than the train data"):
        spec.loader(Settings(batch_size=21), train=True)
    # validation takes what there is
    assert [sample_count(b) for b in spec.loader(Settings(batch_size=21))] == [20]


@pytest.mark.parametrize(
    ("batch", "count"),
    [(torch.zeros(3, 2), 3), ([torch.zeros(3, 2), torch.zeros(5)], 3), ({"a": np.zeros(4)}, 4), (((torch.zeros(2),),), 2),
     (torch.zeros(()), 1), ("text", 1), (["a", torch.zeros(6)], 6), ({"text": ["a", "b"], "x": torch.zeros(3)}, 3),
     (pack_sequence([torch.ones(5, 2), torch.ones(3, 2)]), 2), ((["a"], ["b"]), 1),
     (dataclasses.make_dataclass("Named", ["name", "x"])("a", torch.zeros(5, 2)), 5)],
)  # fmt: skip
def test_samples_in_a_batch(batch, count):
    assert sample_count(batch) == count


def test_moving_keeps_containers():
    from collections import OrderedDict, namedtuple

    Pair = namedtuple("Pair", "x y")
    batch = OrderedDict(a=Pair(torch.zeros(2), [torch.ones(1), "text"]), b=3)
    moved = to_device(batch, torch.device("cpu"))
    assert type(moved) is OrderedDict
    assert type(moved["a"]) is Pair
    assert moved["a"].y[1] == "text"
    assert moved["b"] == 3


def test_packed_sequences_are_moved_by_their_own_method():
    """Their batch_sizes have to stay on the CPU, wherever the data goes."""
    moved = to_device(
        {"x": pack_sequence([torch.ones(5, 2), torch.ones(3, 2)])}, torch.device("meta")
    )["x"]
    assert type(moved) is PackedSequence
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection writes to pages that this process shares with its children: each would count as theirs alone then."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_workers_that_read_tensors_do_not_grow_with_what_they_have_read(uncollected: None) -> None:
    """128 batches of 1 MiB by one worker."""
    x = torch.arange(32768.0).repeat(1024, 1).T.contiguous()
    spec = DataSpec.of("train", TensorDataset(x, x[:, 0]))
    before, held, read = psutil.Process().children(), [], []
    for number, batch in enumerate(
        spec.loader(Settings.make(batch_size=256, num_workers=1, shuffle=False))
    ):
        read.append(batch[1])
        if number % 16 == 4:  # to count its pages takes longer than to read a batch
            (worker,) = (child for child in psutil.Process().children() if child not in before)
            held.append(worker.memory_full_info().uss)
    assert torch.equal(torch.cat(read), x[:, 0])
    assert len(held) == 8
    assert max(held) - held[0] < 24 * 2**20
