"""Plots the batch-size search: the speed and the memory of each tried size.

How to read it: speed rises with the size until the device is busy; beyond that a larger batch only
takes memory. `fastest` is the smallest size near the top, `best` the same or a smaller one that
leaves enough updates in an epoch, `largest` the biggest that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.names import shorten
from workbench.units import BYTES


class BatchSizeTrialLike(Protocol):
    """The attributes of a trial that are drawn (`events.Trial` has them)."""

    @property
    def size(self) -> int: ...
    @property
    def ok(self) -> bool: ...
    @property
    def samples_per_second(self) -> float | None: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def ranks(self) -> int: ...


def batch_size(
    trials: Iterable[BatchSizeTrialLike],
    best: int | None = None,
    largest: int | None = None,
    fastest: int | None = None,
) -> list[Chart]:
    """Two charts over the sizes tried: samples/s and, where it was measured, peak memory above
    idle.
    """
    tried = sorted(trials, key=lambda t: t.size)
    several = any(t.ranks > 1 for t in tried)
    axis = Axis(
        "batch size",
        "samples per device" if several else "samples",
        ticks=tuple(str(t.size) for t in tried),
    )
    speed = _column(t.samples_per_second if t.ok else None for t in tried)
    charts = [
        Chart(
            "Speed",
            axis,
            Axis("speed of all devices" if several else "speed", "samples/s"),
            (_bars("samples/s", speed, 0),),
            (*_failures(tried, speed), *_chosen(tried, speed, best, largest, fastest)),
        )
    ]
    memory = _column(t.peak_bytes for t in tried)
    if np.isfinite(memory).any():
        unit, size = next((u for u in BYTES if np.nanmax(memory) >= u[1]), BYTES[-1])
        scaled = memory / size
        bars = (_bars("peak memory", scaled, 2),)
        charts.append(
            Chart("Memory", axis, Axis("peak above idle", unit), bars, _failures(tried, scaled))
        )
    return charts


def _bars(name: str, heights: Array, tone: int) -> Series:
    finite = np.isfinite(heights)
    return Series(name, np.flatnonzero(finite), heights[finite], "bar", tone)


def _failures(tried: list[BatchSizeTrialLike], heights: Array) -> tuple[Mark, ...]:
    """A cross for each size that failed, a little above the axis."""
    above = 0.04 * max((float(h) for h in heights if np.isfinite(h)), default=1.0)
    marks = []
    for index, trial in enumerate(tried):
        if not trial.ok:
            why = (trial.error or "").strip() or "failed"
            short = (
                "out of memory" if "out of memory" in why.lower() else shorten(why.splitlines()[-1])
            )
            marks.append(Mark(index, f"{trial.size}: {short}", above, failed=True, why=why[:400]))
    return tuple(marks)


def _chosen(
    tried: list[BatchSizeTrialLike],
    speed: Array,
    best: int | None,
    largest: int | None,
    fastest: int | None,
) -> list[Mark]:
    """One mark for each size that was chosen, naming all reasons for it."""
    parts: dict[int, list[str]] = {}
    for name, size in (("fastest", fastest), ("largest", largest), ("best", best)):
        if size is not None and not (name == "fastest" and best == fastest):
            parts.setdefault(size, []).append(name)
    marks = []
    for size, names in parts.items():
        index = next((i for i, t in enumerate(tried) if t.ok and t.size == size), None)
        if index is not None:
            height = float(speed[index]) if np.isfinite(speed[index]) else 0.0
            marks.append(
                Mark(index, f"{' and '.join(names)} {size}", height, emphasis="best" in names)
            )
    return marks


def _column(values: Iterable[float | None]) -> Array:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
