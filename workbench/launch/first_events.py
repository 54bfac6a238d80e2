"""Emits the first events of a job after RunStarted: its messages, and the history of a resumed
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from workbench.events import Event, Message, RunStarted
from workbench.launch.job import EventSink
from workbench.launch.start.resume_plan import ResumeHistory
from workbench.trackers.listener import TrackerListener

_PAST = 60.0
"""The most seconds that a resumed fit waits until its history is written."""


class FirstMessages(NamedTuple):
    """The first messages of a job; they can be pickled, so that another process can emit them."""

    messages: Sequence[Message] = ()
    history: ResumeHistory | None = None
    """The history of a resumed fit."""
    after_start: Callable[[], Iterable[Message]] | None = None
    """Called when all these events are recorded; yields messages, each of which is emitted
    before the next is requested.
    """
    trackers: Sequence[TrackerListener] = ()
    """The trackers that run in the launched process."""


class FirstEvents:
    """An event sink that adds these messages after RunStarted and passes everything else."""

    def __init__(self, sink: EventSink, messages: FirstMessages) -> None:
        self.sink, self.settle, self.printed = sink, sink.settle, sink.printed
        self._messages = messages

    def take(self) -> FirstMessages:
        """The messages, once, for another process to emit."""
        # its past need not stay in memory
        messages, self._messages = (
            self._messages,
            FirstMessages(),
        )
        return messages

    def __call__(self, event: Event, /) -> None:
        if not isinstance(event, RunStarted):
            self.sink(event)
            return
        messages, history, after_start, _ = self.take()
        if history is None:
            self.sink(event)
        else:
            self.sink(
                event if history.settings is None else replace(event, settings=history.settings)
            )
            for earlier in history.before(event):
                self.sink(earlier)
        for message in messages:
            self.sink(message)
        if history is not None:
            # before its checkpoints are copied: no checkpoint may be later than the record
            self.sink.settle(_PAST)
        for message in () if after_start is None else after_start():
            self.sink(message)
            self.sink.settle()
