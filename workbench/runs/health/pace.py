"""Finds the parts that slow a run down, and a device whose memory is nearly full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from workbench.events import Event, Observed, Resumed, RunStarted, StepsDone, TimeSpent
from workbench.runs.health.finding import Finding, Level, Rule


class Waiting(Rule):
    """Reports the share of the time in which training waits for batches, from the run's first
    flush on.
    """

    SHARE = 0.2
    """Without waiting for this share, a fifth, the run would be a quarter faster."""
    SECONDS = 10.0
    """Loader processes need seconds to start, once, which do not count."""

    def __init__(self, start: RunStarted) -> None:
        self._workers = start.settings.get("num_workers", 0)
        self._on_cpu = start.device.partition(",")[0].endswith("cpu")
        self._options: dict[str, str] = {}
        """Where an option of the training loader comes from, as `Observed` has them."""
        self._clear()

    def _clear(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._spent: list[tuple[float, float]] = []
        """Seconds, and those of them that passed before the first batch of an epoch: until the
        first event, and since.
        """

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._last = (event.seconds, event.waited)
            self._first = self._first or self._last
        elif isinstance(event, TimeSpent):
            seconds, begins = self._spent.pop() if len(self._spent) > 1 else (0.0, 0.0)
            self._spent.append(
                (seconds + event.seconds, begins + event.parts.get("first batch", 0.0))
            )
        elif isinstance(event, Observed) and event.what == "loader_option" and len(event.parts) > 1:
            self._options[event.parts[0]] = event.parts[1]
        elif isinstance(event, Resumed):
            self._clear()  # the events until here are of another process, with another clock

    @property
    def _share(self) -> float:
        """The share of the time in which training has waited; 0 if too little time has passed."""
        since, waited = self._first or self._last
        seconds = self._last[0] - since
        return (self._last[1] - waited) / seconds if seconds >= self.SECONDS else 0.0

    @property
    def _share_of_first(self) -> float:
        """The share for the first batches of epochs alone."""
        seconds, begins = self._spent[1] if len(self._spent) > 1 else (0.0, 0.0)
        return begins / seconds if seconds > 0 else 0.0

    def findings(self) -> Iterator[Finding]:
        share = self._share
        if share >= self.SHARE:
            yield self._waits(share)
        pinned = self._options.get("pin_memory=True")
        if pinned is not None and self._on_cpu:
            waits = f" (training waits for its data {share:.0%} of the time)" if share else ""
            yield self._option(
                "info",
                f"pin_memory=True is of no use in a fit on the CPU{waits}",
                "pin_memory",
                False,
                None,
                pinned,
            )

    def _waits(self, share: float) -> Finding:
        text, of_first = (
            f"training waits for its data {share:.0%} of the time",
            self._share_of_first,
        )
        restarts = self._options.get("persistent_workers=False")
        if restarts is not None and of_first >= share / 2:
            text += (
                f", {of_first:.0%} for the first batch of an epoch: the loader's workers start anew"
                " in each"
            )
            return self._option("warning", text, "persistent_workers", True, True, restarts)
        if OWN in self._options.values():
            return Finding(
                "warning",
                text,
                "your DataLoader makes its batches itself: give it more num_workers",
            )
        more = f"more than num_workers={self._workers}" if self._workers else "loader workers"
        advice = f"find_num_workers() tries {more}; preload=True keeps the data in memory"
        return Finding("warning", text, advice, remedy="bench.find_num_workers()")

    def _option(
        self, level: Level, text: str, name: str, theirs: bool, setting: bool | None, source: str
    ) -> Finding:
        """A finding about an option of the loader: the value that the user's DataLoader should
        have, or the setting.
        """
        advice = (
            f"set {name}={setting}"
            if source == "setting"
            else f"give your DataLoader {name}={theirs}, or set {name}={setting}"
        )
        if source == OWN:
            return Finding(level, text, f"give your DataLoader {name}={theirs}")
        return Finding(level, text, advice, remedy=f"bench.set({name}={setting})")


OWN = "own DataLoader"
"""The place of options of a DataLoader that makes its batches itself: settings do not change it."""


class Overhead(Rule):
    """Reports large shares of the time that are not spent on updates."""

    LIMITS: ClassVar[Mapping[str, tuple[float, str, str]]] = {
        "validation": (
            0.5,
            "validation takes",
            "check_val_every_n_epoch=5 or limit_val_batches=0.2 validates less",
        ),
        "checkpoints": (0.2, "writing checkpoints takes", "a longer checkpoint_every writes fewer"),
        "hooks": (
            0.2,
            "hooks and callbacks take",
            "look for what they compute, print or read back from the device at every batch",
        ),
        "transfer": (
            0.2,
            "moving batches to the device takes",
            "pin_memory=True, or data that is on the device already",
        ),
        "sync": (
            0.3,
            "a rank waits for the others",
            "larger batches or accumulate_grad_batches synchronise less often",
        ),
    }
    """Half of the time is more than most users want for validation; for the others a fifth, or a
    third of waiting, is worth a look.
    """
    SECONDS = 10.0
    """A shorter run ends before the user could act on it."""

    def __init__(self, start: RunStarted) -> None:
        self._parts: dict[str, float] = {}
        self._seconds = 0.0

    def on_event(self, event: Event) -> None:
        if isinstance(event, TimeSpent):
            self._seconds += event.seconds
            for phase, seconds in event.parts.items():
                self._parts[phase] = self._parts.get(phase, 0.0) + seconds
        elif isinstance(event, Resumed):
            self._parts, self._seconds = {}, 0.0

    def findings(self) -> Iterator[Finding]:
        if not self._seconds >= self.SECONDS:
            return
        for phase, (limit, text, advice) in self.LIMITS.items():
            share = self._parts.get(phase, 0.0) / self._seconds
            if share >= limit:
                yield Finding("info", f"{text} {share:.0%} of the time", advice)


class Memory(Rule):
    """Reports a peak of the memory in use that is close to the device's memory."""

    FULL = 0.9
    """Some memory is lost to fragmentation, and a longer batch or the validation may need more."""

    def __init__(self, start: RunStarted) -> None:
        self._total, self._most = start.memory, 0

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._most = max(self._most, event.memory or 0)

    def findings(self) -> Iterator[Finding]:
        if self._total and self._most > self.FULL * self._total:
            text = f"{self._most / self._total:.0%} of the device's memory was in use"
            yield Finding(
                "warning", text, "a smaller batch_size with more accumulate_grad_batches takes less"
            )
