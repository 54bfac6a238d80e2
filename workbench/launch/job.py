"""A job: work that was asked for, as its owner sees it. Where it runs is the launcher's business."""

from __future__ import annotations

import difflib
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from workbench.commands import Change, Checkpoint, Command, Mailbox, Pause, Resume, Stop, Validate
from workbench.events import Event, RunEnded, RunStarted, Status, StatusChanged
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.progress import Progress
from workbench.runs.event_log import EventLog
from workbench.runs.store import RunFolder
from workbench.settings import Settings, SettingsError, knob

T = TypeVar("T")


WORKERS = ("workbench-runner", "workbench-clerk")
"""The names of the threads that do a job's work."""


class EventSink(Protocol):
    """Where a job's events go."""

    def __call__(self, event: Event, /) -> None: ...

    def settle(self, seconds: float = 3.0) -> None:
        """Wait until the record holds all that was emitted; so long at most."""

    def printed(self, line: str) -> None:
        """Another process that does the job has printed this."""


class Detached(NamedTuple):
    """A job that another process does."""

    folder: RunFolder
    """Its record, which that process writes."""
    left: threading.Event
    """Set when nobody here waits for it any more."""


class JobSink(EventSink, Protocol):
    """The outlet of a job in the process that asked for it."""

    def away(self) -> AbstractContextManager[Detached]:
        """Inside, another process does the job and writes its record: here its events are only heard.

        Jobs of other benches have their turn meanwhile. RuntimeError where the job has no folder.
        """

    def recorded(self, event: Event, line: int) -> None:
        """An event that another process has recorded, in this line."""


class Work(Protocol):
    """What a job does when it has its turn."""

    updates: int
    """How many updates it has taken."""
    settings: Settings
    """What it works with; of a fit that goes on from a run that is not over yet, what can be foreseen of it."""

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status: ...


class Job(Generic[T]):
    """A fit, a finder or a check that was asked for. It returns at once; `result()` waits for what it found.

    `events` grows while it runs: a sequence whose older part is read from the record when it is asked for. An interrupt in `result()` or `wait()` stops the job at its next update, keeps
    what it has, and is raised again.
    """

    def __init__(
        self, id: str, kind: str, folder: RunFolder | None, work: Work, finish: Callable[[Job[T]], T],
        called: Callable[[Job[T], str, Mapping[str, Any]], Callable[[], object]] | None = None,
    ) -> None:  # fmt: skip
        """called: hears what is about to be asked of it while it is not over (the method's name, and its arguments), and gives
        what to call when that has been asked."""
        self.id = id
        self.kind = kind
        self.folder = folder
        self.events = EventLog(record=None if folder is None else folder.path)
        self.inbox = Mailbox()
        self._work = work
        self._finish = finish
        self._called = called
        self._status: Status = "queued"
        self._began: float | None = None
        self._error: BaseException | None = None
        self.ended = threading.Event()
        self._left: threading.Event | None = None
        self._output: deque[str] = deque(maxlen=1000)

    def __setattr__(self, name: str, value: Any) -> None:
        """A setting that is set as an attribute would do nothing."""
        if name in Settings.model_fields:
            how = f"job.change({name}=…)" if knob(name).live else f"bench.fit({name}=…), when it is asked for"
            raise AttributeError(f"job.{name} = … would change nothing: {how}.")
        super().__setattr__(name, value)

    @property
    def output(self) -> list[str]:
        """What the ranks of a pool have printed for it, line by line; the last 1000. They are shown as they come, too."""
        return list(self._output)

    @property
    def settings(self) -> Settings:
        """The settings that it works with."""
        return self._work.settings

    @property
    def status(self) -> Status:
        """ "queued", "running", "paused", "finished", "stopped" or "failed"."""
        return self._status

    def done(self) -> bool:
        """Whether it is over, one way or another."""
        return self.ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, `timeout` seconds at most, showing progress; whether it is."""
        if threading.current_thread().name in WORKERS and not self.done():
            raise RuntimeError(f"a listener or a model cannot wait for {self.kind} {self.id}: the job waits for it.")
        try:
            return self._watch(timeout)
        except KeyboardInterrupt:
            self._interrupted()
            raise

    def result(self, timeout: float | None = None) -> T:
        """What it found. A failed job raises its error; a stopped one returns what it has.

        TimeoutError after `timeout` seconds; the job goes on then.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"{self.kind} {self.id} is still {self._status} after {timeout} s; it goes on.")
        if self._error is not None:
            raise self._error
        return self._finish(self)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error it failed with, or None."""
        if not self.wait(timeout):
            raise TimeoutError(f"{self.kind} {self.id} is still {self._status} after {timeout} s; it goes on.")
        return self._error

    def stop(self) -> None:
        """End at the next update and keep what there is."""
        self._ask("stop", Stop())

    def pause(self) -> None:
        """Wait before the next update, until `resume()`."""
        self._only_fits("pause")
        self._ask("pause", Pause())

    def resume(self) -> None:
        """Go on after a pause."""
        self._only_fits("resume")
        self._ask("resume", Resume())

    def validate(self) -> None:
        """Check the validation data once before the next update, beside the checks that come anyway; nothing depends on it."""
        self._only_fits("validate")
        self._ask("validate", Validate())

    def checkpoint(self) -> None:
        """Write a checkpoint before the next update; it stays as long as the run does."""
        self._only_fits("checkpoint")
        self._ask("checkpoint", Checkpoint())

    def change(self, **values: float | None) -> None:
        """New settings from the next update on: `change(lr=1e-3)`, `change(gradient_clip_val=None)`.

        Of accumulate_grad_batches={epoch: batches} the next key still comes into force at its epoch.
        """
        self._only_fits("change")
        if not values:
            raise SettingsError("change() changes nothing: give what is to change, change(lr=1e-3), say.")
        values = Settings.named(values, "change")
        checked = self.settings.replace(**values)
        fixed = [name for name in values if not knob(name).live]
        if fixed:
            live = [name for name in type(checked).model_fields if knob(name).live]
            raise SettingsError(f"{fixed[0]} cannot change while a run goes on; these can: {', '.join(live)}.")
        if "lr" in values and not checked.lr:
            raise SettingsError("lr=0: while a run goes on its rate cannot become 0, from where no ratio leads back: pause() the run.")
        plan = next((name for name in values if isinstance(getattr(checked, name), dict)), None)
        if plan is not None:
            raise SettingsError(
                f"{plan}={values[plan]!r}: while a run goes on it changes to one number, which holds from the next update on: "
                f"change({plan}=4), say. A plan by epochs belongs to fit({plan}=…)."
            )
        self._ask("change", Change({name: getattr(checked, name) for name in values}), **values)

    def _ask(self, method: str, command: Command, **values: float | None) -> None:
        tell = self._called(self, method, values) if self._called is not None and not self.done() else None
        self.inbox.put(command)
        if tell is not None:
            tell()

    def _only_fits(self, what: str) -> None:
        if self.kind != "fit":
            raise RuntimeError(f"{what}() is for fits; a {self.kind} job can only be stopped.")
        if self.done():
            raise RuntimeError(f"{what}() comes too late: {self.kind} {self.id} has {self._status}.")

    def _interrupted(self) -> None:
        """Whoever waits does not want it any more."""
        self.inbox.put(Stop())
        if self._status != "queued":
            self.ended.wait()

    def _watch(self, timeout: float | None) -> bool:
        if not sys.stdout or self.ended.is_set() or not self.settings.enable_progress_bar:
            return self.ended.wait(timeout)
        with Progress(self.kind, self._began or time.time()) as progress:
            seen = 0
            until = math.inf if timeout is None else time.monotonic() + timeout
            while not (over := self.ended.wait(max(0.0, min(0.2, until - time.monotonic())))):
                seen = progress.show(self.events, seen)
                if time.monotonic() >= until:
                    break
            progress.show(self.events, seen)
        return over

    # What follows is for the launcher.

    def run(self, emit: JobSink) -> tuple[Status, BaseException | None]:
        """Do the work in this thread; one that was stopped before its turn touches nothing."""
        if self.inbox.has(Stop):
            return "stopped", None
        self._status = "running"
        try:
            return self._work(emit, self.inbox), None
        except BaseException as error:  # noqa: BLE001  # handed on by result(), whatever it is
            if is_out_of_memory(error):
                _clear(error)  # its frames hold the tensors that took the memory
            return "failed", error

    def away(self, left: threading.Event | None) -> None:
        """Another process does it, until `leave` sets this; None: no longer."""
        self._left = left

    def leave(self) -> None:
        """Nobody will wait for it: what another process does goes on by itself, anything else ends."""
        if self._left is not None:
            self._left.set()
        else:
            self.inbox.put(Stop())

    @property
    def updates(self) -> int:
        """How many updates the work has taken."""
        return self._work.updates

    def forget_frames(self) -> None:
        """Let go of what the frames of its error hold (the model's state, mostly); they were kept for a debugger."""
        if self._error is not None:
            _clear(self._error)

    def hear(self, event: Event, line: int | None = None) -> None:
        """One more event of this job. line: the number of its line in the record; None: it is not there."""
        self.events.add(event, line)
        if isinstance(event, StatusChanged):
            self._status = event.status
        elif isinstance(event, RunStarted):
            self._status = "running"
            self._began = time.time()
        elif isinstance(event, RunEnded):
            self._status = event.status

    def printed(self, line: str) -> None:
        """One more line of its output."""
        self._output.append(line)

    def end(self, status: Status, error: BaseException | None) -> None:
        """It is over, and everybody has heard; or ("running") nobody here follows it any longer."""
        self._status = status
        self._error = error
        self.ended.set()

    def __repr__(self) -> str:
        return f"<{self.kind} job {self.id}: {self._status}; .result() waits for what it finds>"

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else f" {_hint(name)}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}.{hint}")


AnyJob = Job[Any]

_MEANT = {
    "stop() ends it at its next update and keeps what there is": ("cancel", "kill", "terminate", "abort", "interrupt", "end_job", "quit"),
    "done() says whether it is over": ("finished", "is_done", "isdone", "complete", "completed", "ready", "is_alive"),
    "status says where it is: 'queued', 'running', 'paused', 'finished', 'stopped' or 'failed'": (
        "state", "running", "is_running", "queued", "paused", "is_paused", "cancelled", "canceled", "stopped", "failed", "phase",
    ),
    "wait() waits until it is over": ("join", "block"),
    "result() gives what it found": ("get", "results", "value", "run", "output_value", "fetch"),
    "exception() gives the error that it failed with": ("error", "traceback"),
    "resume() goes on after a pause": ("unpause", "continue_", "proceed", "restart"),
    "output is what its processes printed, and events what they reported": ("log", "logs", "stdout", "stderr", "print"),
    "change(lr=…) changes settings of a fit while it runs": ("set", "update", "set_lr"),
    "checkpoint() writes a checkpoint before the next update": ("save", "save_checkpoint"),
    "wb.Workbench(…, listeners=[f]) hears every event of its jobs": ("add_done_callback", "subscribe", "on_end", "callbacks"),
}  # fmt: skip
"""What a job has, and the words by which other libraries have the same."""
_BY_WORD = {word: what for what, words in _MEANT.items() for word in words}


def _hint(name: str) -> str:
    """What was meant by an attribute that no job has."""
    if name.lower() in _BY_WORD:
        return f"Of a job, {_BY_WORD[name.lower()]}."
    near = difflib.get_close_matches(name, [word for word in dir(Job) if not word.startswith("_")], n=1, cutoff=0.75)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"What it found may have: use .result().{name}"


def _clear(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
