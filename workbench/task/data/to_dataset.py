"""Turns what a user gave as data into a data set of samples or ready batches, or raises
TaskError naming it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workbench.task.batch import TARGETS
from workbench.task.data.combined import combined_in, in_turn, is_combined
from workbench.task.data.datasets import Batches, Columns
from workbench.task.errors import TaskError

_SEVERAL = (
    "make one of them (torch.utils.data.ConcatDataset puts data sets one after another,"
    " StackDataset side by side)"
)


UNNAMED = "dataloader_idx_"
"""The key of a set in a list, before its number, as in Lightning's names of metrics."""


def sets_in(name: str, data: Any) -> dict[str, Any] | None:
    """The data sets in a dict or a list of them, by their keys; None: `data` is one set.

    A dict of arrays holds columns, and a list of anything else samples. Raises TaskError for a key
    that cannot name a set, and for an entry that is no set beside one that is.
    """
    if is_of_hugging_face(data):
        return None
    if in_turn(data):
        data = data.iterables
    named = isinstance(data, Mapping)
    if not named and not isinstance(data, (list, tuple)):
        return None
    entries: dict[Any, Any] = dict(data) if named else dict(enumerate(data))
    others = [
        key
        for key, dataset in entries.items()
        if not _is_set(dataset)
        and not (named and isinstance(dataset, tuple) and any(map(is_array, dataset)))
    ]
    if others and any(map(_is_set, entries.values())):
        raise TaskError(
            f"{name} holds several sets, and {name}[{others[0]!r}] is a"
            f" {short(entries[others[0]])}: each is to be a Dataset or a"
            f" DataLoader{', a tuple of arrays (x, y)' if named else ''} or wb.batches(…)."
        )
    if others or not entries:
        return None
    unfit = [key for key in entries if named and (not isinstance(key, str) or not key)]
    if unfit:
        raise TaskError(
            f"{name} has a set by the key {unfit[0]!r}: its metrics end with the key, so give a"
            f" text, {name}={{'clean': …}}."
        )
    return (
        entries if named else {f"{UNNAMED}{number}": dataset for number, dataset in entries.items()}
    )


def _is_set(value: Any) -> bool:
    return isinstance(value, (DataLoader, Dataset, Batches)) or is_of_hugging_face(value)


def dataset_of(name: str, data: Any, *, collated: bool = False) -> tuple[Any, bool]:
    """The data set in `data`, and whether it yields ready batches instead of samples.

    A sequence is a data set of samples, as for a DataLoader. A tuple or a dict of arrays holds
    columns, with one row for each sample. An iterable that is not a sequence yields ready batches.
    collated: the user gave a collate_fn. Raises TaskError naming `name` for everything else.
    """
    _refuse_no_data(name, data)
    combined = combined_in(data) if name == "train" or is_combined(data) else None
    if combined is not None and collated:
        raise TaskError(
            f"collate_fn= has no effect on {name}, several loaders that make their batches: give it"
            " to each of them."
        )
    if combined is not None or isinstance(data, Batches):
        return (data if combined is None else combined), True
    if isinstance(data, Dataset):
        return data, False
    if isinstance(data, Mapping):
        return _columns_of_mapping(name, data), False
    if isinstance(data, (tuple, list)):
        return (_of_list(name, data, collated), False) if data else (Batches(data), True)
    if is_frame(data):
        raise _lonely(name, data)
    if not isinstance(data, (str, bytes)):
        if isinstance(data, Sized) and hasattr(data, "__getitem__"):
            return data, False
        if isinstance(data, Iterable):
            return Batches(data), True
    raise TaskError(
        f"{name}={type(data).__name__} is not data: give a Dataset, a DataLoader, arrays (x, y), a"
        " list of samples, or an object with train_dataloader()."
    )


def _refuse_no_data(name: str, data: Any) -> None:
    """Raise TaskError for values that have a length or can be iterated, but hold no samples."""
    if isinstance(data, type):
        raise TaskError(f"{name}={data.__name__} is a class: give an instance, {data.__name__}(…).")
    if _is_sparse(data):
        raise TaskError(
            f"{name} is a {short(data)}, which gives no rows by number: give (x.toarray(), y)."
        )
    tables = (
        callable(getattr(data, "to_pandas", None))
        and not is_frame(data)
        and not is_of_hugging_face(data)
    )
    if tables and not isinstance(data, (Dataset, Mapping)):
        raise TaskError(
            f"{name} is a {short(data)}, which gives columns and no samples: give (x.to_numpy(),"
            " y.to_numpy())."
        )


def _of_list(name: str, data: Sequence[Any], collated: bool) -> Any:
    """Columns, if a tuple holds arrays; else samples."""
    if any(map(_is_source, data)):
        number, kind = next(
            (n, type(column).__name__) for n, column in enumerate(data) if _is_source(column)
        )
        raise TaskError(
            f"{name} is a {type(data).__name__} of {len(data)}, and {name}[{number}] is a {kind}:"
            f" {_SEVERAL}."
        )
    tables = [
        number
        for number, column in enumerate(data)
        if callable(getattr(column, "to_pandas", None)) and not is_frame(column)
    ]
    if isinstance(data, tuple) and tables:
        where = f"{name}[{tables[0]}]"
        raise TaskError(
            f"{where} is a {short(data[tables[0]])}, which is no array: give a frame or a series, "
            f"{where}.to_pandas()."
        )
    arrays = [is_array(column) for column in data]
    if all(arrays):
        columns = isinstance(data, tuple) or _are_columns(name, data, collated)
        return columns_of(name, data) if columns else data
    if any(arrays):
        return _of_mixed(name, data)
    if isinstance(data, tuple) and all(
        isinstance(column, list) or type(column).__name__ == "Column" for column in data
    ):
        raise TaskError(
            f"{name} is a tuple of {len(data)} {type(data[0]).__name__}s, which may be columns or"
            " samples: give arrays for columns (torch.as_tensor(…) of each), or a list of samples."
        )
    return data


def _of_mixed(name: str, data: Sequence[Any]) -> Columns:
    """Columns for (x, [0, 1, …]): next to an array, a list of numbers is a column as well."""
    for number, column in enumerate(data):
        if not is_array(column) and (isinstance(data, list) or not isinstance(column, list)):
            remedy = "x.toarray()" if _is_sparse(column) else "numpy.asarray(x), say"
            raise TaskError(
                f"{name} is a {type(data).__name__} of arrays, and {name}[{number}] is not an "
                f"array but a {short(column)}: give a "
                f"tuple of arrays ({remedy}), or a list of samples that are all alike."
            )
    return columns_of(name, data)


def _are_columns(name: str, data: Sequence[Any], collated: bool) -> bool:
    """Whether a list of arrays holds columns, as a tuple would; a DataLoader takes a list for
    samples.
    """
    shapes = [tuple(column.shape) for column in data]
    if not all(shapes) or len(data) > shapes[0][0]:
        return False  # numbers; or more arrays than columns of so few rows could be
    if len({shape[0] for shape in shapes}) == 1 and len(set(shapes)) > 1 and not collated:
        return True  # as samples they could not be stacked
    if len({shape[0] for shape in shapes}) > 1 and collated:
        return False
    raise TaskError(
        f"{name} is a list of {len(data)} arrays ({listed(map(str, shapes))}), which may be columns"
        f" or samples: give a tuple for columns with one row for each sample, {name}=(x, y), or a"
        " Dataset for samples: TensorDataset(torch.stack(…)), or a list of (x, y) pairs."
    )


def _lonely(name: str, data: Any) -> TaskError:
    """The error for a single frame, which does not show which of its columns is the target."""
    return TaskError(
        f"{name} is a {short(data)}: give inputs and target, {name}=(frame[features],"
        f" frame[target]), or {name}=frame.to_numpy() where each row is a sample without a target."
    )


def _columns_of_mapping(name: str, data: Mapping[Any, Any]) -> Columns:
    if is_of_hugging_face(data) or any(map(_is_source, data.values())):
        keys = [str(key) for key in data]
        remedy = f"{name}={_variable(data)}[{keys[0]!r}]" if keys else f"{name}=…"
        if is_of_hugging_face(data) and name == "train" and "train" in keys:
            others = [key for key in keys if key != "train"]
            val = next((key for key in others if key.startswith("val")), next(iter(others), None))
            remedy = "train=ds['train']" + (f", val=ds[{val!r}]" if val is not None else "")
        raise TaskError(
            f"{name} is a {type(data).__name__} of {len(keys)} data sets ({listed(keys)}), and one"
            f" is needed: give {remedy}; or {_SEVERAL}."
        )
    return columns_of(name, data)


def _variable(data: Any) -> str:
    return "ds" if is_of_hugging_face(data) else "loaders"


def columns_of(name: str, data: Mapping[Any, Any] | Sequence[Any]) -> Columns:
    """Arrays of equal length as columns; TaskError names one that cannot be a tensor."""
    columns: Any
    if isinstance(data, Mapping):
        columns = {
            key: column_of(f"{name}[{key!r}]", value, target=key in TARGETS)
            for key, value in data.items()
        }
    else:
        last = len(data) - 1
        columns = [
            column_of(f"{name}[{number}]", value, target=0 < number == last)
            for number, value in enumerate(data)
        ]
    values = list(columns.values()) if isinstance(columns, dict) else columns
    if not values:
        raise TaskError(f"{name} is empty: it holds no arrays.")
    for value in values:
        if value.ndim == 0:
            raise TaskError(
                f"{name} holds a single number; each array needs a first dimension of samples."
            )
    lengths = [len(value) for value in values]
    if len(set(lengths)) > 1:
        raise TaskError(
            f"the arrays of {name} differ in length: {lengths}. Each needs one row per sample."
        )
    sources = list(data.values() if isinstance(data, Mapping) else data)
    copied = [
        isinstance(source, np.ndarray) and column.data_ptr() != source.ctypes.data
        for source, column in zip(sources, values, strict=True)
    ]
    return Columns(columns, converted=any(copied) or any(map(is_frame, sources)))


def column_of(where: str, value: Any, *, target: bool = False) -> Tensor:
    """An array, frame, series or list of numbers as a tensor; it shares the array's memory where
    it can. target: it is a frame of targets.
    """
    if isinstance(value, Tensor):
        return value
    array = value
    if is_frame(value):
        array = _numbers_of(where, value, target) if len(value.shape) == 2 else value.to_numpy()
        array = array if array.flags.writeable else array.copy()
    if isinstance(array, np.ndarray):
        with warnings.catch_warnings():  # nothing here writes into the user's arrays
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.as_tensor(_plain(where, value, array))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(
            f"{where} is a {short(value)} that makes no tensor ({_first_line(error)}): give numbers"
            " in rows of equal length, or a list of samples and collate_fn=."
        ) from error


def _numbers_of(where: str, frame: Any, target: bool) -> np.ndarray[Any, Any]:
    """The numbers of a frame. Flags and whole numbers become torch's default float beside other
    numbers, and as inputs of a model.

    Raises TaskError for a column without numbers, and for one with missing ones.
    """
    series = [getattr(frame, "iloc", frame)[:, number] for number in range(frame.shape[1])]
    arrays = [np.asarray(column.to_numpy()) for column in series]
    for name, column, array in zip(frame.columns, series, arrays, strict=True):
        kind = getattr(column.dtype, "kind", array.dtype.kind)
        # pandas' own types, with a value that is missing
        lacks = kind in "biuf" and array.dtype.kind not in ("f" if kind == "f" else "biu")
        if kind not in "biufc" or array.dtype.kind not in "biufc" or lacks:
            remedy = (
                "fill its missing values, x.fillna(0),"
                if lacks
                else "make numbers of it (pandas.get_dummies(x) makes flags of classes)"
            )
            raise TaskError(
                f"{where} is a {short(frame)} whose column {name!r} ({column.dtype}) makes no "
                f"tensor: {remedy} or leave it out."
            )
    types = {array.dtype for array in arrays}
    if len(types) == 1 and (target or arrays[0].dtype.kind in "fc"):
        return np.asarray(frame.to_numpy())
    kind = str(torch.get_default_dtype()).removeprefix("torch.")
    return (
        np.stack([array.astype(kind) for array in arrays], axis=1)
        if arrays
        else np.asarray(frame.to_numpy())
    )


def _plain(where: str, source: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in a form that torch takes: in its own byte order, without negative strides."""
    if isinstance(array, np.ma.MaskedArray):
        raise TaskError(f"{where} is a masked array: fill it, for example x.filled(0).")
    lacks = (
        getattr(getattr(source, "dtype", None), "kind", "O") in "biu"
        and array.dtype.kind not in "biu"
    )
    if array.dtype.kind not in "biufc" or lacks:
        kind = {"O": "objects", "U": "strings", "S": "bytes", "M": "dates", "m": "durations"}.get(
            array.dtype.kind, "records"
        )
        remedy = "x.astype('float32')"
        if kind in ("objects", "strings", "bytes"):
            remedy += " or codes of its classes"
        if kind == "records":
            remedy = "numpy.lib.recfunctions.structured_to_unstructured(x, dtype='float32')"
        if lacks:  # a series of pandas' own type
            kind, remedy = "numbers of which some are missing", "x.fillna(0), say"
        raise TaskError(
            f"{where} is a {short(source)} of {kind} (dtype "
            f"{getattr(source, 'dtype', array.dtype)}), which makes no tensor: turn it into "
            f"numbers, {remedy}."
        )
    if array.dtype.itemsize > 8 and array.dtype.kind == "f":
        raise TaskError(
            f"{where} is a {short(source)} of {array.dtype}, which torch does not have: "
            "x.astype('float32')."
        )
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, an array, or a frame or series that makes one."""
    return isinstance(value, (Tensor, np.ndarray)) or is_frame(value)


def is_frame(value: Any) -> bool:
    """Whether a value is a frame or a series (pandas, polars and others alike)."""
    return (
        callable(getattr(value, "to_numpy", None))
        and hasattr(value, "shape")
        and not isinstance(value, (Tensor, np.ndarray))
    )


def _is_source(value: Any) -> bool:
    """Whether a value is a data set or a loader."""
    return (
        isinstance(value, (DataLoader, Dataset))
        or is_of_hugging_face(value)
        or hasattr(value, "train_dataloader")
    )


def _is_sparse(value: Any) -> bool:
    return callable(getattr(value, "toarray", None)) and hasattr(value, "shape")


def is_of_hugging_face(value: Any) -> bool:
    """Whether a value is a data set of Hugging Face's `datasets`, or a dict of several."""
    return type(value).__module__.partition(".")[0] == "datasets" and type(value).__name__.endswith(
        ("Dataset", "DatasetDict")
    )


def shuffles_in_a_buffer(dataset: Any) -> bool:
    """Whether a Hugging Face stream shuffles in a buffer, whose samples are not part of its state:
    they would be lost.
    """
    stage = getattr(dataset, "_ex_iterable", None) if is_of_hugging_face(dataset) else None
    while stage is not None:
        if type(stage).__name__.startswith("BufferShuffled"):
            return True
        stage = getattr(stage, "ex_iterable", None)
    return False


def short(value: Any) -> str:
    """A value in a few words: its type, and its shape or length."""
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    if isinstance(shape, tuple):
        return f"{kind} of shape {tuple(shape)}"
    return f"{kind} of {len(value)}" if isinstance(value, (list, tuple, dict)) else kind


def listed(names: Iterable[str], most: int = 4) -> str:
    """The first `most` names as text, and how many more there are."""
    all_names = list(names)
    return ", ".join(all_names[:most]) + (
        f", … {len(all_names) - most} more" if len(all_names) > most else ""
    )


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return text if len(text) <= 120 else text[:117] + "…"
