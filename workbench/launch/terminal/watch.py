"""Follows a job in a terminal: a drawing that moves, and keys that pause, resume, validate, save and stop it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
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
"""Seconds between two drawings: a drawing takes some milliseconds, in which a small model does not train."""
_NOTICED = 3.0
"""Seconds that the answer to a key stays."""

Keys = Callable[[], str]
"""Returns the characters that were typed since it was last called."""


def watch(
    id: str, kind: str, events: Sequence[Event], ended: Callable[[float], bool], actions: Mapping[str, tuple[str, Callable[[], object]]]
) -> int | None:
    """Draw a job until it has ended or "q" is pressed; returns how many of its events were drawn. None: standard output is no
    terminal on which such a drawing can move.

    ended: waits at most so many seconds for the job's end, and returns whether it has come.
    actions: by key, what it does in words, and the call. Its error is shown.
    """
    console, screen = Console(), Screen(id, kind)
    if not console.is_terminal or console.is_jupyter or console.is_dumb_terminal or console.options.ascii_only:
        return None
    seen, drawn, noticed = 0, -math.inf, math.inf
    with _keyboard() as typed, Live(screen, console=console, auto_refresh=False, vertical_overflow="crop") as live:
        if typed is not None:
            screen.keys = " · ".join([*(f"{key} {words}" for key, (words, _) in actions.items()), "q quit watching"])
        over = False
        while not over:
            over = ended(_PERIOD)
            count, moment = len(events), time.monotonic()
            with contextlib.suppress(RecordGone):  # what follows are the end and its error
                for event in islice(since(events, seen), count - seen):
                    screen.note(event)
            seen = count
            pressed = typed() if typed is not None and not over else ""
            for key in pressed:
                if key in actions:
                    screen.notice, noticed = _called(*actions[key]), moment
            over = over or "q" in pressed
            if over or moment - noticed > _NOTICED:
                screen.notice, noticed = "", math.inf
            if over:
                screen.keys = ""
            if over or pressed or moment - drawn >= _REDRAWN:
                live.update(screen, refresh=True)
                drawn = moment
    return seen


def _called(words: str, action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  # shown in the drawing; the job continues
        return str(error)
    return f"asked to {words}"


@contextlib.contextmanager
def _keyboard() -> Iterator[Keys | None]:
    """Inside, keys are heard without Enter; None where standard input is no terminal."""
    try:
        import termios
        import tty
    except ImportError:  # not on Windows
        yield None
        return
    try:
        there = sys.stdin.fileno()
        before = termios.tcgetattr(there)
        foreground = os.tcgetpgrp(there) == os.getpgrp()
    except (AttributeError, OSError, ValueError, termios.error):
        foreground = False
    if not foreground:
        yield None
        return
    tty.setcbreak(there)
    try:
        yield lambda: os.read(there, 64).decode(errors="ignore") if select.select([there], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(there, termios.TCSADRAIN, before)
