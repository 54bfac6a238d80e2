"""DataLoaders of a kind of their own, samplers without a length, batches that are mappings: as a plain loop reads them."""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset, default_collate

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.events import Validated
from workbench.launch.turns import alone
from workbench.settings import SettingsError
from workbench.task.batch import to_device

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = labelled(48).tensors


class Doubled(DataLoader[Any]):
    """Changes the batches on their way."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for x, y in super().__iter__():
            yield 2 * x, y


class Filtered(DataLoader[Any]):
    """As PyG's NeighborLoader, which makes its graphs of what its workers have sampled."""

    def _get_iterator(self) -> Any:
        return ((2 * x, y) for x, y in super()._get_iterator())


class Shorter(DataLoader[Any]):
    """Ends its passes early."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for number, batch in enumerate(super().__iter__()):
            if number < 2:
                yield batch


def losses_of_a_loop(loader: Any) -> list[float]:
    """Of two epochs."""
    model = plain_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


def bench_of(loader: Any, **given: Any) -> wb.Workbench:
    usual = {
        "train": loader,
        "loss": F.cross_entropy,
        "optimizer": torch.optim.SGD,
        "lr": 0.1,
        "max_epochs": 2,
        "accelerator": "cpu",
    }
    return wb.Workbench(plain_net(), **{**usual, **given})


@pytest.mark.parametrize("kind", [Doubled, Filtered, Shorter])
def test_a_loader_that_iterates_in_a_way_of_its_own_is_read_as_it_is(kind, tmp_path):
    expected = losses_of_a_loop(kind(TensorDataset(X, Y), 16))
    run = (
        bench_of(kind(TensorDataset(X, Y), 16), val=kind(TensorDataset(X, Y), 16), root=tmp_path)
        .fit()
        .result()
    )
    assert run.history["loss"].tolist() == expected


def test_it_is_resumed_and_left_by_the_finder_as_it_was(tmp_path):
    def loader() -> Any:
        return Doubled(TensorDataset(X, Y), 16, shuffle=True)

    whole = bench_of(loader(), root=tmp_path, max_epochs=3).fit().result()
    bench = bench_of(loader(), root=tmp_path)
    bench.find_lr(num_training=5).result()
    first = bench.fit(max_epochs=1).result()
    again = bench.fit(start=first.id, max_epochs=3).result()
    assert again.history["loss"].tolist() == whole.history["loss"].tolist()


def test_settings_that_it_decides_itself_are_refused(tmp_path):
    with pytest.raises(
        SettingsError, match=r"batch_size=8 .* its loader \(Doubled\) makes its batches itself"
    ):
        bench_of(Doubled(TensorDataset(X, Y), 16), batch_size=8, root=tmp_path)


def test_it_may_come_from_a_data_module(tmp_path):
    class Module:
        def train_dataloader(self) -> Any:
            return Doubled(TensorDataset(X, Y), 16)

    run = bench_of(Module(), root=tmp_path).fit().result()
    assert run.history["loss"].tolist() == losses_of_a_loop(Doubled(TensorDataset(X, Y), 16))


@pytest.mark.parametrize("error", [TypeError, ValueError, NotImplementedError])
def test_a_batch_sampler_whose_length_is_unknown(error, tmp_path):
    """PyG's DynamicBatchSampler raises a ValueError."""

    class Unknown:
        def __len__(self) -> int:
            raise error("undefined")

        def __iter__(self) -> Iterator[list[int]]:
            return (list(range(n, n + 16)) for n in range(0, 48, 16))

    loader = DataLoader(TensorDataset(X, Y), batch_sampler=Unknown())
    run = bench_of(loader, root=tmp_path).fit().result()
    assert run.history["loss"].tolist() == losses_of_a_loop(loader)


KINDS = {
    "UserDict": UserDict,
    "OrderedDict": OrderedDict,
    "ChainMap": ChainMap,
    "defaultdict": lambda found: defaultdict(list, found),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_are_mappings(kind, tmp_path):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return KINDS[kind]({"x": x, "y": y})

    given = {
        "loss": F.cross_entropy,
        "optimizer": torch.optim.SGD,
        "lr": 0.1,
        "max_epochs": 2,
        "batch_size": 16,
        "shuffle": False,
    }
    run = (
        wb.Workbench(
            Named(),
            train=TensorDataset(X, Y),
            collate_fn=collate,
            root=tmp_path,
            accelerator="cpu",
            **given,
        )
        .fit()
        .result()
    )
    assert run.history["loss"].tolist() == losses_of_a_loop(DataLoader(TensorDataset(X, Y), 16))


def test_a_mapping_that_can_be_moved_moves_itself():
    class Record(UserDict):  # as a BatchEncoding, whose `to` changes it in place
        def to(self, device: torch.device) -> Record:
            self.data = {name: value.to(device) for name, value in self.data.items()}
            self.moved = True
            return self

    batch = Record({"x": X})
    moved = to_device(batch, torch.device("cpu"))
    assert moved.moved
    assert not hasattr(batch, "moved")
    assert moved["x"] is X


class CountsPasses(Sampler[int]):
    """Each pass has the order of its number, which is in its state."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(
            torch.randperm(12, generator=torch.Generator().manual_seed(self.passes)).tolist()
        )

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class FromItsPlace(CountsPasses):
    """As torchdata's StatefulDistributedSampler: after a pass its state is the end, and one that is loaded begins the next pass."""

    def __init__(self) -> None:
        super().__init__()
        self.yielded, self.begin = 0, 0

    def __iter__(self) -> Iterator[int]:
        order, self.begin, self.yielded = [*super().__iter__()][self.begin :], 0, self.begin
        for index in order:
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.begin = state["passes"], state["yielded"]


class Untold(CountsPasses):
    """Has no state that could be loaded."""

    state_dict = None  # type: ignore[assignment]


class CountsReads(TensorDataset):
    """Each row is another one whenever it is read, by a count in its state."""

    def __init__(self, *columns: torch.Tensor) -> None:
        super().__init__(*columns)
        self.reads = torch.zeros((), dtype=torch.long)
        self.log = {"reads": 0}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.reads += 1
        self.log["reads"] += 1
        x, *rest = super().__getitem__(index)
        return x + self.reads + self.log["reads"], *rest

    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.reads, "log": self.log}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reads, self.log = state["reads"], state["log"]


class Drawn(TensorDataset):
    """Each row is another one whenever it is read, by an iterator that only a new one replaces."""

    def __init__(self, *columns: torch.Tensor) -> None:
        super().__init__(*columns)
        self.load_state_dict({"drawn": 0})

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.drawn = next(self.numbers)
        x, *rest = super().__getitem__(index)
        return x + self.drawn, *rest

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]
        self.numbers = iter(range(self.drawn + 1, 1000))


def held_out_losses(
    kind: type[Any], root: Path, *, asked: bool = False, used: bool = False, **settings: Any
) -> list[float]:
    """The losses of the validations. used: a fit before has read the same objects."""
    rows = (TensorDataset if issubclass(kind, Sampler) else kind)(
        torch.arange(12.0)[:, None], torch.zeros(12, 1)
    )
    held_out = DataLoader(rows, batch_size=2, sampler=kind() if issubclass(kind, Sampler) else None)
    torch.manual_seed(0)
    some = wb.Workbench(nn.Linear(1, 1), train=(torch.zeros(6, 1), torch.zeros(6, 1)), val=held_out, loss=nn.functional.mse_loss, lr=0.0,
                        batch_size=2, max_epochs=3, accelerator="cpu", seed=1, dry_run=False, root=root, **{"num_sanity_val_steps": 0, **settings})  # fmt: skip
    if used:
        some.fit(num_sanity_val_steps=0).result()
    with alone():  # the job waits until it is asked
        job = some.fit()
        if asked:
            job.validate()
    job.result()
    return [event.metrics["val_loss"] for event in job.events if isinstance(event, Validated)]


READ_AGAIN = [CountsPasses, FromItsPlace, Untold, CountsReads, Drawn]


@pytest.mark.parametrize(("limit", "used"), [(2, False), (5, True), (1.0, True)])
@pytest.mark.parametrize("kind", READ_AGAIN)
def test_a_validation_asked_for_leaves_the_state_of_a_sampler(
    kind: type[Any], limit: float, used: bool, tmp_path: Path
) -> None:
    """The scheduled validations have the rows that they would have had."""
    whole = held_out_losses(kind, tmp_path / "whole", limit_val_batches=limit, used=used)
    found = held_out_losses(
        kind, tmp_path / "asked", limit_val_batches=limit, used=used, asked=True
    )
    assert len(set(whole)) == 3 or (limit == 1.0 and issubclass(kind, Sampler))
    assert len(found) == 4
    assert found[1:] == whole


@pytest.mark.parametrize(
    ("steps", "limit", "used"), [(1, 1.0, False), (2, 1.0, True), (-1, 1.0, True), (2, 3, False)]
)
@pytest.mark.parametrize("kind", READ_AGAIN)
def test_the_sanity_check_leaves_the_state_of_validation_data(
    kind: type[Any], steps: int, limit: float, used: bool, tmp_path: Path
) -> None:
    whole = held_out_losses(kind, tmp_path / "whole", limit_val_batches=limit, used=used)
    assert (
        held_out_losses(
            kind, tmp_path / "tried", limit_val_batches=limit, used=used, num_sanity_val_steps=steps
        )
        == whole
    )
