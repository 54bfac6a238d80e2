"""Runs the jobs of a bench in a thread of this process, one after another. Jobs of other benches
may run beside them (`turns.py`).

Two threads live while there are jobs. The runner runs one. The event writer gives each event to the
record and to the listeners, so that neither a slow disk nor a slow listener delays an update.
Outside a notebook's kernel both keep the process alive until the jobs have ended; in a kernel they
end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from workbench.commands import Stop
from workbench.events import Event, Message, Resumed, RunEnded, StatusChanged, StepsDone, Validated
from workbench.launch import folder_commands, signals
from workbench.launch.cell_context import in_kernel
from workbench.launch.job import WORKERS, AnyJob, Detached
from workbench.launch.joined import group
from workbench.runs.record.event_log import RecordGone
from workbench.runs.store import RunFolder
from workbench.secrets import beginning, ending, hidden
from workbench.tracebacks import user_line, whole_text

Tell = Callable[[AnyJob, Event], Sequence[str]]
"""Gives an event of a job to the listeners; returns a message for each listener that failed for
the first time.
"""
SWITCH_INTERVAL = 5e-4
"""The interpreter's switch interval while a job runs, in seconds: a busy cell then slows
training half as much.
"""

_open: weakref.WeakSet[ThreadLauncher] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Wait for the jobs at the end of the process; an interrupt of that wait stops them first."""
    for launcher in tuple(_open):
        if not in_kernel():
            launcher.end()


def _has_jobs() -> bool:
    return any(launcher.has_jobs for launcher in tuple(_open))


def _stop_all(signal: str) -> None:
    """Stop all jobs and wait until they have ended. signal: why, for their records.

    A notebook's launched jobs continue, and its kernel waits for the others only for a few seconds:
    Jupyter kills it then.
    """
    kernel = in_kernel()
    until = time.monotonic() + (_GRACE if kernel else threading.TIMEOUT_MAX / 2)
    jobs = [job for launcher in tuple(_open) for job in launcher.shut()]
    for job in jobs:
        job._refuse(
            f"{signal} has come: {job.kind} {job.id} stops at its next update, and then its process"
            " ends."
        )
        if kernel:
            job._detach()
        else:
            job._stop_once()
    for job in jobs:
        job._ended.wait(max(0.0, until - time.monotonic()))
    group.tell_end(signal)


_CATCH_UP = 3.0
"""The most seconds that the end of a job waits until a full disk can be written."""
_GRACE = 5.0
"""The most seconds that a kernel which got SIGTERM waits for its jobs."""
_WHERE, _TRACEBACK, _ERROR = 400, 20_000, 1 << 16
"""The most characters of the user's line, the traceback and the error in RunEnded."""


class ThreadLauncher:
    """Queues the jobs of one bench and runs them in a thread."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._waiting: deque[AnyJob] = deque()
        self._lock = threading.Lock()
        self._running: AnyJob | None = None
        self._closed = False
        self._runner: threading.Thread | None = None

    def submit(self, job: AnyJob) -> None:
        """Add a job to the end of the queue."""
        with self._lock:
            self.check_open()
            _open.add(self)
            self._waiting.append(job)
            job._turn.submit()
        folder_commands.listen(job)
        self._tell_why(job)
        with self._lock:
            if self._running is None and self._waiting:
                self._start_runner()
        signals.catch(_has_jobs, _stop_all)

    def _tell_why(self, job: AnyJob) -> None:
        """Record why the job waits, and tell the listeners."""
        event = job._waits()
        if event is not None:
            self._tell(job, event)

    def _start_runner(self) -> None:
        """Run the next job in a thread of its own: what it leaves in the state of its thread
        reaches no other job. The caller holds the lock.
        """
        runner = threading.Thread(
            target=self._run, args=(self._waiting[0],), name=WORKERS[0], daemon=in_kernel()
        )
        runner.start()
        self._runner, self._running = runner, self._waiting.popleft()

    def drop(self, job: AnyJob) -> None:
        """End a stopped job that waits for another one, before its turn; its end is recorded,
        and listeners get no event.
        """
        with self._lock:
            if job is self._running or job not in self._waiting:
                return
            self._waiting.remove(job)
        job._turn.end()
        JobRunner(job, lambda job, event: ()).run()

    def cancel(self, job: AnyJob) -> None:
        """Stop a job whose submission an error or an interrupt cut off, and end it here if the
        runner does not have it.
        """
        job._inbox.put(Stop())
        with self._lock:
            if job is self._running or job.done():
                return
            if job in self._waiting:
                self._waiting.remove(job)
        job._turn.end()
        folder_commands.leave(job)
        try:
            JobRunner(job, lambda job, event: ()).run()
        except RuntimeError as error:  # no thread can be started, so its end cannot be recorded
            job._end("failed", error)

    def check_open(self) -> None:
        """Raise RuntimeError once it is closed."""
        if self._closed:
            raise RuntimeError("this bench is closed; make a new Workbench.")

    @property
    def has_jobs(self) -> bool:
        """Whether a job runs or waits."""
        running = self._running
        return bool(self._waiting) or (running is not None and not running.done())

    def shut(self) -> list[AnyJob]:
        """Take no more jobs; returns those that have not ended."""
        with self._lock:
            self._closed = True
            return [*self._waiting, *([self._running] if self._running else [])]

    def close(self) -> None:
        """Stop the running job, drop the waiting ones, and wait until they end. Launched jobs
        continue.
        """
        jobs = self.shut()
        for job in jobs:
            job._detach()
        for job in jobs:
            job._ended.wait()
        signals.let_go()

    def end(self) -> None:
        """Stop everything and wait for the runner, because the process ends."""
        self.close()
        if self._runner is not None:
            self._runner.join()

    def _run(self, job: AnyJob) -> None:
        # A thread uses the value of `torch.set_num_threads` only after its first `get_num_threads`;
        # until then MKL takes all cores.
        torch.get_num_threads()
        while True:
            self._run_in_turn(job)
            with self._lock:
                self._running = None
                if not self._waiting:
                    return
                try:
                    self._start_runner()
                    return
                except RuntimeError:  # the system has no thread left: this one goes on
                    job = self._running = self._waiting.popleft()

    def _run_in_turn(self, job: AnyJob) -> None:
        """Run a job when its turn comes; one that is stopped before needs none (`Job._run`)."""
        with contextlib.ExitStack() as stack:
            turn = job._turn
            stack.callback(turn.end)
            turn.begin(lambda: job._inbox.has(Stop), job._is_next, lambda: self._tell_why(job))
            if turn.in_process:
                stack.enter_context(_fast_thread_switches())
            try:
                JobRunner(job, self._tell, stack.close).run()
            except BaseException as error:  # noqa: BLE001  # otherwise code that waits for the job would wait for ever
                folder_commands.leave(job)
                job._end("failed", error)


def error_text(error: BaseException) -> str:
    """The text of an error in RunEnded, without secrets."""
    return beginning(f"{type(error).__name__}: {error}", _ERROR)


class StillRunning(RuntimeError):
    """We stopped following a job that is still running."""


class JobRunner:
    """Runs one job, and is its event sink; an event writer of its own hands the events on."""

    def __init__(
        self, job: AnyJob, tell: Tell, end_turn: Callable[[], None] = lambda: None
    ) -> None:
        """end_turn: called when jobs of other benches may run, which can be before this one has
        ended.
        """
        self._job = job
        self._tell = tell
        self._end_turn = end_turn
        self._ended: RunEnded | None = None
        """The RunEnded that another process has emitted for the job."""
        self._post: queue.SimpleQueue[tuple[Event, int | None] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._writing = job.folder is not None
        self._warned_unwritable = False
        """Whether the message that the record cannot be written was emitted."""
        self._gone: RecordGone | None = None
        """The error that the record has disappeared, once that was seen."""
        self._metrics: dict[str, float] = {}
        self._last_seconds = self._before = 0.0
        """Seconds of the run: at the latest event, and before this job began."""
        self._paused = 0.0
        self._paused_at: float | None = None

    def run(self) -> None:
        """Run the job in this thread, while another thread writes its events."""
        # a daemon where this thread is one
        event_writer = threading.Thread(target=self._write_events, name=WORKERS[1])
        event_writer.start()
        began = time.perf_counter()
        status, error = self._job._run(self)
        self._end_pause()
        left = isinstance(error, StillRunning)
        if not left and error is None:
            error = self._lost_record()
            status = status if error is None else "failed"
        if not left:
            end = self._ended or RunEnded(
                status=status,
                step=self._job._work.updates,
                seconds=self._before + time.perf_counter() - began - self._paused,
                error=None if error is None else error_text(error),
                metrics=self._metrics,
                where="" if error is None else beginning(user_line(error), _WHERE),
                traceback="" if error is None else ending(whole_text(error), _TRACEBACK),
            )
            self._post.put((end, None))
        self._post.put(None)
        event_writer.join()
        if error is None and self._gone is not None:  # it was seen when the end was written
            status, error = "failed", self._gone
        folder_commands.leave(self._job)
        # before the end is announced: code that waited for it finds the process's own state
        # restored
        self._end_turn()
        self._job._end("running" if left else status, error)

    def _lost_record(self) -> RecordGone | None:
        """The error that the record has disappeared meanwhile, if it has."""
        self.settle()
        if self._job.folder is not None and self._writing:
            try:
                self._job.folder.check_there()
            except RecordGone as error:
                self._lose(error)
        return self._gone

    def _lose(self, error: RecordGone) -> None:
        """Write no more events; the job ends at its next update."""
        self._writing, self._gone = False, error
        self._post.put((Message(str(error), "error"), None))
        self._job._stop_once()

    @contextlib.contextmanager
    def away(self) -> Iterator[Detached]:
        """See `JobSink.away`. If that process has emitted the end, this process does not write
        the record afterwards either.
        """
        if self._job.folder is None:
            raise RuntimeError(
                f"{self._job.kind} {self._job.id} has no folder, which another process would need."
            )
        self.settle()
        self._writing, left = False, threading.Event()
        self._job._set_detached(left)
        folder_commands.leave(self._job)  # that process takes them
        self._end_turn()
        try:
            yield Detached(self._job.folder, left)
        finally:
            self._job._set_detached(None)
            if self._ended is None and not left.is_set() and self._job.folder.path.is_dir():
                self.settle()
                self._job.folder.write_again()
                self._writing = True

    def settle(self, seconds: float = 3.0) -> None:
        """Wait until the event writer has written the queued events, so that what the caller
        saves next is not ahead of the record.
        """
        reached = threading.Event()
        self._post.put(reached)
        reached.wait(seconds)

    def printed(self, line: str) -> None:
        """Take a line that another process of the job printed."""
        self._job._printed(line)

    def __call__(self, event: Event, /) -> None:
        """Queue an event, and keep its values that RunEnded needs."""
        self._take(event, None)

    def recorded(self, event: Event, line: int) -> None:
        """Queue an event that another process has recorded."""
        self._take(event, line)

    def _take(self, event: Event, line: int | None) -> None:
        if isinstance(event, RunEnded):
            self._ended = event
            return
        if isinstance(event, StepsDone):
            self._metrics["loss"] = float(event.array("loss")[-1])
            self._last_seconds = event.seconds
        elif isinstance(event, Resumed):
            self._before = self._last_seconds
        elif isinstance(event, Validated):
            self._metrics.update(event.metrics)
        elif isinstance(event, StatusChanged):
            self._end_pause()
            self._paused_at = time.perf_counter() if event.status == "paused" else None
        self._post.put((event, line))

    def _end_pause(self) -> None:
        if self._paused_at is not None:
            self._paused += time.perf_counter() - self._paused_at
            self._paused_at = None

    def _write_events(self) -> None:
        while (posted := self._post.get()) is not None:
            if isinstance(posted, threading.Event):
                posted.set()
                continue
            event, line = posted
            try:
                self._handle(event, line)
            except BaseException as error:  # noqa: BLE001  # the events after it must still be passed on
                self._job._record(
                    hidden(Message(f"{type(event).__name__} was not passed on: {error!r}", "error"))
                )
        if self._job.folder is not None:
            self._job.folder.close()

    def _handle(self, event: Event, line: int | None = None) -> None:
        # once, for the record, the job's own events, the panel and the trackers
        event = hidden(event)
        if isinstance(event, RunEnded):
            self._catch_up()
            for message in self._job._not_done(folder_commands.end(self._job)):
                self._handle(message)
        folder, failed = self._job.folder, None
        try:
            if folder is not None and self._writing and line is None:
                line = folder.append(event)
        except RecordGone as error:
            self._lose(error)
        except OSError as error:
            failed = error
        finally:
            self._job._record(event, line)
        if folder is not None and failed is not None:
            self._warn_unwritable(folder, failed)
        for trouble in self._tell(self._job, event):
            self._handle(Message(trouble, "error"))

    def _warn_unwritable(self, folder: RunFolder, error: OSError) -> None:
        if not self._warned_unwritable:
            self._warned_unwritable = True
            text = (
                f"the record in {folder.path} cannot be written now ({error}): the run continues,"
                " and its events wait in memory."
            )
            self._handle(Message(text, "warning"))

    def _catch_up(self) -> None:
        """Write the waiting events before the end, or emit a message about those that the record
        lacks.
        """
        folder = self._job.folder
        lacks = "" if folder is None or not self._writing else folder.catch_up(_CATCH_UP)
        if lacks:
            assert folder is not None
            text = (
                f"the record in {folder.path} lacks {lacks}: it could not be written. The training"
                " is not affected."
            )
            self._handle(Message(text, "warning", self._job.updates))


@contextlib.contextmanager
def _fast_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
