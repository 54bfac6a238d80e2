"""Keeps the measurements of updates on the device, and copies many of them to the host at once.

The meter has a table on the model's device, with a row for each recorded update. A row has the
loss, the total norm before clipping, the total norm after it, and a norm for each layer. With
several optimizers it also has the first three for each of them. The methods `put_…` write into the
present row, and `record` ends it. None of them waits for the device.

About ten times a second `flush` copies the rows to the host, and the table is used again from its
first row. On CUDA the copy runs while training goes on, so a flush returns the rows whose copy the
flush before it began; with `wait` it waits for its own. Update ratios have a table of their own
while they are measured.

Numbers are float32. They are float64 for a model in double precision, and losses and logged values
that are float64 stay float64.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from workbench.engine.metrics.epoch_loss import EpochLoss
from workbench.engine.metrics.step_timer import StepTimer
from workbench.events import Numbers, StepsDone, pack
from workbench.instruments.grad_norm import Norms, as_tensor, total_norms
from workbench.instruments.memory import memory_in_use
from workbench.instruments.usage import Usage
from workbench.task.device import xla

T = TypeVar("T")
Value = TypeVar("Value", Tensor, Tensor | float)
_OF_UPDATE = re.compile(r"loss|grad_norm")
LOSS, TOTAL, CLIPPED = 0, 1, 2
CAPACITY = 256
PERIOD = 0.1
"""Seconds between flushes."""
LOOK = 1.0
"""Seconds between two looks at the machine, which cost more than a flush."""


@dataclass(slots=True)
class _PendingCopy:
    """Rows that are being copied to the host."""

    rows: Tensor
    ratios: Tensor | None
    arrived: torch.cuda.Event | None
    step: int
    lrs: list[tuple[float | Tensor, ...]]
    skipped: list[bool]
    logged: dict[str, tuple[list[int], Tensor]]
    epoch: int
    seconds: float
    waited: float
    memory: int | None
    usage: tuple[float | None, float | None]
    samples: int | None


class Meter:
    """Rows of measurements of one run; every `every`-th update has one.

    The values of one optimizer of several have column 1 + i; those of the whole update (and of a
    single optimizer) have column 0, as in `total[0]`, `clipped[0]`.
    """

    def __init__(
        self,
        layers: int,
        device: torch.device,
        every: int,
        norm: float | str | None,
        optimizers: int = 1,
        double: bool = False,
        kind: torch.dtype | None = None,
    ) -> None:
        """norm: the order of the gradient norms; None: they are not measured. double: whether
        losses and norms are float64.

        kind: the type of all parameters; None: they have several.
        """
        self.norm_order = None if norm is None else float(norm)
        self.double = double
        self.epoch_loss = EpochLoss()
        self.every = every
        """Every this many updates, one is recorded."""
        self._several = optimizers if optimizers > 1 else 0
        self._layers_at = 3 * (1 + self._several)
        self._at_flush: dict[int, dict[int, Tensor]] = {}
        """By column and row: values that the next flush copies into the ring at once."""
        self._layer_norms: dict[int, Tensor] = {}
        """The rows of all layers' norms."""
        self._updates: dict[int, Tensor] = {}
        """The rows for which one tensor has the loss and then the norms of all layers."""
        self._loss: tuple[Tensor, int] | None = None
        """The loss that `put_update` put into the present row, and how often it had been changed in
        place by then.

        `record` gets the update's loss again. If it is the same tensor, unchanged, its value is in
        the row already.
        """
        self.adds_up = (
            kind in (torch.float32, torch.float64) and optimizers == 1 and not xla.is_xla(device)
        )
        """Whether a flush can compute the total norms, of all rows at once, where nothing reads
        them before.
        """
        self._numbers: dict[int, list[float]] = {}
        """By row, the norms of all layers whose total is computed then."""
        self._kind = kind
        self.row = 0
        """The row that the next `record` completes."""
        self._losses: list[float] = []
        """On the CPU: the losses of the rows, until the flush."""
        self._lazy = xla.is_xla(device)
        """Whether all values are put aside until a flush: each row of a ring on such a device
        would be compiled.
        """
        self._device, self._width = device, self._layers_at + layers
        self._lrs: list[tuple[float | Tensor, ...]] = []
        self._skipped: list[bool] = []
        self._notes: dict[str, dict[int, Tensor | float]] = {}
        self.on_bar: frozenset[str] = frozenset()
        """Names of the logged values that the progress bar shows."""
        self._first = 0
        self._pending: _PendingCopy | None = None
        self._last_flush = perf_counter()
        self._began = perf_counter()
        self._paused = 0.0
        self.waited = 0.0
        """Seconds since the run began in which training waited for batches."""
        self.samples: int | None = 0
        """How many samples the updates after the last row were made of; None: unknown."""
        self._samples_of_rows: int | None = 0
        """The samples of the updates up to the last row, since the last flush."""
        self._machine = Usage(device)
        self._looked, self._memory = perf_counter(), memory_in_use(device)
        """When the machine was last looked at, and the memory in use."""
        self._usage: tuple[float | None, float | None] = (None, None)
        self._ratios: Tensor | None = None
        """For each row of the ring one update ratio per layer; None: they are not measured."""
        self._rated = False
        """Whether a row since the last flush has any."""
        self._places: dict[tuple[int, ...], Tensor] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without pauses."""
        return perf_counter() - self._began - self._paused

    def continue_from(self, seconds: float, waited: float, samples: int | None) -> None:
        """Continue a run that has taken this many seconds, has waited this long for batches, and
        had this many `samples`.
        """
        self._began = perf_counter() - seconds
        self._paused, self.waited, self.samples = 0.0, waited, samples

    def leave_out(self, seconds: float) -> None:
        """Do not count a pause."""
        self._paused += seconds

    def waiting(self, windows: Iterator[T], timer: StepTimer) -> Iterator[T]:
        """Yield the items; the time that each takes to arrive counts as waiting."""
        first = True
        while True:
            began = perf_counter()
            timer.wait(began)
            window = next(windows, None)
            waited = perf_counter() - began
            self.waited += waited
            timer.arrived(waited, first=first)
            if window is None:
                return
            first = False
            yield window

    def begin_ratios(self) -> None:
        """Begin to measure update ratios."""
        shape = CAPACITY, self._width - self._layers_at
        self._ratios = torch.full(shape, float("nan"), device=self._ring.device)

    def end_ratios(self) -> None:
        """Stop measuring them; what was measured has been flushed."""
        self._ratios, self._rated = None, False

    def put_ratios(self, layers: tuple[int, ...], whole: bool, ratios: Tensor) -> None:
        """Write the update ratios of these layers (`whole`: of all, in order) into the row that the
        next `record` completes.
        """
        assert self._ratios is not None
        if whole:
            self._ratios[self.row].copy_(ratios)
        else:
            self._ratios[self.row][self.places(layers)] = ratios
        self._rated = True

    def places(self, layers: tuple[int, ...]) -> Tensor:
        """The numbers of these layers as an index on the device; made once, since making it
        waits for the device.
        """
        if layers not in self._places:
            self._places[layers] = torch.tensor(layers, dtype=torch.long, device=self._device)
        return self._places[layers]

    # The ring and its views are made when they are first used: a search and a dry run record
    # nothing. Once, since indexing at every update would cost more than writing.

    @functools.cached_property
    def _ring(self) -> Tensor:
        kind, at = (
            torch.float64 if self.double else torch.float32,
            torch.device("cpu") if self._lazy else self._device,
        )
        return torch.full((CAPACITY, self._width), float("nan"), dtype=kind, device=at)

    @functools.cached_property
    def _host(self) -> Numbers | None:
        """The rows for numpy, which writes a number faster than torch."""
        return self._ring.numpy() if self._ring.device.type == "cpu" and not self._lazy else None

    @functools.cached_property
    def _cells(self) -> list[tuple[Tensor, ...]]:
        return [self._ring[:, cell].unbind() for cell in range(self._layers_at)]

    @functools.cached_property
    def total(self) -> list[tuple[Tensor, ...]]:
        """By column and row, the total norm before clipping."""
        return self._cells[TOTAL::3]

    @functools.cached_property
    def clipped(self) -> list[tuple[Tensor, ...]]:
        """The norms after clipping."""
        return self._cells[CLIPPED::3]

    @functools.cached_property
    def layers(self) -> tuple[Tensor, ...]:
        """By row, the norms of the layers."""
        return self._ring[:, self._layers_at :].unbind()

    def _widen_for(self, loss: Tensor) -> None:
        """Keep numbers of double precision from now on, if the loss is one."""
        if loss.dtype is not torch.float64 or self._ring.dtype is torch.float64:
            return
        wide = self._ring.double()
        for view in ("_host", "_cells", "total", "clipped", "layers"):
            vars(self).pop(view, None)
        self._ring = wide

    def put_loss(self, column: int, loss: Tensor) -> None:
        """Write the loss of the update that the next `record` completes: of all of it (0), or of
        one optimizer of several.
        """
        self._widen_for(loss)
        self._put(3 * column + LOSS, loss)

    def put_clipped(self, column: int, total: Tensor) -> None:
        """Write the total norm after clipping into the row that the next `record` completes."""
        self._put_norm(3 * column + CLIPPED, total)

    def _put(self, place: int, value: Tensor) -> None:
        """Write one number of the row; on a device without waiting for it."""
        if self._lazy:
            self._at_flush.setdefault(place, {})[self.row] = value.detach()
        elif self._host is not None:
            self._host[self.row, place] = value.item()
        else:
            self._cells[place][self.row].copy_(value)

    def _put_norm(self, place: int, norm: Tensor) -> None:
        """Write a norm of the row, which nothing else changes: a device gets one copy for all
        rows of a flush.
        """
        # the norms of several are summed up within the update
        if self._host is not None or self._several:
            self._put(place, norm)
        else:
            self._at_flush.setdefault(place, {})[self.row] = norm

    def put_numbers(self, norms: list[float]) -> None:
        """Put the norms of all layers, in order, into the row that the next `record` completes.
        Only where `adds_up`: a flush computes their total.
        """
        self._numbers[self.row] = norms

    def put_norms(
        self,
        column: int,
        total: Tensor | None,
        norms: Tensor,
        layers: tuple[int, ...] | None = None,
    ) -> None:
        """Write a total norm and the norms of these layers (None: of all, in order) into the row
        that the next `record`
        completes. total None: a flush computes it from the norms; only where `adds_up`.
        """
        row = self.row
        self._separate()
        if total is not None:
            self._put_norm(3 * column + TOTAL, total)
        else:  # a task may have stepped before within this update
            self._at_flush.get(TOTAL, {}).pop(row, None)
        if layers is not None and self._lazy:
            some, norms = norms, norms.new_full((self._width - self._layers_at,), float("nan"))
            norms[self.places(layers)] = some
            layers = None
        if layers is None:
            self._layer_norms[row] = norms
            return
        if row in self._layer_norms:  # a task steps twice within one update
            self.layers[row].copy_(self._layer_norms.pop(row))
        if row in self._numbers:
            self.layers[row].copy_(torch.tensor(self._numbers.pop(row), dtype=self._ring.dtype))
        self.layers[row][self.places(layers)] = norms.to(self._ring.dtype)

    def put_update(self, loss: Tensor, norms: Norms) -> None:
        """Put a loss and the norms of all layers, in order, into the row that the next `record`
        completes; a device copies them at once where it can. Only where `adds_up`: a flush computes
        the total norm.
        """
        if isinstance(norms, Tensor) or not _can_stack(loss, norms[0]):
            self.put_norms(0, None, as_tensor(norms))
            return
        self._widen_for(loss)
        self._separate()
        self._at_flush.get(TOTAL, {}).pop(self.row, None)
        self._layer_norms.pop(self.row, None)
        self._updates[self.row] = torch.stack((loss, *norms))
        self._loss = loss, loss._version

    def _separate(self) -> None:
        """Keep the row's norms without the loss that was put with them: another value takes its
        place.
        """
        if self.row in self._updates:
            self._layer_norms[self.row] = self._updates.pop(self.row)[1:]
        self._loss = None

    def record(
        self, step: int, lrs: Sequence[float | Tensor], loss: Tensor, skipped: bool = False
    ) -> None:
        """Complete the row of update `step`; its norms, if any, are in it already."""
        if not self.row:
            self._first = step
        # a hook may have changed it in place
        if self._loss is None or loss is not self._loss[0] or loss._version != self._loss[1]:
            self._separate()
            if self._host is None or loss.dtype is torch.float64:
                self.put_loss(0, loss)
        self._loss = None
        if self._host is not None:
            self._losses.append(loss.item())
        self.row += 1
        self._samples_of_rows = _sum(self._samples_of_rows, self.samples)
        self.samples = 0
        self._lrs.append(tuple(lrs))
        self._skipped.append(skipped)

    def count(self, samples: int | None) -> None:
        """Count the samples of one update; None: how many is not known."""
        self.samples = _sum(self.samples, samples)

    def note(self, values: Mapping[str, Tensor | float]) -> None:
        """Write what the task logged for the update that the next `record` completes; scalars,
        on the device or not.
        """
        for name, value in values.items():
            # A copy: it may be a statistic that changes in place.
            kept = _kept(value).reshape(()).clone() if isinstance(value, Tensor) else float(value)
            self._notes.setdefault(name, {})[self.row] = kept

    def due(self) -> bool:
        """Whether it is time to flush."""
        return self.row == CAPACITY or perf_counter() - self._last_flush >= PERIOD

    def flush(self, epoch: int, wait: bool = False) -> list[StepsDone]:
        """The rows that have arrived, as events. `wait`: all of them, now; the time of the next
        flush does not change.
        """
        arrived = self._finish_copy(wait or self.row > 0)
        if self.row:
            self._begin_copy(epoch)
            if wait or self._ring.device.type == "cpu":
                arrived += self._finish_copy(True)
        if not wait:  # else the ends of short epochs would set the rhythm in which views draw
            self._last_flush = perf_counter()
        return arrived

    def _begin_copy(self, epoch: int) -> None:
        self._take_norms()
        source = self._ring[: self.row]
        rows = _to_host(source)
        ratios = (
            None if self._ratios is None or not self._rated else _to_host(self._ratios[: self.row])
        )
        logged = {
            name: (list(at), _to_host(_stacked(self._fetched(at).values())))
            for name, at in self._notes.items()
        }
        event = None
        if source.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        # The next rows are written after this copy on the same stream, so the ring can be used
        # again at once.
        self._pending = _PendingCopy(
            rows,
            ratios,
            event,
            self._first,
            self._lrs,
            self._skipped,
            logged,
            epoch,
            self.seconds,
            self.waited,
            self._look(),
            self._usage,
            self._samples_of_rows,
        )
        self.row, self._lrs, self._skipped, self._notes, self._samples_of_rows = 0, [], [], {}, 0
        if self._host is not None:
            self._host[: len(rows), TOTAL:] = np.nan
        else:
            self._ring[: len(rows), TOTAL:] = float("nan")
        if ratios is not None and self._ratios is not None:
            self._ratios[: len(rows)] = float("nan")
            self._rated = False

    def _take_norms(self) -> None:
        """Copy the norms that were put aside into the ring."""
        self._take_updates()
        waiting, self._at_flush = self._at_flush, {}
        self._add_up(waiting)
        fetched = {cell: self._fetched(values) for cell, values in waiting.items()}
        for cell, values in fetched.items():
            self._take(self._ring[:, cell], values)
        norms, self._layer_norms = self._layer_norms, {}
        self._take(self._ring[:, self._layers_at :], self._fetched(norms))
        if self._host is not None:
            self._host[: self.row, LOSS] = self._losses
            self._losses = []
        numbers, self._numbers = self._numbers, {}
        numbers.pop(self.row, None)  # of an update that an error ended
        if numbers and self._host is not None and self.norm_order is not None:
            rows = slice(self.row) if len(numbers) == self.row else list(numbers)
            table = np.array(
                list(numbers.values()),
                dtype=np.float64 if self._kind is torch.float64 else np.float32,
            )
            self._host[rows, self._layers_at :] = table
            self._host[rows, TOTAL] = total_norms(torch.from_numpy(table), self.norm_order).numpy()

    def _take_updates(self) -> None:
        """Copy the losses and norms that were put aside together, all at once where each row has
        them.
        """
        updates, self._updates, self._loss = self._updates, {}, None
        updates.pop(self.row, None)  # of an update that an error ended
        if len(updates) == self.row and self.norm_order is not None:
            table = torch.stack([*updates.values()])
            norms = table[:, 1:].contiguous()
            self._ring[: self.row, LOSS] = table[:, 0]
            self._ring[: self.row, TOTAL] = total_norms(norms, self.norm_order)
            self._ring[: self.row, self._layers_at :] = norms
            return
        for row, update in updates.items():
            self._at_flush.setdefault(LOSS, {})[row] = update[0]
            self._layer_norms[row] = update[1:]

    def _add_up(self, waiting: dict[int, dict[int, Tensor]]) -> None:
        """Compute the totals of the rows that have norms and no total."""
        known = waiting.setdefault(TOTAL, {})
        missing = [row for row in self._layer_norms if row not in known and row < self.row]
        if not missing or not self.adds_up or self.norm_order is None:
            return
        totals = total_norms(
            torch.stack([self._layer_norms[row] for row in missing]), self.norm_order
        )
        known.update(zip(missing, totals.unbind(), strict=True))

    def _take(self, columns: Tensor, found: Mapping[int, Tensor]) -> None:
        """Copy values by row into these columns of the ring."""
        if not found:
            return
        # not those of an update that an error ended
        rows = [row for row in range(self.row) if row in found]
        if len(rows) == self.row:
            columns[: len(rows)] = torch.stack([found[row] for row in rows])
        else:
            for row in rows:
                columns[row] = found[row]

    def _fetched(self, found: Mapping[int, Value]) -> Mapping[int, Value]:
        """The values in host memory, where stacking them on the device would be compiled anew
        for each number of rows.
        """
        if not self._lazy:
            return found
        away = {row: value for row, value in found.items() if isinstance(value, Tensor)}
        return {**found, **dict(zip(away, xla.to_host(list(away.values())), strict=True))}

    def _look(self) -> int | None:
        """Bytes in use on the device, at most a second old."""
        now = perf_counter()
        if now - self._looked >= LOOK:
            self._looked, self._memory = now, memory_in_use(self._device)
            self._usage = self._machine.look()
        return self._memory

    def _finish_copy(self, wait: bool) -> list[StepsDone]:
        pending = self._pending
        if pending is None:
            return []
        if pending.arrived is not None:
            if not wait and not pending.arrived.query():  # type: ignore[no-untyped-call]
                return []
            pending.arrived.synchronize()
        self._pending = None
        return [self._event(pending, pending.rows.numpy())]

    def _event(self, pending: _PendingCopy, rows: Numbers) -> StepsDone:
        lrs = np.asarray([[float(lr) for lr in row] for row in pending.lrs])
        wide = rows.dtype == np.float64
        columns = {"loss": pack(rows[:, LOSS], wide), "lr": pack(lrs[:, 0])}
        self._totals(columns, rows, "")
        for number in range(self._several):
            columns_of = rows[:, 3 * (1 + number) :]
            columns[f"loss.{number}"], columns[f"lr.{number}"] = (
                pack(columns_of[:, LOSS], wide),
                pack(lrs[:, number]),
            )
            self._totals(columns, columns_of, f".{number}")
        if self.norm_order is not None:
            columns["layer_norms"] = pack(rows[:, self._layers_at :])
        if pending.ratios is not None:
            columns["update_ratios"] = pack(pending.ratios.numpy())
        if any(pending.skipped):
            columns["skipped"] = pack(np.asarray(pending.skipped, dtype=np.float32))
        double = [name for name in columns if wide and _OF_UPDATE.match(name)]
        for name, (at, values) in pending.logged.items():
            numbers = values.numpy()
            column = np.full(len(rows), np.nan, dtype=numbers.dtype)
            column[at] = numbers
            columns[name] = pack(column, numbers.dtype == np.float64)
            double += [name] if numbers.dtype == np.float64 else []
        shown = tuple(name for name in pending.logged if name in self.on_bar)
        return StepsDone(
            pending.step,
            self.every,
            len(rows),
            pending.epoch,
            pending.seconds,
            columns,
            shown,
            pending.waited,
            pending.memory,
            tuple(double),
            samples=pending.samples,
            cpu=pending.usage[0],
            gpu=pending.usage[1],
        )

    def _totals(self, columns: dict[str, bytes], rows: Numbers, name: str) -> None:
        if self.norm_order is not None:
            columns[f"grad_norm{name}"] = pack(rows[:, TOTAL], rows.dtype == np.float64)
        if not np.isnan(rows[:, CLIPPED]).all():
            columns[f"grad_norm_clipped{name}"] = pack(rows[:, CLIPPED], rows.dtype == np.float64)


def _sum(one: int | None, other: int | None) -> int | None:
    """The sum of two numbers of samples; None: unknown."""
    return None if one is None or other is None else one + other


def _to_host(source: Tensor) -> Tensor:
    """A copy in host memory; from CUDA it may still be running."""
    if not source.is_cuda:
        return source.cpu() if source.device.type != "cpu" else source.clone()
    rows = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    rows.copy_(source, non_blocking=True)
    return rows


def _can_stack(loss: Tensor, norm: Tensor) -> bool:
    """Whether a loss and a norm go into one tensor as they are."""
    return (
        type(loss) is Tensor
        and not loss.shape
        and loss.dtype is norm.dtype
        and loss.device == norm.device
    )


def _kept(value: Tensor) -> Tensor:
    """Keep float64; make float32 of any other number."""
    return value.detach() if value.dtype is torch.float64 else value.detach().float()


def _stacked(values: Iterable[Tensor | float]) -> Tensor:
    """Scalars as one tensor, on the device if one of them is there; float64 if one of them is, as
    Python's numbers are.
    """
    scalars = list(values)
    device = next(
        (v.device for v in scalars if isinstance(v, Tensor) and v.device.type != "cpu"),
        torch.device("cpu"),
    )
    # which has none
    wide = (
        any(isinstance(v, float) or v.dtype is torch.float64 for v in scalars)
        and device.type != "mps"
    )
    kind = torch.float64 if wide else torch.float32
    return torch.stack(
        [torch.as_tensor(v, dtype=kind).to(device, non_blocking=True) for v in scalars]
    )
