"""What a user may give as data: used as a DataLoader or its own library uses it, or refused by name with the remedy."""

import subprocess
import sys

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.recfunctions import structured_to_unstructured
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader

import workbench as wb
from tests import warm
from tests.engine.problems import labelled
from workbench.settings import Settings, SettingsError
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError

LIMIT = 500
"""Characters of an error: more is no help."""


def net(features=6, classes=3):
    torch.manual_seed(0)
    return nn.Linear(features, classes)


def bench(data, root, model=None, **given):
    loader = isinstance(data, DataLoader) and data.batch_size is None
    ready = loader or isinstance(data, (type(wb.batches([])), type(iter([]))))
    given = {
        "loss": F.cross_entropy,
        **({} if ready else {"batch_size": 4}),
        "max_epochs": 2,
        "lr": 0.1,
        "accelerator": "cpu",
        "root": root,
        **given,
    }
    if given.get("batch_size", 0) is None:
        del given["batch_size"]
    return wb.Workbench(model or net(), train=data, optimizer=torch.optim.SGD, **given)


def losses(data, root, model=None, **given):
    return list(bench(data, root, model, **given).fit().result().history["loss"])


def refused(data, *words, root="unused", **given):
    with pytest.raises(TaskError) as error:
        bench(data, root, **given)
    text = str(error.value)
    assert not [word for word in words if word not in text], text
    assert len(text) < LIMIT


def pairs(count=20):
    x, y = labelled(count).tensors
    return [(x[i], y[i]) for i in range(count)]


# -- sequences are samples


def test_a_list_of_samples_is_a_data_set(tmp_path):
    """Shuffled, in batches of batch_size, as a DataLoader takes it."""
    found = losses(pairs(), tmp_path / "a")
    assert found == losses(TensorDataset(*labelled(20).tensors), tmp_path / "b")
    assert len(found) == 10
    assert found == losses(tuple(pairs()), tmp_path / "c")


def test_a_list_of_dicts(tmp_path):
    samples = [{"input": x, "label": y} for x, y in pairs()]
    assert losses(samples, tmp_path / "a") == losses(
        TensorDataset(*labelled(20).tensors), tmp_path / "b"
    )


class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 2)

    def forward(self, batch):
        sums = torch.zeros(batch.num_graphs, 2).index_add(0, batch.batch, self.body(batch.x))
        return {"loss": F.cross_entropy(sums, batch.y)}


def graphs(count=20):
    g = torch.Generator().manual_seed(0)
    edges = torch.tensor([[0, 1], [1, 0]])
    return [
        Data(x=torch.randn(2 + i % 3, 3, generator=g), edge_index=edges, y=torch.tensor([i % 2]))
        for i in range(count)
    ]


def test_a_list_of_graphs(tmp_path):
    """With a collate function, or in the loader of their own library."""
    from torch_geometric.loader.dataloader import Collater

    data = graphs()
    by_collate = losses(data, tmp_path / "a", Graphs(), loss=None, collate_fn=Collater(data))
    by_loader = losses(
        GraphLoader(data, batch_size=4, shuffle=True), tmp_path / "b", Graphs(), loss=None
    )
    assert by_collate == by_loader
    assert len(by_collate) == 10
    refused(data, "train", "Data", "collate_fn=", model=Graphs(), loss=None)


def test_ready_batches(tmp_path):
    """Read in their order, and the same in three ways; a batch_size beside them is refused."""
    ready, own = list(DataLoader(labelled(20), 5)), {"batch_size": None}
    expected = losses(DataLoader(ready, batch_size=None), tmp_path / "a", **own)
    assert len(expected) == 8
    assert losses(wb.batches(ready), tmp_path / "b", **own) == expected
    assert losses(iter(ready), tmp_path / "c", max_epochs=1, **own) == expected[:4]
    with pytest.raises(
        SettingsError, match="batch_size=4 has no effect on train, since it yields ready batches"
    ):
        bench(wb.batches(ready), tmp_path, batch_size=4)
    with pytest.raises(TypeError, match=r"wb\.batches\(int\): give a list of batches"):
        wb.batches(3)
    refused(ready, "batch_size=32", "4 samples", "wb.batches(…)", batch_size=32)


# -- a list of arrays


def test_columns_and_samples_are_told_apart():
    x, y = labelled(20).tensors
    assert DataSpec.of("train", (x, y)).samples == 20
    # of unlike shapes: they could not be stacked as samples
    assert DataSpec.of("train", [x, y]).samples == 20
    assert DataSpec.of("train", [torch.zeros(6) for _ in range(20)]).samples == 20
    assert DataSpec.of("train", [torch.tensor(1.0) for _ in range(20)]).samples == 20
    assert DataSpec.of("train", (x, list(range(20)))).samples == 20
    with pytest.raises(
        TaskError,
        match=r"list of 2 arrays \(\(20, 6\), \(20, 6\)\), which may be columns or samples: give a tuple",
    ):
        DataSpec.of("train", [x, x])
    with pytest.raises(TaskError, match="tuple of 2 lists, which may be columns or samples"):
        DataSpec.of("train", ([[1.0], [2.0]], [0, 1]))


def test_samples_of_unequal_length():
    data = [torch.ones(n) for n in range(7, 17)]
    with pytest.raises(TaskError, match=r"may be columns or samples"):
        DataSpec.of("train", data[:2])
    with pytest.raises(
        TaskError,
        match=r"train: samples of unlike shapes cannot be stacked .*\(1,\).*\(2,\).*collate_fn=",
    ):
        DataSpec.of("train", [(torch.ones(n), 0) for n in range(1, 9)]).peek(2)
    padded = DataSpec.of(
        "train",
        data,
        collate_fn=lambda samples: nn.utils.rnn.pad_sequence(samples, batch_first=True),
    )
    assert padded.peek(2).shape == (2, 8)


# -- several data sets where one is needed


@pytest.mark.parametrize("kind", ["dict", "list", "tuple of data sets"])
def test_several_loaders(kind, tmp_path):
    one, two = DataLoader(labelled(20), 4), DataLoader(labelled(12), 4)
    given = {
        "dict": {"a": one, "b": two},
        "list": [one, two],
        "tuple of data sets": (labelled(4), labelled(5)),
    }[kind]
    refused(given, "train", "ConcatDataset", root=tmp_path)
    with pytest.raises(TaskError, match=r"data is a .* of 2"):
        bench(labelled(20), tmp_path).predict(given)


def test_a_dataset_dict_names_its_splits(tmp_path):
    one = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1]})
    given = datasets.DatasetDict({"train": one, "validation": one})
    refused(
        given,
        "train is a DatasetDict",
        "train, validation",
        "train=ds['train'], val=ds['validation']",
        root=tmp_path,
    )


# -- Hugging Face


def hugging_face(**columns):
    x, y = labelled(20).tensors
    return datasets.Dataset.from_dict({"input": x.tolist(), "labels": y.tolist(), **columns})


def test_a_data_set_of_hugging_face(tmp_path):
    ds = hugging_face()
    expected = losses(TensorDataset(*labelled(20).tensors), tmp_path / "a")
    assert losses(ds.with_format("torch"), tmp_path / "b") == expected
    for given in (ds, ds.to_iterable_dataset()):
        refused(given, "train", "'input'", 'with_format("torch")', root=tmp_path)


def test_numbers_need_no_format(tmp_path):
    class OfNumbers(nn.Linear):
        def forward(self, a):
            return super().forward(a.float()[:, None])

    ds = datasets.Dataset.from_dict(
        {"a": [0.5 * i for i in range(20)], "label": [i % 2 for i in range(20)]}
    )
    assert len(losses(ds, tmp_path, OfNumbers(1, 2))) == 10


# -- frames and odd arrays


def test_frames_and_series(tmp_path):
    x, y = (t.numpy() for t in labelled(20).tensors)
    expected = losses((x, y), tmp_path / "a")
    panda, polar = pd.DataFrame(x), pl.DataFrame(x)
    assert losses((panda, pd.Series(y)), tmp_path / "b") == expected
    assert losses((polar, pl.Series(y)), tmp_path / "c") == expected
    assert losses((panda, y), tmp_path / "d") == expected
    assert losses({"input": panda, "y": pl.Series(y)}, tmp_path / "e") == expected
    refused(
        panda,
        "train is a DataFrame of shape (20, 6)",
        "(frame[features], frame[target])",
        root=tmp_path,
    )


def test_arrays_that_torch_does_not_take_as_they_are(tmp_path):
    x, y = (t.numpy() for t in labelled(20).tensors)
    expected = losses((x, y), tmp_path / "a")
    assert losses((x[::-1][::-1], y.copy()[::-1].copy()[::-1]), tmp_path / "b") == expected
    assert losses((np.ascontiguousarray(x[:, ::-1])[:, ::-1], y), tmp_path / "c") == expected
    assert losses((x.astype(">f4"), y), tmp_path / "d") == expected


WORDS = np.array(["a", "b"] * 10)
DATES = np.array(["2024-01-01"] * 20, dtype="datetime64[D]")


@pytest.mark.parametrize(("column", "words"), [
    (WORDS, "strings"), (WORDS.astype(object), "objects"), (DATES, "dates"), (pd.Series(WORDS, dtype="category"), "objects"),
    (np.ma.masked_array(np.zeros(20), mask=True), "masked"),
])  # fmt: skip
def test_arrays_that_hold_no_numbers(column, words, tmp_path):
    x, _ = labelled(20).tensors
    refused((x, column), "train[1]", words, root=tmp_path)
    refused({"input": x, "y": column}, "train['y']", words, root=tmp_path)


def test_texts_and_ragged_lists_in_a_dict(tmp_path):
    refused(
        {"text": ["a", "b"], "label": [0, 1]},
        "train['text'] is a list of 2 that makes no tensor",
        root=tmp_path,
    )
    refused(
        {"ids": [[1], [1, 2]], "label": [0, 1]},
        "train['ids'] is a list of 2 that makes no tensor",
        root=tmp_path,
    )


class Pictures(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.make(index), index % 3


def test_pictures(tmp_path):
    refused(
        Pictures(lambda i: Image.new("L", (4, 4))),
        "train",
        "element 0",
        "Image",
        "ToTensor",
        root=tmp_path,
    )
    whole = Pictures(lambda i: torch.full((6,), i, dtype=torch.uint8))
    refused(whole, "uint8", "float", root=tmp_path)


def test_what_is_no_data(tmp_path):
    refused(Pictures, "train=Pictures is a class", root=tmp_path)
    refused(b"bytes", "train=bytes is not data", root=tmp_path)
    refused((labelled(20).tensors[0], "text"), "train[1] is not an array but a str", root=tmp_path)


def test_it_is_as_light_as_before():
    """No library of data is imported for the sake of its types."""
    code = "import sys, workbench.task.data.spec; print([m for m in ('pandas', 'polars', 'datasets', 'PIL') if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_sequence_of_ones_own():
    class Own:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return torch.ones(6) * index, index % 3

    x, _ = DataSpec.of("train", Own()).peek(2)
    assert x.tolist() == [[0.0] * 6, [1.0] * 6]
    assert len(DataSpec.of("train", range(20)).loader(Settings(batch_size=8))) == 3


class Masked(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.ma.masked_array(np.zeros(6, dtype="float32"), mask=True), 0


def test_masked_arrays_in_samples(tmp_path):
    with pytest.raises(TaskError, match=r"train: a sample has a masked array: .*x\.filled\(0\)"):
        bench(Masked(), tmp_path)


def test_a_read_only_array_warns_of_nothing(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((20, 6), dtype="float32"))
    code = (  # torch warns once in a process
        "import numpy as np, torch, warnings; warnings.simplefilter('error')\n"
        "from workbench.task.data.spec import DataSpec\n"
        f"print(len(DataSpec.of('train', (np.load({str(path)!r}, mmap_mode='r'), torch.zeros(20))).parts.dataset))"
    )
    done = warm.python().run("-c", code)
    assert done.stdout == "20\n", done.stderr


# -- frames with flags, whole numbers and other columns


def table(package=pd):
    x = labelled(20).tensors[0].numpy()
    columns = {"a": x[:, 0].astype("float64"), "flag": x[:, 1] > 0, "count": np.arange(20)}
    return package.DataFrame(columns), np.stack(
        [column.astype("float32") for column in columns.values()], 1
    )


@pytest.mark.parametrize(
    "frame",
    [
        table()[0],
        table(pl)[0],
        table()[0].convert_dtypes(dtype_backend="numpy_nullable"),
        table()[0].convert_dtypes(dtype_backend="pyarrow"),
    ],
    ids=["pandas", "polars", "nullable", "arrow"],
)
def test_flags_and_whole_numbers_of_a_frame_are_numbers(frame, tmp_path):
    y, x = labelled(20).tensors[1].numpy(), table()[1]
    expected = losses((x, y), tmp_path / "a", net(3))
    assert losses((frame, y), tmp_path / "b", net(3)) == expected
    assert losses({"input": frame, "y": y}, tmp_path / "c", net(3)) == expected


@pytest.mark.parametrize("columns", [("flag", "flag"), ("count", "count"), ("flag", "count")])
def test_a_frame_without_a_float_column_has_float_features(columns, tmp_path):
    frame, y = table()[0][list(columns)], pd.Series(labelled(20).tensors[1].numpy())
    expected = losses((frame.to_numpy().astype("float32"), y), tmp_path / "a", net(2))
    assert losses((frame, y), tmp_path / "b", net(2)) == expected
    assert losses((pd.get_dummies(frame), y), tmp_path / "c", net(2)) == expected


def test_targets_keep_their_type():
    frame, _ = table()
    kinds = [
        column.dtype
        for column in DataSpec.of("train", (frame, frame[["count"]])).parts.dataset.columns
    ]
    assert kinds == [torch.float32, torch.int64]
    assert (
        DataSpec.of("train", (frame, frame["count"].convert_dtypes()))
        .parts.dataset.columns[1]
        .dtype
        is torch.int64
    )
    same = pd.DataFrame(table()[1].astype("float64"))
    assert (
        DataSpec.of("train", (same, frame["count"])).parts.dataset.columns[0].dtype is torch.float64
    ), "as numpy has it"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["x"] * 20, ("'city'", "get_dummies")), (pd.date_range("2024", periods=20), ("'city'", "datetime64")),
        (pd.Categorical([1, 2] * 10), ("'city' (category)",)), (pd.array([None, *range(19)], dtype="Int64"), ("'city' (Int64)", "fillna")),
    ],
)  # fmt: skip
def test_a_column_without_numbers_is_named(column, words, tmp_path):
    y = labelled(20).tensors[1].numpy()
    refused(
        (table()[0].assign(city=column), y),
        "train[0] is a DataFrame of shape (20, 4)",
        *words,
        root=tmp_path,
    )


def test_what_is_no_frame_is_refused_with_a_remedy_that_works(tmp_path):
    frame, x = table()
    y = labelled(20).tensors[1].numpy()
    expected = losses((x, y), tmp_path / "a", net(3))
    arrow = pa.Table.from_pandas(frame)
    refused((arrow, y), "train[0] is a Table", "train[0].to_pandas()", root=tmp_path)
    assert losses((arrow.to_pandas(), y), tmp_path / "b", net(3)) == expected
    records = np.array(list(zip(*x.T, strict=True)), dtype=[("a", "f4"), ("b", "f4"), ("c", "f4")])
    refused((records, y), "structured_to_unstructured(x, dtype='float32')", root=tmp_path)
    assert (
        losses((structured_to_unstructured(records, dtype="float32"), y), tmp_path / "c", net(3))
        == expected
    )
    refused((x, pd.Series([None, *range(19)], dtype="Int64")), "some are missing", root=tmp_path)
    refused((x > 0, y), "element 0", "x.astype('float32')", root=tmp_path, model=net(3))
    codes = pd.DataFrame({"a": [0, 1] * 10})
    embedding = nn.Sequential(nn.Embedding(2, 3), nn.Flatten())
    refused((codes, y), "x.to_numpy()", root=tmp_path, model=embedding)
    losses((codes.to_numpy(), y), tmp_path / "d", embedding)


@pytest.mark.parametrize("count", [1, 5])
def test_ready_batches_in_a_list_are_told_of_batches(count, tmp_path):
    x, y = labelled(20).tensors
    given = {"root": tmp_path, "model": net(), "batch_size": None}
    for ready in ([(x, y)] * count, [{"input": x, "y": y}] * count):
        refused(ready, "wb.batches(…)", **given)
        refused(ready, "train=wb.batches(…), without batch_size", **(given | {"batch_size": 1}))
        assert len(losses(wb.batches(ready), tmp_path / str(type(ready[0])))) == 2 * count
