"""Ends this process's jobs when SIGTERM or SIGUSR1 comes, which a scheduler sends before it kills,
and then the process as the signal does.

Python runs a handler between two lines of the main thread, which may hold any lock there: so the
jobs are stopped in another thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""The signals. A user's own handlers of them stay."""
SAME = 2.0
"""Seconds within which another signal counts as the same one: `timeout` and launchers send it to
a process and again to its group.
"""
_LEAVE = 0.5
"""Seconds that the main thread has to leave what it shows, after the jobs have ended."""


class _Caught:
    """The signals that this process handles."""

    def __init__(self) -> None:
        self.owner = 0
        """The process; one that is forked from it has the handler, too."""
        self.busy: Callable[[], bool] = lambda: False
        self.stop: Callable[[str], None] = lambda name: None
        self.received: tuple[int, float] | None = None
        """The signal for which the jobs are stopped, and when it came."""
        self.waits = threading.Event()
        """Set when the main thread has nothing left to do but to end."""


_caught = _Caught()


def catch(busy: Callable[[], bool], stop: Callable[[str], None]) -> None:
    """Handle the signals from now on; in another thread than the main one it does nothing.

    busy: whether a job has not ended. stop: stops the jobs and waits until they have ended; it gets
    the signal's name.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _caught.owner, _caught.busy, _caught.stop = os.getpid(), busy, stop
    for number in NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL and not _is_caught_in_c(number):
            with contextlib.suppress(ValueError):  # in an interpreter that handles no signals
                signal.signal(number, _on_signal)


def let_go() -> None:
    """Where no job is left, restore the handlers from before; where the jobs were stopped by a
    signal, wait for the process's end.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if _caught.received is not None and os.getpid() == _caught.owner:
        _caught.waits.set()
        while True:
            time.sleep(1.0)
    if not _caught.busy():
        for number in NUMBERS:
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, signal.SIG_DFL)


def ask_to_stop(ask: Callable[[int], object], *numbers: int) -> None:
    """In a process that belongs to a job: at one of these signals call `ask`, which asks for the
    end of the job. It may raise an error to end the process; a second signal calls it again. In a
    process that is forked from this one they have no such effect.
    """
    owner, last = os.getpid(), -SAME

    def on_signal(number: int, frame: object) -> None:
        nonlocal last
        if os.getpid() != owner:
            if number == signal.SIGTERM:
                end_by(number)
        elif time.monotonic() - last > SAME:
            last = time.monotonic()
            ask(number)

    for number in numbers:
        signal.signal(number, on_signal)


def end_by(number: int) -> None:
    """End this process as the signal does, which it does not handle."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be closed, or in use where the signal came
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _on_signal(number: int, frame: object) -> None:
    if os.getpid() != _caught.owner:
        # SIGUSR1 is meant for the process that trains, and not for a loader's worker
        if number == signal.SIGTERM:
            end_by(number)
    elif _caught.received is None and _caught.busy():
        _caught.received = number, time.monotonic()
        ending = threading.Thread(target=_end, args=(number,), name="workbench-signal")
        try:
            ending.start()
        except RuntimeError:
            # the interpreter ends, and starts no thread; its main thread holds no lock then
            _end(number)
    elif (
        _caught.received is None
        or _caught.waits.is_set()
        or time.monotonic() - _caught.received[1] > SAME
    ):
        end_by(number)


def _end(number: int) -> None:
    try:
        _caught.stop(signal.Signals(number).name)
        _caught.waits.wait(_LEAVE)
    finally:
        _caught.waits.set()
        # its handler ends the process, which only the main thread can do
        os.kill(os.getpid(), number)
    time.sleep(SAME)
    os._exit(128 + number)  # the main thread is busy outside of Python


def _is_caught_in_c(number: int) -> bool:
    """Whether code outside of Python handles the signal, as faulthandler does. Only Linux says
    so.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (number - 1) & 1 for mask in masks)
