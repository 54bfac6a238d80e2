"""Finds, shows and locks widgets, and runs slow work in a thread beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import ipywidgets as widgets


def reachable(root: widgets.Widget) -> None:
    """Let clicks on these widgets arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last published on it: after a cell touched a widget, that is
    the main one, which is busy as long as the cell. This gives the choice back to the sender (a subshell).
    """
    for widget in tree(root):
        comm = getattr(widget, "comm", None)
        if comm is not None and hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda data, default: default


def heard_whole(root: widgets.Widget, lock: AbstractContextManager[Any]) -> None:
    """A front end's message to these widgets is handled under this lock, from its new values to all callbacks.

    ipywidgets calls back after the last of the new values: a value that another thread wrote until then would be
    reported instead.
    """
    for widget in tree(root):
        widget.set_state = _under(lock, widget.set_state)


def _under(lock: AbstractContextManager[Any], call: Callable[..., None]) -> Callable[..., None]:
    def locked(*args: Any, **kwargs: Any) -> None:
        with lock:
            call(*args, **kwargs)

    return locked


def tree(root: widgets.Widget, seen: set[widgets.Widget] | None = None) -> Iterator[widgets.Widget]:
    """A widget and everything inside it, each once, layouts and styles too: each is a model with a comm of its own."""
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
    """Show that a button does nothing now. It is not disabled, which would take the keyboard's focus from it."""
    (button.add_class if is_off else button.remove_class)("wb-off")


def aside(work: Callable[[], None], failed: Callable[[Exception], None], name: str) -> None:
    """Run something slow on a thread of its own; its errors go to `failed`."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is shown, whatever it is
            failed(error)

    threading.Thread(target=run, name=f"workbench-{name}", daemon=True).start()
