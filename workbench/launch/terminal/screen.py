"""Draws a job from its events as text: progress, values with their history, gradient norms by
layer, times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workbench.events import (
    ENDED_EARLY,
    Changed,
    ClipSearchEnded,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    Event,
    Logged,
    Message,
    ProfileEnded,
    RaceTrial,
    RecipeSearchEnded,
    RecipeTrial,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    StatusChanged,
    StepsDone,
    TimeSpent,
    Trial,
    TrialStarted,
    TuneStep,
    TuneTrial,
    Validated,
)
from workbench.launch.terminal.progress import SEARCHES, TRIALS
from workbench.launch.terminal.trace import Trace, blocks
from workbench.plots.names import recipe_name
from workbench.runs.printable import printable
from workbench.settings.setting_text import recorded
from workbench.units import duration, number, rate, size

_TRIALS, _VALUES = 8, 12
"""How many trials and values are drawn at most: the newest trials; first loss and learning rate,
then values of validation, then others.
"""
_RECENT = 30
"""The speed is the mean over so many flushes."""
_PARTS = 4
"""How many parts of the time are named at most."""
_COLOURS = {
    "running": "green",
    "paused": "yellow",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
    "queued": "dim",
}


class Screen:
    """The state of a job, from its events, as a renderable of rich."""

    def __init__(self, id: str, kind: str) -> None:
        self._id, self._kind = id, kind
        self.keys = ""
        """Which keys do what; "": no keys are read."""
        self.notice = ""
        """What a key did, or why it was refused."""
        self._clear()
        self._started: RunStarted | None = None
        self.status = "queued"
        self._waits_for = ""
        self.messages: list[Text] = []
        """Warnings and errors, and why the job ended early; the caller prints and removes them."""

    def _clear(self) -> None:
        self._done = 0
        self._total: int | None = None
        self._epoch: int | None = None
        self._seconds = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._values: tuple[dict[str, Trace], ...] = ({}, {}, {})
        """Loss and learning rate, values of validation, others: of each kind as many as can be
        drawn.
        """
        self._names: set[str] = set()
        """The names of all values."""
        self._layers: Mapping[str, float] = {}
        self._clipped = (0, 0)
        """How many updates were clipped, of how many with a clip value."""
        self._memory: int | None = None
        self._busy: list[str] = []
        self._parts: dict[str, float] = {}
        self._trials: deque[str] = deque(maxlen=_TRIALS)
        self._found = ""
        self._saved: int | None = None

    # -- events

    def note(self, event: Event) -> None:
        """Take the next event of the job."""
        match event:
            case RunStarted():
                self._clear()
                self._started, self._total, self.status = event, event.updates, "running"
                self._done = event.resumed_at
            case StepsDone():
                self._note_steps(event)
            case Resumed():
                self._done = event.step
                self._recent.clear()
                self.messages.clear()  # they belong to the run before, which has shown them
            case Changed():
                if not event.values.keys().isdisjoint(("batch_size", "accumulate_grad_batches")):
                    self._total = None  # an epoch has another number of updates from here on
            case StatusChanged():
                self.status, self._waits_for = event.status, event.why
                self._recent.clear()
            case Validated() | Logged():
                for name, value in event.metrics.items():
                    self._add(name, [value], 1 if isinstance(event, Validated) else 2)
            case Saved():
                self._saved = event.step
            case TimeSpent():
                self._parts = event.parts
            case Message():
                if event.level != "info" or event.text.startswith(ENDED_EARLY):
                    self._say(event.level, event.text)
            case RunEnded():
                self.status, self._seconds = event.status, event.seconds or self._seconds
                if event.error is not None:
                    self._say("error", event.error + (f"\n{event.where}" if event.where else ""))
            case _:
                self._note_search(event)

    def _note_steps(self, event: StepsDone) -> None:
        if not event.rows:
            return
        self._seconds = event.seconds
        if self._started is None or event.step >= self._started.resumed_at:  # not of before
            self._done, self._epoch = event.done, event.epoch
            self._recent.append((event.seconds, self._done))
        self._memory, self._busy = event.memory, event.busy
        for name in ("loss", "lr", "grad_norm"):
            if name in event.columns:
                self._add(name, event.array(name), 2 if name == "grad_norm" else 0)
        for name in event.logged:
            values = event.array(name)
            self._add(name, values[~np.isnan(values)], 2)  # NaN: not logged at this update
        if "grad_norm_clipped" in event.columns and "grad_norm" in event.columns:
            before, after = event.array("grad_norm"), event.array("grad_norm_clipped")
            finite = np.isfinite(after)
            clipped = int((after[finite] < before[finite] * (1 - 1e-6)).sum())
            self._clipped = self._clipped[0] + clipped, self._clipped[1] + int(finite.sum())
        if self._started is not None and self._started.layers and event.columns.get("layer_norms"):
            norms = event.array("layer_norms")[event.layer_rows]
            if len(norms):
                self._layers = dict(zip(self._started.layers, map(float, norms[-1]), strict=False))

    def _note_search(self, event: Event) -> None:
        """Take an event of a search, which is the job itself, or runs inside another job, whose
        counts and values it does not change.
        """
        is_job, trials = self._kind in SEARCHES, self._kind in TRIALS
        match event:
            case CurvePoint() if is_job:
                self._done = event.index + 1
                self._add("lr", [event.lr], 0)
                self._add("loss", [event.smoothed], 0)
            case RaceTrial():
                self._done += event.updates if is_job else 0
                self._trials.append(
                    f"lr={rate(event.lr)}: held-out loss {number(event.loss)} after {event.updates}"
                    " updates"
                )
            case RecipeTrial():
                self._done += trials
                self._trials.append(
                    f"{recipe_name(event.values)}: held-out loss {number(event.loss)} after"
                    f" {event.updates} updates"
                )
            case DecayTrial():
                self._done += trials
                self._trials.append(
                    f"weight_decay={rate(event.weight_decay)}: held-out loss {number(event.loss)}"
                )
            case TrialStarted():
                self._found = f"trying batch_size={event.size}"
            case Trial():
                self._done += trials
                self._found = ""
                speed = (
                    f"{event.samples_per_second:,.0f} samples/s"
                    if event.samples_per_second
                    else "fits"
                )
                peak = f", {size(event.peak_bytes)}" if event.peak_bytes else ""
                failed = event.error if event.fits else "does not fit"
                self._trials.append(
                    f"batch_size={event.size}: {speed + peak if event.ok else failed}"
                )
            case SpeedTrial():
                self._done += trials
                speed = (
                    f"{event.updates_per_second:,.1f} updates/s"
                    if event.updates_per_second
                    else f"failed: {event.error}"
                )
                self._trials.append(f"{_assignments(event.values)}: {speed}")
            case TuneTrial():
                self._trials.append(
                    f"{_assignments(event.values) or 'present settings'}: held-out loss"
                    f" {number(event.loss)} after {event.updates} updates"
                )
            case TuneStep() if event.is_check:
                self._trials.append(event.reason)
            case TuneStep():
                self._trials.append(
                    f"{event.search}: {_assignments(event.values) or 'nothing to change'}"
                )
            case CurveEnded():
                self._found = (
                    "no rate can be trusted"
                    if event.suggestion is None
                    else f"suggestion: lr={rate(event.suggestion)}"
                )
            case SearchEnded():
                self._found = (
                    event.ended
                    if event.best is None
                    else f"recommended: batch_size={event.best}\n{event.reason}"
                )
            case SpeedSearchEnded() | ClipSearchEnded() | DecaySearchEnded() | RecipeSearchEnded():
                self._found = _finding(event.best, event.reason)
            case ProfileEnded():
                self._found = event.verdict or event.ended
            case _:
                pass
        if isinstance(event, CurveEnded | SearchEnded) and not (is_job or trials):
            self._trials.clear()

    def _add(self, name: str, values: ArrayLike, rank: int) -> None:
        self._names.add(name)
        group = next((traces for traces in self._values if name in traces), self._values[rank])
        if name in group or not rank or len(group) < _VALUES:
            group.setdefault(name, Trace()).add(values)

    def _say(self, level: str, text: str) -> None:
        self.messages.append(
            Text(
                printable(text, lines=True),
                style={"error": "red", "warning": "yellow"}.get(level, ""),
            )
        )

    # -- the drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, 120)
        inner = max(1, width - 4)
        progress = self._progress(console, inner)
        # two lines are the frame, with the title and the keys
        room = options.max_height - 2 - len(progress)
        kept: list[Sequence[Any]] = []
        # a terminal with few lines leaves out the last of them
        for lines in (self._last_lines(console, inner), [*self._facts(inner)], [*self._trials]):
            kept.append(lines[-room:] if room > 0 else [])
            room -= len(kept[-1])
        last, facts, trials = kept
        parts = [
            *progress,
            *self._table(inner, room),
            *facts,
            *(Text(printable(trial), no_wrap=True, overflow="ellipsis") for trial in trials),
            *last,
        ]
        title = Text(
            " · ".join(
                filter(
                    None,
                    [
                        printable(self._id),
                        "" if self._started is None else printable(self._started.device),
                    ],
                )
            ),
            style="bold",
        )
        yield Panel(
            Group(*parts),
            title=title,
            title_align="left",
            subtitle=Text(self.keys, style="dim"),
            subtitle_align="left",
            width=width,
        )

    def _progress(self, console: Console, width: int) -> list[Any]:
        word = Text(self.status, style=_COLOURS.get(self.status, ""))
        unit = "trials" if self._kind in TRIALS else "updates"
        done = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        facts = [f"{done} {unit}"] if self._done or self._total else []
        if self.status == "queued" and self._waits_for:
            facts.append(printable(self._waits_for))
        if self._epoch is not None:
            epochs = None if self._started is None else self._started.epochs
            facts.append(f"epoch {self._epoch + 1}" + (f"/{epochs}" if epochs else ""))
        speed = self._speed()
        if speed:
            facts.append(f"{speed:,.0f} updates/s" if speed >= 100 else f"{speed:.3g} updates/s")
        if speed and self._total and self.status == "running":
            facts.append(f"{duration(max(0, self._total - self._done) / speed)} left")
        elif self._seconds:
            facts.append(duration(self._seconds))
        lines = [*Text.assemble(word, "  ", " · ".join(facts)).wrap(console, width)]
        if not self._total:
            return lines
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(
            ProgressBar(total=self._total, completed=min(self._done, self._total), width=width)
        )
        return [*lines, bar]

    def _speed(self) -> float:
        if len(self._recent) < 2 or self.status != "running":
            return 0.0
        (began, first), (ended, last) = self._recent[0], self._recent[-1]
        return (last - first) / (ended - began) if ended > began else 0.0

    def _table(self, width: int, room: int) -> Iterator[Any]:
        """The values, in at most `room` lines."""
        most = min(_VALUES, room if len(self._names) <= min(_VALUES, room) else room - 1)
        shown = [*chain.from_iterable(traces.items() for traces in self._values)][: max(0, most)]
        if shown:
            names = [printable(name) for name, _ in shown]
            widest = min(24, max(map(len, names)))
            table = Table.grid(padding=(0, 1))
            table.add_column(width=widest, no_wrap=True, overflow="ellipsis")
            table.add_column(justify="right", width=10, no_wrap=True)
            blocks_wide = max(8, width - widest - 12)
            table.add_column(width=blocks_wide, no_wrap=True)
            for name, (key, trace) in zip(names, shown, strict=True):
                value = rate(trace.last) if key == "lr" else number(trace.last)
                style = "bold" if math.isfinite(trace.last) else "bold red"
                table.add_row(
                    Text(name, style="dim"),
                    Text(value, style=style),
                    Text(blocks(trace.points, blocks_wide), style=_colour(key)),
                )
            yield table
        if shown and len(self._names) > len(shown):
            yield Text(f"… and {len(self._names) - len(shown)} more", style="dim")

    def _facts(self, width: int) -> Iterator[Text]:
        finite = {name: norm for name, norm in self._layers.items() if math.isfinite(norm)}
        if len(finite) > 1:
            strip = blocks(
                [norm if norm > 0 else math.nan for norm in self._layers.values()],
                min(width // 3, len(self._layers)),
            )
            most, least = (
                max(finite, key=lambda name: finite[name]),
                min(finite, key=lambda name: finite[name]),
            )
            words = (
                f"  largest {printable(most)} {number(finite[most])}, smallest {printable(least)}"
                f" {number(finite[least])}"
            )
            yield _line("gradients by layer  ", Text.assemble((strip, "magenta"), words), width)
        if self._clipped[1]:
            yield _line("clipped  ", f"{self._clipped[0] / self._clipped[1]:.0%} of updates", width)
        if self._parts:
            whole = sum(self._parts.values()) or 1.0
            most_of = sorted(self._parts.items(), key=lambda item: -item[1])[:_PARTS]
            yield _line(
                "time  ",
                ", ".join(f"{printable(phase)} {spent / whole:.0%}" for phase, spent in most_of),
                width,
            )
        facts = [f"memory {size(self._memory)}"] if self._memory else []
        facts += self._busy
        facts += (
            [f"last checkpoint after {self._saved:,} updates"] if self._saved is not None else []
        )
        if facts:
            yield Text(" · ".join(facts), style="dim", no_wrap=True, overflow="ellipsis")

    def _last_lines(self, console: Console, width: int) -> list[Text]:
        """The result of a search, and the notice, line by line."""
        lines: list[Text] = []
        for text, style in ((self._found, "bold"), (self.notice, "cyan")):
            if text:
                lines += Text(printable(text, lines=True), style=style).wrap(console, width)
        return lines


def _line(name: str, text: Text | str, width: int) -> Text:
    line = Text.assemble((name, "dim"), text, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _colour(name: str) -> str:
    return {"lr": "yellow", "grad_norm": "magenta", "loss": "cyan"}.get(name, "green")


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={recorded(name, value)}" for name, value in values.items())


def _finding(values: Mapping[str, Any], reason: str) -> str:
    """The result of a search, and in the next line its reason, without the value with which the
    reason begins.
    """
    assignments = _assignments(values) or "nothing to change"
    value, colon, why = reason.partition(": ")
    return f"{assignments}\n{why if colon and value in assignments else reason}"
