"""Makes the progress line, and the sentence that a screen reader reads when a job changes its
state.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from workbench.events import (
    Changed,
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    ProfileEnded,
    RecipeSearchEnded,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SearchEnded,
    SpeedSearchEnded,
    Status,
    StepsDone,
    TuneStep,
)
from workbench.plots.names import recipe_name
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox, cut


class ProgressLine:
    """The progress of the current job."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._clear()

    def _clear(self) -> None:
        self._run: RunStarted | None = None
        self._status: Status | None = None
        self._done = 0
        self._skipped = 0
        self._epoch: int | None = None
        self._seconds = 0.0
        self._replays = False
        """Whether the events are those of the run that this one continues."""
        self._from = (0.0, 0)
        """The seconds and updates at which this run was resumed."""
        self._saved: int | None = None
        """The updates in the last checkpoint."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=30)
        self._values: list[list[str]] = []
        self._headline = ""
        self._ended = ""
        self._why = ""
        """What a queued job waits for."""

    @property
    def done(self) -> int:
        """Updates taken, or trials made."""
        return self._done

    @property
    def kind(self) -> str:
        """The kind of the job; "": there is no job."""
        return "" if self._run is None else self._run.kind

    def start(self, event: RunStarted) -> None:
        """Begin a job."""
        self._clear()
        self._run, self._status = event, "running"
        self._done, self._replays = event.resumed_at, event.resumed_at > 0
        self._outbox.put("memory", None)
        self._say(texts.job_on(format.job(event.kind), event.device))
        self._put()

    def clear(self) -> None:
        """Begin without a job."""
        self._clear()
        self._outbox.put("memory", None)
        self._outbox.put("progress", None)

    def steps(self, event: StepsDone, values: list[list[str]]) -> None:
        """Count the updates of a flush. values: the last values, as pairs of a name and a text."""
        if self._run is not None and event.step < self._run.resumed_at:
            self._seconds, self._epoch = event.seconds, event.epoch
            return
        self._done, self._replays = event.done, False
        if "skipped" in event.columns:
            self._skipped += int((event.array("skipped") > 0).sum())
        self._epoch, self._seconds, self._values = event.epoch, event.seconds, values
        self._recent.append((event.seconds, self._done))
        if event.memory is not None and self._run is not None:
            self._outbox.put("memory", _memory(event, event.memory, self._run.memory))
        self._put()

    def changed(self, event: Changed) -> None:
        """Take a live change: with another number of batches in an update, the total of updates
        is unknown.
        """
        if self._run is not None and "batch_size" in event.values:
            self._run = dataclasses.replace(self._run, updates=None)

    def resumed(self, event: Resumed) -> None:
        """Note that events until here are of another run, whose speed does not count."""
        self._done, self._from = event.step, (self._seconds, event.step)
        self._replays = False
        self._recent.clear()
        self._say(texts.job_continues(format.job(self.kind), event.step))
        self._put()

    def saved(self, event: Saved) -> None:
        """Show the update of a checkpoint that was written."""
        self._saved = event.step
        if not self._replays:
            self._put()

    def search(self, done: int, values: list[list[str]]) -> None:
        """Show how many trials a search has made, and its last values."""
        self._done, self._values = done, values
        self._put()

    def tuned(self, event: TuneStep) -> None:
        """Count a search of a tuning that has ended, and add its result."""
        if event.is_check:
            result = texts.compared(format.assignments(event.values))
        else:
            result = format.assignments(event.values) or texts.found_nothing(event.search)
        self._done, self._ended = (
            self._done + (not event.is_check),
            texts.SEPARATOR.join(filter(None, [self._ended, result])),
        )
        self._put()

    def values(self, values: list[list[str]]) -> None:
        """Show other values."""
        if not self._replays:
            self._values = values
            self._put()

    def headline(self, text: str) -> None:
        """Set what the sentence above the stage says of the fit, sent with the next values."""
        if not self._replays:
            self._headline = text

    def status(self, status: Status, why: str = "") -> None:
        """Show another status of the job. why: what a queued one waits for."""
        live = self._status in ("running", "paused")
        if status == "queued" and not live:  # while one runs, its own states are shown
            self._clear()
        elif status == "queued" or not live or status == self._status:
            return
        self._status, self._why = status, why
        self._recent.clear()
        self._say(texts.job_state(format.job(self.kind), status))
        self._put()

    def found(
        self,
        event: CurveEnded
        | SearchEnded
        | SpeedSearchEnded
        | ClipSearchEnded
        | DecaySearchEnded
        | RecipeSearchEnded
        | ProfileEnded,
    ) -> None:
        """Keep the result of a search as text, to show when the job ends."""
        if isinstance(event, CurveEnded):
            known = event.suggestion is not None
            self._ended = (
                texts.suggestion(format.rate(event.suggestion)) if known else texts.NO_RATE
            )
        elif isinstance(event, ProfileEnded):
            self._ended = event.verdict or event.ended
        elif isinstance(event, RecipeSearchEnded):
            self._ended = recipe_name(event.best) if event.best else event.reason or event.ended
        elif isinstance(event, SpeedSearchEnded | ClipSearchEnded | DecaySearchEnded):
            self._ended = format.assignments(event.best) or event.reason or event.ended
        else:
            self._ended = (
                texts.NO_SIZE
                if event.best is None
                else texts.sizes_found(event.best, event.largest)
            )

    def end(self, event: RunEnded) -> None:
        """Show how the job ended."""
        if self._status not in ("running", "paused"):
            self._clear()  # a job that was stopped before its turn: another one's state is shown
        self._status = event.status
        self._done = max(self._done, event.step)
        self._seconds = event.seconds
        if self.kind == "find_lr":
            self._values = []  # the loss at which a sweep diverged is of no use
        self._say(texts.job_state(format.job(self.kind), event.status, self._ended))
        self._put()

    def _say(self, sentence: str) -> None:
        self._outbox.put("said", sentence[:300])

    def _put(self) -> None:
        assert self._run is not None or self._status is not None
        total = self._run.updates if self._run is not None else None
        self._outbox.put("progress", {
            "status": self._status,
            "doing": format.job(self.kind),
            "kind": self.kind,
            "run": "" if self._run is None else cut(self._run.run, 80),
            "done": self._done,
            "total": total,
            "headline": self._sentence(total),
            "words": self._words(total),
            "values": self._values,
            "ended": self._ended[:300],
        })  # fmt: skip

    def _words(self, total: int | None) -> list[str]:
        """'312/980', '00:41', '7.6 updates/s', 'epoch 2/5', 'on 2 x cuda', '3 updates
        skipped', 'saved at 300'; without a total '312'.
        """
        if self._run is None:
            if self._status != "queued":
                return [texts.NOT_BEGUN]
            return [cut(self._why, 200)] if self._why else []
        live = self._status in ("running", "paused")
        if total is not None:
            parts = [f"{self._done}/{total}"]
        else:
            parts = [texts.searches_done(self._done) if self.kind == "tune" else str(self._done)]
        rate = self._rate() if live else self._rate_of_all()
        if self._seconds > 0 and not self._replays:
            parts.append(format.clock(self._seconds))
        if rate and self._epoch is not None:
            parts.append(texts.updates_per_second(format.pace(rate)))
        if self._epoch is not None and not self._replays:
            parts.append(texts.epoch(self._epoch + 1, self._run.epochs))
        if self._run.ranks > 1:
            parts.append(texts.on_device(self._run.device))
        if self._skipped:
            parts.append(texts.skipped(self._skipped))
        # a finished run with a later checkpoint need not show it
        if self._saved is not None and (live or self._saved < self._done):
            parts.append(texts.saved_at(self._saved))
        return parts

    def _sentence(self, total: int | None) -> str:
        """How the fit stands, and how long the job still takes: 'val 0.024, the best yet, 47 s
        left'.
        """
        parts = [self._headline] if self._headline else []
        rate = self._rate() if self._status == "running" else None
        if rate and total is not None and self._done < total:
            parts.append(
                texts.time_left(format.duration(max(1, round((total - self._done) / rate))))
            )
        return ", ".join(parts)

    def _rate(self) -> float | None:
        return (
            _speed(self._recent[0], self._recent[-1])
            if len(self._recent) >= 2
            else self._rate_of_all()
        )

    def _rate_of_all(self) -> float | None:
        return _speed(self._from, (self._seconds, self._done))


def _memory(event: StepsDone, used: int, of: int | None) -> dict[str, Any]:
    """The text of the device's memory bar: bytes, and '1.2/24 GB · GPU 87% · CPU 40%'."""
    said = format.size(used)
    if of:
        whole, unit = format.size(of).split(" ")
        share = used / of * float(whole)
        said = f"{share:.0f}/{whole} {unit}" if share >= 10 else f"{share:.2g}/{whole} {unit}"
    return {"used": used, "of": of, "words": " · ".join([said, *event.busy])}


def _speed(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    """Updates in a second, from (seconds, updates) to (seconds, updates)."""
    (t0, n0), (t1, n1) = first, last
    return (n1 - n0) / (t1 - t0) if t1 > t0 and n1 > n0 else None
