"""Makes the loaders of a session and limits how many of their batches are used."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch.utils.data import DataLoader

from workbench.engine.data.checksums import BATCHES, checksum, of_batch
from workbench.engine.data.first_batches import close_workers, first_batches
from workbench.engine.data.resumable_loader import ResumableLoader
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.settings import Settings
from workbench.task.batch import copied
from workbench.task.data.loader_parts import length_of
from workbench.task.data.samplers import is_shuffling, number_of_samples
from workbench.task.data.spec import (
    DataSpec,
    HeldOut,
    Loader,
    resumable_sampler_of,
    set_epoch,
    users_dataset,
)
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.task.rng import RandomState, preserved
from workbench.techniques import limits
from workbench.techniques.accumulation import size_at, updates_in, updates_of_run
from workbench.techniques.tbptt import pieces


class Loaders:
    """Training and validation batches, limited as the settings say. Other data have loaders of
    their own.
    """

    def __init__(self, task: Task, settings: Settings, ranks: ProcessGroup | None = None) -> None:
        """ranks: the process group of the job, each rank of which has its own Loaders; None:
        there is one process.
        """
        if task.train is None:
            raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
        self._task, self._ranks = task, ranks or ProcessGroup()
        self.settings = settings
        """The session's settings, with the present batch size."""
        self._train = self._reading(settings)
        self._current: ResumableLoader | None = None
        """The loader of the latest epoch; a live change of the batch size does not replace it."""
        self.epoch = 0
        """The present epoch, from 0, given to samplers and data sets (set_epoch)."""
        self._loaded: tuple[int, RandomState | None] = 0, None
        """The epoch in which the loaders were made, and the random state before; None: they are
        those of the job's start.
        """
        self._placed: tuple[ResumableLoader, int, int] | None = None
        """The rest of an epoch: its loader, the finished batches, the finished pieces of the
        next batch.
        """
        self._pieces = 0
        self.batches, self._even = self._of_all(_count(self._train.loader, settings, "train"))
        """Training batches of an epoch; None where they cannot be known."""
        if self.batches == 0:
            raise TaskError(
                f"limit_train_batches={settings.limit_train_batches!r}: no batch is left to"
                " train on."
            )
        self._moved: set[str] = set()
        """Messages about data that cannot be moved back within an epoch; each is reported once."""
        self._given, self._whole = 0, False
        """For data without a length: the batches of the last whole epoch, or of the first one so
        far.
        """
        self.checksums: list[str] | None = None
        """The checksums of the first training batches; None: none are taken."""
        self._val: list[tuple[DataSpec, ResumableLoader]] = []
        """The sets that a validation reads one after another; []: there is no validation data."""
        self._before_check: dict[str, Any] | None = None
        """The position of the validation data when the present validation began; None: none is
        running.
        """
        self.val_batches: tuple[int | None, ...] = ()
        """The batches of each set in one validation; None where they cannot be known."""
        self._read_val()
        self._put_back = contextlib.ExitStack()
        """What puts back the user's data, into which a position was loaded."""

    def begin_epoch(self, epoch: int) -> None:
        """Read the batches of this epoch, from 0, from now on."""
        self.epoch = epoch

    def _read_val(self) -> None:
        """Make the validation loaders. An object's val_dataloader() may draw random numbers: it
        does so now, not in the middle of an epoch.
        """
        if self._task.val is not None:
            self._val = [(spec, self._reading_val(spec)) for spec in self._task.val.sets]
            self._count_val()

    def _count_val(self) -> None:
        """Count the batches of each set as they are now: a sampler with `set_epoch` may have
        others in each epoch.
        """
        self.val_batches = tuple(
            self._of_all(_count(reading.loader, self.settings, "val"))[0]
            for _, reading in self._val
        )

    def reload_if_due(self) -> None:
        """At the start of an epoch: let objects make their loaders again, every so many epochs."""
        every = self.settings.reload_dataloaders_every_n_epochs
        if every and self.epoch - self._loaded[0] >= every:
            self._loaded = self.epoch, RandomState.capture()
            self._reload()

    def _reload(self) -> None:
        train, val = self._task.train, self._task.val
        if train is not None and train.made_by_object:
            before = self._train
            train.refresh()
            self._train = self._reading(self.settings)
            self._train.follow(before, own_generator=train.parts.generator is not None)
            before.close()
            self._given, self._whole = 0, False
            self.batches, self._even = self._of_all(
                _count(self._train.loader, self.settings, "train")
            )
        if val is not None and val.made_by_object:
            earlier = [reading for _, reading in self._val]
            for spec, _ in self._val:
                spec.refresh()
            self._read_val()
            for (spec, now), reading in zip(self._val, earlier, strict=True):
                now.follow(reading, own_generator=spec.parts.generator is not None)
                reading.close()

    @property
    def batches_of_pass(self) -> int | None:
        """The training batches of the present pass, which keeps its batch size; None where they
        cannot be known.
        """
        current = self._current
        return (
            self.batches if current is None or current is self._train else self._batches_of(current)
        )

    def reload_as(self, position: Mapping[str, Any]) -> None:
        """Before `place`: make the loaders as the object made them for the epochs around this
        position.
        """
        epoch, random = position.get("loaded", (0, None))
        if random is not None:
            self._loaded = epoch, RandomState.from_state(random)
            with preserved():
                self._loaded[1].restore()
                self._reload()

    def use_batch_size(self, size: int) -> None:
        """Use this batch size from the next epoch on; the present epoch keeps its loader."""
        if self._train is not self._current:
            self._train.close()
        self.settings = self.settings.replace(batch_size=size)
        self._train = self._reading(self.settings)
        self.batches, self._even = self._of_all(self._batches_of(self._train))

    def accumulate(self, setting: int | Mapping[int, int]) -> None:
        """Plan with this `accumulate_grad_batches` from the next update on."""
        self.settings = self.settings.replace(accumulate_grad_batches=setting)

    def _reading(self, settings: Settings) -> ResumableLoader:
        assert self._task.train is not None
        cut = settings.truncated_bptt_steps is not None
        return ResumableLoader(
            _train_loader(self._task.train, settings),
            "train",
            settings.batch_size,
            rereads=cut,
            changing=self._task.train.changing,
        )

    def _reading_val(self, spec: DataSpec) -> ResumableLoader:
        return ResumableLoader(
            spec.loader(self.settings), spec.name, self.settings.batch_size, changing=spec.changing
        )

    def _batches_of(self, reading: ResumableLoader) -> int | None:
        """The batches of an epoch at a batch size; a limit that is a fraction is at least one
        batch.
        """
        length, limit = length_of(reading.loader), self.settings.limit_train_batches
        if length is not None and isinstance(limit, float):
            return max(1, limits.fraction_of(length, limit))
        return _count(reading.loader, self.settings, "train")

    def train(self) -> Iterator[Any]:
        """The batches of one epoch, or their pieces in time (truncated BPTT); or the rest of a
        resumed epoch.
        """
        if self._placed is None:
            reading, count, begun, left_out = self._train, self.batches, 0, 0
        else:
            reading, begun, left_out = self._placed
            count = self.batches if reading is self._train else self._batches_of(reading)
        if self._current is not None and self._current is not reading:
            self._current.close()
        reading.begun = self._placed is not None
        if not reading.begun:
            reading.set_epoch(self.epoch)
        self._current, self._placed = reading, None
        batches = reading.batches(count)
        if self.checksums is not None and not self.checksums:
            batches = itertools.chain(self._noted(self.checksums, batches), batches)
        batches = self.split(batches if count is not None else self._counted(batches, begun))
        return (
            batches
            if self.settings.truncated_bptt_steps is None
            else self._pieces_of(batches, left_out)
        )

    def _noted(self, checksums: list[str], batches: Iterator[Any]) -> Iterator[Any]:
        """The first batches, whose checksums are kept; the others are not looked at."""
        for batch in itertools.islice(batches, BATCHES):
            checksums.append(of_batch(batch))
            yield batch

    def batch_size(self, stage: Literal["train", "val", "test"]) -> int | None:
        """The setting, where the loader of this stage follows it; None: its data make their own
        batches.
        """
        spec: DataSpec | None = getattr(self._task, stage)
        return (
            None
            if spec is None or any(data.parts.own_batches for data in spec.sets)
            else self.settings.batch_size
        )

    def samples(self) -> int | None:
        """The number of samples in the training batch that was read last; None where it is
        unknown.
        """
        return None if self._current is None else self._current.loader.samples

    def indices(self) -> Any:
        """The indices of that batch, or the number of a ready one; None where they are unknown."""
        return None if self._current is None else self._current.loader.indices

    def kept(self, batch: Any) -> Any:
        """The batch that was read last, as it is kept while others are read."""
        reused = self._current is not None and self._current.loader.reuses_memory
        return copied(batch) if reused else batch

    def whole_windows(self, size: int) -> int:
        """How many windows of this size the next pass is sure to have, on every rank.

        All ranks shard the same order by its indices; only the last round may lack a batch on some
        of them.
        """
        if (
            self._placed is not None
            or self.batches is None
            or self.settings.truncated_bptt_steps is not None
        ):
            return 0
        return (self.batches - 1) // size if self._even and self._train.counted else 0

    def _of_all(self, count: int | None) -> tuple[int | None, bool]:
        """The most batches that a rank has, which all ranks count by, and whether all have as many.

        Data that shard themselves may have unequal parts.
        """
        counts = set(self._ranks.all_gather_object(count))
        known = [number for number in counts if number is not None]
        return (max(known) if len(known) == len(counts) else None), len(counts) == 1

    def _counted(self, batches: Iterator[Any], count: int) -> Iterator[Any]:
        """Data without a length may never end: a later pass takes as many batches as the first
        epoch had.
        """
        for batch in batches:
            count += 1
            if not self._whole:
                self._given = count
            yield batch
        self._given, self._whole = count, True

    def _pieces_of(self, pieces: Iterator[Any], left_out: int) -> Iterator[Any]:
        """The pieces of batches, without the finished ones of the first batch; they are counted."""
        self._pieces = 0
        for piece in pieces:
            if piece.first and self._pieces:
                self._pieces = left_out = 0
            self._pieces += 1
            if self._pieces > left_out:
                yield piece

    def split(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, or their pieces in time where the settings say so."""
        length = self.settings.truncated_bptt_steps
        if length is None:
            return iter(batches)
        return pieces(batches, length, self.settings.tbptt_time_dim, self._task.split)

    def again(self, lost: list[str]) -> Iterator[Any]:
        """Training batches of one epoch from a separate loader, for statistics. lost: gets a
        message for data that could not be moved back, once.
        """
        assert self._task.train is not None
        reading = (
            self._current if self._current is not None and self._current.reads else self._train
        )
        loader = _train_loader(self._task.train, self.settings)
        with reading.untouched() as moved:
            set_epoch(loader, self.epoch)
            try:
                yield from self.split(
                    first_batches(loader, self._given if self.batches is None else self.batches)
                )
            finally:
                close_workers(loader)
        lost += [message for message in moved if message not in self._moved]
        self._moved.update(moved)

    @property
    def validates(self) -> bool:
        """Whether there is validation data."""
        return any(count != 0 for count in self.val_batches)

    def val(self) -> list[HeldOut]:
        """The sets of a validation, which counts as running until `checked`."""
        if not self.validates:
            return []
        if self._before_check is None:
            self._before_check = self.val_position()
        for _, reading in self._val:
            reading.set_epoch(self.epoch)
        self._count_val()
        pairs = zip(self._val, self.val_batches, strict=True)
        return [
            (spec, with_sample_counts(self._task, reading.loader, reading.batches(count)))
            for (spec, reading), count in pairs
        ]

    def checked(self) -> None:
        """The validation has ended. One that was stopped has not, and a resumed run repeats it."""
        self._before_check = None

    def val_position(self) -> dict[str, Any] | None:
        """The position of the validation data for the next validation, or for the one that has
        not ended; None: there is no such data.
        """
        if self._before_check is not None:
            return self._before_check
        states = [reading.state_between_passes() for _, reading in self._val]
        return {"sets": states} if len(states) > 1 else next(iter(states), None)

    def val_once(self) -> list[HeldOut]:
        """The sets of a user-requested validation, from separate loaders, so that the scheduled
        ones do not change.
        """
        with contextlib.ExitStack() as untouched:
            for _, reading in self._val:
                untouched.enter_context(reading.untouched())
                set_epoch(reading.loader, self.epoch)
            self._count_val()
        return self._all_apart(self.val_batches)

    def _all_apart(self, most: Sequence[int | None]) -> list[HeldOut]:
        """This many validation batches of each set from separate loaders."""
        return [
            (spec, self._apart(spec, reading, count))
            for (spec, reading), count in zip(self._val, most, strict=True)
        ]

    def _apart(self, spec: DataSpec, reading: ResumableLoader, most: int | None) -> Iterator[Any]:
        loader = spec.loader(self.settings)
        with reading.untouched():
            set_epoch(loader, self.epoch)
            try:
                yield from with_sample_counts(self._task, loader, first_batches(loader, most))
            finally:
                close_workers(loader)

    def sanity(self) -> list[HeldOut]:
        """The sets of the sanity check, from separate loaders, so that later validations do not
        change.
        """
        number = self.settings.num_sanity_val_steps
        if number == 0 or not self.validates or self.settings.fast_dev_run:
            return []
        return self._all_apart(self.val_batches) if number < 0 else self.first_val(number)

    def first_val(self, most: int) -> list[HeldOut]:
        """The first batches of each set of validation data, from separate loaders as well; none
        without such data.
        """
        if not self.validates:
            return []
        return self._all_apart(
            [most if count is None else min(most, count) for count in self.val_batches]
        )

    @property
    def begun(self) -> bool:
        """Whether a batch of this epoch was requested, even in vain: a rank may have none."""
        return self._current is not None and self._current.begun

    @property
    def batches_read(self) -> int:
        """The batches of this epoch that were read."""
        return (
            self._current.batches_read if self._current is not None and self._current.begun else 0
        )

    @property
    def length(self) -> int | None:
        """The training loader's length now; None: it has none, or an epoch continues at another
        batch size.
        """
        return length_of(self._train.loader) if self._current is self._train else None

    def order_checksum(self) -> str:
        """The checksum, before the first pass, of the number of samples and the generator that
        shuffles them; "" for data without a length.
        """
        loader = self._train.loader
        count = number_of_samples(loader)
        return (
            checksum([count, loader.generator.get_state()])
            if count and loader.generator is not None
            else ""
        )

    @property
    def order_read(self) -> tuple[int, int] | None:
        """How many batches the latest pass has sharded out, to any rank, and a checksum of their
        indices.
        """
        return None if self._current is None else self._current.order_read

    def slow_options(self) -> Iterator[tuple[str, str]]:
        """Options of the training loader that may cost time, each with the place that it comes
        from (`events.Observed`).
        """
        spec = self._task.train
        assert spec is not None
        users = users_dataset(self._train.loader)
        is_users = isinstance(users, DataLoader)
        loader: DataLoader[Any] = users if is_users else self._train.loader
        options = {
            "persistent_workers": bool(loader.num_workers) and not loader.persistent_workers,
            "pin_memory": loader.pin_memory,
        }
        for name, slow in options.items():
            theirs = "DataLoader" if spec.defaults.get(name) == getattr(loader, name) else "setting"
            if slow:
                yield f"{name}={getattr(loader, name)}", "own DataLoader" if is_users else theirs
        if is_users:
            yield f"num_workers={loader.num_workers}", "own DataLoader"

    def shuffled(self, fewest: int) -> bool:
        """Whether training data of at least this many samples come in another order in each
        epoch.
        """
        loader = self._train.loader
        deals = resumable_sampler_of(loader)
        return (
            deals is not None
            and number_of_samples(loader) >= fewest
            and is_shuffling(deals.batches)
        )

    def position(self, batch_idx: int, begun: bool | None = None) -> dict[str, Any]:
        """The position in the data, from which another process can continue; called between two
        updates.

        `batch_idx`: the finished batches of this epoch (with truncated BPTT: those begun). 0: none
        has begun, unless `begun` says so.
        """
        going, cut = self._current, self.settings.truncated_bptt_steps is not None
        position: dict[str, Any] = {
            "given": self._given,
            "whole": self._whole,
            "val": self.val_position(),
        }
        if (random := self._loaded[1]) is not None:
            position["loaded"] = self._loaded[0], random.state_dict()
        if not (batch_idx if begun is None else begun):
            return {
                **position,
                "inside": False,
                "batch_size": self.settings.batch_size,
                "train": self._train.state_between_passes(),
            }
        if going is None or batch_idx > going.batches_read:
            raise ValueError(
                f"position({batch_idx}): the training data have not been read so far in this epoch."
            )
        # A batch that is used piece by piece is needed again.
        pieces = self._pieces if cut and batch_idx == going.batches_read else 0
        finished = batch_idx - (pieces > 0)
        return {
            **position,
            "inside": True,
            "batch_size": going.batch_size,
            "taken": finished,
            "pieces": pieces,
            "train": going.state_in_pass(finished, pieces > 0),
        }

    def place(self, position: Mapping[str, Any]) -> list[str]:
        """Continue from `position`, before anything is read; returns, in words, what could not be
        restored.

        The next `train()` yields the rest of the epoch, at the batch size that it had.
        """
        for reading in (self._train, *(reading for _, reading in self._val)):
            self._put_back.enter_context(reading.as_before())
        self._given, self._whole = position["given"], position["whole"]
        doubts = []
        doubts += self._restore_val(position["val"])
        own_batches = (
            self._task.train is not None and self._task.train.parts.own_batches is not None
        )
        same = own_batches or position["batch_size"] == self.settings.batch_size
        if not position["inside"]:
            # A batch size other than the checkpoint's begins with a new loader, as in
            # `use_batch_size`.
            return doubts + (self._train.restore_between_passes(position["train"]) if same else [])
        finished, pieces = position["taken"], position["pieces"]
        reading = (
            self._train
            if same
            else self._reading(self.settings.replace(batch_size=position["batch_size"]))
        )
        doubts += reading.restore_in_pass(position["train"], finished, pieces > 0)
        reading.begun = True
        self._current, self._placed, self._pieces = reading, (reading, finished, pieces), pieces
        return doubts

    def _restore_val(self, position: Mapping[str, Any] | None) -> list[str]:
        """Continue the validation data from there; returns, in words, what could not be
        restored.
        """
        if position is None or not self._val:
            return []
        states = position.get("sets", [position])
        if len(states) != len(self._val):
            return [
                f"there were {len(states)} sets of validation data, and there are"
                f" {len(self._val)} now"
            ]
        return [
            doubt
            for (_, reading), state in zip(self._val, states, strict=True)
            for doubt in reading.restore_between_passes(state)
        ]

    def why_inexact(self) -> str | None:
        """Why a checkpoint in the middle of an epoch would not be exact; None: it is, as far as
        can be known.
        """
        return self._train.why_inexact()

    def updates_in(self, epoch: int) -> int | None:
        """Updates in one epoch; None where they cannot be known."""
        if self.batches is None or self.settings.truncated_bptt_steps is not None:
            return None
        return updates_in(self.batches, size_at(self.settings.accumulate_grad_batches, epoch))

    def planned(self) -> int | None:
        """Updates in all epochs of the run; None where they cannot be known before."""
        if self.settings.epochs is None or self.updates_in(0) is None:
            return None
        assert self.batches is not None
        return updates_of_run(
            self.batches, self.settings.accumulate_grad_batches, self.settings.epochs
        )

    def updates(self, ahead: int = 0) -> int | None:
        """Updates of the whole run; None where they cannot be known before. ahead: updates
        beyond the planned ones.
        """
        planned = self.planned()
        by_epochs = None if planned is None else planned + ahead
        known = [number for number in (self.settings.max_steps, by_epochs) if number is not None]
        return min(known, default=None)

    def close(self) -> None:
        """End the loader processes, and put the user's data back if they were placed."""
        for reading in (self._train, self._current, *(reading for _, reading in self._val)):
            if reading is not None:
                reading.close()
        self._put_back.close()


class NoLoaders(Loaders):
    """Stands for the loaders of a job that trains nothing."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task, self.settings = task, settings
        self._val, self._current, self._before_check = [], None, None
        self.batches, self.val_batches = None, ()

    def updates(self, ahead: int = 0) -> int | None:
        return None

    def close(self) -> None:
        """There is nothing to end."""


def with_sample_counts(task: Task, loader: Loader, batches: Iterable[Any]) -> Iterator[Any]:
    """Batches of this loader; the task knows the number of samples of the batch that it
    evaluates.
    """
    try:
        for batch in batches:
            task.begin_batch(loader.samples)
            yield batch
    finally:
        task.begin_batch(None)


def _train_loader(spec: DataSpec, settings: Settings) -> Loader:
    loader = spec.loader(settings, train=True)
    if length_of(loader) == 0 and not spec.read_by_rank:  # another rank may have some
        raise TaskError(
            "an epoch has no batch: drop_last leaves out the only one; take a smaller batch_size or"
            " drop_last=False."
        )
    return loader


def _count(loader: Loader, settings: Settings, kind: str) -> int | None:
    limit = f"limit_{kind}_batches"
    asked = "overfit_batches" if settings.overfit_batches and not settings.fast_dev_run else limit
    return limits.limited_batches(length_of(loader), getattr(settings, limit), asked)
