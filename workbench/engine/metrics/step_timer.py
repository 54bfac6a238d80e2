"""Measures where the time of a fit goes: data, forward, backward, optimizer, validation and the
rest.

Validation, checkpoints, logging and what torch.compile takes are timed whenever they happen, and on
a CPU so is the waiting for data. The parts of an update are timed for a sample of the updates:
`mark` names the part that has just ended. On a GPU a mark is an event in the stream, which is read
later, so that nothing waits for the device.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from workbench.events import TimeSpent

EVERY = {"cpu": 0.01, "cuda": 0.05}
"""Seconds between two updates that are timed in parts, by device. On other devices a part cannot
be timed.
"""
LONGEST = 30.0
"""Seconds between two events at most; at first it is one, and then a hundredth of the run's
length.
"""

Time = Any
"""A moment: seconds on CPU, an event of the stream on a device."""


class StepTimer:
    """Sums up seconds by part since the last event."""

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        """clock: the run's length in seconds so far, without pauses."""
        self._clock = clock
        self._on_cpu = device.type == "cpu"
        self._every = EVERY.get(device.type, float("inf"))
        self._next = 0.0
        """When the next update is timed in parts."""
        self._marks: list[tuple[str, Time]] | None = None
        """The ends of the parts of this update so far; None: it is not timed in parts."""
        self._pending: deque[list[tuple[str, Time]]] = deque()
        """The updates whose times have not been read."""
        self._free: list[torch.cuda.Event] = []
        self._sampled: dict[str, float] = {}
        self._whole: dict[str, float] = {}
        """Seconds of the parts that are timed whenever they happen."""
        self._within = 0.0
        """Of the part that `timed` times now: the seconds that belong to parts within it."""
        self._updates = 0
        """How often batches have arrived."""
        self._seconds: float | None = None
        """The run's length at the last event; None: nothing has begun."""

    def begin(self) -> None:
        """Begin to count."""
        self._seconds = self._clock()

    def wait(self, now: float) -> None:
        """Training begins to wait for the batches of an update."""
        self._marks = None
        if now >= self._next and self._every < float("inf"):
            self._next = now + self._every
            self._marks = [("", self._now())]

    def arrived(self, waited: float, *, first: bool) -> None:
        """The batches of an update have arrived after so many seconds. first: of an epoch; the
        device had nothing to do meanwhile.
        """
        self._updates += 1
        if self._on_cpu or first:
            phase = "first batch" if first else "data"
            self._whole[phase] = self._whole.get(phase, 0.0) + waited
            self.mark("")
        else:
            self.mark("data")

    def mark(self, part: str) -> None:
        """The time of this update since the last mark belongs to `part`; "": to none."""
        if self._marks is not None:
            self._marks.append((part, self._now()))

    def end(self) -> None:
        """The update is over."""
        if self._marks is not None:
            self._pending.append(self._marks)
            self._marks = None

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Context manager in which all time belongs to `part`, also within an update that is
        timed.
        """
        self.mark("workbench")
        marks, self._marks = self._marks, None
        began, outer, self._within = self._clock(), self._within, 0.0
        try:
            yield
        finally:
            passed = self._clock() - began
            self._whole[part] = self._whole.get(part, 0.0) + (passed - self._within)
            self._within = outer + passed
            self._marks = marks
            self.mark("")

    @contextlib.contextmanager
    def compilations(self) -> Iterator[None]:
        """Context manager in which what torch.compile takes, in whichever part, belongs to
        "compile".
        """
        dynamo = sys.modules.get("torch._dynamo.callback")  # the first optimizer imports it
        if dynamo is None:
            yield
            return
        began: list[float] = []

        def starts(*_: Any) -> None:
            began.append(self._clock())

        def ends(*_: Any) -> None:
            if began:  # else it began before, in another thread
                self._compiled(self._clock() - began.pop())

        handler = dynamo.callback_handler
        handler.register_start_callback(starts)
        handler.register_end_callback(ends)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset() removes all
                handler.remove_start_callback(starts)
            with contextlib.suppress(ValueError):
                handler.remove_end_callback(ends)

    def _compiled(self, seconds: float) -> None:
        """Take these seconds, which have just passed, out of the part that is being timed."""
        self._whole["compile"] = self._whole.get("compile", 0.0) + seconds
        self._within += seconds
        if self._marks is not None:
            # A device waits meanwhile, and its marks cannot be moved: this update tells nothing.
            later = (
                [(phase, moment + seconds) for phase, moment in self._marks]
                if self._on_cpu
                else None
            )
            self._marks = later

    def due(self) -> bool:
        """Whether it is time for an event. It never is while the first update since the last
        event is being timed.
        """
        if self._marks is not None and not (self._pending or self._sampled):
            return False
        seconds = self._clock()
        return self._seconds is not None and seconds - self._seconds >= min(
            max(1.0, seconds / 100), LONGEST
        )

    def take(self, step: int) -> TimeSpent | None:
        """The seconds since the last event by part; None: no update has been timed."""
        if self._seconds is None or not self._updates:
            return None
        self._read()
        if self._pending and not self._sampled:
            return None  # the device has not come so far
        seconds = self._clock()
        passed = seconds - self._seconds
        parts = {phase: spent for phase, spent in self._whole.items() if spent > 0.0}
        rest, sampled = passed - sum(parts.values()), sum(self._sampled.values())
        for phase, spent in self._sampled.items():
            if sampled > 0.0 and rest > 0.0:
                parts[phase] = parts.get(phase, 0.0) + rest * spent / sampled
        if not sampled and rest > 0.0:
            parts["other"] = rest
        self._seconds, self._whole, self._sampled = seconds, {}, {}
        self._next = 0.0  # else a stretch of few updates would tell nothing of its parts
        return TimeSpent(step, passed, parts) if passed > 0.0 else None

    def _now(self) -> Time:
        if self._on_cpu:
            return perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _read(self) -> None:
        """Sum up the updates whose marks the device has passed."""
        while self._pending:
            marks = self._pending[0]
            if not self._on_cpu and not marks[-1][1].query():
                return
            self._pending.popleft()
            for (_, began), (phase, ended) in itertools.pairwise(marks):
                if phase:
                    seconds = ended - began if self._on_cpu else began.elapsed_time(ended) / 1000
                    self._sampled[phase] = self._sampled.get(phase, 0.0) + seconds
            if not self._on_cpu:
                self._free += [event for _, event in marks]
