"""Emits the first events of a job, after RunStarted, wherever the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from workbench.events import Event, Message, RunStarted
from workbench.launch.job import EventSink
from workbench.launch.start.resume import ResumeHistory
from workbench.trackers.listener import TrackerListener

_PAST = 60.0
"""Seconds that a resumed fit waits at most until its past is written."""


class FirstMessages(NamedTuple):
    """The messages of a job's owner, which another process can emit."""

    messages: Sequence[Message] = ()
    story: ResumeHistory | None = None
    """The history of a resumed fit."""
    behind: Callable[[], Iterable[Message]] | None = None
    """Called when all this is in the record; yields messages, each emitted before the next is requested."""
    trackers: Sequence[TrackerListener] = ()
    """The trackers that run in the process that does the job, where that is launched."""


class FirstEvents:
    """An event sink that adds these messages after RunStarted and passes everything else."""

    def __init__(self, outlet: EventSink, words: FirstMessages) -> None:
        self.outlet = outlet
        self._words = words

    def give(self) -> FirstMessages:
        """The messages, once, for another process to emit."""
        words, self._words = self._words, FirstMessages()  # its past need not stay in memory
        return words

    def __call__(self, event: Event, /) -> None:
        if not isinstance(event, RunStarted):
            self.outlet(event)
            return
        messages, story, behind, _ = self.give()
        if story is None:
            self.outlet(event)
        else:
            self.outlet(replace(event, settings=story.settings))
            for told in story.events:
                self.outlet(told)
        for message in messages:
            self.outlet(message)
        if story is not None:
            self.outlet.settle(_PAST)  # before its checkpoints are here: none may be ahead of the record
        for message in () if behind is None else behind():
            self.outlet(message)
            self.outlet.settle()

    def settle(self, seconds: float = 3.0) -> None:
        self.outlet.settle(seconds)

    def printed(self, line: str) -> None:
        self.outlet.printed(line)
