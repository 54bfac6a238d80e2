"""The batches of a session: its loaders, and how many of their batches are taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from workbench.settings import Settings
from workbench.task.data import DataSpec, Loader, batches_in
from workbench.task.protocol import Task, TaskError
from workbench.techniques import limits
from workbench.techniques.accumulation import size_at, updates_in, updates_of_run
from workbench.techniques.tbptt import pieces


class Feeds:
    """Training and validation batches, limited as the settings say. Everything else has loaders of its own."""

    def __init__(self, task: Task, settings: Settings) -> None:
        if task.train is None:
            raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
        self._task = task
        self.settings = settings
        """Those of the session, with the batch size as it is now."""
        self._train = _train_loader(task.train, settings)
        self.batches = _count(self._train, settings, "train")
        """Training batches of an epoch; None where nobody can know."""
        if self.batches == 0:
            raise TaskError(f"limit_train_batches={settings.limit_train_batches!r}: no batch is left to train on.")
        self._given, self._whole = 0, False
        """Of data without a length: the batches of the last whole epoch, or of the first one so far."""
        self._val: Loader | None = None
        self.val_batches: int | None = 0
        """Batches of a check of the validation data; None where nobody can know."""
        if task.val is not None:
            # An object's val_dataloader() may draw random numbers: now, not in the middle of the run.
            self._val = task.val.loader(settings)
            self.val_batches = _count(self._val, settings, "val")

    def use_batch_size(self, size: int) -> None:
        """From the next epoch on, training batches of this size."""
        _close(self._train)
        self.settings = self.settings.replace(batch_size=size)
        assert self._task.train is not None
        self._train = _train_loader(self._task.train, self.settings)
        length, limit = batches_in(self._train), self.settings.limit_train_batches
        if length is not None and isinstance(limit, float):
            self.batches = max(1, limits.part(length, limit))  # of fewer, larger batches at least one
        else:
            self.batches = _count(self._train, self.settings, "train")

    def train(self) -> Iterator[Any]:
        """The batches of one epoch, or their pieces in time (truncated BPTT)."""
        batches = first(self._train, self.batches)
        return self.split(batches if self.batches is not None else self._counted(batches))

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Data without a length may have no end: another pass takes as many batches as an epoch has given."""
        given = 0
        for batch in batches:
            given += 1
            if not self._whole:
                self._given = given
            yield batch
        self._given, self._whole = given, True

    def split(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches as they are, or in pieces in time where the settings say so."""
        length = self.settings.truncated_bptt_steps
        if length is None:
            return iter(batches)
        return pieces(batches, length, self.settings.tbptt_time_dim, self._task.split)

    def again(self) -> Iterator[Any]:
        """Training batches of one epoch from a loader of its own, which moves nothing: for statistics."""
        assert self._task.train is not None
        loader = _train_loader(self._task.train, self.settings)
        try:
            yield from self.split(first(loader, self._given if self.batches is None else self.batches))
        finally:
            _close(loader)

    @property
    def validates(self) -> bool:
        """Whether there is anything to validate on."""
        return self._val is not None and self.val_batches != 0

    def val(self) -> Iterable[Any]:
        """The batches of a check of the validation data."""
        if self._val is None or not self.validates:
            return ()
        return first(self._val, self.val_batches)

    def sanity(self) -> Iterable[Any]:
        """The batches of the check before the first update, from a loader of its own."""
        number = self.settings.num_sanity_val_steps
        if number == 0 or not self.validates or self.settings.fast_dev_run:
            return
        assert self._task.val is not None
        loader = self._task.val.loader(self.settings)
        most = (
            self.val_batches
            if number < 0
            else number
            if self.val_batches is None
            else min(number, self.val_batches)
        )
        try:
            yield from first(loader, most)
        finally:
            _close(loader)

    def updates_in(self, epoch: int) -> int | None:
        """Updates in one epoch; None where nobody can know."""
        if self.batches is None or self.settings.truncated_bptt_steps is not None:
            return None
        return updates_in(self.batches, size_at(self.settings.accumulate_grad_batches, epoch))

    def updates(self) -> int | None:
        """Updates of the whole run; None where nobody can know before."""
        settings, by_epochs = self.settings, None
        if settings.epochs is not None and self.updates_in(0) is not None:
            assert self.batches is not None
            by_epochs = updates_of_run(self.batches, settings.accumulate_grad_batches, settings.epochs)
        known = [number for number in (settings.max_steps, by_epochs) if number is not None]
        return min(known, default=None)

    def close(self) -> None:
        """Let go of loader processes."""
        for loader in (self._train, self._val):
            _close(loader)


def _train_loader(spec: DataSpec, settings: Settings) -> Loader:
    loader = spec.loader(settings, train=True)
    if batches_in(loader) == 0:
        raise TaskError(
            "an epoch has no batch: drop_last leaves out the only one; take a smaller batch_size or drop_last=False."
        )
    return loader


def first(loader: Loader, count: int | None) -> Iterator[Any]:
    """The first batches of a loader; all of them to its very end, for some samplers draw a last number there.

    Processes that live for one pass end with it, also where an error ends it: its traceback would keep them.
    """
    batches = iter(loader)
    try:
        yield from batches if count is None or count == batches_in(loader) else itertools.islice(batches, count)
    finally:
        if not loader.persistent_workers:
            _end(batches)


def _count(loader: Loader, settings: Settings, kind: str) -> int | None:
    limit = f"limit_{kind}_batches"
    asked = "overfit_batches" if settings.overfit_batches and not settings.fast_dev_run else limit
    return limits.count(batches_in(loader), getattr(settings, limit), asked)


def _close(loader: Loader | None) -> None:
    _end(getattr(loader, "_iterator", None))


def _end(batches: Any) -> None:
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
