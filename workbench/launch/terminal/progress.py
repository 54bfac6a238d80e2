"""Shows a job's progress in one line on stderr: done, elapsed, remaining, updates/s, the last
loss, logged values.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, TextIO

from tqdm.std import tqdm

from workbench.events import (
    ENDED_EARLY,
    Changed,
    CurveEnded,
    CurvePoint,
    DecayTrial,
    Event,
    Logged,
    Message,
    RaceTrial,
    RecipeTrial,
    Resumed,
    RunStarted,
    SearchEnded,
    SpeedTrial,
    StatusChanged,
    StepsDone,
    Trial,
    TrialStarted,
    Validated,
)
from workbench.plots.names import recipe_name
from workbench.runs.printable import printable
from workbench.runs.record.event_log import RecordGone, since
from workbench.units import number, rate

SEARCHES = {
    "find_lr": "find LR",
    "find_batch_size": "find batch size",
    "find_num_workers": "find workers",
    "find_precision": "find precision",
    "find_clip_val": "find clip value",
    "find_weight_decay": "find weight decay",
    "find_recipe": "find recipe",
    "profile": "profile",
}
"""The jobs that are one search, and their names on the bar. A search within another job does not
change that job's counts.
"""
TRIALS = (
    "find_batch_size",
    "find_num_workers",
    "find_precision",
    "find_weight_decay",
    "find_recipe",
    "tune",
)
"""The jobs whose progress is counted in trials."""


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar whose speed counts only the updates since a resume."""

    seconds = 0.0
    """The seconds that the run had taken when it was resumed, after `initial` updates."""

    @property
    def format_dict(self) -> Any:
        facts = super().format_dict
        if self.seconds:
            done, took = facts["n"] - facts["initial"], facts["elapsed"] - self.seconds
            facts["rate"] = done / took if took > 0 else None
        return facts


def _stream() -> TextIO:
    """Where a bar is drawn: stderr. A notebook shows that as an error; there it is stdout."""
    kernel = sys.modules.get("ipykernel.iostream")
    in_notebook = kernel is not None and isinstance(sys.stdout, kernel.OutStream)
    return sys.stdout if in_notebook else sys.stderr


class ProgressBar:
    """Context manager that shows a job's events as a tqdm bar, and prints its warnings.

    `began`: when the job's turn came, in seconds since 1970. `bar`: whether there is a bar besides
    the warnings.
    `shown`: how many events were shown before; their messages are not printed again.
    """

    def __init__(self, kind: str, began: float, *, bar: bool = True, shown: int = 0) -> None:
        self._kind, self._shows, self._shown = kind, bar, shown
        self._began = began
        self._bar: _Bar | None = None
        self._seconds = 0.0
        self._epochs: int | None = None
        self._facts: dict[str, str] = {}

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, events: Sequence[Event], seen: int) -> int:
        """Draw the events since `seen`; returns how many there are now."""
        now = len(events)
        # Events before a resume are the record of another run, which has shown them.
        joint = max(
            (index for index, event in self._new(events, seen, now) if isinstance(event, Resumed)),
            default=0,
        )
        for index, event in self._new(events, seen, now):
            if index >= max(joint, self._shown) or not isinstance(event, Message):
                self._note(event)
        if self._bar is not None and now > seen:
            self._bar.set_postfix(self._facts, refresh=True)
        return now

    @staticmethod
    def _new(events: Sequence[Event], seen: int, now: int) -> Iterator[tuple[int, Event]]:
        """The events from `seen` to `now`, read from the record: memory may be too small to hold
        them for a second pass.
        """
        # the caller waits for the job's end, for which the record is not needed
        with contextlib.suppress(RecordGone):
            yield from enumerate(islice(since(events, seen), now - seen))

    def _note(self, event: Event) -> None:
        if isinstance(event, RunStarted) and self._shows:
            self._epochs = event.epochs
            self._bar = _Bar(
                total=event.updates,
                desc=SEARCHES.get(self._kind, printable(self._kind)),
                unit=" trials" if self._kind in TRIALS else " updates",
                file=_stream(),
                dynamic_ncols=True,
                leave=True,
            )
            # The bar may be younger than the job.
            self._bar.start_t = self._began
            self._bar.n = self._bar.initial = event.resumed_at
        elif isinstance(event, StatusChanged) and event.why and self._shows:
            print(printable(event.why), file=sys.stderr)
        elif self._bar is None:
            if isinstance(event, Message) and event.level != "info":  # there is no bar, or not yet
                print(printable(event.text, lines=True), file=sys.stderr)
        elif isinstance(event, StepsDone) and event.step < self._bar.initial:
            self._seconds = event.seconds  # of what came before a fit that continues
        elif isinstance(event, StepsDone):
            self._bar.n = event.done
            # Pauses do not count: its clock is the run's.
            self._seconds = event.seconds
            self._bar.start_t = time.time() - event.seconds
            self._facts["epoch"] = (
                f"{event.epoch + 1}/{self._epochs}" if self._epochs else str(event.epoch + 1)
            )
            self._facts["loss"] = number(event.array("loss")[-1])
            self._note_values(event.on_bar)
        elif isinstance(event, Resumed):
            self._bar.n = self._bar.initial = event.step
            self._bar.seconds = self._seconds
            self._bar.start_t = time.time() - self._seconds
        elif isinstance(
            event,
            CurvePoint
            | RaceTrial
            | CurveEnded
            | TrialStarted
            | Trial
            | SearchEnded
            | SpeedTrial
            | DecayTrial
            | RecipeTrial,
        ):
            self._note_search(event, self._bar)
        elif isinstance(event, Changed) and not event.values.keys().isdisjoint(
            ("batch_size", "accumulate_grad_batches")
        ):
            self._bar.total = None  # an epoch has another number of updates from here on
        elif isinstance(event, Logged):
            self._note_values(event.on_bar)
        elif isinstance(event, Validated):
            self._note_values(event.on_bar or event.metrics)
        elif isinstance(event, Message) and (
            event.level != "info" or event.text.startswith(ENDED_EARLY)
        ):
            self._bar.write(printable(event.text, lines=True), file=sys.stderr)

    def _note_values(self, values: Mapping[str, float]) -> None:
        self._facts.update({printable(name): number(value) for name, value in values.items()})

    def _note_search(
        self,
        event: CurvePoint
        | RaceTrial
        | CurveEnded
        | TrialStarted
        | Trial
        | SearchEnded
        | SpeedTrial
        | DecayTrial
        | RecipeTrial,
        bar: tqdm[Any],
    ) -> None:
        """Show a search, which is the job itself, or runs inside a fit, whose bar it does not
        move.
        """
        is_job = self._kind in SEARCHES
        if isinstance(event, CurvePoint):
            bar.n = event.index + 1 if is_job else bar.n
            self._facts["lr" if is_job else "trying lr"] = rate(event.lr)
            if is_job:
                self._facts["loss"] = number(event.smoothed)
        elif isinstance(event, RaceTrial):
            bar.n += event.updates if is_job else 0
            self._facts["raced" if is_job else "racing lr"] = (
                f"{rate(event.lr)}: held-out loss {number(event.loss)}"
            )
        elif isinstance(event, RecipeTrial):
            bar.n += 1
            self._facts["tried"] = (
                f"{recipe_name(event.values)}: held-out loss {number(event.loss)}"
            )
        elif isinstance(event, DecayTrial):
            bar.n += 1
            self._facts["tried"] = f"{rate(event.weight_decay)}: held-out loss {number(event.loss)}"
        elif isinstance(event, SpeedTrial):
            bar.n += 1
            speed = (
                f"{event.updates_per_second:,.0f} updates/s"
                if event.updates_per_second
                else "failed"
            )
            self._facts["tried"] = (
                f"{', '.join(str(value) for value in event.values.values())}: {speed}"
            )
        elif isinstance(event, TrialStarted):
            self._facts["trying size"] = str(event.size)
        elif isinstance(event, Trial):
            bar.n += self._kind in TRIALS
            self._facts.pop("trying size", None)
            speed = (
                f"{event.samples_per_second:,.0f}/s" if event.samples_per_second else "does not fit"
            )
            self._facts["size" if is_job else "trying size"] = f"{event.size} {speed}"
        elif not is_job:
            for name in ("trying lr", "racing lr", "trying size"):
                self._facts.pop(name, None)
