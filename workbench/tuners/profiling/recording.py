"""Reads what torch.profiler has recorded of some updates: times of operators and kernels, and the
memory in use.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch._C._autograd import DeviceType, _KinetoEvent
from torch.autograd import profiler
from torch.profiler import ProfilerActivity

from workbench.events import OperatorTime
from workbench.plots.downsample import downsample
from workbench.runs.folder.files import replace_by
from workbench.task.errors import TaskError

UPDATE, READ = "update", "read the batches"
"""The names of the ranges in the trace: of an update, and within it of reading its batches."""
PYTHON = "Python, between operators"
"""The time of an update in which no operator of torch runs on the CPU."""
_MOST = 50
"""How many operators are kept."""
_POINTS = 1000
"""How many points the line of the memory has at most."""
_MEMORY = "[memory]"
"""The name of the profiler's events for memory that is taken or given back."""
_OTHER_DEVICES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


class Recording:
    """What was recorded of updates that a device took. `end` reads it."""

    def __init__(self, device: torch.device) -> None:
        if profiler._is_profiler_enabled:
            raise TaskError(
                "torch.profiler records already in this process, and there can be one at a time:"
                " end it, and call bench.profile() then."
            )
        self._device = device
        # the device may be "cuda", without a number
        self._number = torch.empty(0, device=device).device.index
        activities = [ProfilerActivity.CPU]
        if device.type in _OTHER_DEVICES:
            activities.append(_OTHER_DEVICES[device.type])
        self._profile = torch.profiler.profile(
            activities=activities, record_shapes=True, profile_memory=True
        )
        self._in_use = 0
        """The bytes in use before the first update."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Context manager in which it records what this thread does, and the device."""
        if self._device.type == "cuda":
            self._in_use = torch.cuda.memory_allocated(self._device)
        with self._profile:
            yield

    def write(self, path: Path) -> None:
        """Write the trace as compressed JSON, which Perfetto and Chrome open."""

        def write(aside: Path) -> None:
            with tempfile.TemporaryDirectory() as folder:
                plain = Path(folder, "trace.json")
                self._profile.export_chrome_trace(str(plain))
                with plain.open("rb") as trace, gzip.open(aside, "wb", compresslevel=6) as packed:
                    shutil.copyfileobj(trace, packed)

        replace_by(path, write)

    @cached_property
    def _events(self) -> list[_KinetoEvent]:
        results = self._profile.profiler
        recorded = None if results is None else results.kineto_results
        return [] if recorded is None else recorded.events()

    @property
    def size(self) -> int:
        """How many events it has."""
        return len(self._events)

    def operators(self, updates: int) -> tuple[OperatorTime, ...]:
        """What ran on the CPU, by the time that it takes in an update without what it calls."""
        threads: dict[int, list[_KinetoEvent]] = {}
        for event in self._events:
            if event.device_type() == DeviceType.CPU and event.name() != _MEMORY:
                threads.setdefault(event.start_thread_id(), []).append(event)
        times = _Times()
        for events in threads.values():
            events.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
            _add_own_times(events, times)
        return times.slowest(updates)

    def kernels(self, updates: int) -> tuple[OperatorTime, ...]:
        """The kernels of the device, and its copies, by the time that they take in an update."""
        times = _Times()
        for event in self._on_device():
            times.add(event.name(), event.duration_ns())
        return times.slowest(updates)

    def busy_seconds(self, updates: int) -> float | None:
        """For how long the device works in an update; None: it is the CPU."""
        if self._device.type not in _OTHER_DEVICES:
            return None
        ranges = [(event.start_ns(), event.end_ns()) for event in self._on_device()]
        return _covered(ranges) / 1e9 / updates

    def _on_device(self) -> Iterator[_KinetoEvent]:
        for event in self._events:
            annotation = event.is_user_annotation()
            if event.device_type() != DeviceType.CPU and not annotation and event.name() != _MEMORY:
                yield event

    def memory(self) -> tuple[tuple[float, float], ...]:
        """Seconds since the first update began, and the bytes in use at that time: on a CPU, above
        those before it.
        """
        kind = DeviceType.CUDA if self._device.type == "cuda" else DeviceType.CPU
        began = min((e.start_ns() for e in self._events if e.name() == f"{UPDATE} 0"), default=0)
        changes = sorted(
            (event.start_ns() - began, event.nbytes())  # type: ignore[attr-defined]
            for event in self._events
            if event.name() == _MEMORY
            and event.device_type() == kind
            and (kind == DeviceType.CPU or event.device_index() == self._number)
        )
        if not changes:
            return ()
        table = np.array(changes, dtype=np.float64)
        seconds, in_use = table[:, 0] / 1e9, self._in_use + table[:, 1].cumsum()
        seconds, in_use = downsample(seconds, in_use, _POINTS)
        return tuple(zip(seconds.tolist(), in_use.tolist(), strict=True))


class _Times:
    """Sums up the calls and the nanoseconds of operators by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, name: str, nanoseconds: int) -> None:
        """Add a call."""
        calls, before = self._sums.get(name, (0, 0))
        self._sums[name] = calls + 1, before + nanoseconds

    def slowest(self, updates: int) -> tuple[OperatorTime, ...]:
        """Those that take the most time, each with its calls and seconds in an update."""
        ordered = sorted(self._sums.items(), key=lambda item: -item[1][1])
        return tuple(
            OperatorTime(
                name, 1.0 if name in (PYTHON, READ) else calls / updates, ns / 1e9 / updates
            )
            for name, (calls, ns) in ordered[:_MOST]
        )


def _add_own_times(events: Sequence[_KinetoEvent], times: _Times) -> None:
    """Add the time of each event of a thread, without the events within it, which follow it."""
    within: list[tuple[str, int, int, int]] = []
    """The events that have not ended: name, end, duration, and the time of those within."""
    for event in events:
        start, duration = event.start_ns(), event.duration_ns()
        while within and within[-1][1] <= start:
            _close(within, times)
        within.append((_operator(event.name()), start + duration, duration, 0))
    while within:
        _close(within, times)


def _close(within: list[tuple[str, int, int, int]], times: _Times) -> None:
    """Take the last event off, and add its time to that within the one before."""
    name, _, duration, inner = within.pop()
    times.add(name, max(0, duration - inner))
    if within:
        outer, end, of_outer, inner = within[-1]
        within[-1] = outer, end, of_outer, inner + duration


def _operator(name: str) -> str:
    """What the time of an event without the events within it belongs to."""
    if name.startswith((f"{UPDATE} ", "Optimizer.")):
        return PYTHON
    return READ if name.startswith("enumerate(DataLoader)") else name


def _covered(ranges: list[tuple[int, int]]) -> int:
    """The length of the union of these ranges: kernels of several streams run at once."""
    total, reached = 0, 0
    for start, end in sorted(ranges):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
