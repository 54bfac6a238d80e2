"""preload=True: every sample is read once, and what a loader gives is what it gave without."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import workbench as wb
from tests.combinations import pairs
from workbench.settings import Settings
from workbench.share.package import pack, unpack
from workbench.task.data.preload import Stacked, preload
from workbench.task.data.spec import DataSpec, users_dataset
from workbench.task.errors import TaskError

ON = Settings(preload=True, batch_size=4, shuffle=True)
OWN = np.random.default_rng(0)
Pair = namedtuple("Pair", "x y")


def plenty() -> int:
    return 1 << 40


class Files(Dataset[Any]):
    """Samples in files, which counts how often it reads."""

    def __init__(self, folder: Path, count: int, sample: Callable[[int], Any]) -> None:
        self.paths = [folder / f"{i}.pt" for i in range(count)]
        self.reads = 0
        for i, path in enumerate(self.paths):
            torch.save(sample(i), path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.load(self.paths[index], weights_only=False)


SAMPLES: list[Callable[[int], Any]] = [
    lambda i: (torch.full((3,), float(i)), i),
    lambda i: torch.full((2, 2), i, dtype=torch.bfloat16),
    lambda i: {"x": np.full(3, i), "y": i * 0.5, "z": i % 2 == 0},
    lambda i: [torch.tensor(i), torch.tensor(float(i))],
    lambda i: (torch.zeros(3 if i != 17 else 4), i),
    lambda i: (torch.arange(i), f"name {i}"),
    lambda i: Pair(torch.tensor([i]), i),
    lambda i: (1 << 62) * (i + 1),
    lambda i: i,
]


def same_batches(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.dtype == other.dtype and bool(
            (torch.as_tensor(one) == torch.as_tensor(other)).all()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_batches(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_batches, one, other))
    return bool(one == other)


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


@pairs("sample, workers", SAMPLES, [0, 2])
def test_batches_are_those_without_it(
    sample: Callable[[int], Any], workers: int, tmp_path: Path
) -> None:
    data = Files(tmp_path, 22, sample)
    spec = DataSpec.of("train", data, collate_fn=as_they_are)
    on = ON.replace(num_workers=workers, persistent_workers=False)
    expected = list(spec.loader(on, train=True))
    message = preload(spec, on, plenty)
    assert message is not None
    assert "preloaded train: 22 samples" in message.text
    reads = data.reads
    loader = spec.loader(on, train=True)
    assert same_batches(list(loader), expected)
    assert data.reads == reads
    assert users_dataset(loader) is data
    assert spec.parts.dataset is data
    list(spec.loader(on.replace(preload=False, num_workers=0)))
    assert data.reads == reads + 22


def test_it_travels_to_another_process_in_the_segment(tmp_path: Path) -> None:
    spec = DataSpec.of("train", Files(tmp_path, 2100, lambda i: ({"tokens": [i]}, i)))
    preload(spec, ON, plenty)
    stacked = DataSpec.of("val", Files(tmp_path, 50, lambda i: (torch.full((2000,), float(i)), i)))
    preload(stacked, ON, plenty)
    with pack((spec, stacked), lists=True) as package:
        assert package.nbytes > 50 * 8000
        train, val = unpack(package)
    for path in tmp_path.iterdir():
        path.unlink()
    batch = next(iter(train.loader(ON.replace(shuffle=False))))
    assert batch[1].tolist() == [0, 1, 2, 3]
    assert next(iter(val.loader(ON.replace(shuffle=False))))[0][:, 7].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "sample", [lambda i: torch.zeros(2), lambda i: {"x": [0, 0], "y": torch.zeros(i + 1)}]
)
def test_what_is_done_to_a_sample_is_not_done_to_the_data(
    sample: Callable[[int], Any], tmp_path: Path
) -> None:
    def collate(samples: list[Any]) -> list[float]:
        for one in samples:
            (one if isinstance(one, torch.Tensor) else one["y"]).add_(1)
        return [float((one if isinstance(one, torch.Tensor) else one["y"])[0]) for one in samples]

    spec = DataSpec.of("train", Files(tmp_path, 8, sample), collate_fn=collate)
    preload(spec, ON, plenty)
    for _ in range(2):
        assert list(spec.loader(ON)) == [[1.0] * 4] * 2


def test_it_is_read_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    data = Files(tmp_path, 10, lambda i: torch.full((2,), float(i)))
    spec = DataSpec.of("train", data)
    assert preload(spec, ON, plenty) is not None
    reads = data.reads
    assert preload(spec, ON, plenty) is None
    assert data.reads - reads < 10
    torch.save(torch.full((2,), 50.0), data.paths[0])
    assert preload(spec, ON, plenty) is not None
    assert next(iter(spec.loader(ON.replace(shuffle=False))))[0].tolist() == [50.0, 50.0]


class Drawing(Dataset[Any]):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)) + (self.draw() if index >= 10 else 0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: float(torch.rand(())),
        lambda: random.random(),
        lambda: float(np.random.rand()),
        lambda: float(OWN.random()),
        lambda: float(torch.rand(()) > 2),  # it draws, and seldom shows
    ],
)
def test_a_data_set_that_draws_random_numbers_is_refused(draw: Callable[[], float]) -> None:
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(
        TaskError, match=r"train draws random numbers.*preload would freeze.*collate_fn"
    ):
        preload(DataSpec.of("train", Drawing(draw)), ON, plenty)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


class Image(torch.Tensor):
    """As torchvision's tv_tensors.Image: a tensor of a type of its own."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self.detach().clone().as_subclass(Image)


class Box:
    """Not two of these have the same pickle."""

    made = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        Box.made += 1
        return _boxed, (self.tensor, Box.made)


def _boxed(tensor: torch.Tensor, _: int) -> Box:
    return Box(tensor)


@pytest.mark.parametrize(
    "make",
    [lambda x: x.as_subclass(Image), lambda x: x[::1].expand(2).as_subclass(Image), Box],
    ids=["image", "view", "box"],
)
def test_samples_of_types_of_their_own_draw_nothing(make: Any, tmp_path: Path) -> None:
    """Random states tell whether something was drawn; a pickle of the same may differ."""

    class Deterministic(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return make(torch.full((1,), float(index))), index

    spec = DataSpec.of("train", Deterministic(), collate_fn=as_they_are)
    assert preload(spec, ON, plenty) is not None
    (first, number), *_ = next(iter(spec.loader(ON.replace(shuffle=False))))
    assert (type(first), number) == (type(make(torch.zeros(1))), 0)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.ones(2)])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wb.batches([(torch.ones(2), torch.ones(2))]), "yields ready batches"),
        (Stream(), "IterableDataset"),
    ],
)
def test_what_has_no_numbered_samples_is_refused_by_name(data: Any, words: str) -> None:
    with pytest.raises(TaskError, match=f"preload=True: val .*{words}"):
        preload(DataSpec.of("val", data), ON, plenty)


def test_what_is_in_memory_is_left() -> None:
    x = torch.ones(20, 3)
    for data in ((x, x), {"x": x}, torch.utils.data.TensorDataset(x)):
        assert preload(DataSpec.of("train", data), ON, plenty) is None


def test_too_little_memory_is_said_before_it_is_read(tmp_path: Path) -> None:
    data = Files(tmp_path, 100, lambda i: torch.zeros(1000))
    with pytest.raises(
        TaskError,
        match=r"train would take about [\d.]+ k?B \(100 samples\), and [\d.]+ k?B of memory are free",
    ):
        preload(DataSpec.of("train", data), ON, lambda: 1000)
    assert data.reads < 100


def test_a_worker_init_fn_finds_the_users_data_set(tmp_path: Path) -> None:
    data = Files(tmp_path, 8, lambda i: torch.tensor(float(i)))

    def init(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Files)

    spec = DataSpec.of("train", DataLoader(data, batch_size=4, worker_init_fn=init))
    on = ON.replace(num_workers=1, persistent_workers=False)
    preload(spec, on, plenty)
    assert len(list(spec.loader(on))) == 2


def test_an_object_that_makes_a_new_data_set_each_time_is_refused(tmp_path: Path) -> None:
    def parts() -> Any:
        return DataSpec.of("train", Files(tmp_path, 4, lambda i: torch.tensor(i))).parts

    with pytest.raises(
        TaskError, match=r"train_dataloader\(\) makes a new data set each time.*setup\(\)"
    ):
        preload(DataSpec("train", parts), ON, plenty)


def test_stacked_samples_that_do_not_fit_are_not_taken() -> None:
    stacked = Stacked.like((torch.zeros(2), 1), 3)
    assert stacked is not None
    assert stacked.put(0, (torch.ones(2), 5))
    for other in [(torch.ones(3), 1), (torch.ones(2).double(), 1), (torch.ones(2), 1.0), [torch.ones(2), 1],
                  (torch.ones(2), 1 << 70), (torch.ones(2), True), torch.ones(2)]:  # fmt: skip
        assert not stacked.put(1, other)
    first = stacked[0]
    assert first[0].tolist() == [1, 1]
    assert (type(first[1]), first[1]) == (int, 5)
    assert Stacked.like((torch.zeros(2, requires_grad=True), "x"), 2) is None
