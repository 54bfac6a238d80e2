"""Reads a user's DataLoader into its parts, of which an equal loader can be made at any batch
size.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    get_worker_info,
)

from workbench.task.data.datasets import Batches, Preloaded, SeededBatches
from workbench.task.errors import TaskError
from workbench.values import shown

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class WorkerInit:
    """Calls a user's worker_init_fn with the user's data set in `get_worker_info()` instead of
    `SeededBatches`.
    """

    users: Callable[[int], None]

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SeededBatches):
            inside = info.dataset.dataset
            users = inside.users if isinstance(inside, Preloaded) else inside
            object.__setattr__(info, "dataset", users)  # it is frozen
        self.users(worker_id)


@dataclass(frozen=True)
class Parts:
    """The parts of a loader."""

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
    worker_options: dict[str, Any] = field(default_factory=dict)
    """Options of a DataLoader's workers: timeout, prefetch_factor (which the setting replaces),
    …
    """

    def collated(self, name: str, collate_fn: Collate | None) -> Parts:
        """The parts with a `collate_fn` that was given next to the data; raises TaskError where the
        loader of `name` has another one.
        """
        if collate_fn is None:
            return self
        if self.collate_fn is not None and not _alike(self.collate_fn, collate_fn):
            argument = "collate_fn=" if name == "train" else "collate_fn= or val_collate_fn="
            other = (
                "val_collate_fn= makes only batches of val, test and predict"
                if name == "train"
                else "val_collate_fn= wins over collate_fn= there"
            )
            raise TaskError(
                f"the DataLoader of {name} has a collate_fn, {shown(self.collate_fn)}, which"
                f" {argument} would replace with {shown(collate_fn)}: give the data set in place of"
                " its DataLoader, or leave the argument out and give each DataLoader its own;"
                f" {other}."
            )
        return replace(self, collate_fn=collate_fn)

    @property
    def own_batches(self) -> str | None:
        """Why the setting `batch_size` has no effect on these data; None: it has."""
        if self.batch_sampler is not None:
            return (
                f"its loader has a batch_sampler of its own ({type(self.batch_sampler).__name__})"
            )
        if self.ready and isinstance(users := users_data(self.dataset), DataLoader):
            return f"its loader ({type(users).__name__}) makes its batches itself"
        if self.ready:
            return "it yields ready batches"
        return None


def _alike(one: Collate, other: Collate) -> bool:
    """Whether two functions are one, or partials that are equal."""
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other


_LIKE_THEIR_PARTS = ("torch", "torchdata", "accelerate")
"""Packages whose loaders give the batches of a plain DataLoader of the same parts."""


def makes_batches_itself(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader subclass overrides iteration, so that a loader made of its parts may
    yield other batches.
    """
    for method in ("__iter__", "_get_iterator"):
        # accelerate's hold a loader
        owner = next((kind for kind in type(loader).__mro__ if method in vars(kind)), None)
        if owner is not None and owner.__module__.partition(".")[0] not in _LIKE_THEIR_PARTS:
            return True
    return False


def parts_of(loader: DataLoader[Any]) -> Parts:
    """The parts of a user's DataLoader, from which an equal one can be made at any batch size.

    A loader that makes its batches itself is read directly.
    """
    if makes_batches_itself(loader):
        return Parts(Batches(loader), ready=True)
    iterable = isinstance(loader.dataset, IterableDataset)
    own_batches: Any = None if iterable else loader.batch_sampler
    sampler, batch_size, drop_last = loader.sampler, loader.batch_size, loader.drop_last
    if type(own_batches) is BatchSampler:
        # Also where it was given as batch_sampler=: the loader itself does not show it then.
        sampler, batch_size, drop_last = (
            own_batches.sampler,
            own_batches.batch_size,
            own_batches.drop_last,
        )
        own_batches = None
    defaults: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "shuffle": type(sampler) is RandomSampler,
        "drop_last": drop_last,
    }
    if batch_size is None and getattr(type(own_batches), "__iter__", None) is BatchSampler.__iter__:
        # a sampler with an __iter__ of its own may yield other batches than its batch_size says
        batch_size = own_batches.batch_size
    if isinstance(batch_size, int):
        defaults["batch_size"] = batch_size
    if loader.pin_memory:
        defaults["pin_memory"] = True
    options: dict[str, Any] = {}
    if loader.num_workers:
        defaults["persistent_workers"] = loader.persistent_workers
        options = {
            name: getattr(loader, name)
            for name in ("prefetch_factor", "timeout", "multiprocessing_context")
        }
    collate = loader.collate_fn
    default_collate = collate in (
        torch.utils.data.default_collate,
        torch.utils.data.default_convert,
    )
    return Parts(
        dataset=loader.dataset,
        collate_fn=None if default_collate else collate,
        sampler=None if iterable or _usual(sampler, loader) else sampler,
        batch_sampler=own_batches,
        ready=loader.batch_size is None and loader.batch_sampler is None,
        generator=loader.generator,
        worker_init_fn=loader.worker_init_fn,
        defaults=defaults,
        worker_options=options,
    )


def _usual(sampler: Any, loader: DataLoader[Any]) -> bool:
    """Whether a sampler is one that a DataLoader makes by default; any other is the user's
    choice and stays.
    """
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler._num_samples is not None:
            return False
        if sampler.generator not in (None, loader.generator):
            return False
    elif type(sampler) is not SequentialSampler:
        return False
    return length_of(sampler.data_source) == length_of(loader.dataset)


def without_users_rng(sampler: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return a sampler that does not advance the user's generators: a copy if it has one, else
    the sampler itself.
    """
    copies = {} if copies is None else copies
    if id(sampler) in copies:
        return copies[id(sampler)]
    copies[id(sampler)] = sampler
    changed: dict[str, Any] = {}
    for name, attribute in getattr(sampler, "__dict__", {}).items():
        if isinstance(attribute, Sampler):
            other = without_users_rng(attribute, copies)
        elif isinstance(
            attribute, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
        ):
            clone = (
                attribute.clone_state()
                if isinstance(attribute, torch.Generator)
                else copy.deepcopy(attribute)
            )
            other = copies.setdefault(id(attribute), clone)
        else:
            continue
        if other is not attribute:
            changed[name] = other
    if changed:
        copied = copies[id(sampler)] = copy.copy(sampler)
        vars(copied).update(changed)
    return copies[id(sampler)]


def users_data(dataset: Any) -> Any:
    """The user's data, of which this data set is made."""
    return dataset.users if isinstance(dataset, (Batches, Preloaded)) else dataset


def length_of(dataset: Any) -> int | None:
    """The length of a loader or sampler; None where it has none: PyG's samplers raise a ValueError
    for that, others a NotImplementedError.
    """
    try:
        return len(dataset)
    except (TypeError, ValueError, NotImplementedError):
        return None
