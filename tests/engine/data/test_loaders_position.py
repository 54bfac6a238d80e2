"""Where a run is in its data: another process goes on with the very batches that would have come, or says that it cannot."""

import contextlib
import io
import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import workbench as wb
from tests.combinations import every, pairs
from tests.engine.problems import Augmented, labelled
from tests.task.data.test_spec import same
from workbench.engine.data.loaders import Loaders
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.rng import seed
from workbench.task.state.serialization import from_plain, to_plain
from workbench.techniques.tbptt import Piece


class Given:
    """As much of a task as the data need."""

    def __init__(self, train, val=None):
        self.train = DataSpec.of("train", train)
        self.val = None if val is None else DataSpec.of("val", val)

    def split(self, batch, length, time_dim):
        return None

    def begin_batch(self, samples):
        pass


@contextlib.contextmanager
def feeds(make, drawn=0, **settings):
    """Of data made afresh, as in a process of its own, which has `drawn` other random numbers before."""
    seed(drawn)
    given = make()
    task = Given(*given) if type(given) is tuple else Given(given)
    opened = Loaders(task, Settings(**{"accelerator": "cpu", "batch_size": 8, **settings}))
    try:
        yield opened
    finally:
        opened.close()


def copied(batch):
    batch = batch.batch if isinstance(batch, Piece) else batch
    return (
        type(batch)(part.clone() for part in batch)
        if isinstance(batch, (list, tuple))
        else batch.clone()
    )


def trained(data, draws):
    """The batches of an epoch, with random numbers drawn in between as dropout does."""
    for batch in data.train():
        if draws:
            torch.rand(3), np.random.rand(3), random.random()
        yield copied(batch)
    if data.validates:
        yield [copied(batch) for _, batches in data.val() for batch in batches]
        data.checked()


def through_a_file(position):
    file = io.BytesIO()
    torch.save(to_plain(position, "it"), file)
    return from_plain(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def resumed(make, epoch, taken, epochs=2, draws=True, **settings):
    """The batches of the rest of that epoch and of further ones, and what was said of them."""
    with feeds(make, **settings) as data:
        for _ in range(epoch):
            for _ in trained(data, draws):
                pass
        begun = trained(data, draws)
        for _ in range(taken):
            next(begun)
        pieces = settings.get("truncated_bptt_steps")
        position = data.position(taken if not pieces else data.batches_read if taken else 0)
        state = rng.RandomState.capture()
        begun.close()
    with feeds(make, drawn=123, **settings) as data:
        torch.rand(100), np.random.rand(100)
        doubts = data.place(through_a_file(position))
        again = data.position(taken if not pieces else data.batches_read if taken else 0)
        state.restore()
        found = [list(trained(data, draws)) for _ in range(1 + epochs)]
    if settings.get("num_workers"):
        return found, doubts
    # Asked again before anything was read, it is where it was placed.
    with feeds(make, drawn=321, **settings) as data:
        data.place(through_a_file(again))
        state.restore()
        assert same(list(trained(data, draws)), found[0])
    return found, doubts


def whole(make, epochs, draws=True, **settings):
    with feeds(make, **settings) as data:
        return [list(trained(data, draws)) for _ in range(epochs)]


def goes_on(
    make, points=((0, 0), (0, 1), (0, 3), (1, 0), (1, 2)), draws=True, said=False, **settings
):
    epochs = 1 if settings.get("num_workers") else 2  # further ones; processes take long to start
    expected = whole(make, 2 + epochs, draws, **settings)
    assert not same(expected[0], []), "nothing was read"
    with feeds(make, **settings) as data:
        all_of_them = len(expected[0]) - bool(data.validates)
    points = [*(p for p in points if p[1] <= all_of_them), (int(epochs > 1), all_of_them)]
    for epoch, taken in points:
        found, doubts = resumed(make, epoch, taken, epochs, draws, **settings)
        assert bool(doubts) == said, (doubts, epoch, taken)
        assert same(found[0], expected[epoch][taken:]), (epoch, taken)
        assert same(found[1:], expected[epoch + 1 : epoch + 1 + epochs]), (epoch, taken)


class Noisy(Dataset):
    """Draws from generators of its own, of all kinds and in all places."""

    def __init__(self, data=None):
        self.data = data or labelled(30)
        self.own = torch.Generator().manual_seed(1)
        self.transforms = [Jitter(2), Jitter(3)]
        self.old = np.random.RandomState(4)
        self.plain = random.Random(5)
        new = np.random.default_rng(6)
        self.draw = new.normal
        self.late = lambda x: x + 0.1 * float(hidden.standard_normal())
        hidden = np.random.Generator(np.random.Philox(7))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        x = (
            x
            + torch.rand(1, generator=self.own)
            + float(self.old.rand())
            + self.plain.gauss(0, 1)
            + self.draw()
        )
        for transform in self.transforms:
            x = transform(x)
        return self.late(x), y


class Jitter(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def forward(self, x):
        return x + self.rng.standard_normal(1).astype("float32")[0]


shared = np.random.default_rng(0)


class FromOutside(Augmented):
    def __getitem__(self, index):
        x, y = self.data[index]
        return x + float(shared.random()), y


def from_outside():
    shared.bit_generator.state = np.random.default_rng(11).bit_generator.state
    return FromOutside(labelled(30))


def weighted(generator=None, count=30):
    def make():
        own = None if generator is None else torch.Generator().manual_seed(generator)
        return DataLoader(
            labelled(30),
            8,
            sampler=WeightedRandomSampler(torch.arange(1.0, 31), count, generator=own),
        )

    return make


class Thirds(Sampler):
    """A batch sampler with generators of its own, that draws at the end of a pass too."""

    def __init__(self, eager=False):
        self.rng = np.random.default_rng(5)
        self.inner = RandomSampler(range(30), generator=torch.Generator().manual_seed(3))
        self.eager = eager

    def __len__(self):
        return 6

    def __iter__(self):
        if self.eager:
            order = np.random.permutation(30)
            return iter([order[n : n + 5].tolist() for n in range(0, 30, 5)])
        return self._batches()

    def _batches(self):
        for batch in BatchSampler(self.inner, 5, False):
            yield batch if self.rng.random() < 0.5 else [*batch, int(self.rng.integers(30))]
        self.rng.random()


MAP_STYLE = {
    "shuffled": lambda: labelled(30),
    "columns": lambda: list(labelled(30).tensors),
    "augmented": lambda: Augmented(labelled(30)),
    "weighted": weighted(),
    "weighted-own": weighted(7),
    "replacement": lambda: DataLoader(labelled(30), 8, sampler=RandomSampler(labelled(30), replacement=True, num_samples=100)),
    "batch_sampler": lambda: DataLoader(Augmented(labelled(30)), batch_sampler=Thirds()),
    "eager": lambda: DataLoader(labelled(30), batch_sampler=Thirds(eager=True)),
    "list-of-batches": lambda: DataLoader(labelled(30), batch_sampler=[[1, 2], [3], [4, 5], [6, 7], [8]]),
    "generator": lambda: DataLoader(labelled(30), 8, shuffle=True, generator=torch.Generator().manual_seed(9)),
    "validated": lambda: (labelled(30), Augmented(labelled(20, seed=2))),
    "validated-shuffled": lambda: (
        labelled(30),
        DataLoader(labelled(20), 8, sampler=RandomSampler(labelled(20), generator=torch.Generator().manual_seed(1))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"drop_last": True, "limit_train_batches": 3}, {"shuffle": False, "seed": 4}],
    ids=str,
)
@pytest.mark.parametrize("name", MAP_STYLE)
def test_samples_by_number(name, options):
    if not options.get("shuffle", True) and name in (
        "weighted",
        "weighted-own",
        "replacement",
        "generator",
    ):
        options = {"seed": 4}
    goes_on(MAP_STYLE[name], **options)


@pairs(
    "name, persistent",
    every(2, ["augmented", "shuffled", "batch_sampler", "weighted", "validated"]),
    [False, True],
)
def test_samples_made_by_workers(name, persistent):
    # each of its epochs starts those of the validation too
    workers = 1 if name == "validated" else 2
    goes_on(MAP_STYLE[name], ((1, 1),), num_workers=workers, persistent_workers=persistent)


def test_a_limit_with_workers_that_read_ahead():
    goes_on(
        MAP_STYLE["batch_sampler"],
        ((1, 2),),
        num_workers=1,
        limit_train_batches=4,
        persistent_workers=False,
    )


@pytest.mark.parametrize(
    "make",
    [
        Noisy, lambda: Subset(Noisy(), range(25)), lambda: ConcatDataset([Noisy(labelled(9)), Noisy()]), from_outside,
        lambda: (labelled(20), Noisy()),
    ],
    ids=["own", "subset", "concat", "global", "val"],
)  # fmt: skip
def test_generators_of_the_data_set(make):
    goes_on(make)


def test_a_collate_function_with_a_generator():
    def make():
        mixing = torch.Generator().manual_seed(1)

        def mixed(samples):
            x, y = torch.utils.data.default_collate(samples)
            return [x[torch.randperm(len(x), generator=mixing)], y]

        return DataLoader(labelled(30), 8, shuffle=True, collate_fn=mixed)

    goes_on(make)


def test_samples_that_are_done_with_are_not_read_again():
    read = []

    class Counting(Augmented):
        def __getitem__(self, index):
            read.append(index)
            return self.data[index]

    with feeds(lambda: Counting(labelled(30))) as data:
        batches = data.train()
        next(batches), next(batches)
        position = data.position(2)
    with feeds(lambda: Counting(labelled(30))) as data:
        read.clear()
        data.place(position)
        assert not read
        assert len(list(data.train())) == 2
        assert len(read) == 14


def test_generators_in_workers_cannot_be_followed_and_it_is_said():
    """In the middle of an epoch; behind one only with processes that live on."""
    for persistent in (False, True):
        options = {"num_workers": 1, "persistent_workers": persistent, "batch_size": 4}
        with feeds(Noisy, **options) as data:
            why = data.why_inexact()
            assert "train: dataset.own" in why
            assert "dataset.transforms[0].rng" in why
        _, doubts = resumed(Noisy, 0, 2, 0, **options)
        assert doubts == [why]
        expected = whole(Noisy, 3, **options)
        found, doubts = resumed(Noisy, 1, 0, 1, **options)
        if persistent:
            assert "persistent_workers=True, dataset.own" in doubts[0]
        else:
            assert not doubts
            assert same(found, expected[1:])
        assert resumed(Noisy, 0, 0, 0, **options)[1] == []
    with feeds(Noisy) as data:
        assert data.why_inexact() is None


# -- data that alone know what comes next


class Stream(IterableDataset):
    """`draws`: from a generator of its own ("own"), from the process ("process"), or not at all."""

    def __init__(self, draws="own", count=30):
        self.draws, self.count = draws, count
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for n in range(first, self.count, step):
            noise = 0.0
            if self.draws == "own":
                noise = torch.rand(1, generator=self.generator)
            elif self.draws == "process":
                noise = torch.rand(1) + float(np.random.rand()) + random.random()
            yield torch.full((2,), float(n)) + noise, torch.tensor(float(n))


class Knowing(Stream):
    """Knows where it is: in which pass, and in the middle of one at which sample."""

    reads = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.at, self.begin, self.passes = 0, 0, np.int64(0)
        self.table = np.arange(3, dtype="uint32")

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for n in range(begin, self.count):
            self.at = n + 1
            type(self).reads += 1
            yield (
                torch.full((2,), float(n + 100 * self.passes))
                + torch.rand(1, generator=self.generator),
                torch.tensor(0.0),
            )
        self.passes += begin < self.count
        self.at = self.behind()

    def behind(self):
        return 0

    def state_dict(self):
        return {"at": self.at, "passes": self.passes, "table": self.table}

    def load_state_dict(self, state):
        self.begin, self.passes = state["at"], np.int64(state["passes"])
        assert state["table"].dtype == "uint32"


class AtItsEnd(Knowing):
    """Behind a pass it is at its end."""

    def behind(self):
        return self.count


class Resets(Knowing):
    """As the example of torchdata: its position is an attribute, which only the end of a pass resets."""

    def __iter__(self):
        for n in range(self.at, self.count):
            self.at = n + 1
            yield (
                torch.full((2,), float(n + 100 * self.passes))
                + torch.rand(1, generator=self.generator),
                torch.tensor(0.0),
            )
        self.at, self.passes = 0, self.passes + 1

    def load_state_dict(self, state):
        self.at, self.passes = state["at"], np.int64(state["passes"])


class Stays(AtItsEnd):
    """Where it was told to be, every pass begins, until it is told otherwise."""

    def __iter__(self):
        begin, self.passes = self.begin, np.int64(0)
        try:
            yield from super().__iter__()
        finally:
            self.begin, self.passes = begin, np.int64(0)


def ready():
    return [[torch.full((2, 1), float(i)), torch.zeros(2)] for i in range(5)]


class Again:
    """Ready batches, without a length, another order in each pass."""

    def __init__(self):
        self.rng = random.Random(3)

    def __iter__(self):
        batches = ready()
        self.rng.shuffle(batches)
        return iter(batches)


STREAMS = {
    "stream": Stream,
    "still": lambda: Stream("no"),
    "ready": lambda: wb.batches(ready()),
    "again": Again,
    "map-style-ready": lambda: DataLoader(
        TensorDataset(*(t.view(6, 5, -1) for t in labelled(30).tensors)), batch_size=None
    ),
}


@pytest.mark.parametrize(
    "options", [{}, {"limit_train_batches": 4, "drop_last": True, "batch_size": 4}], ids=str
)
@pytest.mark.parametrize("name", STREAMS)
def test_streams_and_ready_batches(name, options):
    goes_on(STREAMS[name], **options)


@pytest.mark.parametrize("kind", [Knowing, AtItsEnd, Resets])
def test_streams_that_know_where_they_are(kind):
    goes_on(kind)
    goes_on(kind, batch_size=7, drop_last=True)


@pytest.mark.parametrize("taken", [0, 2, 4])
def test_a_stream_that_begins_each_pass_where_it_was_put_is_refused(taken):
    """At the first epoch that would lack samples, after the middle of an epoch or its end."""
    options = {"batch_size": 8}
    with feeds(Stays, **options) as data:
        list(data.train())
        batches = data.train()
        for _ in range(taken):
            next(batches)
        position = data.position(taken)
    with feeds(Stays, **options) as data:
        assert data.place(through_a_file(position)) == []
        if taken:
            assert len(list(data.train())) == 4 - taken
        with pytest.raises(
            TaskError,
            match=r"train \(Stays\) begins each pass where load_state_dict\(\) has put it",
        ):
            next(data.train())


def test_streams_in_loaders_of_the_users_own_are_read_again():
    """How far their workers have read is in no state."""

    class Standing(Stream):
        def state_dict(self):
            return {"at": 0}

        def load_state_dict(self, state):
            raise AssertionError("it stands where it stood")

    class Own(DataLoader):
        def __iter__(self):
            yield from super().__iter__()

    goes_on(lambda: Own(Standing("no"), 8))


@pytest.mark.parametrize("kind", [Knowing, AtItsEnd])
def test_a_stream_that_knows_where_it_is_and_was_left_before_its_end(kind):
    """Where it was left does not tell where the next epoch begins: the user is told that it is read as new data."""
    options = {"limit_train_batches": 4, "batch_size": 4}
    expected = whole(kind, 4, **options)
    for epoch, taken in ((0, 0), (0, 1), (1, 2), (1, 4), (1, 0)):
        found, doubts = resumed(kind, epoch, taken, **options)
        assert bool(doubts) == ((epoch, taken) in ((1, 0), (1, 4)))
        assert same(found, [expected[epoch][taken:], *expected[epoch + 1 : epoch + 3]]), (
            epoch,
            taken,
        )


def test_a_stream_that_knows_where_it_is_is_not_read_again():
    with feeds(Knowing, batch_size=4) as data:
        batches = data.train()
        next(batches), next(batches)
        position = data.position(2)
    before = Knowing.reads
    with feeds(Knowing, batch_size=4) as data:
        assert data.place(position) == []
        assert Knowing.reads == before
        assert float(next(data.train())[0][0, 0]) >= 8


def test_reading_further_ahead_changes_no_batch():
    """Neither of an epoch nor of the rest of one, which workers had read ahead."""
    options = {"num_workers": 2, "persistent_workers": False, "batch_size": 4}
    for make in (lambda: Augmented(labelled(30)), Stream):
        one, *_ = expected = whole(make, 2, **options)
        assert same(whole(make, 1, **options, prefetch_factor=6), [one])
        found, doubts = resumed(make, 0, 2, 1, **options, prefetch_factor=6)
        assert not doubts
        assert same(found, [one[2:], expected[1]])


@pairs("name, persistent", ["stream", "process", "ready", "map-style-ready"], [True, False])
def test_streams_from_workers(name, persistent):
    """Random numbers in processes that live on are said to be lost, but where the batch of then was found again."""
    make = {**STREAMS, "process": lambda: Stream("process")}[name]
    options = {"num_workers": 2, "persistent_workers": persistent, "batch_size": 4}
    inside = ((0, 1), (0, 3)) if persistent and name != "ready" else ((1, 2), (1, 0))
    if not persistent or name == "ready":
        return goes_on(make, inside, **options)
    expected = whole(make, 1, **options)
    for epoch, taken in inside:
        found, doubts = resumed(make, epoch, taken, 0, **options)
        assert not doubts
        assert same(found[0], expected[0][taken:])
    assert "persistent_workers=True" in resumed(make, 1, 0, 0, **options)[1][0]
    draws = name in ("stream", "process")
    said = resumed(make, 1, 2, 0, **options)[1]
    assert bool(said) == draws
    return None


def test_what_draws_with_the_training_cannot_be_read_again_and_it_is_said():
    (_, doubts) = resumed(lambda: Stream("process"), 0, 2)
    assert "train read again from the beginning of the epoch gives another batch 2" in doubts[0]
    goes_on(lambda: Stream("process"), draws=False)

    class Lazy(Sampler):
        def __len__(self):
            return 4

        def __iter__(self):
            for _ in range(4):
                yield torch.randint(30, (5,)).tolist()

    def make():
        return DataLoader(labelled(30), batch_sampler=Lazy())

    _, doubts = resumed(make, 0, 2)
    assert "made of other samples" in doubts[0]
    goes_on(make, draws=False)
    goes_on(make, ((1, 2),), draws=False, num_workers=1)


def test_a_sampler_that_counts():
    class Counts(Sampler):
        def __init__(self):
            self.epoch = 0

        def __len__(self):
            return 5

        def __iter__(self):
            self.epoch += 1
            order = torch.randperm(30, generator=torch.Generator().manual_seed(self.epoch)).tolist()
            return iter([order[n : n + 6] for n in range(0, 30, 6)])

    class Tells(Counts):
        def state_dict(self):
            return {"epoch": self.epoch}

        def load_state_dict(self, state):
            self.epoch = state["epoch"]

    goes_on(lambda: DataLoader(labelled(30), batch_sampler=Tells()))
    goes_on(lambda: DataLoader(labelled(30), batch_sampler=Tells()), ((1, 1),), num_workers=1)
    goes_on(lambda: DataLoader(labelled(30), batch_sampler=Counts()))
    goes_on(lambda: DataLoader(labelled(30), batch_sampler=Counts()), ((1, 1),), num_workers=1)


def test_what_can_be_read_only_once():
    def make():
        return iter(ready())

    with feeds(make) as data:
        assert "train can be read only once" in data.why_inexact()
        next(data.train())
        position, before = data.position(1), data.position(0)
    with feeds(make) as data, pytest.raises(TaskError, match="train can be read only once"):
        data.place(position)
    with feeds(make) as data:
        assert data.place(before) == []
        assert len(list(data.train())) == 5


def test_data_that_have_become_shorter():
    for make, fewer in (
        (lambda: labelled(30), lambda: labelled(8)),
        (lambda: wb.batches(ready()), lambda: wb.batches(ready()[:2])),
    ):
        with feeds(make) as data:
            list(itertools.islice(data.train(), 3))
            position = data.position(3)
        with feeds(fewer) as data, pytest.raises(TaskError, match="give the data that the run had"):
            data.place(position)
    with feeds(lambda: labelled(30)) as data:
        next(data.train())
        position = data.position(1)
    with feeds(lambda: labelled(31)) as data:
        assert "made of other samples" in data.place(position)[0]


# -- pieces in time, and other batch sizes


def sequences(n=20, cls=TensorDataset):
    g = torch.Generator().manual_seed(0)
    return cls(torch.randn(n, 7, 2, generator=g), torch.randn(n, 7, 1, generator=g))


class NoisySequences(TensorDataset):
    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(1) + float(np.random.rand()) + random.random() + float(
            self.rng.random()
        ), y


class StreamOfSequences(IterableDataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        for x, y in sequences():
            yield x + float(self.rng.random()), y


class KnowingSequences(StreamOfSequences):
    def __init__(self):
        super().__init__()
        self.at = self.begin = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for n, (x, y) in itertools.islice(enumerate(sequences()), begin, None):
            self.at = n + 1
            yield x + torch.randn(1), y
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


@pairs("limit, workers", [1.0, 2], [1, 0])
@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, marks=pytest.mark.slow) for make in (sequences, lambda: sequences(cls=NoisySequences))),
        lambda: DataLoader(sequences(cls=NoisySequences), 8, sampler=WeightedRandomSampler(torch.ones(20), 20)),
        StreamOfSequences, KnowingSequences,
    ],
    ids=["plain", "noisy", "weighted", "stream", "knowing"],
)  # fmt: skip
def test_within_a_batch_that_is_cut_in_pieces(make, workers, limit):
    """Three pieces a batch: the one that was begun is made again, and its first pieces are left out."""
    options = {
        "truncated_bptt_steps": 3,
        "batch_size": 8,
        "num_workers": workers,
        "limit_train_batches": limit,
    }
    options["persistent_workers"] = False
    points = ((1, 4),) if workers else ((0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (1, 1), (1, 4))
    noisy = (
        workers
        and "oisy" in type(make().dataset if isinstance(make(), DataLoader) else make()).__name__
    )
    if noisy:  # its own generator lives in the workers
        _, doubts = resumed(make, 0, 2, 0, **options)
        assert "dataset.rng" in doubts[0]
        points = ((0, 0), (1, 0))
        expected = whole(make, 3, **options)
        for epoch, taken in points:
            assert same(resumed(make, epoch, taken, 1, **options)[0], expected[epoch : epoch + 2])
        return
    goes_on(make, points, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make", [lambda: Augmented(labelled(30)), Stream], ids=["samples", "stream"]
)
def test_the_rest_of_an_epoch_keeps_its_batch_size(make, workers):
    """A live change holds from the next epoch on; so it does where another process goes on in between."""
    before = {
        "batch_size": 4,
        "num_workers": workers,
        "persistent_workers": workers > 0 and make is not Stream,
    }
    after = {**before, "batch_size": 10}
    with feeds(make, **before) as data:
        read = []
        for n, batch in enumerate(trained(data, True)):
            read.append(batch)
            if n == 2:
                data.use_batch_size(10)
        expected = [read, list(trained(data, True)), list(trained(data, True))]
    assert [len(b[0]) for b in read] == [len(b[0]) for b in whole(make, 1, **before)[0]]
    assert max(len(b[0]) for b in expected[1]) == 10
    with feeds(make, **before) as data:
        begun = trained(data, True)
        for n in range(5):
            next(begun)
            if n == 2:
                data.use_batch_size(10)
        position, state = data.position(5), rng.RandomState.capture()
    with feeds(make, **after) as data:
        assert data.place(through_a_file(position)) == []
        state.restore()
        assert same(list(trained(data, True)), expected[0][5:])
        position, state = data.position(0), rng.RandomState.capture()
        assert same([list(trained(data, True)) for _ in range(2)], expected[1:])
    with feeds(make, **after) as data:  # a position behind the change
        assert data.place(through_a_file(position)) == []
        state.restore()
        assert same([list(trained(data, True)) for _ in range(2)], expected[1:])


def test_data_without_a_length_remember_how_much_an_epoch_gave():
    with feeds(Again) as data:
        list(data.train())
        position = data.position(0)
        next(data.train())
        inside = data.position(1)
    with feeds(Again) as data:
        data.place(position)
        assert len(list(data.again([]))) == 5
    with feeds(Again) as data:
        data.place(inside)
        assert len(list(data.again([]))) == 5
        assert len(list(data.train())) == 4


def test_another_pass_for_statistics_moves_nothing():
    expected = whole(MAP_STYLE["batch_sampler"], 2)
    with feeds(MAP_STYLE["batch_sampler"]) as data:
        batches = data.train()
        next(batches)
        position, state = data.position(1), rng.RandomState.capture()
    with feeds(MAP_STYLE["batch_sampler"]) as data:
        data.place(position)
        list(data.again([]))
        state.restore()
        torch.rand(3), np.random.rand(3), random.random()  # as `trained` does behind a batch
        found = list(trained(data, True))
        assert same(found, expected[0][1:])


def test_a_position_that_was_not_reached():
    with feeds(lambda: labelled(30)) as data:
        with pytest.raises(ValueError, match=r"position\(1\)"):
            data.position(1)
        next(data.train())
        with pytest.raises(ValueError, match=r"position\(2\)"):
            data.position(2)
