"""The meter: what each update measured stays on the device, and is copied out together about ten times a second.

A ring of rows (loss, total norm, total after clipping, one norm per layer) lies on the model's device. `record`
writes a row and syncs nothing; `flush` copies the rows out, on CUDA asynchronously: the copy begun by one flush
is handed on by the next, unless it is asked to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from workbench.events import Floats, StepsDone, pack

LOSS, TOTAL, CLIPPED, LAYERS = 0, 1, 2, 3
CAPACITY = 256
PERIOD = 0.1
"""Seconds between flushes."""


@dataclass(slots=True)
class _Flight:
    """Rows on their way to the host."""

    rows: Tensor
    landed: torch.cuda.Event | None
    step: int
    lrs: list[float]
    epoch: int
    seconds: float


class Meter:
    """Rows of measurements of one run; `every` n-th update is kept."""

    def __init__(self, layers: int, device: torch.device, every: int, norms: bool) -> None:
        self._norms = norms
        self._every = every
        self._ring = torch.full((CAPACITY, LAYERS + layers), float("nan"), device=device)
        # Views made once: indexing at every update would cost more than writing.
        self.loss = [row[LOSS] for row in self._ring]
        self.total = [row[TOTAL] for row in self._ring]
        self.clipped = [row[CLIPPED] for row in self._ring]
        self.layers = [row[LAYERS:] for row in self._ring]
        self._lrs: list[float] = []
        self._first = 0
        self._flown: _Flight | None = None
        self._last_flush = perf_counter()
        self._began = perf_counter()
        self._paused = 0.0
        self._places: dict[tuple[int, ...], Tensor] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the run began, pauses left out."""
        return perf_counter() - self._began - self._paused

    def leave_out(self, seconds: float) -> None:
        """Do not count a pause."""
        self._paused += seconds

    def places(self, layers: tuple[int, ...]) -> Tensor:
        """The numbers of these layers, as an index on the device; made once, since making it waits for the device."""
        if layers not in self._places:
            self._places[layers] = torch.tensor(layers, device=self._ring.device)
        return self._places[layers]

    def wants(self, step: int) -> bool:
        """Whether update `step` is to be recorded."""
        return step % self._every == 0

    @property
    def row(self) -> int:
        """The row that the next `record` fills."""
        return len(self._lrs)

    def record(self, step: int, lr: float, loss: Tensor) -> None:
        """Update `step` is done; its norms, if any, lie in this row already."""
        row = len(self._lrs)
        self.loss[row].copy_(loss)
        if row == 0:
            self._first = step
        self._lrs.append(lr)

    def due(self) -> bool:
        """Whether it is time to flush."""
        return len(self._lrs) == CAPACITY or perf_counter() - self._last_flush >= PERIOD

    def flush(self, epoch: int, wait: bool = False) -> list[StepsDone]:
        """Rows that have landed, as events. `wait`: all of them, now."""
        landed = self._land(wait or bool(self._lrs))
        if self._lrs:
            self._take_off(epoch)
            if wait or self._ring.device.type == "cpu":
                landed += self._land(True)
        self._last_flush = perf_counter()
        return landed

    def _take_off(self, epoch: int) -> None:
        source = self._ring[: len(self._lrs)]
        event = None
        if source.is_cuda:
            rows = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            rows.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        else:
            rows = source.cpu() if source.device.type != "cpu" else source.clone()
        # The next rows are written behind this copy on the same stream, so the ring can be used again at once.
        self._flown = _Flight(rows, event, self._first, self._lrs, epoch, self.seconds)
        self._lrs = []
        self._ring[: len(rows), TOTAL:] = float("nan")

    def _land(self, wait: bool) -> list[StepsDone]:
        flight = self._flown
        if flight is None:
            return []
        if flight.landed is not None:
            if not wait and not flight.landed.query():  # type: ignore[no-untyped-call]
                return []
            flight.landed.synchronize()
        self._flown = None
        return [self._event(flight, flight.rows.numpy())]

    def _event(self, flight: _Flight, rows: Floats) -> StepsDone:
        columns = {"loss": pack(rows[:, LOSS]), "lr": pack(np.asarray(flight.lrs))}
        if self._norms:
            columns["grad_norm"] = pack(rows[:, TOTAL])
            columns["layer_norms"] = pack(rows[:, LAYERS:])
        if not np.isnan(rows[:, CLIPPED]).all():
            columns["grad_norm_clipped"] = pack(rows[:, CLIPPED])
        return StepsDone(flight.step, self._every, len(rows), flight.epoch, flight.seconds, columns)
