"""Has functions for the messages of a widget, and runs slow work in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ipywidgets as widgets


def reachable(widget: widgets.Widget) -> None:
    """Let what a user does in this widget arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last published on it. After a cell has
    used a widget, that is the main shell, which is busy while the cell runs. With this, the sender
    chooses the shell (a subshell).
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def heard_whole(widget: widgets.Widget, lock: AbstractContextManager[Any]) -> None:
    """Handle each new value from a front end of this widget under this lock, from setting it to
    the last callback.

    ipywidgets calls the callbacks after setting all new values: without the lock, they could get a
    value that another thread has set in between.
    """
    widget.set_state = _under(lock, widget.set_state)


def _under(lock: AbstractContextManager[Any], call: Callable[..., None]) -> Callable[..., None]:
    def locked(*args: Any, **kwargs: Any) -> None:
        with lock:
            call(*args, **kwargs)

    return locked


def aside(work: Callable[[], None], failed: Callable[[Exception], None], name: str) -> None:
    """Run slow work in a new thread; `failed` is called with an error."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - any error is shown
            failed(error)

    threading.Thread(target=run, name=f"workbench-{name}", daemon=True).start()
