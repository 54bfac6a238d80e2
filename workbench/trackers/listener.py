"""Sends each fit to trackers (TensorBoard, W&B, MLflow, …) as a listener of the events.

Each run has a thread of its own, so that a slow network delays neither the updates nor the record;
the end of a fit waits for it. An error there is reported once, and the training continues.
"""

from __future__ import annotations

import queue
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.state import PartialState
from accelerate.tracking import GeneralTracker

from workbench.engine.runtime.runtime import OwnState
from workbench.events import (
    BenchEvent,
    Changed,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    StepsDone,
    Validated,
)
from workbench.secrets import without_secrets
from workbench.trackers.select import Choice, Named, choices, flat

RATE = 10
"""The most updates per second that are sent to a tracker; where training is slower, all are
sent.
"""
BURST = 50
"""How many updates may be sent at once before the limit applies, so that a short fit is
complete.
"""
BEHIND = 1000
"""The most updates that are queued for a slow tracker; more are left out until the queue is
shorter.
"""
WAIT = 60.0
"""The most seconds that the end of a fit waits for a tracker."""
PATIENCE = 3
"""After this many failures in a row, nothing more of the run is sent to the tracker."""

_Heard = RunStarted | StepsDone | Validated | Logged | Changed | Resumed | Message | RunEnded


class TrackerError(Exception):
    """Raised where a tracker failed; the fit itself continues."""


class TrackerListener:
    """A listener for one tracker of a bench: each fit becomes a run in the tracker."""

    def __init__(self, choice: Choice, facts: Callable[[], dict[str, Any]]) -> None:
        self._choice = choice
        self.name = choice.name
        self._facts = facts
        self._elsewhere: str | None = None
        self._run: _Run | None = None
        self._begun = threading.Condition()
        """Notified when `_run` changes."""
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> Any:
        """Pickle the tracker, with the present facts of the model, for another process."""
        return _with_facts, (self._choice, self._facts())

    @property
    def is_sent_along(self) -> bool:
        """Whether it can be sent to the process that runs a job: a tracker that accelerate makes
        can; a user's object stays here.
        """
        return isinstance(self._choice, Named)

    @property
    def exclusive(self) -> object | None:
        """Its key where only one run at a time can be open in it; None: there may be several."""
        return None if self._choice.several else ("tracker", self._choice.key)

    def leave(self, run: str) -> None:
        """Ignore the events of this run: the process that runs it sends them to the tracker."""
        self._elsewhere = run

    def __call__(self, event: BenchEvent) -> None:
        """Handle an event of a job; TrackerError if something has failed since the last event."""
        if not isinstance(event, _Heard):
            return  # also for events that other threads emit
        if isinstance(event, RunStarted):
            self._begin(event)
        elif self._run is not None:
            self._run.on_event(event)
        run = self._run
        if isinstance(event, RunEnded):
            self._end()
        if run is not None:
            run.raise_new()

    def close(self) -> None:
        """End a run that has not ended, and wait until all its events are sent."""
        self._abandon()
        if self._thread is not None:
            self._thread.join(WAIT)

    # -- what a module logs itself, on the thread that trains

    def experiment(self) -> Any:
        """The tracker's own object. TrackerError: the tracker did not start."""
        return self._present().started().tracker

    def add(self, values: dict[str, Any], step: int) -> None:
        """Log numbers of an update, in the order of the calls."""
        self._present().put(_Point(step, values))

    def configure(self, values: dict[str, Any]) -> None:
        """Add settings to those of the run."""
        self._present().put(_Settings(flat(without_secrets(values))))

    def _present(self) -> _Run:
        """Return the tracker's run of the present fit; wait if the fit's first event was not
        handled yet.
        """
        with self._begun:
            if not self._begun.wait_for(lambda: self._run is not None, WAIT) or self._run is None:
                raise TrackerError(
                    f"tracker {self.name!r} did not get the beginning of the run within"
                    f" {WAIT:.0f} s."
                )
            return self._run

    def _begin(self, event: RunStarted) -> None:
        self._abandon()
        if (
            event.kind != "fit"
            or event.settings.get("fast_dev_run")
            or event.run == self._elsewhere
        ):
            return
        run = _Run(self._choice, event, self._facts)
        thread = threading.Thread(
            target=run.follow, args=(self._thread,), name="workbench-tracker", daemon=True
        )
        thread.start()
        with self._begun:
            self._run, self._thread = run, thread
            self._begun.notify_all()

    def _abandon(self) -> None:
        """End a run whose `RunEnded` did not arrive."""
        if self._run is not None:
            self._run.on_event(RunEnded("failed", self._run.step, 0.0))
        self._run = None

    def _end(self) -> None:
        """Wait until all events of the run are sent to the tracker."""
        if self._run is not None and self._thread is not None:
            self._thread.join(WAIT)
            if self._thread.is_alive():
                self._run.failed(
                    "ending",
                    TimeoutError(
                        f"it is still sending after {WAIT:.0f} s, and continues in the background"
                    ),
                )
        self._run = None


def tracker_listeners(trackers: Any, root: Path, model: Any) -> list[TrackerListener]:
    """Make a listener for each of the trackers; files go to `<root>/trackers/<name>`."""

    def facts() -> dict[str, Any]:
        hparams = getattr(model, "hparams", None)
        values = vars(hparams) if isinstance(hparams, Namespace) else hparams
        return {"hparams": values} if isinstance(values, Mapping) and values else {}

    return [
        TrackerListener(choice, facts) for choice in choices(trackers, root.absolute() / "trackers")
    ]


def _with_facts(choice: Choice, facts: dict[str, Any]) -> TrackerListener:
    return TrackerListener(choice, lambda: facts)


@dataclass(frozen=True, slots=True)
class _Point:
    """Numbers for the tracker, and the update at which they were measured."""

    step: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings that the tracker is to add to those of the run."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Text:
    """Text for the tracker, where it accepts text."""

    step: int
    values: dict[str, str]


class _Run:
    """One fit in one tracker: `on_event` runs in the thread of the events, `follow` in the run's
    own thread.
    """

    def __init__(
        self, choice: Choice, event: RunStarted, facts: Callable[[], dict[str, Any]]
    ) -> None:
        self._choice = choice
        self._event = event
        self._facts = facts
        self._post: queue.SimpleQueue[_Point | _Text | _Settings | RunEnded] = queue.SimpleQueue()
        self._tracker: GeneralTracker | None = None
        self._ready = threading.Event()
        """Set when the tracker has started, or failed to."""
        self._pace = _Pace()
        self._left: StepsDone | None = None
        """The latest event whose last update was not sent to the tracker."""
        self._said = False
        self._failure: TrackerError | None = None
        self.step = 0

    # -- on the thread of the events

    def on_event(self, event: _Heard) -> None:
        """Queue the parts of this event that the tracker can show."""
        if isinstance(event, StepsDone):
            self._rows(event)
            return
        if isinstance(event, Validated | Logged | RunEnded):
            self._catch_up()
        if isinstance(event, Validated | Logged):
            self.step = event.step
            self._post.put(_Point(event.step, {**event.metrics, "epoch": event.epoch}))
        elif isinstance(event, Changed):
            changed = {
                f"changed/{name}": value
                for name, value in event.values.items()
                if value is not None
            }
            self._post.put(_Point(event.step, changed))
        elif isinstance(event, Resumed):
            self._post.put(
                _Text(event.step, {"resumed": f"{event.run}, checkpoint {event.checkpoint}"})
            )
        elif isinstance(event, Message) and event.level != "info":
            self._post.put(_Text(event.step, {event.level: event.text}))
        elif isinstance(event, RunEnded):
            self._post.put(event)

    # -- on the thread that trains

    def put(self, item: _Point | _Settings) -> None:
        """Queue what the user's module logs to the tracker itself."""
        self._post.put(item)

    def started(self) -> GeneralTracker:
        """Return the tracker, after waiting for its start. TrackerError: it did not start."""
        if not self._ready.wait(WAIT):
            raise TrackerError(f"tracker {self._choice.name!r} did not start within {WAIT:.0f} s.")
        if self._tracker is None:
            raise self._failure or TrackerError(f"tracker {self._choice.name!r} did not start.")
        return self._tracker

    # -- on the thread of the events

    def raise_new(self) -> None:
        """Raise the latest failure, unless it was raised before."""
        if self._failure is not None and not self._said:
            self._said = True
            raise self._failure

    def _rows(self, event: StepsDone) -> None:
        if not event.rows:
            return
        chosen = self._pace.rows(event) if self._post.qsize() < BEHIND else []
        for point in _points(event, chosen):
            self._post.put(point)
        self.step = int(event.steps[-1])
        self._left = None if chosen else event

    def _catch_up(self) -> None:
        """Send the last update if it was left out; called before a validation and at the end."""
        if self._left is not None:
            for point in _points(self._left, [self._left.rows - 1]):
                self._post.put(point)
        self._left = None

    # -- in its own thread

    def follow(self, before: threading.Thread | None) -> None:
        """Send the events of a run to the tracker, from its start to its end, after the previous
        run has ended.
        """
        if before is not None:
            before.join()
        with OwnState().here():
            PartialState(cpu=True)  # accelerate's trackers write to its log, and that needs a state
            tracker = self._tracker = self._start()
            self._ready.set()
            end = self._tell(tracker)
            if tracker is not None:
                self._attempt("ending", lambda: self._choice.end(tracker, end))

    def _start(self) -> GeneralTracker | None:
        started: list[GeneralTracker] = []
        if not self._attempt(
            "starting", lambda: started.append(self._choice.start(self._event.run))
        ):
            return None
        tracker = started[0]
        self._attempt(
            "taking the settings", lambda: tracker.store_init_configuration(self._configuration())
        )
        return tracker

    def _configuration(self) -> dict[str, Any]:
        event = self._event
        return flat(
            without_secrets(
                {"run": event.run, "device": event.device, **event.settings, **self._facts()}
            )
        )

    def _tell(self, tracker: GeneralTracker | None) -> RunEnded:
        """Send everything until the fit has ended; returns how it ended."""
        failures = 0
        while not isinstance(item := self._post.get(), RunEnded):
            if (
                tracker is None
                or failures == PATIENCE
                or (isinstance(item, _Text) and not self._choice.words)
            ):
                continue
            if isinstance(item, _Settings):
                went = self._attempt(
                    "taking hyperparameters", partial(tracker.store_init_configuration, item.values)
                )
            else:
                went = self._attempt("taking values", partial(tracker.log, item.values, item.step))
            failures = 0 if went else failures + 1
        if tracker is not None and failures < PATIENCE and self._choice.words:
            how = item.status if item.error is None else f"{item.status}: {item.error}"
            self._attempt("taking values", partial(tracker.log, {"status": how}, item.step))
        return item

    def _attempt(self, what: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.failed(what, error)
            return False
        return True

    def failed(self, what: str, error: BaseException) -> None:
        """Keep the first failure of the run, for the listener to raise."""
        if self._failure is None:
            said = f"{type(error).__name__}: {error}"
            why = self._choice.hide(said)
            text = (
                f"tracker {self._choice.name!r} failed at {what} for {self._event.run} ({why}); the"
                " training continues."
            )
            self._failure = TrackerError(text)
            if why == said:  # else its traceback would print what was hidden
                self._failure.__cause__ = error


class _Pace:
    """Selects the updates that a tracker gets, by the clock of the run: `RATE` a second, `BURST`
    at once.
    """

    def __init__(self) -> None:
        self._allowed = float(BURST)
        self._seconds = 0.0

    def rows(self, event: StepsDone) -> list[int]:
        """Rows of this event at even distances, its last one among them; empty while it is too
        soon.
        """
        passed = max(0.0, event.seconds - self._seconds)
        self._seconds = event.seconds
        self._allowed = min(BURST, self._allowed + RATE * passed)
        number = min(event.rows, int(self._allowed))
        self._allowed -= number
        return [(index + 1) * event.rows // number - 1 for index in range(number)]


def _points(event: StepsDone, rows: list[int]) -> Iterator[_Point]:
    """The numbers of these rows, without the norms of single layers."""
    if not rows:
        return
    columns = {name: event.array(name) for name in event.columns if name != "layer_norms"}
    for row in rows:
        # NaN says that an update had no such value; the loss is a number of its own.
        values = {
            name: float(v[row])
            for name, v in columns.items()
            if name == "loss" or not np.isnan(v[row])
        }
        yield _Point(event.step + event.every * row, {**values, "epoch": event.epoch})
