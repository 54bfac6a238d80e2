"""Calls the functions of `bench.watch` at validations, and keeps what they return in the run's
folder.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.engine.session import Session
from workbench.engine.validation.sample_items import items_of
from workbench.events import Event, Message, Sampled
from workbench.runs.samples import ALL, file_of, remove, sizes, write_items
from workbench.task import rng
from workbench.task.batch import copied, to_device
from workbench.task.errors import TaskError
from workbench.task.modules import Modes, kept_buffers

Watcher = Callable[[Any, Any], Any]
"""A function of a batch and the model's outputs, which returns images or texts."""


LARGE = 1 << 28
"""The most bytes of a tensor that is copied."""


class Watch:
    """The functions of one fit that look at its validations. Only rank 0 calls them.

    They get copies on the CPU, and random generators, modes and buffers are as before afterwards:
    the run is the same with and without them.
    """

    def __init__(self, functions: Sequence[Watcher], folder: Path | None) -> None:
        """folder: the run's; None: the functions are tried, and nothing is kept."""
        self._functions, self._folder = functions, folder
        self._failing: set[int] = set()
        """The functions that have failed: a message comes once for each."""
        self._sizes: dict[int, dict[str, int]] | None = None
        """The bytes of each file, by update; None: not known yet. A fit that continues has those of
        the run before.
        """
        self._events: list[Event] = []
        self.due = False
        """Whether the next batch is the first one of a validation."""

    def begin(self) -> None:
        """Note that a validation begins."""
        self.due = bool(self._functions)

    def look(self, session: Session, batch: Any, outputs: Any) -> None:
        """Call the functions with the first batch of a validation."""
        self.due = False
        step, modules = session.state.step, session.task.modules
        modes = Modes.of(modules)
        with rng.preserved(), kept_buffers(modules):
            try:
                for number, function in enumerate(self._functions):
                    self._call(number, function, batch, outputs, session)
            finally:
                modes.restore()
        self._thin(step)

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _call(
        self, number: int, function: Watcher, batch: Any, outputs: Any, session: Session
    ) -> None:
        step, name = session.state.step, name_of(function)
        try:
            returned = function(*(_on_cpu(value) for value in (batch, outputs)))
            items, left_out = items_of(returned, name)
        except TaskError as error:
            self._tell(number, str(error), step)
            return
        except (Exception, SystemExit):  # noqa: BLE001 - as an error of a listener, it ends no run
            text = (
                f"watch: {name} failed (it is called again; this message comes once):\n"
                f"{traceback.format_exc()}"
            )
            self._tell(number, text, step)
            return
        if self._folder is None:
            return
        try:
            file = file_of(step, number)
            if self._sizes is None:
                self._sizes = sizes(self._folder)
            size = write_items(self._folder, file, items, left_out)
            self._sizes.setdefault(step, {})[file] = size
            self._events.append(Sampled(step, session.state.epoch, name, file))
        except Exception as error:  # noqa: BLE001 - it ends no run
            self._tell(number, f"watch: what {name} returned could not be kept ({error}).", step)

    def _tell(self, number: int, text: str, step: int) -> None:
        if number not in self._failing:
            self._failing.add(number)
            self._events.append(Message(text, "warning", step))

    def _thin(self, newest: int) -> None:
        """Remove the samples of every second validation where all have too many bytes; the first
        and the newest one stay.
        """
        known, folder = self._sizes or {}, self._folder
        while folder and len(known) > 2 and sum(sum(s.values()) for s in known.values()) > ALL:
            steps = [step for step in sorted(known)[1::2] if step != newest]
            if not steps:
                return
            for step in steps:
                for file in known.pop(step):
                    with contextlib.suppress(OSError):
                        remove(folder, file)


def is_version(function: Watcher, other: Watcher) -> bool:
    """Whether these are one function, or two versions of it, of a cell that ran again: functions
    of one name at the top level of one module. Those made by another function may differ in what
    they enclose, and methods in their object.
    """
    if function == other:
        return True
    if not (inspect.isfunction(function) and inspect.isfunction(other)):
        return False
    name = function.__qualname__
    is_same = (function.__module__, name) == (other.__module__, other.__qualname__)
    return is_same and "<" not in name


def name_of(function: Watcher) -> str:
    """The name of a function for the user; of an object that can be called, its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def uncallable(function: Watcher) -> str:
    """The signature of a function that cannot be called with two arguments; "": it can, or has
    none that is known.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(None, None)
    except TypeError:
        return str(signature)
    return ""


def _on_cpu(value: Any) -> Any:
    """A copy in host memory, in the same containers; a tensor of more than `LARGE` bytes, such as
    the logits of a long text, is handed over as it is.
    """
    if isinstance(value, Tensor):
        detached = value.detach()
        is_large = detached.numel() * detached.element_size() > LARGE
        return detached if is_large else detached.to("cpu", copy=True)
    if type(value) in (tuple, list):
        return type(value)(map(_on_cpu, value))
    if isinstance(value, MutableMapping) and not hasattr(value, "to"):
        duplicate = copy.copy(value)  # an output of transformers is a dict with attributes
        for key, item in value.items():
            duplicate[key] = _on_cpu(item)
        return duplicate
    return copied(to_device(value, torch.device("cpu")))
