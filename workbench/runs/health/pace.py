"""Finds what slows the run down, and a device that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.events import Event, Resumed, RunStarted, StepsDone
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
            remedy = "num_workers=4 loads beside the training; preload=True keeps the data in memory"
            if self._workers:
                remedy = f"more than num_workers={self._workers}, or preload=True where the data fit into memory"
            yield Finding("warning", f"training waits for its data {share:.0%} of the time", remedy)


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
