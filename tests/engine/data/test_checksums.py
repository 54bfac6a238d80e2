"""Checksums of a fit's beginning: equal for equal contents, whatever holds them, and taken of the first batches alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from workbench.engine.data.checksums import (
    BATCHES,
    FIRST,
    checksum,
    of_batch,
    of_data,
    of_setup,
    of_weights,
)
from workbench.events import Checksums

X = torch.arange(6.0).reshape(2, 3)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


HOLDING = {
    "tuple": lambda x: (x, x * 2),
    "list in a dict": lambda x: {"a": [x], "b": {"c": x * 2}},
    "named tuple": lambda x: Pair(x, x * 2),
    "texts beside": lambda x: [["one", "two"], x],
    "numbers": lambda x: {"n": float(x.sum())},
    "unknown objects beside": lambda x: [object(), x],
}


@pytest.mark.parametrize("name", HOLDING)
def test_it_follows_the_values(name: str) -> None:
    made = HOLDING[name]
    assert checksum(made(X)) == checksum(made(X.clone())) != checksum(made(X + 1))
    assert len(checksum(made(X))) == 8


@pytest.mark.parametrize(
    "kind", [torch.bool, torch.bfloat16, torch.int8, torch.complex64, torch.float64]
)
def test_it_reads_every_type_and_layout(kind: torch.dtype) -> None:
    value = X.to(kind)
    assert checksum(value.t()) == checksum(value.t().contiguous())
    assert checksum(value[0, 1]) == checksum(value[0, 1].clone()) != ""


@pytest.mark.parametrize(
    "value",
    [object(), None, [], {"a": object()}, X.to_sparse(), torch.nested.nested_tensor([X, X[:1]])],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_read_has_none(value: Any) -> None:
    assert of_batch(value) == ""


def test_a_large_batch_is_read_in_part() -> None:
    large = torch.zeros(FIRST + 10)
    other = large.clone()
    other[-1] = 1
    assert checksum(large) == checksum(other) != checksum(large[:-1])


def test_paths_do_not_count() -> None:
    assert checksum({"x": X, "path": "/here/1.png"}) == checksum({"x": X, "path": "/there/1.png"})


def test_parameters_without_values_are_left_out() -> None:
    lazy, dense = nn.LazyLinear(3), nn.Linear(2, 2)
    assert of_weights([lazy, dense]) == of_weights([dense]) != ""


@pytest.mark.parametrize("change", [
    lambda net: setattr(net[0], "scale", 2.0), lambda net: setattr(net[1], "p", 0.2), lambda net: net[1].eval(), lambda net: net[0].weight.requires_grad_(False),
    lambda net: net[0].register_forward_hook(print), lambda net: net.register_full_backward_hook(print), lambda net: setattr(net, "names", [("a", None)]),
])  # fmt: skip
def test_a_setup_follows_attributes_modes_hooks_and_what_is_trained(
    change: Callable[[nn.Module], object],
) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))

    other = net()
    change(other)
    assert of_setup([net()]) == of_setup([net()]) != of_setup([other]) != ""


def test_a_setup_is_the_same_with_other_weights_objects_and_paths() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.owner, other.path, other._calls, other.now = object(), "/here/1.pt", 3, [print]
    assert of_setup([net]) == of_setup([other]) != ""
    other.around = around = []
    around.append(around)
    assert of_setup([other]) == ""


class Counting(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index % 2


def test_a_fit_records_them_once_and_looks_at_the_first_batches_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(
        "workbench.engine.data.loaders.of_batch", lambda batch: looked.append(batch) or "01234567"
    )
    bench = wb.Workbench(
        nn.Linear(3, 2),
        train=Counting(),
        loss=F.cross_entropy,
        root=tmp_path,
        max_epochs=2,
        batch_size=8,
    )
    run = bench.fit().result()
    (told,) = [e for e in run.events if isinstance(e, Checksums)]
    assert len(looked) == len(told.batches) == BATCHES
    assert told.weights
    assert told.order
    bench.fit(start="continue", max_epochs=3).result()
    assert len(looked) == BATCHES
    bench.close()


def test_an_epoch_of_one_batch(tmp_path: Path) -> None:
    bench = wb.Workbench(
        nn.Linear(3, 2),
        train=Counting(),
        loss=F.cross_entropy,
        root=tmp_path,
        max_epochs=3,
        batch_size=40,
    )
    (told,) = [e for e in bench.fit().result().events if isinstance(e, Checksums)]
    assert len(told.batches) == 1
    bench.close()


class Held(torch.utils.data.Dataset[Any]):
    """Holds an array; what it gives is drawn anew at each reading, but for the label and the text."""

    def __init__(self, x: torch.Tensor, text: str = "a") -> None:
        self.x, self.text, self.generator = x.numpy(), text, torch.Generator()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.randn(3, generator=self.generator) + torch.rand(3)
        return {
            "x": noise + torch.from_numpy(self.x[index]),
            "y": index % 2,
            "text": f"{self.text} {index}",
        }


def test_data_are_equal_where_they_hold_and_give_the_same() -> None:
    x = torch.randn(50, 3)
    other = x.clone()
    other[17, 1] += 1
    held = of_data(Held(x))
    assert held == of_data(Held(x.clone())) != of_data(Held(other))
    assert held != of_data(Held(x, "b"))
    assert of_data(Held(x), samples=False) == of_data(Held(x, "b"), samples=False)
    tensors = torch.utils.data.TensorDataset
    assert of_data(tensors(x)) == of_data(tensors(x.clone())) != of_data(tensors(other))


def test_of_large_data_an_even_share_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.engine.data.checksums.OF_DATA", 4000)
    x = torch.zeros(10_000)
    first, second, whole = x.clone(), x.clone(), x + 1
    first[1], second[10] = 1, 1
    data = [torch.utils.data.TensorDataset(values) for values in (x, first, second, whole)]
    sums = [of_data(values, samples=False) for values in data]
    assert sums[0] == sums[1]  # every tenth number
    assert len({*sums[1:]}) == 3


SIZE = 6000
LISTS: dict[str, list[Any]] = {
    "samples": [(torch.full((3,), float(n)), n) for n in range(SIZE)],
    "texts": [f"text {n}" for n in range(SIZE)],
    "few texts": [f"text {n}" for n in range(20)],
    "documents": [[n, n + 1] for n in range(SIZE)],
    "dicts": [{"x": n} for n in range(SIZE)],
    "of sparse tensors": [torch.tensor([float(n), 0]).to_sparse() for n in range(50)],
}


@pytest.mark.parametrize("name", LISTS)
def test_items_of_lists_are_compared(name: str) -> None:
    values = LISTS[name]
    other = list(values)
    other[len(values) // 2 + 1] = values[0]
    assert of_data(values, samples=False) == of_data(list(values), samples=False)
    assert of_data(values, samples=False) != of_data(other, samples=False)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_compared(layout: torch.layout) -> None:
    def nested(last: float) -> Any:
        rows = [X, torch.full((1, 3), float(last))]
        return Counted(torch.nested.nested_tensor(rows, layout=layout))

    assert of_data(nested(1)) == of_data(nested(1)) != of_data(nested(2))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors_are_compared(layout: str) -> None:
    def sparse(x: torch.Tensor) -> Any:
        name = {"coo": "to_sparse"}.get(layout, f"to_sparse_{layout}")
        return Counted(getattr(x, name)(*([(2, 2)] if "bs" in layout else [])))

    x = torch.zeros(2000, 2)
    x[:, 0] = torch.arange(2000.0)
    other = x.clone()
    other[999, 0] = 7.0
    assert of_data(sparse(x)) == of_data(sparse(x.clone())) != of_data(sparse(other))


class Counted(torch.utils.data.Dataset[Any]):
    """Holds an object, and gives none of it."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("held", ["tensor", "array", "transposed", "expanded", "half", "int8"])
def test_of_large_data_no_row_and_no_column_is_left_out(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.engine.data.checksums.OF_DATA", 4000)
    monkeypatch.setattr("workbench.engine.data.checksums._BLOCK", 50)
    kinds: dict[str, Callable[[torch.Tensor], Any]] = {
        "tensor": lambda x: x,
        "array": lambda x: x.numpy(),
        "transposed": lambda x: x.t().contiguous().t(),
        "expanded": lambda x: x[:, None].expand(-1, 3, -1),
        "half": lambda x: x.bfloat16(),
        "int8": lambda x: x.to(torch.int8),
    }

    def sums(x: torch.Tensor) -> str:
        return of_data(Counted(kinds[held](x)))

    long, wide = torch.zeros(5000, 4), torch.zeros(2, 10_000)
    column, row = long.clone(), wide.clone()
    column[:, 1], row[1, 50:90] = 1, 1
    assert sums(long) == sums(long.clone()) != sums(column)
    assert sums(wide) == sums(wide.clone()) != sums(row)


def test_a_list_that_contains_itself_is_read() -> None:
    around: list[Any] = [1, 2]
    around.append(around)
    assert of_data(Counted(around)) == of_data(Counted(around)) != of_data(Counted([1, 2]))


def test_data_that_cannot_be_read_by_number() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("it is read once")

    assert of_data(Stream()) == of_data(Stream())
