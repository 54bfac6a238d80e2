"""Jobs in a thread of this process, one after another, off the thread that asked for them.

Two threads live while there is work: the runner does it, the clerk hands each event to the record and to the
listeners, so that neither a slow disk nor a slow listener holds up an update. In a plain process both keep the
process alive until the work is done; in a notebook's kernel they end with the kernel.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from workbench.events import Emit, Event, Message, RunEnded, StepsDone, Validated
from workbench.launch.protocol import AnyJob

Listener = Callable[[Any], None]
SWITCH_INTERVAL = 5e-4
"""Seconds between thread switches while a job runs: a busy cell then slows training half as much."""

# Random states and torch's flags belong to the process: jobs of two benches take turns.
_turn = threading.Lock()


class ThreadLauncher:
    """The queue of one bench."""

    def __init__(self, tell: Callable[[AnyJob, Event], None]) -> None:
        self._tell = tell
        self._waiting: deque[AnyJob] = deque()
        self._lock = threading.Lock()
        self._running: AnyJob | None = None
        self._closed = False

    def submit(self, job: AnyJob) -> None:
        """Put a job behind those that wait."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this bench is closed; make a new Workbench.")
            self._waiting.append(job)
            if self._running is None:
                self._running = job
                threading.Thread(target=self._run_all, name="workbench-runner", daemon=_in_kernel()).start()

    def close(self) -> None:
        """Stop what runs, drop what waits, and wait until it is over."""
        with self._lock:
            self._closed = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
        for job in jobs:
            job.stop()
        for job in jobs:
            job.ended.wait()

    def _run_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = None
                    return
                job = self._running = self._waiting.popleft()
            with _turn, _quick_switches():
                _Desk(job, self._tell).run()


class _Desk:
    """One job at work: the runner's side and the clerk's."""

    def __init__(self, job: AnyJob, tell: Callable[[AnyJob, Event], None]) -> None:
        self._job = job
        self._tell = tell
        self._post: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._writing = job.folder is not None

    def run(self) -> None:
        clerk = threading.Thread(target=self._clerk, name="workbench-clerk", daemon=_in_kernel())
        clerk.start()
        began = time.perf_counter()
        last: dict[str, Any] = {"step": 0, "metrics": {}}
        emit = self._noting(last)
        status, error = self._job.run(emit)
        end = RunEnded(
            status=status,
            step=last["step"],
            seconds=time.perf_counter() - began,
            error=None if error is None else f"{type(error).__name__}: {error}",
            metrics=last["metrics"],
        )
        self._post.put(end)
        self._post.put(None)
        clerk.join()
        self._job.end(end, error)

    def _noting(self, last: dict[str, Any]) -> Emit:
        """Post events, and keep the last values for the end."""

        def emit(event: Event) -> None:
            if isinstance(event, StepsDone):
                last["step"] = int(event.steps[-1]) + 1
                last["metrics"]["loss"] = float(event.array("loss")[-1])
            elif isinstance(event, Validated):
                last["metrics"].update(event.metrics)
            self._post.put(event)

        return emit

    def _clerk(self) -> None:
        while (event := self._post.get()) is not None:
            self._handle(event)
        if self._job.folder is not None:
            self._job.folder.close()

    def _handle(self, event: Event) -> None:
        self._job.hear(event)
        if self._writing and self._job.folder is not None:
            try:
                self._job.folder.append(event)
            except OSError as error:
                self._writing = False
                text = f"the record in {self._job.folder.path} cannot be written ({error}); the run goes on without it."
                self._handle(Message(text, "warning"))
        try:
            self._tell(self._job, event)
        except Exception:  # noqa: BLE001  # a view's mistake must not end the run
            if not isinstance(event, Message):
                self._handle(Message(f"a listener failed:\n{traceback.format_exc()}", "error"))


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _in_kernel() -> bool:
    return "ipykernel" in sys.modules and hasattr(sys.modules["ipykernel"], "kernelapp") and _has_kernel_app()


def _has_kernel_app() -> bool:
    from ipykernel.kernelapp import IPKernelApp

    return bool(IPKernelApp.initialized())
