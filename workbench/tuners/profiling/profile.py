"""Defines Profile, the result of `bench.profile()`, and its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench import units
from workbench.events import OperatorTime, ProfileEnded, last_of
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.profile import profile
from workbench.runs.printable import printable
from workbench.runs.tables.render import text_table
from workbench.settings import SettingsError
from workbench.tuners.profiling.measure import TRACE
from workbench.values import shown

FEWEST, MOST = 1, 1000
"""The fewest and the most updates of a trace; each has some megabytes."""
_ROWS = 12
"""How many operators are printed."""


@dataclass(frozen=True, eq=False)
class Profile(Drawable):
    """The result of a profile: what limits the speed of updates, and what was measured.

    `figure()` and `plot()` draw the parts of an update and the memory in use.

    Attributes:
        verdict: what limits the speed, and what helps, in a sentence.
        ended: how it ended: "all updates taken", "stopped".
        trace: the trace of the updates; https://ui.perfetto.dev opens it. None: there is none.
        updates: the number of updates in the trace: as asked for, or fewer if these have more than
            200,000 events. The speeds are of others, which were taken without the profiler.
        updates_per_second: of all ranks together, as the next two.
        samples_per_second: None: a batch does not say how many samples it has.
        tokens_per_second: the same for the "weight" that training_step returns; None: it returns
            none.
        parts: the seconds of an update by part, the largest first; `run.time_spent` has the same
            parts.
        compile_seconds: what torch.compile took before the updates that were measured.
        busy: the share of the time in which the device works, from 0 to 1; None: it is the CPU.
        operators: the operators of torch that take the most time of an update on the CPU, each
            without those that it calls: `pandas.DataFrame(profile.operators)` is a table of them.
        kernels: the same for the kernels of a device; empty on the CPU.
        seconds: the times at which `memory` was measured, since the first update of the trace
            began.
        memory: the bytes in use at these times, float64 of shape (points,); on the CPU above those
            before the updates.
        flops: the floating-point operations of an update, in matrix products, convolutions and
            attention, on rank 0; None: they are not known.
        mfu: these operations in a second as a share of what the device can do, from 0 to 1; None:
            it is not known.
        mfu_reason: why `mfu` is not known; "": it is.
    """

    verdict: str
    ended: str
    trace: Path | None
    updates: int
    updates_per_second: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    parts: Mapping[str, float]
    compile_seconds: float
    busy: float | None
    operators: tuple[OperatorTime, ...]
    kernels: tuple[OperatorTime, ...]
    seconds: NDArray[np.float64]
    memory: NDArray[np.float64]
    flops: float | None
    mfu: float | None
    mfu_reason: str

    @classmethod
    def from_events(cls, events: Iterable[Any], folder: Path | None = None) -> Profile:
        """Make it from the events of a run or a record, complete or not. folder: the run's, which
        has the trace.
        """
        end = last_of(events, ProfileEnded("", "not ended"))
        memory = np.asarray(end.memory, np.float64).reshape(-1, 2)
        trace = None if folder is None else folder / TRACE
        if trace is not None and (trace.is_symlink() or not trace.is_file()):
            trace = None
        return cls(
            end.verdict,
            end.ended,
            trace,
            end.updates,
            end.updates_per_second,
            end.samples_per_second,
            end.tokens_per_second,
            dict(sorted(end.parts.items(), key=lambda part: -part[1])),
            end.compile_seconds,
            end.busy,
            end.operators,
            end.kernels,
            memory[:, 0],
            memory[:, 1],
            end.flops,
            end.mfu,
            end.mfu_reason,
        )

    @property
    def peak_bytes(self) -> float | None:
        """The most bytes in use, as in `memory`; None: not measured."""
        return float(self.memory.max()) if len(self.memory) else None

    @property
    def flops_per_second(self) -> float | None:
        """The floating-point operations of rank 0 in a second; None: they are not known."""
        known = self.flops is not None and self.updates_per_second is not None
        return self.flops * self.updates_per_second if known else None  # type: ignore[operator]

    def _charts(self) -> list[Chart]:
        return profile(self.parts, self.seconds, self.memory, on_cpu=self.busy is None)

    def __repr__(self) -> str:
        if not self.parts:
            return printable(f"Profile: {self.ended}")
        lines = [f"Profile: {self.verdict}", f"  {self._speed()}", f"  {self._operations()}"]
        if self.peak_bytes is not None:
            above = " above those before it" if self.busy is None else ""
            lines.append(f"  memory: at most {units.size(self.peak_bytes)}{above}")
        if self.compile_seconds:
            lines.append(f"  torch.compile took {units.duration(self.compile_seconds)} before")
        if self.trace is not None:
            count = units.counted(self.updates, "update")
            lines.append(f"  trace of {count}: {self.trace} (https://ui.perfetto.dev opens it)")
        whole = sum(self.parts.values()) or 1.0
        rows = [["part of an update", "ms", "share"]]
        rows += [[n, _milliseconds(s), f"{s / whole:.0%}"] for n, s in self.parts.items()]
        tables = [text_table(rows), _table("on the CPU", self.operators)]
        if self.kernels:
            tables.append(_table("on the device", self.kernels))
        return "\n".join([*map(printable, lines), *(f"\n{table}" for table in tables)])

    def _speed(self) -> str:
        named = (
            ("updates/s", self.updates_per_second),
            ("samples/s", self.samples_per_second),
            ("tokens/s", self.tokens_per_second),
        )
        known = [f"{units.number(value)} {name}" for name, value in named if value is not None]
        busy = [] if self.busy is None else [f"the device works {self.busy:.0%} of the time"]
        return " · ".join([*known, *busy])

    def _operations(self) -> str:
        mfu = f"MFU unknown: {self.mfu_reason}" if self.mfu is None else f"MFU {self.mfu:.1%}"
        if self.flops is None or self.flops_per_second is None:
            return mfu
        return (
            f"{self.flops / 1e9:.3g} GFLOP in an update,"
            f" {self.flops_per_second / 1e12:.3g} TFLOP/s · {mfu}"
        )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _table(title: str, times: tuple[OperatorTime, ...]) -> str:
    """The slowest operators or kernels as text."""
    rows = [[title, "calls", "ms"]]
    rows += [[t.name[:80], f"{t.calls:g}", _milliseconds(t.seconds)] for t in times[:_ROWS]]
    return text_table(rows)


@dataclass(frozen=True)
class ProfileRequest:
    """The arguments of a profile; updates: how many updates the trace has."""

    updates: int = 20

    def __post_init__(self) -> None:
        if (
            isinstance(self.updates, bool)
            or not isinstance(self.updates, int)
            or not FEWEST <= self.updates <= MOST
        ):
            raise SettingsError(
                f"updates={shown(self.updates)}: give a whole number from {FEWEST} to {MOST}; 20 is"
                " usual."
            )
