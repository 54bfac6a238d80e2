"""Defines Job: a fit, a search or an evaluation, with the same methods wherever it runs."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, Unpack

from workbench import commands
from workbench.commands import (
    Change,
    Checkpoint,
    Command,
    Histograms,
    Mailbox,
    Pause,
    Resume,
    Scheduled,
    Stop,
    Validate,
)
from workbench.events import (
    Event,
    Message,
    RunEnded,
    RunStarted,
    Status,
    StatusChanged,
    StepsDone,
    Validated,
)
from workbench.instruments.memory import is_out_of_memory
from workbench.launch import code_line, signals
from workbench.launch.cell_context import CellContext
from workbench.launch.terminal.progress import ProgressBar
from workbench.launch.turns import Claim, Turn
from workbench.runs.live_change import live_change
from workbench.runs.printable import printable
from workbench.runs.record.event_log import EventLog
from workbench.runs.store import RunFolder
from workbench.settings import Settings, lists_keywords, metadata_of
from workbench.settings.kwargs import LiveKwargs
from workbench.settings.spellings import attribute_hint

T = TypeVar("T")


WORKERS = ("workbench-runner", "workbench-event-writer", "workbench-control")
"""The names of the threads that do a job's work, or take the commands in its folder."""
_NAMED = 5
"""The most commands that one message lists."""


class EventSink(Protocol):
    """Takes the events of a job."""

    def __call__(self, event: Event, /) -> None: ...

    def settle(self, seconds: float = 3.0) -> None:
        """Wait, at most this long, until the record holds all emitted events."""

    def printed(self, line: str) -> None:
        """Take a line that another process of the job has printed."""


class NullSink:
    """An event sink that drops everything; ranks other than 0 have it, since only rank 0 emits."""

    def __call__(self, event: Event, /) -> None: ...

    def settle(self, seconds: float = 3.0) -> None:
        """Return at once: it keeps no record."""

    def printed(self, line: str) -> None:
        """Drop the line."""


class Detached(NamedTuple):
    """A job that another process runs."""

    folder: RunFolder
    """Its record, which that process writes."""
    left: threading.Event
    """Set when no code in this process waits for it any more."""


class JobSink(EventSink, Protocol):
    """The event sink of a job in the process that submitted it."""

    def away(self) -> contextlib.AbstractContextManager[Detached]:
        """Context manager in which another process does the job and writes its record; this process
        only passes its events on.

        Meanwhile jobs of other benches may run. Raises RuntimeError where the job has no folder.
        """

    def recorded(self, event: Event, line: int) -> None:
        """Take an event that another process has recorded; `line` is its line in the record."""


class Work(Protocol):
    """The work of a job; it is called when the job has its turn."""

    updates: int
    """How many updates it has taken."""
    settings: Settings
    """The settings of the job. A fit that continues a run gets that run's settings when its turn
    comes; before, they are those of the call.
    """

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status: ...


class Job(Generic[T]):
    """A fit, a search or an evaluation. It is returned at once; `result()` waits for its result.

    `events` grows while it runs: a sequence whose older part is read from the record when needed.
    An interrupt in `result()` or `wait()` stops the job at its next update, keeps what it has, and
    is raised again.

    Attributes:
        id: the name of its record: "0012-fit".
        kind: "fit", "find_lr", "find_batch_size", "find_num_workers", "find_precision",
            "find_clip_val", "find_weight_decay", "find_recipe", "tune", "profile", "validate",
            "test" or "predict".
        folder: the folder of its record; None: this process has none for it.
        events: its events so far, in order.
    """

    def __init__(
        self,
        id: str,
        kind: str,
        folder: RunFolder | None,
        work: Work,
        finish: Callable[[Job[T]], T],
        called: Callable[[Job[T], str, Mapping[str, Any], str], Callable[[], object]] | None = None,
    ) -> None:
        """called: called before a command is left for the job, with the job, the method's name, its
        arguments, and "" or (for a command of another process) the code that gives the job there:
        "wb.attach('0012-fit')". It returns a function to call afterwards.
        """
        self.id = id
        self.kind = kind
        self.folder = folder
        self.events = EventLog(record=None if folder is None else folder.path)
        self._inbox = Mailbox()
        self._stopping = False
        """Whether it was asked to stop."""
        self._work = work
        self._finish = finish
        self._called = called
        self._turn = Turn(id, kind, Claim())
        self._why = ""
        """What it waits for, as its latest event says."""
        self._status: Status = "queued"
        self._began: float | None = None
        self._error: BaseException | None = None
        self._cell = CellContext()
        self._ended = threading.Event()
        self._left: threading.Event | None = None
        self._recorded = 0
        """The updates of its latest flush."""
        self._shown = 0
        """How many events were shown in a waiting cell, so that each warning is printed once."""
        self._output: deque[str] = deque(maxlen=1000)
        self._refused: list[Message] = []
        """Messages about commands that came through its folder while it did not run."""
        self._emit: JobSink | None = None
        self._refusing = threading.Lock()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise AttributeError for the name of a setting: an assignment would not change the
        setting.
        """
        if name in Settings.model_fields:
            how = (
                f"job.change({name}=…)"
                if metadata_of(name).live
                else f"bench.fit({name}=…), when it is asked for"
            )
            raise AttributeError(f"job.{name} = … would change nothing: {how}.")
        super().__setattr__(name, value)

    @property
    def output(self) -> list[str]:
        """The last 1000 lines that the ranks of a pool have printed during the job. They are
        also shown at once.
        """
        return list(self._output)

    @property
    def settings(self) -> Settings:
        """The settings of the job."""
        return self._work.settings

    @property
    def _run_path(self) -> Path | None:
        """The folder of its record; None: it has none."""
        return None if self.folder is None else self.folder.path

    # An `attrgetter` has no annotations: Jedi, which completes in notebooks, fails at a property
    # that returns a Literal.
    status: Status = property(  # type: ignore[assignment]
        attrgetter("_status"),
        doc='"queued", "running", "paused", "finished", "stopped" or "failed".',
    )

    @property
    def waits_for(self) -> str:
        """What it waits for ("waiting for device 0: 0007-fit trains on it"); "": it does not
        wait.
        """
        return self._why

    def done(self) -> bool:
        """Return whether it has finished, failed or been stopped."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it ends, `timeout` seconds at most, and show its progress; returns whether
        it has ended.
        """
        self._check_waits()
        try:
            over = self._watch(timeout)
        except KeyboardInterrupt:
            self._interrupted()
            raise
        if over:
            signals.let_go()
        return over

    def _check_waits(self) -> None:
        if threading.current_thread().name in WORKERS and not self.done():
            raise RuntimeError(
                f"result() and wait() would deadlock in a listener or a model of {self.kind}"
                f" {self.id}: the job waits for this call to return."
            )

    def watch(self) -> bool:
        """Draw it in a terminal until it ends: progress, values with their history, gradient norms
        by layer, where the time goes.

        Keys pause it, validate, write a checkpoint and stop it. "q" or an interrupt ends the
        drawing, and the job continues. Where standard output is no terminal, it shows the line of
        `wait()`. Returns whether the job has ended.
        """
        self._check_waits()
        from workbench.launch.terminal.watch import watch  # rich takes 50 ms to import

        with contextlib.suppress(KeyboardInterrupt):
            shown = watch(
                self.id, self.kind, self.events, self._ended.wait, self._keys(), shown=self._shown
            )
            if shown is None:
                self._watch(None)
            else:
                self._shown = shown
        if self.done():
            signals.let_go()
        return self.done()

    def _keys(self) -> Mapping[str, tuple[str, Callable[[], str]]]:
        """The keys of `watch`, and what each does."""
        if self.done():
            return {}

        def asks(name: str, method: Callable[[], None]) -> Callable[[], str]:
            def call() -> str:
                method()
                return f"{name} requested."

            return call

        def pause_or_resume() -> str:
            return (
                asks("Resume", self.resume)()
                if self._status == "paused"
                else asks("Pause", self.pause)()
            )

        stop = {"s": ("stop", asks("Stop", self.stop))}
        if self.kind != "fit":
            return stop
        return {
            "p": ("pause or resume", pause_or_resume),
            "v": ("validate", asks("Validation", self.validate)),
            "c": ("write a checkpoint", asks("Checkpoint", self.checkpoint)),
            **stop,
        }

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end and return the result. A failed job raises its error; a stopped one
        returns what it has.

        Raises TimeoutError after `timeout` seconds; the job continues.
        """
        if not self.wait(timeout):
            raise TimeoutError(
                f"{self.kind} {self.id} is still {self._status} after {timeout} s; it continues to"
                " run."
            )
        if self._error is not None:
            raise self._error
        return self._finish(self)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the error with which it failed, or None.

        Raises TimeoutError after `timeout` seconds; the job continues.
        """
        if not self.wait(timeout):
            raise TimeoutError(
                f"{self.kind} {self.id} is still {self._status} after {timeout} s; it continues to"
                " run."
            )
        return self._error

    def stop(self, *, at: int | None = None) -> None:
        """End at the next update and keep the results so far. Where ranks of a pool do not end (one
        is suspended, say), a second call kills them; the run keeps its last checkpoint.

        at: end after this many updates of the fit.
        """
        self._ask(Stop() if at is None else self._at(at, Stop()), {} if at is None else {"at": at})

    def pause(self) -> None:
        """Wait before the next update, until `resume()`."""
        self._ask(Pause())

    def resume(self) -> None:
        """Continue after a pause."""
        self._ask(Resume())

    def validate(self) -> None:
        """Validate once before the next update, besides the scheduled validations. Schedules,
        early stopping and the best checkpoint ignore it.
        """
        self._ask(Validate())

    def checkpoint(self) -> None:
        """Write a checkpoint before the next update; it stays as long as the run does."""
        self._ask(Checkpoint())

    def histograms(self, layers: Sequence[str] = ()) -> None:
        """Measure in the next update how the weights and activations of layers are distributed,
        which share of their units is dead, and how saturated their activations are.

        layers: names of layers or modules, `job.histograms(["encoder"])`; none: all. 32 layers are
        measured at most. The panel shows them under *Gradients and clipping*, and
        `run.histograms` has them. Losses are the same with and without it.
        """
        if isinstance(layers, str) or not isinstance(layers, Sequence):
            example = layers if isinstance(layers, str) else "encoder"
            raise TypeError(f"layers={layers!r}: give a list of names, [{example!r}].")
        command = Histograms(tuple(layers))
        self._ask(command, commands.arguments_of(command))

    @lists_keywords(LiveKwargs)
    def change(self, *, at: int | None = None, **values: Unpack[LiveKwargs]) -> None:
        """Change settings from the next update on: `change(lr=1e-3)`,
        `change(gradient_clip_val=None)`.

        at: change them after this many updates of the fit: `change(lr=1e-4, at=500)`.
        Where accumulate_grad_batches was {epoch: batches}, its later epochs still take effect.
        """
        command, arguments = self._checked_change(values)
        if at is None:
            self._ask(command, arguments)
        else:
            self._ask(self._at(at, command), {**arguments, "at": at})

    def _at(self, at: int, command: Stop | Change) -> Scheduled:
        """The command for after this many updates; raises ValueError for what is no number of them,
        and RuntimeError for a job that has no updates.
        """
        if self.kind != "fit":
            raise RuntimeError(
                f"at={at!r} is for fits; a {self.kind} job can only be stopped at once."
            )
        if type(at) is not int or at < 0:
            raise ValueError(f"at={at!r} should be a number of updates, 0 or more.")
        return Scheduled(at, command)

    def _checked_change(self, values: Mapping[str, Any]) -> tuple[Change, dict[str, Any]]:
        """The command for these values, and the settings as they were given."""
        commands.check("change", self.id, self.kind, self._over())
        return live_change(self.settings, values), Settings.named(values, "change")

    def _ask(self, command: Command, arguments: Mapping[str, Any] | None = None) -> None:
        """Leave a command for the job, and report it."""
        report = self._put(command, arguments)
        if report is not None:
            report()

    def _put(
        self, command: Command, arguments: Mapping[str, Any] | None = None, of: str = ""
    ) -> Callable[[], object] | None:
        """Leave a command for the job; returns a function that reports it.

        arguments: those of its method. of: see `called` of __init__.
        """
        method = commands.method_of(command)
        if not isinstance(command, Stop):
            commands.check(method, self.id, self.kind, self._over())
        report = (
            self._called(self, method, arguments or {}, of)
            if self._called is not None and not self.done()
            else None
        )
        self._stopping |= isinstance(command, Stop)
        self._inbox.put(command)
        return report

    # no property: Jedi cannot complete an object with a property of this type
    def _over(self) -> Status | None:
        """The status with which it has ended; None: it has not ended."""
        return self._status if self.done() else None

    def _interrupted(self) -> None:
        """Called when the user interrupts a wait: stop the job."""
        self._stopping = True
        self._inbox.put(Stop())
        if self._status != "queued":
            self._ended.wait()

    def _watch(self, timeout: float | None) -> bool:
        over = self._ended.is_set()
        if not sys.stderr or (over and self._shown >= len(self.events)):
            return self._ended.wait(timeout)
        bar = self.settings.enable_progress_bar and not over
        with ProgressBar(
            self.kind, self._began or time.time(), bar=bar, shown=self._shown
        ) as progress:
            seen = 0
            until = math.inf if timeout is None else time.monotonic() + timeout
            while not (over := self._ended.wait(max(0.0, min(0.2, until - time.monotonic())))):
                seen = progress.show(self.events, seen)
                if time.monotonic() >= until:
                    break
            self._shown = progress.show(self.events, seen)
        return over

    # The methods below are for the launcher.

    def _run(self, emit: JobSink) -> tuple[Status, BaseException | None]:
        """Do the work in this thread; a job that was stopped before its turn touches nothing."""
        with self._refusing:
            self._emit, refused, self._refused = emit, self._refused, []
        for message in refused:
            emit(message)
        try:
            if self._stopped_before():
                return "stopped", None
            self._begin()
            return self._cell.run(self._work, emit, self._inbox), None
        except BaseException as error:  # noqa: BLE001  # result() raises it
            if is_out_of_memory(error):
                _clear(error)  # its frames hold the tensors that took the memory
            return "failed", error
        finally:
            with self._refusing:
                self._emit = None

    def _is_next(self) -> bool:
        """Whether it may take its turn; a job of several ranks waits for those before it."""
        return True

    def _waits(self) -> StatusChanged | None:
        """Record why it waits, and return the event; None: it does not wait."""
        with self._refusing:
            why = self._turn.why
            if not why or self._emit is not None:
                return None
            event, written = StatusChanged("queued", why=why), None
            if self.folder is not None:
                # its work says so when it begins
                with contextlib.suppress(OSError):
                    written = self.folder.append(event)
            self._record(event, written)
        return event

    def _stopped_before(self) -> bool:
        """Whether it was stopped before its turn."""
        return self._inbox.has(Stop)

    def _begin(self) -> None:
        """Set the status when the job's turn comes."""
        self._status, self._why = "running", ""

    def _obey(self, command: Command) -> Callable[[], object] | None:
        """Carry out a command that another process left in the job's folder, as the job's method
        does; a refusal becomes a message. Returns a function that reports the command to listeners.
        """
        assert self.folder is not None
        try:
            asked = command
            if isinstance(command, Change):
                asked = self._checked_change(command.values)[0]
            elif isinstance(command, Scheduled) and isinstance(command.command, Change):
                asked = self._at(command.at, self._checked_change(command.command.values)[0])
            return self._put(
                asked, commands.arguments_of(asked), code_line.attached(self.folder.path)
            )
        except Exception as error:  # noqa: BLE001  # files may hold anything, and the thread serves other jobs, too
            self._refuse(f"a command of another process was left out: {error}")
            return None

    def _refuse(self, why: str) -> None:
        """Emit a message about a command that came through its folder: now, or when its work
        begins, or before its end.
        """
        message = Message(printable(why), "warning")
        with self._refusing:  # also while it is emitted: the work may end at any moment
            if self._emit is None:
                self._refused.append(message)
            else:
                self._emit(message)

    def _not_done(self, came: Sequence[Command | str]) -> list[Message]:
        """The messages about commands that were refused or not carried out; emitted before its
        end. came: the last commands in its folder.
        """
        for command in came:
            if isinstance(command, str):
                self._refuse(command)
        # a Stop is carried out: the job has ended
        late = [
            command
            for command in (*self._inbox.waiting(), *came)
            if not isinstance(command, str | Stop)
        ]
        if late:
            calls = [
                code_line.line(
                    commands.method_of(command), commands.arguments_of(command), of="job"
                )
                for command in late
            ]
            more = f" and {len(calls) - _NAMED} more" if len(calls) > _NAMED else ""
            self._refuse(
                f"{self.kind} {self.id} ended before it did what was asked:"
                f" {', '.join(calls[:_NAMED])}{more}."
            )
        with self._refusing:
            refused, self._refused = self._refused, []
        return refused

    def _set_detached(self, left: threading.Event | None) -> None:
        """Note that another process runs the job until `_detach` sets this event; None: no
        longer.
        """
        self._left = left

    def _detach(self) -> None:
        """Stop waiting for it: a job that another process runs continues, any other job stops."""
        if self._left is not None:
            self._left.set()
        else:
            self._stop_once()

    def _stop_once(self) -> None:
        """Stop it, unless that was asked for already: a second Stop kills ranks, which may be
        writing the last checkpoint.
        """
        if not self._stopping:
            self._stopping = True
            self._inbox.put(Stop())

    @property
    def updates(self) -> int:
        """How many updates it has taken: while it runs, as of the latest flush, some ten times a
        second.
        """
        return max(self._work.updates, self._recorded)

    def _forget_frames(self) -> None:
        """Free the objects in the frames of its error (mostly the model's state), which were
        kept for a debugger.
        """
        if self._error is not None:
            _clear(self._error)

    def _record(self, event: Event, line: int | None = None) -> None:
        """Add an event of this job. line: the number of its line in the record; None: it is not
        there.
        """
        self.events.add(event, line)
        if isinstance(event, StatusChanged):
            self._status, self._why = event.status, event.why
        elif isinstance(event, RunStarted):
            self._status, self._why = "running", ""
            self._began = time.time()
            self._recorded = event.resumed_at
        elif isinstance(event, StepsDone):  # of a fit that continues, the earlier ones come first
            self._recorded = max(self._recorded, event.done)
        elif isinstance(event, RunEnded):
            self._status = event.status

    def _printed(self, line: str) -> None:
        """Add a line of its output."""
        self._output.append(line)

    def _end(self, status: Status, error: BaseException | None) -> None:
        """End it, after the listeners have got all its events; status "running": stop following
        it.
        """
        self._status, self._why = status, ""
        self._error = error
        self._ended.set()

    def __repr__(self) -> str:
        return f"<{self.kind} job {self.id}: {self._status}; .result() waits for what it finds>"

    def __getattr__(self, name: str) -> NoReturn:
        hint = attribute_hint("job", name, Job) or f" The result may have it: use .result().{name}"
        hint = "" if name.startswith("_") else hint
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{hint}")


AnyJob = Job[Any]


def metrics_of(job: Job[dict[str, float]]) -> dict[str, float]:
    """Return the metrics that a validation or a test reported."""
    return next((dict(e.metrics) for e in reversed(job.events) if isinstance(e, Validated)), {})


def _clear(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
