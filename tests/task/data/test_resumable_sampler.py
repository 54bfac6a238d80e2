"""What moves while data are read is found, kept in a file as plain things, and put back."""

import dataclasses
import functools
import io
import random
import tracemalloc
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Sampler, SequentialSampler

from workbench.task.batch import checksum_of
from workbench.task.data.datasets import KeyedBatches
from workbench.task.data.resumable_sampler import ResumableBatchSampler
from workbench.task.data.rng_state import DataRngState
from workbench.task.errors import TaskError
from workbench.task.rng import process_state, restored_process_state
from workbench.task.state.serialization import from_plain, to_plain

GENERATORS = {
    "torch": (
        lambda: torch.Generator().manual_seed(1),
        lambda g: torch.rand(1, generator=g).item(),
    ),
    "pcg": (lambda: np.random.default_rng(1), lambda g: g.random()),
    "philox": (lambda: np.random.Generator(np.random.Philox(1)), lambda g: g.random()),
    "mt": (lambda: np.random.Generator(np.random.MT19937(1)), lambda g: g.random()),
    "old": (lambda: np.random.RandomState(1), lambda g: g.randn()),
    "python": (lambda: random.Random(1), lambda g: g.gauss(0, 1)),
}


def through_a_file(state):
    file = io.BytesIO()
    torch.save(to_plain(state, "it"), file)
    return from_plain(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


class Box:
    def __init__(self, **inside):
        vars(self).update(inside)


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_kind_of_generator_goes_on(kind):
    make, draw = GENERATORS[kind]
    one, other = make(), make()
    draw(one)
    state = through_a_file(DataRngState(dataset=Box(rng=one)).state())
    expected = [draw(one) for _ in range(5)]
    assert DataRngState(dataset=Box(rng=other)).put(state) == []
    assert [draw(other) for _ in range(5)] == expected


@dataclasses.dataclass(frozen=True)
class Domain:
    name: str


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ((Domain("a"), Domain("b")), ["Domain(name='a')", "Domain(name='b')"]),
        ((Path("a"), torch.float32), [repr(Path("a")), "torch.float32"]),
        (
            (object(), frozenset("ab"), torch.zeros(2), torch.nn.Linear(2, 2)),
            ["#0", "#1", "#2", "#3"],
        ),
    ],
)
def test_generators_by_keys_of_any_kind(keys, names):
    """Two keys have two names, which are the same in another process."""
    rngs = {key: random.Random(number) for number, key in enumerate(keys)}
    found = DataRngState(dataset=Box(rngs=rngs)).generators
    assert found == {
        f"dataset.rngs[{name}]": rng for name, rng in zip(names, rngs.values(), strict=True)
    }


def test_the_process_draws_as_then_and_goes_on_as_before():
    def drawn():
        return torch.rand(1).item(), np.random.randn(), random.gauss(0, 1)

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    drawn()
    then = through_a_file(process_state())
    first = drawn()
    now = process_state()
    second = drawn()
    with restored_process_state(now):
        with restored_process_state(then):
            assert drawn() == first
        assert drawn() == second


def test_where_generators_are_found():
    inner = [np.random.default_rng(n) for n in range(6)]

    one, late = inner[1], np.random.default_rng(7)

    def closed_over(x):
        return late.random() * x

    closed_over.own = np.random.default_rng(11)

    class Mine(Dataset):
        def __init__(self):
            self.here = inner[0]
            self.parts = {"a": [Box(rng=one)], 3: functools.partial(closed_over, rng=inner[2])}
            self.draw = inner[3].normal
            self.module = torch.nn.Sequential(torch.nn.Identity())
            self.module[0].rng = inner[4]
            self.again = self
            self.many = [Box(rng=inner[5])] * 5000
            self.processes_own = [
                random.random,
                np.random.rand,
                torch.default_generator,
                random.SystemRandom(),
            ]

        def __getitem__(self, index):
            return SHARED.random()

    found = DataRngState(dataset=Mine()).generators
    expected = {
        "dataset.here": inner[0],
        "dataset.draw.__self__": inner[3],
        "dataset.__getitem__:SHARED": SHARED,
        "dataset.parts['a'][0].rng": one,
        "dataset.parts[3].func:late": late,
        "dataset.parts[3].func.own": closed_over.own,
        "dataset.parts[3].keywords['rng']": inner[2],
        "dataset.module.0.rng": inner[4],
    }
    assert {path: id(generator) for path, generator in found.items()} == {
        k: id(g) for k, g in expected.items()
    }


SHARED = np.random.default_rng(9)


def test_a_sampler_is_not_followed_into_its_data():
    class Data(Dataset):
        rng = None

        def __init__(self):
            self.rng = random.Random(1)

        def __len__(self):
            return 3

    own, beside = torch.Generator(), torch.Generator()
    sampler = RandomSampler(Data(), generator=own)
    assert list(DataRngState(batch_sampler=BatchSampler(sampler, 2, False)).generators) == [
        "batch_sampler.sampler.generator"
    ]
    assert not DataRngState(
        batch_sampler=RandomSampler(Data(), generator=beside), beside=beside
    ).generators


def test_what_is_not_there_any_more_is_said():
    state = DataRngState(dataset=Box(rng=random.Random(1), other=np.random.default_rng(1))).state()
    doubts = DataRngState(dataset=Box(other=np.random.Generator(np.random.Philox(1)))).put(state)
    assert [said.partition(" any more")[0] for said in doubts] == [
        "there is no generator like dataset.rng", "there is no generator like dataset.other",
    ]  # fmt: skip


def test_a_checksum_tells_batches_apart():
    batch = {
        "x": torch.zeros(2, 3, dtype=torch.bfloat16),
        "y": [np.arange(2), "text", 1, None, torch.empty(0), torch.tensor(1.0)],
    }
    assert checksum_of(batch) == checksum_of(OrderedDict(batch))
    for changed in (
        {**batch, "x": torch.ones(2, 3, dtype=torch.bfloat16)},
        {**batch, "y": [*batch["y"][:-1], torch.tensor(2.0)]},
        {**batch, "y": [np.arange(2), "test", *batch["y"][2:]]},
        {"x": batch["x"], "z": batch["y"]},
        {**batch, "y": [np.arange(1, 3), *batch["y"][1:]]},
    ):
        assert checksum_of(changed) != checksum_of(batch)


def test_going_through_a_pass_again_draws_as_much_as_was_handed_out():
    """With workers batches are drawn ahead of the training: another process has drawn them too when it goes on."""
    own = torch.Generator().manual_seed(0)

    def sampler():
        return ResumableBatchSampler(
            BatchSampler(
                RandomSampler(range(40), replacement=True, num_samples=40, generator=own), 4, False
            ),
            own,
        )

    one = sampler()
    handed = iter(one)
    first = [next(handed) for _ in range(9)]  # the second 32 numbers are drawn
    position, state = through_a_file(one.position()), own.get_state()
    rest = list(handed)
    own.manual_seed(5)
    other = sampler()
    assert other.replay(position, 5) == []
    own.manual_seed(6)  # whatever a loader draws before
    batches = iter(other)
    assert next(batches) == first[5]
    assert torch.equal(own.get_state(), state)
    assert list(batches) == first[6:] + rest


def test_batches_that_are_not_numbers():
    """They may be of any kind; where an object lies in memory is not what tells them apart."""

    class Own(Sampler):
        def __init__(self, kinds):
            self.kinds = kinds

        def __iter__(self):
            for kind in self.kinds:
                yield [kind, Box()]

    for changed in ("b", 2.5):
        one = ResumableBatchSampler(Own(["a", changed, ("c", 1)]), torch.Generator())
        list(one)
        assert (
            ResumableBatchSampler(Own(["a", changed, ("c", 1)]), torch.Generator()).replay(
                one.position(), 2
            )
            == []
        )
        assert (
            "other samples"
            in ResumableBatchSampler(Own(["a", "x", ("c", 1)]), torch.Generator()).replay(
                one.position(), 2
            )[0]
        )
        with pytest.raises(TaskError, match="has 1 batches now"):
            ResumableBatchSampler(Own(["a"]), torch.Generator()).replay(one.position(), 2)


def test_numbers_of_keyed_batches_go_on():
    def keyed():
        return ResumableBatchSampler(KeyedBatches([[1, 2], [3], [4, 5]], seed=3), torch.Generator())

    one = keyed()
    expected = [list(one), list(one)]
    two = keyed()
    list(two)
    begun = iter(two)
    next(begun)
    three = keyed()
    assert three.replay(two.position(), 1) == []
    assert list(three) == expected[1][1:]
    assert list(three) == list(one)


@pytest.mark.parametrize("taken", [100, 5000])
def test_a_pass_over_ready_batches_is_resumed_after_many(taken):
    def numbers():
        return ResumableBatchSampler(
            RandomSampler(range(6000), generator=(own := torch.Generator().manual_seed(1))), own
        )

    begun, again = numbers(), numbers()
    expected = list(numbers())
    reading = iter(begun)
    for _ in range(taken):
        next(reading)
    position = through_a_file(begun.position())
    crc = 0
    for number in expected[:taken]:
        crc = zlib.crc32(str(number).encode(), crc)
    assert (position["handed"], position["crc"]) == (taken, crc)
    # which earlier versions restore, though this order needs none
    assert set(position["process"]) == {"python", "numpy", "torch"}
    assert again.replay(position, taken) == []
    assert list(again) == expected[taken:]


def test_a_long_pass_over_ready_batches_keeps_few_numbers():
    sampler = ResumableBatchSampler(SequentialSampler(range(50_000)), torch.Generator())
    tracemalloc.start()
    try:
        for _ in sampler:
            sampler.drawn.clear()  # as a loader does
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000  # 36 bytes each, if all were kept
