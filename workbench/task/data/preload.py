"""Reads all samples of a data set into memory once, before the job (`preload=True`)."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from workbench import units
from workbench.events import Message
from workbench.settings import Settings
from workbench.task.batch import checksum_of
from workbench.task.data.datasets import Columns, Preloaded
from workbench.task.data.loader_parts import Parts
from workbench.task.data.rng_state import generator_states
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.rng import process_state, restored_process_state

_PROBED, _READS = 8, 3
"""How many samples are read, and how often, to see whether the data set draws random numbers."""
_CHUNK = 16
_LEFT = 0.8
"""The share of the free memory that may be taken."""


def preload(spec: DataSpec, settings: Settings, free: Callable[[], int]) -> Message | None:
    """Read all samples of this data into memory, once for all jobs, for its loaders.

    free: returns the bytes of memory that can be used. Data that are in memory are not read again.
    """
    parts = _readable(spec)
    if parts is None:
        return None
    dataset, name = parts.dataset, spec.name
    count = spec.samples or 0
    if _still_holds(spec, dataset, count):
        return None
    spec.preloaded = None
    began = time.perf_counter()
    with restored_process_state(process_state()):
        first = probed_samples(dataset, count, lambda index: _draws(name, index))
    size = sum(map(size_of, first)) // len(first) * count
    available = free()
    if size > available * _LEFT:
        raise TaskError(
            f"preload=True: {name} would take about {units.size(size)} ({count:,} samples), and "
            f"{units.size(available)} of memory "
            "are free: take preload=False, or smaller samples."
        )
    spec.preloaded = Preloaded(dataset, _gathered(_read(parts, settings, count), count))
    took = time.perf_counter() - began
    return Message(f"preloaded {name}: {count:,} samples, {units.size(size)} in {took:.1f} s.")


def _readable(spec: DataSpec) -> Parts | None:
    """The parts of data to read; None where they are in memory."""
    parts, name = spec.parts, spec.name
    if parts.ready or isinstance(parts.dataset, IterableDataset):
        problem = (
            "yields ready batches"
            if parts.ready
            else f"is an IterableDataset ({type(parts.dataset).__name__})"
        )
        raise TaskError(
            f"preload=True: {name} {problem}, and samples can be read only by their number: take "
            "preload=False."
        )
    if isinstance(parts.dataset, Columns) or type(parts.dataset) is TensorDataset:
        return None
    if callable(getattr(parts.dataset, "set_epoch", None)):
        raise TaskError(
            f"preload=True: {name} asks which epoch it is (set_epoch), and its samples would stay"
            " those of one epoch: take preload=False."
        )
    if spec.samples is None:
        raise TaskError(
            f"preload=True: {name} has no length, so that it cannot be preloaded: take"
            " preload=False."
        )
    if spec.made_by_object:
        spec.refresh()
        if spec.parts.dataset is not parts.dataset:
            raise TaskError(
                f"preload=True: {name}_dataloader() makes a new data set each time it is asked, so"
                " that what was read would be of another one: make the data set once, in setup()."
            )
        return spec.parts
    return parts


def _still_holds(spec: DataSpec, dataset: Dataset[Any], count: int) -> bool:
    """Whether the samples of an earlier job belong to this data set, and a few samples read
    again are the same.
    """
    kept = spec.preloaded
    if kept is None or kept.users is not dataset or len(kept) != count:
        return False
    return all(same(dataset[index], kept[index]) for index in _probed(count))


def _probed(count: int) -> list[int]:
    """Return the indices of a few samples, spread over the data."""
    return sorted({i * count // _PROBED for i in range(_PROBED)})


def _draws(name: str, index: int) -> TaskError:
    return TaskError(
        f"preload=True: {name} draws random numbers when it reads a sample (sample {index}), and"
        " preload would freeze them: every epoch would see the same. Put the random part into"
        " collate_fn, or into a transform on the batch; or take preload=False."
    )


def probed_samples(
    dataset: Dataset[Any], count: int, error: Callable[[int], Exception]
) -> list[Any]:
    """Return a few samples; raises `error` of a sample's index where reading it draws random
    numbers.
    """
    samples = []
    for index in _probed(count):
        sample: Any = None
        for attempt in range(_READS):
            # not those of GPUs, which nothing restores
            torch.default_generator.manual_seed(attempt)
            np.random.seed(attempt)
            before = random_states(dataset)
            again = dataset[index]
            if random_states(dataset) != before or (
                attempt and not same(sample, again, unknown=True)
            ):
                raise error(index)
            sample = again
        samples.append(sample)
    return samples


def random_states(dataset: Any) -> int:
    """A checksum of the random states of the process and of the generators that the data set
    holds.
    """
    return checksum_of([process_state(), generator_states(dataset)])


def _read(parts: Parts, settings: Settings, count: int) -> Iterator[Any]:
    """All samples in their order, read by as many processes as load batches."""
    if not settings.num_workers:
        yield from (parts.dataset[index] for index in range(count))
        return
    loader = DataLoader(
        parts.dataset,
        batch_size=_CHUNK,
        num_workers=settings.num_workers,
        collate_fn=_as_is,
        generator=torch.Generator(),
        worker_init_fn=parts.worker_init_fn,
    )
    for chunk in loader:
        yield from chunk


def _as_is(samples: list[Any]) -> list[Any]:
    return samples


def _gathered(samples: Iterator[Any], count: int) -> Stacked | list[Any]:
    """Stack the samples into columns if they have the same types and shapes, else return a list
    of them.
    """
    first = next(samples)
    stacked = Stacked.like(first, count)
    if stacked is None:
        # Copied: tensors from a loader's process are in shared memory, and each keeps a file open.
        return [copy.deepcopy(sample) for sample in itertools.chain([first], samples)]
    for index, sample in enumerate(itertools.chain([first], samples)):
        if not stacked.put(index, sample):
            kept = [stacked[i] for i in range(index)]
            return [*kept, copy.deepcopy(sample), *(copy.deepcopy(later) for later in samples)]
    return stacked


def size_of(sample: Any) -> int:
    """About how many bytes a sample takes in memory."""
    if isinstance(sample, (Tensor, np.ndarray)):
        return int(sample.nbytes)
    if isinstance(sample, dict):
        return sum(map(size_of, sample.values()))
    if isinstance(sample, (tuple, list)):
        return sum(map(size_of, sample)) + 8 * len(sample)
    return 8 if isinstance(sample, (int, float)) else len(cloudpickle.dumps(sample))


def same(one: Any, other: Any, unknown: bool | None = None) -> bool:
    """Whether two samples are equal, to the bit. unknown: the answer for objects that cannot be
    compared; None: compare their pickles.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, (Tensor, np.ndarray)):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and bool(_bytes(one) == _bytes(other))
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key], unknown) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(
            same(mine, its, unknown) for mine, its in zip(one, other, strict=True)
        )
    if unknown is not None and not isinstance(
        one, (int, float, complex, str, bytes, bool, type(None))
    ):
        return unknown
    return bool(cloudpickle.dumps(one) == cloudpickle.dumps(other))


def _bytes(array: Any) -> bytes:
    if isinstance(array, Tensor):
        array = (
            array.detach()
            .as_subclass(Tensor)
            .cpu()
            .reshape(-1)
            .contiguous()
            .view(torch.uint8)
            .numpy()
        )
    return pickle.dumps(array) if array.dtype.hasobject else array.tobytes()


Column = Tensor | np.ndarray[Any, Any]

_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Stacked:
    """Stores samples of one type and shape in one tensor or array per part; reading a sample
    copies it.
    """

    def __init__(
        self, kind: type, keys: tuple[Any, ...], kinds: list[type], columns: list[Column]
    ) -> None:
        """kind: the container of the parts (tuple, list, dict; else there is one part). keys:
        those of a dict.
        """
        self._kind, self._keys, self._kinds, self._columns = kind, keys, kinds, columns

    @classmethod
    def like(cls, sample: Any, count: int) -> Stacked | None:
        """Allocate memory for `count` samples like this one; None where such samples cannot be
        stacked.
        """
        kind, keys, parts = taken_apart(sample)
        columns = [_empty_column(element, count) for element in parts]
        allocated = [column for column in columns if column is not None]
        if not parts or len(allocated) < len(columns):
            return None
        return cls(kind, keys, [type(element) for element in parts], allocated)

    def put(self, index: int, sample: Any) -> bool:
        """Store a sample; return False if it has other types or shapes."""
        kind, keys, parts = taken_apart(sample)
        if (kind, keys, [type(element) for element in parts]) != (
            self._kind,
            self._keys,
            self._kinds,
        ):
            return False
        if not all(
            _fits(element, column) for element, column in zip(parts, self._columns, strict=True)
        ):
            return False
        for element, column in zip(parts, self._columns, strict=True):
            column[index] = element
        return True

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> Any:
        parts = [
            _sample_part(kind, column[index])
            for kind, column in zip(self._kinds, self._columns, strict=True)
        ]
        if self._kind is dict:
            return dict(zip(self._keys, parts, strict=True))
        return parts[0] if self._kind not in (tuple, list) else self._kind(parts)


def taken_apart(sample: Any) -> tuple[type, tuple[Any, ...], list[Any]]:
    """The type of a sample, its keys if it is a dict, and its parts."""
    kind = type(sample)
    if kind is dict:
        return kind, tuple(sample), list(sample.values())
    return kind, (), list(sample) if kind in (tuple, list) else [sample]


def _empty_column(element: Any, count: int) -> Column | None:
    kind = type(element)
    if kind in _NUMBERS:
        return torch.empty(count, dtype=_NUMBERS[kind], device="cpu")
    if kind is Tensor and _is_dense(element):
        return torch.empty(count, *element.shape, dtype=element.dtype, device="cpu")
    if kind is np.ndarray and not element.dtype.hasobject:
        return np.empty((count, *element.shape), dtype=element.dtype)
    return None


def _fits(element: Any, column: Column) -> bool:
    if type(element) is int:
        return -(1 << 63) <= element < 1 << 63
    if type(element) in _NUMBERS:
        return True
    if type(element) is Tensor and not _is_dense(element):
        return False
    return bool(element.shape == column.shape[1:] and element.dtype == column.dtype)


def _is_dense(tensor: Tensor) -> bool:
    dense = (
        tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    )
    return (
        dense
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _sample_part(kind: type, row: Any) -> Any:
    if kind in _NUMBERS:
        return row.item()
    return row.clone() if kind is Tensor else np.array(row)
