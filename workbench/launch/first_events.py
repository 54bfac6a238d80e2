"""The beginning of a job in its record: what is told behind its first event, wherever the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from workbench.events import Event, Message, RunStarted
from workbench.launch.job import EventSink
from workbench.launch.resume import ResumeHistory
from workbench.trackers.listener import TrackerListener

_PAST = 60.0
"""Seconds that a fit which goes on waits at most until its past is written."""


class FirstMessages(NamedTuple):
    """What a job's owner has to say; it can be said by another process."""

    messages: Sequence[Message] = ()
    story: ResumeHistory | None = None
    """Of a fit that goes on."""
    behind: Callable[[], Iterable[Message]] | None = None
    """Done when all this is in the record; what there is to say of it, each heard before the next is asked for."""
    trackers: Sequence[TrackerListener] = ()
    """What hears the job in the process that does it, where that is launched."""


class FirstEvents:
    """An outlet that follows RunStarted up with what the job's owner has to say; all else passes."""

    def __init__(self, outlet: EventSink, words: FirstMessages) -> None:
        self.outlet = outlet
        self._words = words

    def give(self) -> FirstMessages:
        """What is to be said, for somebody else to say it: once."""
        words, self._words = self._words, FirstMessages()  # all of its past need not be held any longer
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
