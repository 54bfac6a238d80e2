"""Measures update-to-weight ratios now and then, for updates that are recorded anyway.

A measurement copies the weights and waits for nothing. It runs about once a second, not at each
update. Each optimizer
has its own second: those that take turns are all measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

from torch import Tensor

from workbench.engine.metrics.meter import Meter
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.instruments.update_ratio import copies, update_ratios

PERIOD = 1.0
"""Seconds between two measurements of one optimizer."""


class UpdateRatios:
    """The measurements of one session from its start; the first is of the next recorded update."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last: dict[int, float] = {}
        """By optimizer: the time of its last measurement."""
        self._before: dict[int, list[Tensor]] = {}
        meter.begin_ratios()

    def begin(self, optimizers: Iterable[OptimizerHandle]) -> None:
        """Before a recorded update: copy the weights of those of these optimizers that are due."""
        now = perf_counter()
        for opt in optimizers:
            last = self._last.get(opt.index)
            if last is None or now - last >= PERIOD:
                self._before[opt.index] = copies(opt.parameters)

    def finish(self, stepped: Sequence[OptimizerHandle], recorded: bool) -> None:
        """After it: write the ratios of those that `stepped` into the meter's row, if the update is
        `recorded`.
        """
        for opt in stepped if recorded else ():
            before = self._before.get(opt.index)
            if before is not None:
                self._last[opt.index] = perf_counter()
                self._meter.put_ratios(opt.places, opt.whole, update_ratios(before, opt.parameters))
        self._before.clear()
