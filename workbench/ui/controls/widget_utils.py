"""Has functions for widgets (walk, show, lock), and runs slow work in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import ipywidgets as widgets


def reachable(root: widgets.Widget) -> None:
    """Let clicks on these widgets arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last published on it. After a cell has
    used a widget, that is the main shell, which is busy while the cell runs. With this, the sender
    chooses the shell (a subshell).
    """
    for widget in tree(root):
        comm = getattr(widget, "comm", None)
        if comm is not None and hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda data, default: default


def heard_whole(root: widgets.Widget, lock: AbstractContextManager[Any]) -> None:
    """Handle each message of a front end to these widgets under this lock, from setting the new
    values to the last callback.

    ipywidgets calls the callbacks after setting all new values: without the lock, they could get a
    value that another thread has set in between.
    """
    for widget in tree(root):
        widget.set_state = _under(lock, widget.set_state)


def _under(lock: AbstractContextManager[Any], call: Callable[..., None]) -> Callable[..., None]:
    def locked(*args: Any, **kwargs: Any) -> None:
        with lock:
            call(*args, **kwargs)

    return locked


def tree(root: widgets.Widget, seen: set[widgets.Widget] | None = None) -> Iterator[widgets.Widget]:
    """A widget and all widgets inside it, each once, with layouts and styles, since each is a
    model with its own comm.
    """
    seen = set() if seen is None else seen
    for held in (root, getattr(root, "layout", None), getattr(root, "style", None)):
        if isinstance(held, widgets.Widget) and held not in seen:
            seen.add(held)
            yield held
    for child in getattr(root, "children", ()):
        yield from tree(child, seen)


def shown(widget: widgets.Widget, visible: bool) -> None:
    """Show or hide a widget."""
    widget.layout.display = None if visible else "none"


def off(button: widgets.Button, is_off: bool) -> None:
    """Show that a button has no effect now. It is not disabled, which would take the keyboard
    focus from it.
    """
    (button.add_class if is_off else button.remove_class)("wb-off")


def aside(work: Callable[[], None], failed: Callable[[Exception], None], name: str) -> None:
    """Run slow work in a new thread; `failed` is called with an error."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - any error is shown
            failed(error)

    threading.Thread(target=run, name=f"workbench-{name}", daemon=True).start()
