"""DataSpec: what the user gave as data, and the only maker of loaders.

Every loader that a job reads comes from `DataSpec.loader`: with a generator of its own, so that neither a
finder nor a validation moves the order of the training samples, and the exported script can make the same.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from workbench.settings import Settings
from workbench.task.protocol import TaskError

Loader = DataLoader[Any]
Collate = Callable[[list[Any]], Any]


class Columns(Dataset[Any]):
    """Arrays of equal length as a data set: sample i is row i of each, in the container that was given.

    Whole batches are indexed at once, which gives the same batches as stacking samples, much faster.
    """

    def __init__(self, columns: Sequence[Tensor] | Mapping[str, Tensor]) -> None:
        self.columns = dict(columns) if isinstance(columns, Mapping) else tuple(columns)

    def _values(self) -> Iterable[Tensor]:
        return self.columns.values() if isinstance(self.columns, dict) else self.columns

    def __len__(self) -> int:
        return len(next(iter(self._values())))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.columns, dict):
            return {name: column[index] for name, column in self.columns.items()}
        return tuple(column[index] for column in self.columns)

    def __getitems__(self, indices: list[int]) -> Any:
        return self[torch.as_tensor(indices)]


class Batches(IterableDataset[Any]):
    """Ready batches from any iterable; a batch that was looked at is given back to a one-shot iterator."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.one_shot = iter(batches) is batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def peek(self) -> Any:
        """The first batch, without losing it."""
        if not self.one_shot:
            return next(iter(self._batches), None)
        first = list(itertools.islice(iter(self._batches), 1))
        self._batches = itertools.chain(first, self._batches)
        return first[0] if first else None


class SeededBatches(Dataset[Any]):
    """In loader workers each batch draws from random numbers of its own, whichever worker makes it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitems__(self, keyed: tuple[int, list[int]]) -> Any:
        seed, indices = keyed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[i] for i in indices]


class KeyedBatches(Sampler[tuple[int, list[int]]]):
    """The batches of a batch sampler, each with a seed from (seed, epoch, batch)."""

    def __init__(self, batches: Iterable[list[int]], seed: int) -> None:
        self.batches = batches
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        for number, indices in enumerate(self.batches):
            key = np.random.SeedSequence([self.seed, epoch, number]).generate_state(1)
            yield int(key[0]), indices


def _as_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class Parts:
    """What a loader is made of."""

    dataset: Dataset[Any]
    collate_fn: Collate | None = None
    sampler: Any = None
    batch_sampler: Any = None
    ready: bool = False
    """The data set yields batches, not samples (`DataLoader(batch_size=None)`)."""
    generator: torch.Generator | None = None
    worker_init_fn: Callable[[int], None] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings that a DataLoader brought along: batch_size, shuffle, num_workers, …"""

    @property
    def own_batches(self) -> str | None:
        """Why the batch size cannot be set from outside; None when it can."""
        if self.batch_sampler is not None:
            return f"its loader has a batch_sampler of its own ({type(self.batch_sampler).__name__})"
        if self.ready:
            return "it yields ready batches"
        return None


def parts_of(loader: Loader) -> Parts:
    """Take a user's DataLoader apart, so that an equal one can be made at any batch size."""
    sampler = loader.sampler
    plain_batches = type(loader.batch_sampler) is BatchSampler
    iterable = isinstance(loader.dataset, IterableDataset)
    # A RandomSampler with replacement or num_samples is the user's own choice and stays as it is.
    usual = iterable or type(sampler) is SequentialSampler or _plain_random(sampler)
    defaults: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "shuffle": type(sampler) is RandomSampler,
        "drop_last": loader.drop_last if plain_batches or iterable else False,
    }
    if loader.num_workers:
        defaults["persistent_workers"] = loader.persistent_workers
    if loader.pin_memory:
        defaults["pin_memory"] = True
    if loader.batch_size is not None:
        defaults["batch_size"] = loader.batch_size
    collate = loader.collate_fn
    default_collate = collate in (torch.utils.data.default_collate, torch.utils.data.default_convert)
    return Parts(
        dataset=loader.dataset,
        collate_fn=None if default_collate else collate,
        sampler=None if usual else sampler,
        batch_sampler=None if plain_batches or iterable or loader.batch_sampler is None else loader.batch_sampler,
        ready=loader.batch_size is None and loader.batch_sampler is None,
        generator=loader.generator or getattr(sampler, "generator", None),
        worker_init_fn=loader.worker_init_fn,
        defaults=defaults,
    )


def _apart(sampler: Any) -> Any:
    """A sampler that leaves the user's generator where it is, if it draws from one."""
    if not isinstance(getattr(sampler, "generator", None), torch.Generator):
        return sampler
    own = copy.copy(sampler)
    own.generator = torch.Generator()
    own.generator.set_state(sampler.generator.get_state())
    return own


def _plain_random(sampler: Any) -> bool:
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None


class DataSpec:
    """One of the user's data sets ("train", "val" or "test") and how to make loaders of it."""

    def __init__(self, name: str, parts: Parts | Callable[[], Parts]) -> None:
        self.name = name
        self._given = parts
        self.made_by_object = not isinstance(parts, Parts)
        """Whether an object's train_dataloader() (or val_…, test_…) makes it."""
        self.from_loader = False
        """Whether the user gave a DataLoader."""
        self._made: Parts | None = None

    @classmethod
    def of(cls, name: str, data: Any, collate_fn: Collate | None = None) -> DataSpec:
        """A spec of a Dataset, DataLoader, (x, y) or (x1, x2, y) arrays, a dict of arrays, or ready batches."""
        if isinstance(data, DataLoader):
            parts = parts_of(data)
        elif isinstance(data, Dataset):
            parts = Parts(data)
        elif isinstance(data, Mapping) or (isinstance(data, (tuple, list)) and data and all(map(_is_array, data))):
            parts = Parts(_columns(name, data))
        elif isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, (list, tuple, str)):
            parts = Parts(data)  # type: ignore[arg-type]  # a sequence of samples that is no Dataset by type
        elif isinstance(data, Iterable) and not isinstance(data, str):
            parts = Parts(Batches(data), ready=True)
        else:
            raise TaskError(
                f"{name}={type(data).__name__} is no data: give a Dataset, a DataLoader, arrays (x, y), or an "
                "object with train_dataloader()."
            )
        if collate_fn is not None:
            parts = replace(parts, collate_fn=collate_fn)
        if _length(parts.dataset) == 0:
            raise TaskError(f"{name} is empty: it has 0 samples, and at least one is needed.")
        spec = cls(name, parts)
        spec.from_loader = isinstance(data, DataLoader)
        return spec

    @property
    def parts(self) -> Parts:
        """The parts as they are now; an object with train_dataloader() is asked once between two `refresh`es."""
        if isinstance(self._given, Parts):
            return self._given
        if self._made is None:
            self._made = self._given()
        return self._made

    def refresh(self) -> None:
        """Ask an object with train_dataloader() anew: a job is about to begin."""
        self._made = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings that the user's own loader implies."""
        return self.parts.defaults

    @property
    def one_shot(self) -> bool:
        """Whether the data can be read only once, so that a search would use it up."""
        dataset = self.parts.dataset
        return isinstance(dataset, Batches) and dataset.one_shot

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where the data has no length."""
        parts = self.parts
        return None if parts.ready else _length(parts.dataset)

    def loader(self, settings: Settings, *, batch_size: int | None = None, train: bool = False) -> Loader:
        """A new loader at `settings.batch_size` (or `batch_size`), with a generator of its own.

        `train`: samples are drawn in the order of `settings.shuffle` and `settings.seed`; the last short
        batch is dropped when `settings.drop_last`.
        """
        parts = self.parts
        size = batch_size or settings.batch_size
        generator = torch.Generator()
        if parts.generator is not None:
            generator.set_state(parts.generator.get_state())
        else:
            generator.manual_seed(settings.seed)
        pin = settings.pin_memory
        common: dict[str, Any] = {
            "num_workers": settings.num_workers,
            "pin_memory": torch.cuda.is_available() and settings.accelerator != "cpu" if pin is None else pin,
            "persistent_workers": settings.persistent_workers and settings.num_workers > 0,
            "generator": generator,
            "worker_init_fn": parts.worker_init_fn,
            "collate_fn": parts.collate_fn,
        }
        if parts.ready:
            return DataLoader(parts.dataset, batch_size=None, **common)
        if isinstance(parts.dataset, IterableDataset):
            return DataLoader(parts.dataset, batch_size=size, drop_last=train and settings.drop_last, **common)
        batches = parts.batch_sampler or self._batches(parts, settings, size, train, generator)
        return _map_style(parts, batches, settings, common)

    def _batches(
        self, parts: Parts, settings: Settings, size: int, train: bool, generator: torch.Generator
    ) -> BatchSampler:
        count = _length(parts.dataset)
        if train and count is not None and size > count:
            raise TaskError(
                f"batch_size={size} is larger than the {self.name} data ({count} samples): "
                f"take batch_size={count} or less."
            )
        sampler = _apart(parts.sampler)
        if sampler is None:
            shuffled = train and settings.shuffle
            sampler = (
                RandomSampler(parts.dataset, generator=generator)  # type: ignore[arg-type]
                if shuffled
                else SequentialSampler(parts.dataset)  # type: ignore[arg-type]
            )
        return BatchSampler(sampler, size, drop_last=train and settings.drop_last)

    def peek(self, count: int) -> Any:
        """One batch of `count` samples, or the first ready batch; a one-shot iterable keeps it."""
        parts = self.parts
        if isinstance(parts.dataset, Batches):
            batch = parts.dataset.peek()
            if batch is not None:  # as the loader will give it: arrays become tensors
                batch = (parts.collate_fn or torch.utils.data.default_convert)(batch)
        else:
            samples = self.samples
            size = count if samples is None else min(count, samples)
            calm = Settings(batch_size=max(size, 1), shuffle=False)
            batch = next(iter(self.loader(calm)), None)
        if batch is None:
            raise TaskError(f"{self.name} is empty: it gave no batch, and at least one is needed.")
        return batch


def _map_style(parts: Parts, batches: Any, settings: Settings, common: dict[str, Any]) -> Loader:
    dataset = _whole_batches(parts)
    if isinstance(dataset, Columns) and common["collate_fn"] is None:
        common["collate_fn"] = _as_is
    if settings.num_workers:
        batches, dataset = KeyedBatches(batches, settings.seed), SeededBatches(dataset)
    return DataLoader(dataset, batch_sampler=batches, **common)


def _whole_batches(parts: Parts) -> Dataset[Any]:
    """A plain TensorDataset with the default collation is indexed batch by batch; the values are the same."""
    dataset = parts.dataset
    if parts.collate_fn is not None:
        # A user's collate function expects a list of samples.
        return _Samples(dataset) if isinstance(dataset, Columns) else dataset
    return _StackedTensors(dataset.tensors) if type(dataset) is TensorDataset else dataset


class _StackedTensors(Columns):
    """As Columns; default collation makes a list of a TensorDataset's tuples, so batches are lists here."""

    def __getitems__(self, indices: list[int]) -> Any:
        return list(self[torch.as_tensor(indices)])


class _Samples(Dataset[Any]):
    """Columns, one sample at a time."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index: int) -> Any:
        return self.columns[index]


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _columns(name: str, data: Mapping[str, Any] | Sequence[Any]) -> Columns:
    columns = (
        {key: torch.as_tensor(value) for key, value in data.items()}
        if isinstance(data, Mapping)
        else [torch.as_tensor(value) for value in data]
    )
    values = list(columns.values()) if isinstance(columns, dict) else columns
    for value in values:
        if value.ndim == 0:
            raise TaskError(f"{name} holds a single number; each array needs a first dimension of samples.")
    lengths = [len(value) for value in values]
    if len(set(lengths)) > 1:
        raise TaskError(f"the arrays of {name} differ in length: {lengths}. Each needs one row per sample.")
    if not values:
        raise TaskError(f"{name} is empty: it holds no arrays.")
    return Columns(columns)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def batches_in(loader: Loader) -> int | None:
    """Batches in one pass over a loader; None where it has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def sample_count(batch: Any) -> int:
    """How many samples a batch holds: the first dimension of its first tensor; 1 where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    values: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, (tuple, list)):
        values = batch
    for value in values:
        if isinstance(value, (Tensor, np.ndarray, Mapping, tuple, list)):
            return sample_count(value) if not isinstance(value, np.ndarray) else len(value)
    sizes = getattr(batch, "batch_sizes", None)  # a PackedSequence
    return int(sizes[0]) if isinstance(sizes, Tensor) else 1


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch on `device`, in the same containers."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def describe(batch: Any) -> str:
    """Shapes and types in a batch, as a person would write them down."""
    found = leaves(batch)
    if not found:
        return type(batch).__name__
    return ", ".join(f"{name or 'x'}: {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in found)


def leaves(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """The tensors in a batch, each with where it is ("0", "image.1")."""
    if isinstance(value, Tensor):
        return [(path, value)]
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    return [leaf for key, part in items for leaf in leaves(part, f"{path}.{key}" if path else str(key))]
