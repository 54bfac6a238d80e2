"""Finds what slows the run down, and a device that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from workbench.events import Event, Resumed, RunStarted, StepsDone, TimeSpent
from workbench.runs.health.finding import Finding


class Waiting:
    """The share of the time in which training waits for batches, over the run from its first flush on."""

    SHARE = 0.2
    """A fifth: without it the run would be a quarter faster."""
    SECONDS = 10.0
    """Loader processes take seconds to start, which is no habit."""

    def __init__(self, start: RunStarted) -> None:
        self._workers = start.settings.get("num_workers", 0)
        self._clear()

    def _clear(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._last = (event.seconds, event.waited)
            self._first = self._first or self._last
        elif isinstance(event, Resumed):
            self._clear()  # what came until here another process did, by its own clock

    def findings(self) -> Iterator[Finding]:
        since, waited = self._first or self._last
        seconds = self._last[0] - since
        if seconds < self.SECONDS:
            return
        share = (self._last[1] - waited) / seconds
        if share >= self.SHARE:
            remedy = "find_num_workers() tries loader workers; preload=True keeps the data in memory"
            if self._workers:
                remedy = f"find_num_workers() tries more than num_workers={self._workers}; preload=True keeps the data in memory"
            yield Finding("warning", f"training waits for its data {share:.0%} of the time", remedy)


class Overhead:
    """The shares of the time that go into something other than updates."""

    LIMITS: ClassVar[Mapping[str, tuple[float, str, str]]] = {
        "validation": (0.5, "validation takes", "check_val_every_n_epoch=5 or limit_val_batches=0.2 validates less"),
        "checkpoints": (0.2, "writing checkpoints takes", "a longer checkpoint_every writes fewer"),
        "hooks": (0.2, "hooks and callbacks take", "look for what they compute, print or read back from the device at every batch"),
        "transfer": (0.2, "moving batches to the device takes", "pin_memory=True, or data that is on the device already"),
        "sync": (0.3, "a rank waits for the others", "larger batches or accumulate_grad_batches synchronise less often"),
    }
    """Half of the time is more than most want for validation; a fifth, or waiting of a third, is a cost to look at."""
    SECONDS = 10.0
    """A shorter run ends before anybody could change it."""

    def __init__(self, start: RunStarted) -> None:
        self._parts: dict[str, float] = {}
        self._seconds = 0.0

    def on_event(self, event: Event) -> None:
        if isinstance(event, TimeSpent):
            self._seconds += event.seconds
            for part, seconds in event.parts.items():
                self._parts[part] = self._parts.get(part, 0.0) + seconds
        elif isinstance(event, Resumed):
            self._parts, self._seconds = {}, 0.0

    def findings(self) -> Iterator[Finding]:
        if not self._seconds >= self.SECONDS:
            return
        for part, (limit, text, remedy) in self.LIMITS.items():
            share = self._parts.get(part, 0.0) / self._seconds
            if share >= limit:
                yield Finding("info", f"{text} {share:.0%} of the time", remedy)


class Memory:
    """The most that was in use, of what the device has."""

    FULL = 0.9
    """Allocators lose some to fragments, and a longer batch or the check at the end may want more."""

    def __init__(self, start: RunStarted) -> None:
        self._total, self._most = start.memory, 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._most = max(self._most, event.memory or 0)

    def findings(self) -> Iterator[Finding]:
        if self._total and self._most > self.FULL * self._total:
            text = f"{self._most / self._total:.0%} of the device's memory was in use"
            yield Finding("warning", text, "a smaller batch_size with more accumulate_grad_batches takes less")
