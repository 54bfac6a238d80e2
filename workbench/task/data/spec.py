"""Defines DataSpec: the data that the user gave, and the only maker of loaders.

Every loader of a job comes from `DataSpec.loader`, with a generator of its own. So neither a finder
nor a validation changes the order of the training samples, and the exported script can make the
same loaders.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from workbench.settings import Settings, SettingsError
from workbench.task.batch import sample_count
from workbench.task.data.collate import DefaultCollate
from workbench.task.data.combined import has_loaders, in_turn
from workbench.task.data.counted_loader import CountedLoader, CountingCollate
from workbench.task.data.datasets import (
    Batches,
    Columns,
    KeyedBatches,
    Preloaded,
    Samples,
    SeededBatches,
    StackedTensors,
    peek,
)
from workbench.task.data.loader_parts import (
    Collate,
    Parts,
    WorkerInit,
    length_of,
    parts_of,
    users_data,
    without_users_rng,
)
from workbench.task.data.rank_stream import stream_of_rank
from workbench.task.data.resumable_sampler import ResumableBatchSampler
from workbench.task.data.samplers import ShuffledSampler
from workbench.task.data.sharding import (
    CommonRng,
    RankShard,
    SharedLoader,
    common_rng_for,
    refuse_sharded,
)
from workbench.task.data.to_dataset import UNNAMED, dataset_of, listed, sets_in
from workbench.task.errors import TaskError

PEEKED = 100
"""How many batches are read at most in search of one that is not None."""
Loader = CountedLoader
"""The type of loader that `DataSpec.loader` makes."""


def _as_is(batch: Any) -> Any:
    return batch


class DataSpec:
    """The user's data of one kind ("train", "val" or "test") and how to make loaders of it.

    Data for validations and tests may be several sets, each with a spec of its own in `sets`.
    """

    def __init__(
        self,
        name: str,
        parts: Parts | Mapping[str, DataSpec] | Callable[[], Parts | Mapping[str, Parts]],
    ) -> None:
        """parts: of one set; or a function that makes those of one set, or of several by their
        keys.
        """
        self.name = name
        self._given = parts
        self.made_by_object = callable(parts)
        """Whether an object's train_dataloader() (or val_…, test_…) makes it."""
        self.key = ""
        """Of one of several sets: the name that the user gave it, or "dataloader_idx_0"."""
        self.index: int | None = None
        """Of one of several sets: its number, from 0; None: it is the only one."""
        self._whole: DataSpec | None = None
        """The spec of all sets that an object makes, of which this is one."""
        self._sets: dict[str, DataSpec] = {}
        self.from_loader = False
        """Whether the user gave a DataLoader."""
        self.from_combined = False
        """Whether the user gave several sets in Lightning's CombinedLoader."""
        self.from_batches = False
        """Whether the user gave `wb.batches(…)`."""
        self._made: Parts | Mapping[str, Parts] | None = None
        self.changing: tuple[str, ...] = ()
        """What reading samples changes in these data besides generators, as the trial of two
        samples has shown.
        """
        self.share = RankShard()
        """The batches that this rank reads."""
        self.read_by_rank: bool | None = None
        """Of a stream on several ranks: whether this rank reads its own share alone, and not the
        whole stream; None: it is no such stream.
        """
        self.first_read: tuple[int, ...] | None = None
        """Of such a stream: checksums of the first batches that this rank has read of a pass."""
        self.preloaded: Preloaded | None = None
        """Its samples in memory, if `preload` has read them; they replace one data set of the
        user's.
        """

    @classmethod
    def of(cls, name: str, data: Any, collate_fn: Collate | None = None) -> DataSpec:
        """A spec of a Dataset, a DataLoader, columns (x, y), a dict of columns, samples in a list,
        or ready batches; for validations and tests also of several of these, in a dict or a list.
        """
        several = sets_in(name, data) if name in ("val", "test") else None
        if several is not None:
            specs = {
                key: cls.of(_name_of_set(name, key, number), dataset, collate_fn)
                for number, (key, dataset) in enumerate(several.items())
            }
            sets = _of_sets(name, specs)
            sets.from_combined = in_turn(data)
            return sets
        if isinstance(data, DataLoader):
            parts = parts_of(data)
        else:
            resolved: tuple[Any, bool] = dataset_of(name, data, collated=collate_fn is not None)
            parts = Parts(resolved[0], ready=resolved[1])
        parts = parts.collated(name, collate_fn)
        if length_of(parts.dataset) == 0:
            raise TaskError(f"{name} is empty: it has 0 samples, and at least one is needed.")
        spec = cls(name, parts)
        spec.from_loader = isinstance(data, DataLoader) and parts.dataset is data.dataset
        spec.from_batches = isinstance(data, Batches)
        return spec

    def _resolved(self) -> Parts | Mapping[str, Any]:
        """The parts of one set, or several sets by their keys."""
        if not callable(self._given):
            return self._given
        if self._made is None:
            self._made = self._given()
        return self._made

    @property
    def parts(self) -> Parts:
        """The present parts; train_dataloader() of an object is called once between two calls of
        `refresh`.

        Raises TaskError where there are several sets.
        """
        resolved = self._resolved()
        if not isinstance(resolved, Parts):
            raise TaskError(
                f"{self.name} has {len(resolved)} sets ({listed(resolved)}), and one is needed "
                "here: make the bench with one of them."
            )
        return resolved

    @property
    def sets(self) -> tuple[DataSpec, ...]:
        """The sets that a validation reads one after another; itself alone where there is one."""
        resolved = self._resolved()
        if isinstance(resolved, Parts):
            return (self,)
        if list(self._sets) != list(resolved):
            make = functools.partial
            self._take(
                {
                    k: DataSpec(_name_of_set(self.name, k, n), make(self._parts_of, k))
                    for n, k in enumerate(resolved)
                }
            )
            for spec in self._sets.values():
                spec._whole = self
        for spec in self._sets.values():
            spec.share = self.share
        return tuple(self._sets.values())

    @property
    def several(self) -> bool:
        """Whether there are several sets."""
        return not isinstance(self._resolved(), Parts)

    def with_sets(self, sets: Sequence[DataSpec]) -> DataSpec:
        """A spec of other sets in place of these, one for each."""
        return _of_sets(
            self.name, {spec.key: other for spec, other in zip(self.sets, sets, strict=True)}
        )

    def _take(self, sets: dict[str, DataSpec]) -> None:
        self._sets = sets
        for number, (key, spec) in enumerate(sets.items()):
            spec.key, spec.index = key, number

    def _parts_of(self, key: str) -> Parts:
        """The present parts of one of the sets that an object makes."""
        resolved = self._resolved()
        if isinstance(resolved, Parts) or key not in resolved:
            raise TaskError(
                f"{self.name}_dataloader() returned other sets than before, without {key!r}: return"
                " the same number each time."
            )
        parts: Parts = resolved[key]
        return parts

    def refresh(self) -> None:
        """Before a job: let an object with train_dataloader() make its loader again."""
        if self._whole is not None:
            self._whole.refresh()
        self._made = None
        for spec in self._sets.values():
            spec._made = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings that the user's own loader implies; of several sets, the first one's."""
        return self.sets[0].parts.defaults

    @property
    def one_shot(self) -> bool:
        """Whether the data can be read only once, so that a search would use it up."""
        if self.several:
            return any(spec.one_shot for spec in self.sets)
        dataset = self.parts.dataset
        return isinstance(dataset, Batches) and dataset.one_shot

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where the data has no length."""
        parts = self.parts
        return None if parts.ready else length_of(parts.dataset)

    @property
    def label(self) -> str:
        """The kind of the data and the number of samples, by which records distinguish data
        sets. "": an object makes them.
        """
        if self.made_by_object:
            return ""
        # the length of a stream is that of a rank's own share, where it is read by rank
        by_number = not isinstance(self.parts.dataset, IterableDataset)
        many = f", {self.samples:,} samples" if by_number and self.samples is not None else ""
        return f"{type(users_data(self.parts.dataset)).__name__}{many}"

    def refuse_unused(self, given: Mapping[str, Any], *, train: bool = True) -> None:
        """Raise SettingsError for a setting that the user gave and that has no effect on this
        data. train: it is training data.
        """
        if not given.keys() & {"batch_size", "drop_last", "shuffle", "num_workers"}:
            return  # train_dataloader() is not called now: its set-up comes with the job
        if self.several:
            for spec in self.sets:
                spec.refuse_unused(given, train=train)
            return
        parts, users = self.parts, users_data(self.parts.dataset)
        if isinstance(users, (list, tuple)) and not users:
            return  # empty data has an error of its own
        for name in () if train else ("shuffle", "drop_last"):
            if given.get(name):
                raise SettingsError(
                    f"{name}={given[name]!r} has no effect on {self.name}: only training data are"
                    f" shuffled or cut. Leave {name} out."
                )
        if parts.own_batches is not None:
            if given.get("batch_size") is not None and given["batch_size"] != self.defaults.get(
                "batch_size"
            ):
                raise self._unused("batch_size", given, parts.own_batches)
            if given.get("drop_last"):
                raise self._unused("drop_last", given, parts.own_batches)
        if given.get("shuffle") and (decides := self._orders_itself(parts)) is not None:
            raise self._unused("shuffle", given, decides)
        if (
            given.get("shuffle") is False
            and parts.sampler is not None
            and parts.defaults.get("shuffle")
        ):
            raise self._unused("shuffle", given, "its loader has a RandomSampler of its own")
        if given.get("num_workers") and self.one_shot:
            raise self._unused(
                "num_workers", given, "it can be read only once, which one process does"
            )
        if train and given.get("num_workers") and has_loaders(parts.dataset):
            raise self._unused(
                "num_workers",
                given,
                "loaders of your own make its batches: give num_workers to them",
            )

    def _empty(self) -> TaskError:
        samples = self.samples
        if samples is not None and samples > 0:
            return TaskError(
                f"{self.name} has {samples} samples, and its first batches (up to {PEEKED} were"
                " read) are None: samples that cannot be read, or a collate_fn that returns"
                " nothing? wb.Workbench(…, dry_run=False) reads none before training."
            )
        return TaskError(
            f"{self.name} is empty: it gave no batch, or None for each of the first {PEEKED}, and"
            " at least one is needed."
        )

    def _orders_itself(self, parts: Parts) -> str | None:
        """Why the setting `shuffle` has no effect on these data; None: it has, or the sampler
        shuffles.
        """
        if parts.batch_sampler is not None:
            return (
                f"its loader has a batch_sampler of its own ({type(parts.batch_sampler).__name__})"
            )
        if parts.sampler is not None:
            drawn = bool(parts.defaults.get("shuffle"))
            return (
                None
                if drawn
                else f"its loader has a sampler of its own ({type(parts.sampler).__name__})"
            )
        if isinstance(parts.dataset, IterableDataset) or (
            parts.ready and not parts.defaults.get("shuffle")
        ):
            reason = (
                "yields ready batches in their order" if parts.ready else "can only be iterated"
            )
            return f"it {reason} ({type(users_data(parts.dataset)).__name__})"
        return None

    def _unused(self, name: str, settings: Mapping[str, Any], decides: str) -> SettingsError:
        remedy = (
            "give the samples (a Dataset, or a loader without it)"
            if self.from_loader
            else "give the samples in a Dataset"
        )
        return SettingsError(
            f"{name}={settings[name]!r} has no effect on {self.name}, since {decides}. Leave "
            f"{name} out, or {remedy}."
        )

    def refuse_larger(self, size: int) -> None:
        """Raise TaskError for a batch size larger than the data."""
        parts, count = self.parts, self.samples
        if count is None or size <= count or parts.own_batches is not None:
            return
        if count == 0:
            raise TaskError(f"the {self.name} data have no samples.")
        listed: Any = parts.dataset  # a list is a data set of samples as well
        ready = (
            f"; if these are ready batches, give {self.name}=wb.batches(…)"
            if isinstance(listed, (list, tuple))
            else ""
        )
        raise TaskError(
            f"batch_size={size} is larger than the {self.name} data ({count} samples): take"
            f" batch_size={count} or less{ready}."
        )

    def loader(
        self, settings: Settings, *, batch_size: int | None = None, train: bool = False
    ) -> Loader:
        """A new loader at `settings.batch_size` (or `batch_size`), with a generator of its own.

        `train`: samples come in the order of `settings.shuffle` and `settings.seed`; the last short
        batch is dropped with `settings.drop_last`. It yields the batches of `share`; with
        `drop_last` an incomplete last round is dropped too, since the ranks' batches together are
        one. Of a stream that is read by rank it yields all that this rank reads.
        """
        self.read_by_rank = None
        if self.share.several:
            refuse_sharded(self.name, self.parts.sampler, self.parts.batch_sampler)
        whole = (
            self.share.several and train and settings.drop_last and self.parts.own_batches is None
        )
        return self._loader(settings, replace(self.share, whole=whole), batch_size, train)

    def _loader(
        self,
        settings: Settings,
        share: RankShard,
        batch_size: int | None = None,
        train: bool = False,
    ) -> Loader:
        loader = self._made_loader(settings, share, batch_size, train)
        loader.reuses_memory = loader.num_workers == 0 and self._may_reuse_memory()
        return loader

    def _note_first(self, checksums: tuple[int, ...]) -> None:
        self.first_read = checksums

    def _may_reuse_memory(self) -> bool:
        """Whether the user's code makes the batches, and may fill their memory again."""
        parts = self.parts
        is_listed = isinstance(users_data(parts.dataset), (list, tuple))
        return parts.collate_fn is not None or (parts.ready and not is_listed)

    def _made_loader(
        self, settings: Settings, share: RankShard, batch_size: int | None, train: bool
    ) -> Loader:
        parts = self.parts
        if (
            settings.preload
            and self.preloaded is not None
            and self.preloaded.users is parts.dataset
        ):
            parts = replace(parts, dataset=self.preloaded)
        size = batch_size or settings.batch_size
        generator = torch.Generator()
        if parts.generator is not None:
            generator.set_state(parts.generator.get_state())
        else:
            generator.manual_seed(settings.seed)
        # Each worker would read from its own copy, in an order of its own.
        workers = 0 if self.one_shot or has_loaders(parts.dataset) else settings.num_workers
        pin = settings.pin_memory
        if pin is None:
            pin = (
                torch.cuda.is_available()
                and settings.accelerator != "cpu"
                and _on_cpu(parts.dataset)
            )
        common: dict[str, Any] = {
            "num_workers": workers,
            "pin_memory": pin,
            "persistent_workers": settings.persistent_workers and workers > 0,
            "generator": generator,
            "worker_init_fn": parts.worker_init_fn,
            "collate_fn": self._collate(parts),
            **(parts.worker_options if workers else {}),
            **(
                {"prefetch_factor": settings.prefetch_factor}
                if workers and settings.prefetch_factor is not None
                else {}
            ),
        }
        if isinstance(parts.dataset, IterableDataset):
            if not parts.ready:
                common["drop_last"] = train and settings.drop_last
                common["collate_fn"] = CountingCollate(common["collate_fn"])
            batch_size = None if parts.ready else size
            if share.several:
                asked = settings.streams == "shard"
                stream = stream_of_rank(self.name, parts.dataset, share, asked=asked)
                self.read_by_rank = stream is not None
                if stream is None:
                    stream = parts.dataset
                else:
                    share = RankShard()
                common["batch_size"] = batch_size
                return SharedLoader(stream, share, settings.seed, self._note_first, **common)
            return CountedLoader(parts.dataset, batch_size=batch_size, **common)
        if parts.ready:
            common["sampler"] = ResumableBatchSampler(
                self._sampler(parts, settings, train, generator), generator, share
            )
            return CountedLoader(parts.dataset, batch_size=None, **common)
        if parts.batch_sampler is not None:
            return _map_style(
                parts, without_users_rng(parts.batch_sampler), settings, share, common
            )
        return _map_style(
            parts, self._batches(parts, settings, size, train, generator), settings, share, common
        )

    def _collate(self, parts: Parts) -> Collate | None:
        """The collate function of samples; None: they are batches already, or come from arrays."""
        if parts.collate_fn is not None or parts.ready:
            return parts.collate_fn
        arrays = isinstance(_whole_batches(parts), Columns)
        return _as_is if arrays else DefaultCollate.of(self.name, parts.dataset)

    def _batches(
        self, parts: Parts, settings: Settings, size: int, train: bool, generator: torch.Generator
    ) -> BatchSampler:
        if train:
            self.refuse_larger(size)
        sampler = self._sampler(parts, settings, train, generator)
        return BatchSampler(sampler, size, drop_last=train and settings.drop_last)

    def _sampler(
        self, parts: Parts, settings: Settings, train: bool, generator: torch.Generator
    ) -> Any:
        """The sampler of samples, or of ready batches."""
        dataset: Any = parts.dataset
        if parts.sampler is not None:
            if train and parts.defaults.get("shuffle") and not settings.shuffle:
                raise TaskError(
                    f"shuffle=False: the loader of {self.name} has a RandomSampler of its own,"
                    " which this setting does not replace; give the Dataset, or a loader"
                    " without it."
                )
            return without_users_rng(parts.sampler)
        shuffled = settings.shuffle and (not parts.ready or parts.defaults.get("shuffle", False))
        return (
            ShuffledSampler(dataset, generator=generator)
            if train and shuffled
            else SequentialSampler(dataset)
        )

    def peek(self, count: int) -> Any:
        """The first batch of `count` samples, or ready batch, that is not None; an iterator does
        not lose it.

        Raises TaskError where there is none among the first `PEEKED`.
        """
        parts = self.parts
        if isinstance(parts.dataset, Batches):
            batch = peek(parts.dataset, PEEKED)
            if batch is not None:  # as the loader will give it: arrays become tensors
                batch = (parts.collate_fn or torch.utils.data.default_convert)(batch)
        else:
            samples = self.samples
            size = count if samples is None else min(count, samples)
            calm = Settings(batch_size=max(size, 1), shuffle=False, pin_memory=False)
            batch = _first_usable(itertools.islice(self._loader(calm, RankShard()), PEEKED), size)
        if batch is None:
            raise self._empty()
        return batch


def _first_usable(batches: Iterator[Any], size: int) -> Any:
    """The first batch that is not None; or one of the next, if that is short, since samples could
    not be read, and the other is not.
    """
    short = None
    for number, batch in enumerate(batches):
        if batch is not None and (sample_count(batch) or size) >= size:
            return batch
        short = batch if short is None else short
        if short is not None and number >= _LOOKED_AT:
            break
    return short


_LOOKED_AT = 10
"""How many batches are looked at, where the first ones are short."""


def _of_sets(name: str, sets: dict[str, DataSpec]) -> DataSpec:
    """The spec of these sets, by their keys."""
    if len(sets) == 1:
        return next(iter(sets.values()))
    spec = DataSpec(name, sets)
    spec._take(sets)
    return spec


HeldOut = tuple[DataSpec, Iterable[Any]]
"""One of the sets that a validation or a test reads: its spec, and its batches."""


def _name_of_set(name: str, key: str, number: int) -> str:
    """The name of one of several sets in errors: val['clean'], val[1]."""
    return f"{name}[{number if key == f'{UNNAMED}{number}' else repr(key)}]"


def _map_style(
    parts: Parts, batches: Any, settings: Settings, share: RankShard, common: dict[str, Any]
) -> Loader:
    dataset = _whole_batches(parts)
    if settings.num_workers:
        batches, dataset = KeyedBatches(batches, settings.seed), SeededBatches(dataset)
        if parts.worker_init_fn is not None:
            common["worker_init_fn"] = WorkerInit(parts.worker_init_fn)
    deals = ResumableBatchSampler(
        batches, common["generator"], share, common_rng_for(batches, share, settings.seed)
    )
    return CountedLoader(dataset, batch_sampler=deals, **common)


def _whole_batches(parts: Parts) -> Dataset[Any]:
    """A plain TensorDataset with the default collation is indexed batch by batch; the values are
    the same.
    """
    dataset = parts.dataset
    if parts.collate_fn is not None:
        # A user's collate function expects a list of samples.
        return Samples(dataset) if isinstance(dataset, Columns) else dataset
    # A worker_init_fn may look at the data set: then the user's own is read.
    if type(dataset) is TensorDataset and parts.worker_init_fn is None:
        return StackedTensors(dataset.tensors)
    return dataset


def _on_cpu(dataset: Any) -> bool:
    """Whether ready tensors are in host memory, which alone can be pinned; True if unknown."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    tensors: Iterable[Tensor] = ()
    if isinstance(dataset, Columns):
        tensors = dataset._values()
    elif type(dataset) is TensorDataset:
        tensors = dataset.tensors
    return all(tensor.device.type == "cpu" for tensor in tensors)


def resumable_sampler_of(loader: Loader) -> ResumableBatchSampler | None:
    """Return the resumable batch sampler of a loader; None where the data have no indices."""
    for sampler in (loader.batch_sampler, loader.sampler):
        if isinstance(sampler, ResumableBatchSampler):
            return sampler
    return None


def common_rng_of(loader: Loader) -> CommonRng | None:
    """Return the random states of a loader's order that are equal on all ranks; None where it
    needs none.
    """
    if isinstance(loader, SharedLoader):
        return loader.common_rng
    deals = resumable_sampler_of(loader)
    return None if deals is None else deals.common_rng


def users_dataset(loader: Loader) -> Any:
    """The data set, or the batches, that the user gave for this loader."""
    dataset = (
        loader.dataset.dataset if isinstance(loader.dataset, SeededBatches) else loader.dataset
    )
    return users_data(dataset)


def users_collate(loader: Loader) -> Any:
    """The collate function of this loader, without its counting wrapper."""
    collate = loader.collate_fn
    return collate.users if isinstance(collate, CountingCollate) else collate


def set_epoch(loader: Loader, epoch: int) -> None:
    """Call `set_epoch` of the user's sampler, batch sampler and data set, where they have it."""
    done: list[Any] = []
    for component in _parts_with_epoch(loader):
        if callable(getattr(component, "set_epoch", None)) and not any(
            component is other for other in done
        ):
            done.append(component)
            component.set_epoch(epoch)


def _parts_with_epoch(loader: Loader) -> Iterator[Any]:
    deals, data = resumable_sampler_of(loader), users_dataset(loader)
    batches = None if deals is None else deals.batches
    batches = batches.batches if isinstance(batches, KeyedBatches) else batches
    yield from (batches, getattr(batches, "sampler", None), data)
    if isinstance(loader.dataset, Batches):  # a loader of the user's own that gives ready batches
        inner = getattr(data, "batch_sampler", None)
        yield from (
            getattr(data, "sampler", None),
            inner,
            getattr(inner, "sampler", None),
            getattr(data, "dataset", None),
        )
