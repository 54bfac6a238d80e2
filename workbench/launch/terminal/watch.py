"""Draws a running job in a terminal, with keys that pause, resume, validate, write a checkpoint
and stop it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from rich.console import Console
from rich.live import Live

from workbench.events import Event
from workbench.launch.terminal.screen import Screen
from workbench.runs.record.event_log import RecordGone, since

_PERIOD = 0.1
"""Seconds between two looks at the job and at the keyboard."""
_REDRAWN = 0.25
"""Seconds between two drawings. A drawing takes some milliseconds, in which a small model does
not train.
"""
_NOTICED = 3.0
"""Seconds for which the answer to a key is shown."""

_AT_ONCE = 500
"""Events between two looks at the keyboard while a long record is read."""
_TWICE = "s"
"""The key that must be pressed twice, while its notice is shown, because it ends a fit that may
have taken days.
"""

Keys = Callable[[], str]
"""Returns the characters that were typed since it was last called."""
Actions = Mapping[str, tuple[str, Callable[[], str]]]
"""For each key what it does, as a text, and the function, which returns the notice to show. Its
error is shown too.
"""


def watch(
    id: str,
    kind: str,
    events: Sequence[Event],
    ended: Callable[[float], bool],
    actions: Actions,
    *,
    shown: int = 0,
) -> int | None:
    """Draw a job until it has ended, "q" is pressed or an interrupt comes; messages are printed
    above the drawing.

    Returns how many of its events were shown. None: standard output is no terminal on which such a
    drawing can move.

    ended: waits for the job's end, at most the given number of seconds, and returns whether the job
    has ended.
    shown: how many events were shown before; their messages are not printed again.
    """
    console, screen = Console(), Screen(id, kind)
    if (
        not console.is_terminal
        or console.is_jupyter
        or console.is_dumb_terminal
        or console.options.ascii_only
    ):
        return None
    seen, drawn, noticed = 0, -math.inf, math.inf
    with (
        contextlib.suppress(KeyboardInterrupt),
        _keyboard() as typed,
        Live(screen, console=console, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        if typed is not None:
            screen.keys = " · ".join(
                [*(f"{key} {words}" for key, (words, _) in actions.items()), "q quit"]
            )
        over = behind = False
        while not over:
            over = ended(0.0 if behind else _PERIOD)
            count, moment = len(events), time.monotonic()
            upto = min(count, seen + _AT_ONCE)
            # the record was deleted; the job's end is still reported
            with contextlib.suppress(RecordGone):
                for number, event in enumerate(islice(since(events, seen), upto - seen), seen + 1):
                    screen.note(event)
                    if number <= shown:
                        screen.messages.clear()
            seen, behind = upto, upto < count
            over = over and not behind
            if moment - noticed > _NOTICED:
                screen.notice, noticed = "", math.inf
            pressed = typed() if typed is not None and not over else ""
            for key in pressed:
                if key in actions:
                    screen.notice, noticed = _pressed(key, *actions[key], screen.notice), moment
            over = over or "q" in pressed
            if over:
                screen.notice = screen.keys = ""
            if not behind:  # a resumed run's record begins with messages of another run
                if screen.messages:
                    live.console.print(*screen.messages, sep="\n")
                    screen.messages.clear()
                shown = max(shown, seen)
            if over or pressed or moment - drawn >= _REDRAWN:
                live.update(screen, refresh=True)
                drawn = moment
    return shown


def _pressed(key: str, words: str, action: Callable[[], str], notice: str) -> str:
    again = f"Press {key} again to {words}."
    if key == _TWICE and notice != again:
        return again
    try:
        return action()
    except Exception as error:  # noqa: BLE001  # shown in the drawing; the job continues
        return str(error)


@contextlib.contextmanager
def _keyboard() -> Iterator[Keys | None]:
    """Context manager in which keys are read without Enter; None where standard input is no
    terminal, or another process has it.
    """
    try:
        import termios
        import tty
    except ImportError:  # not on Windows
        yield None
        return

    def foreground() -> bool:
        try:
            return os.tcgetpgrp(fd) == os.getpgrp()
        except OSError:  # the terminal is gone
            return False

    def restore() -> None:
        # A job in the background that sets a terminal is stopped, unless it blocks the signal.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(fd, termios.TCSADRAIN, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def killed(number: int, frame: object) -> None:
        if os.getpid() == owner:  # not in a forked worker of a DataLoader
            restore()
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), b"\x1b[?25h")  # shows the cursor
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    owner = os.getpid()
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (AttributeError, OSError, ValueError, termios.error):
        yield None
        return
    if not foreground():
        yield None
        return
    main = threading.current_thread() is threading.main_thread()
    handled = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if main and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in handled:
        signal.signal(number, killed)
    try:
        tty.setcbreak(fd)
        yield (
            lambda: (
                os.read(fd, 64).decode(errors="ignore")
                if foreground() and select.select([fd], [], [], 0)[0]
                else ""
            )
        )
    finally:
        restore()
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
