"""Data sets of other packages: each batch that the model sees is what a plain DataLoader gives."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import workbench as wb
from tests.ecosystem.twins import fit, in_batches, losses, plain, refused_by_name


def data(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def cross_entropy(net: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


class ByName(nn.Module):
    """Takes a dictionary batch by its names, with its loss in the output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.line(x.float())
        return {"loss": F.cross_entropy(out, labels), "logits": out}


def by_name(net: nn.Module, batch: Any) -> torch.Tensor:
    found: torch.Tensor = net(**batch)["loss"]
    return found


# ---- datasets


def table() -> Any:
    datasets = pytest.importorskip("datasets")
    x, y = data()
    return datasets.Dataset.from_dict({"x": x.tolist(), "labels": y.tolist()})


def test_a_table_with_a_format(tmp_path: Path) -> None:
    own = table().with_format("torch")
    net = ByName()
    assert losses(fit(tmp_path, net, train=own, val=own)) == plain(net, DataLoader(own, 8), by_name)


def test_a_table_without_a_format(tmp_path: Path) -> None:
    """Columns of lists are no tensors: used as they were meant, or refused with with_format."""
    net = ByName()
    try:
        run = fit(tmp_path, net, train=table())
    except Exception as error:
        refused_by_name(error, "with_format", "set_format")
        return
    assert losses(run) == plain(net, DataLoader(table().with_format("torch"), 8), by_name)


def test_a_dictionary_of_tables(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict({"train": table(), "test": table()})
    with pytest.raises(Exception, match=r"DatasetDict|\['train'\]|\[\"train\"\]") as error:
        fit(tmp_path, ByName(), train=both)
    assert len(str(error.value)) < 1500


def test_a_stream(tmp_path: Path) -> None:
    own = table().to_iterable_dataset().with_format("torch")
    net = ByName()
    assert losses(fit(tmp_path, net, train=own)) == plain(net, DataLoader(own, 8), by_name)


def test_a_stream_that_goes_on(tmp_path: Path) -> None:
    own = table().to_iterable_dataset().with_format("torch")
    net = ByName()
    bench = wb.Workbench(
        net, train=own, root=tmp_path, max_epochs=2, batch_size=8, accelerator="cpu"
    )
    bench.fit().result()
    run = bench.fit(start="continue", max_epochs=5).result()
    assert len(run.history["loss"]) == 15
    assert len(list(own)) == 24


def test_a_shuffled_stream_has_another_order_each_epoch(tmp_path: Path) -> None:
    seen: list[list[float]] = []

    class Looks(ByName):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                seen.append(x[:, 0].tolist())
            return super().forward(x, labels)

    own = table().to_iterable_dataset().with_format("torch").shuffle(seed=3, buffer_size=100)
    bench = wb.Workbench(
        Looks(), train=own, root=tmp_path, max_epochs=3, batch_size=24, accelerator="cpu"
    )
    seen.clear()
    bench.fit().result()
    assert len({tuple(order) for order in seen}) == 3
    assert len({tuple(sorted(order)) for order in seen}) == 1


# ---- tables and arrays


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_memory_maps(tmp_path: Path) -> None:
    x, y = data()
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    net = model()
    expected = plain(net, in_batches(list(zip(x, y, strict=True))), cross_entropy)
    assert losses(fit(tmp_path, net, train=(mapped, y.numpy()), loss=F.cross_entropy)) == expected
    assert not np.load(tmp_path / "x.npy", mmap_mode="r").flags.writeable


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_in_a_file(tmp_path: Path, workers: int) -> None:
    h5py = pytest.importorskip("h5py")
    x, y = data()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x.numpy(), y.numpy()

    class InFile(torch.utils.data.Dataset[Any]):
        def __init__(self, path: Path) -> None:
            self.path, self.file = path, None

        def __len__(self) -> int:
            return 24

        def __getitem__(self, i: int) -> Any:
            self.file = self.file or h5py.File(self.path)
            return self.file["x"][i], self.file["y"][i]

    net = model()
    expected = plain(net, in_batches(list(zip(x, y, strict=True))), cross_entropy)
    assert (
        losses(
            fit(
                tmp_path,
                net,
                train=InFile(tmp_path / "a.h5"),
                loss=F.cross_entropy,
                num_workers=workers,
            )
        )
        == expected
    )


def test_arrays_of_a_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    x, y = data()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x.numpy(), y.numpy()
    net = model()
    with h5py.File(tmp_path / "a.h5") as file:
        try:
            run = fit(tmp_path, net, train=(file["x"], file["y"]), loss=F.cross_entropy)
        except Exception as error:
            refused_by_name(error, "train", "h5py", "Dataset")
            return
        assert losses(run) == plain(net, in_batches(list(zip(x, y, strict=True))), cross_entropy)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames(tmp_path: Path, kind: str) -> None:
    package = pytest.importorskip(kind)
    x, y = data()
    frame = (
        package.DataFrame(x.numpy())
        if kind == "pandas"
        else package.DataFrame(x.numpy(), schema=list("abcd"))
    )
    target = package.Series(y.numpy())
    net = model()
    expected = plain(net, in_batches(list(zip(x, y, strict=True))), cross_entropy)
    assert losses(fit(tmp_path, net, train=(frame, target), loss=F.cross_entropy)) == expected


def test_skorch_data_sets(tmp_path: Path) -> None:
    skorch = pytest.importorskip("skorch")
    x, y = data()
    net = model()
    own = skorch.dataset.Dataset(x.numpy(), y.numpy())
    assert losses(fit(tmp_path, net, train=own, loss=F.cross_entropy)) == plain(
        net, in_batches(own), cross_entropy
    )


# ---- samples of all kinds

Point = namedtuple("Point", ["x", "labels"])


def test_named_tuples(tmp_path: Path) -> None:
    samples = [Point(x, y) for x, y in zip(*data(), strict=True)]
    net = model()
    expected = plain(net, in_batches(samples), cross_entropy)
    assert losses(fit(tmp_path, net, train=samples, loss=F.cross_entropy)) == expected


@dataclasses.dataclass
class Pair:
    x: torch.Tensor
    labels: torch.Tensor


def _collated(samples: list[Any], kind: Any) -> Any:
    return kind(torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples]))


def _kinds() -> dict[str, Any]:
    import attrs
    import pydantic
    import tensordict

    @attrs.define
    class OfAttrs:
        x: torch.Tensor
        labels: torch.Tensor

    class OfPydantic(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        x: torch.Tensor
        labels: torch.Tensor

    return {
        "dataclass": Pair,
        "attrs": OfAttrs,
        "pydantic": lambda x, y: OfPydantic(x=x, labels=y),
        "namedtuple": Point,
        "tensordict": lambda x, y: tensordict.TensorDict(
            {"x": x, "labels": y}, batch_size=[len(x)]
        ),
    }


class FromAny(ByName):
    def forward(self, batch: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        named = hasattr(batch, "labels")
        return super().forward(
            batch.x if named else batch["x"], batch.labels if named else batch["labels"]
        )


@pytest.mark.parametrize("name", ["dataclass", "attrs", "pydantic", "tensordict"])
def test_batches_that_are_objects(tmp_path: Path, name: str) -> None:
    kind = _kinds()[name]
    samples = list(zip(*data(), strict=True))

    def collate(own: list[Any]) -> Any:
        return _collated(own, kind)

    net = FromAny()
    expected = plain(net, DataLoader(samples, 8, collate_fn=collate), lambda m, b: m(b)["loss"])
    try:
        run = fit(tmp_path, net, train=samples, val=samples, collate_fn=collate)
    except Exception as error:
        refused_by_name(error, "train", "collate_fn")
        return
    assert losses(run) == expected


# ---- loaders and streams of other packages


def test_a_stateful_loader(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    samples = list(zip(*data(), strict=True))
    net = model()
    loader = stateful.StatefulDataLoader(samples, 8)
    try:
        run = fit(tmp_path, net, train=loader, loss=F.cross_entropy)
    except Exception as error:
        refused_by_name(error, "StatefulDataLoader")
        return
    assert losses(run) == plain(net, in_batches(samples), cross_entropy)


class Stream(torch.utils.data.IterableDataset[Any]):
    """A stateful stream, as torchdata has them: `load_state_dict` says where the next pass begins."""

    def __init__(self) -> None:
        self.next, self.begin = 0, 0

    def __iter__(self) -> Iterator[Any]:
        samples, first, self.begin = list(zip(*data(), strict=True)), self.begin, 0
        for number in range(first, len(samples)):
            self.next = number + 1
            yield samples[number]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["next"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "stream", "sampler"])
def test_a_stateful_loader_resumes_where_it_was(kind: str, workers: int, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    samplers = pytest.importorskip("torchdata.stateful_dataloader.sampler")
    samples = list(zip(*data(), strict=True))

    def loader() -> Any:
        if kind == "stream":
            return stateful.StatefulDataLoader(Stream(), 4, num_workers=workers)
        order = (
            {"sampler": samplers.RandomSampler(samples)} if kind == "sampler" else {"shuffle": True}
        )
        return stateful.StatefulDataLoader(samples, 4, num_workers=workers, **order)

    def bench(root: Path) -> wb.Workbench:
        return wb.Workbench(
            model(), train=loader(), loss=F.cross_entropy, root=root, accelerator="cpu"
        )

    whole = bench(tmp_path / "whole").fit(max_steps=15).result()
    bench(tmp_path / "part").fit(max_steps=8).result()  # in the middle of the second epoch
    again = bench(tmp_path / "part").fit(start="0001-fit", max_steps=15).result()
    assert losses(again) == losses(whole)


def _shard(folder: Path) -> str:
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(folder / "a.tar")) as out:
        for i, (x, y) in enumerate(zip(*data(), strict=True)):
            out.write({"__key__": f"{i:04d}", "x.npy": x.numpy(), "cls": int(y)})
    return str(folder / "a.tar")


def test_web_datasets(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    made = wds.WebDataset(_shard(tmp_path), shardshuffle=False).decode().to_tuple("x.npy", "cls")
    net = model()
    expected = plain(net, in_batches(list(zip(*data(), strict=True))), cross_entropy)
    assert losses(fit(tmp_path, net, train=made, loss=F.cross_entropy)) == expected


def test_a_web_loader(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    made = (
        wds.WebDataset(_shard(tmp_path), shardshuffle=False)
        .decode()
        .to_tuple("x.npy", "cls")
        .batched(8)
    )
    loader = wds.WebLoader(made, batch_size=None)
    net = model()
    expected = plain(net, in_batches(list(zip(*data(), strict=True))), cross_entropy)
    try:
        run = fit(tmp_path, net, train=loader, loss=F.cross_entropy)
    except Exception as error:
        refused_by_name(error, "WebLoader", "train")
        return
    assert losses(run) == expected


class Transformed(torch.utils.data.Dataset[Any]):
    """As MONAI's: dictionaries through transforms, each with a random state of its own."""

    def __init__(self) -> None:
        self.x, self.y = data()
        self.state = np.random.RandomState(0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "x": self.x[i] + float(self.state.normal()),
            "labels": self.y[i],
            "meta": {"name": f"{i}.nii"},
        }


class WithMeta(ByName):
    def forward(self, x: torch.Tensor, labels: torch.Tensor, meta: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        assert set(meta) == {"name"}
        return super().forward(x, labels)


def test_dictionaries_with_a_random_state_of_their_own(tmp_path: Path) -> None:
    """The trial when the bench is made moves nothing that counts."""
    net = WithMeta()
    own, other = Transformed(), Transformed()
    expected = plain(net, DataLoader(other, 8), by_name)
    assert losses(fit(tmp_path, net, train=own)) == expected


def test_generators(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from zip(*data(), strict=True)

    net = model()
    expected = plain(net, in_batches(list(zip(*data(), strict=True))), cross_entropy)
    assert losses(fit(tmp_path, net, train=Stream(), loss=F.cross_entropy)) == expected


# ---- more of datasets


def test_a_table_with_a_transform(tmp_path: Path) -> None:
    own = table()
    own.set_transform(
        lambda rows: {"x": [2 * torch.tensor(row) for row in rows["x"]], "labels": rows["labels"]}
    )
    net = ByName()
    assert losses(fit(tmp_path, net, train=own)) == plain(net, DataLoader(own, 8), by_name)


def test_a_column_that_the_model_does_not_take_is_named(tmp_path: Path) -> None:
    own = table().add_column("index", list(range(24))).with_format("torch")
    with pytest.raises(Exception, match=r"'index'.*remove_columns") as error:
        fit(tmp_path, ByName(), train=own)
    refused_by_name(error.value, "index")


def test_a_shuffled_stream_of_workers_is_resumed(tmp_path: Path) -> None:
    own = (
        table()
        .to_iterable_dataset(num_shards=4)
        .with_format("torch")
        .shuffle(seed=3, buffer_size=8)
    )
    given: dict[str, Any] = {
        "train": own,
        "num_workers": 2,
        "batch_size": 8,
        "accelerator": "cpu",
        "root": tmp_path,
    }
    whole = losses(wb.Workbench(ByName(), max_epochs=3, **given).fit().result())
    bench = wb.Workbench(ByName(), max_epochs=1, **given)
    first = bench.fit().result()
    assert losses(bench.fit(start=first.id, max_epochs=3).result()) == whole
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("kind", ["interleaved", "concatenated", "cut"])
def test_tables_put_together(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    stream = table().to_iterable_dataset()
    made = {
        "interleaved": lambda: datasets.interleave_datasets(
            [stream, table().to_iterable_dataset()]
        ),
        "concatenated": lambda: datasets.concatenate_datasets([table(), table()]),
        "cut": lambda: stream.skip(4).take(16),
    }[kind]()
    own = made.with_format("torch")
    net = ByName()
    assert losses(fit(tmp_path, net, train=own)) == plain(net, DataLoader(own, 8), by_name)


# ---- tensordict


def test_a_tensordict_as_columns(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    x, y = data()
    own = tensordict.TensorDict({"x": x, "labels": y}, batch_size=[24])
    net = ByName()
    batches = [
        {"x": one, "labels": other} for one, other in zip(x.split(8), y.split(8), strict=True)
    ]
    assert losses(fit(tmp_path, net, train=own)) == plain(net, batches, by_name)


def test_a_tensordict_of_a_loader_is_passed_by_its_names(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    x, y = data()
    own = tensordict.TensorDict({"x": x, "labels": y}, batch_size=[24])
    loader = DataLoader(own, 8, collate_fn=lambda rows: rows)
    net = ByName()
    assert losses(fit(tmp_path, net, train=loader)) == plain(
        net, loader, lambda m, b: m(**b)["loss"]
    )
    with pytest.raises(Exception, match=r"passed by its names") as error:
        fit(tmp_path, FromAny(), train=loader)
    refused_by_name(error.value, "training_step")


# ---- loaders of other packages


def test_a_loader_that_accelerate_prepared(tmp_path: Path) -> None:
    from accelerate import Accelerator

    samples = list(zip(*data(), strict=True))
    net = model()
    prepared = Accelerator(cpu=True).prepare(DataLoader(samples, 8))
    assert losses(fit(tmp_path, net, train=prepared, loss=F.cross_entropy)) == plain(
        net, in_batches(samples), cross_entropy
    )


def test_nodes_of_torchdata(tmp_path: Path) -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    samples = list(zip(*data(), strict=True))
    loader = nodes.Loader(
        nodes.Mapper(
            nodes.Batcher(nodes.IterableWrapper(samples), 8), torch.utils.data.default_collate
        )
    )
    net = model()
    bench = wb.Workbench(
        net,
        train=loader,
        loss=F.cross_entropy,
        lr=1e-2,
        max_epochs=2,
        root=tmp_path,
        accelerator="cpu",
    )
    assert losses(bench.fit().result()) == plain(model(), in_batches(samples), cross_entropy)
