"""The beginning of a job in its record: what is told behind its first event, wherever the job runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.events import Event, Message, RunStarted
from workbench.launch.protocol import Outlet
from workbench.launch.resuming import Story

_PAST = 60.0
"""Seconds that a fit which goes on waits at most until its past is written."""


class Opening:
    """An outlet that follows RunStarted up with what the job's owner has to say; all else passes."""

    def __init__(
        self, emit: Outlet, messages: Sequence[Message] = (), story: Story | None = None,
        behind: Callable[[], Message | None] = lambda: None,
    ) -> None:  # fmt: skip
        """story: of a fit that goes on. behind: done when all this is in the record; what went wrong there."""
        self._emit, self._messages, self._behind = emit, messages, behind
        self._story = story

    def __call__(self, event: Event, /) -> None:
        if not isinstance(event, RunStarted):
            self._emit(event)
            return
        story, self._story = self._story, None  # all of its past need not be held any longer
        if story is None:
            self._emit(event)
        else:
            self._emit(replace(event, settings=story.settings))
            for told in story.events:
                self._emit(told)
        for message in self._messages:
            self._emit(message)
        if story is not None:
            self._emit.settle(_PAST)  # before its checkpoints are here: none may be ahead of the record
        trouble = self._behind()
        if trouble is not None:
            self._emit(trouble)

    def settle(self, seconds: float = 3.0) -> None:
        self._emit.settle(seconds)
