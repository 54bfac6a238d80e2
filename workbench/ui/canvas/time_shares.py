"""Shows the share of each part in the time of a fit: in the last seconds while it runs, in the
whole time at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from workbench.events import Event, Resumed, RunEnded, RunStarted, TimeSpent
from workbench.plots.training.time_spent import total
from workbench.ui import texts
from workbench.ui.canvas.transport.messages import Outbox, cut

RECENT = 10
"""How many of the last events are summed up while a fit runs."""
MOST = 12
"""How many parts are shown at most."""
NAME = 40
"""Bytes of a part's name."""


class TimeShares:
    """Sums up a fit's `TimeSpent` events."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._reset()

    def _reset(self) -> None:
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT)
        self._all: dict[str, float] = {}

    def clear(self) -> None:
        """Begin without a fit."""
        self._reset()
        self._outbox.put("time", None)

    def on_event(self, event: Event) -> None:
        """Take in the next event, and show the shares where they have changed."""
        if isinstance(event, RunStarted):
            self.clear()
        elif isinstance(event, TimeSpent):
            self._recent.append(event.parts)
            self._all = total([self._all, event.parts])
            self._put(texts.LAST_SECONDS, total(self._recent))
        elif isinstance(event, Resumed):
            self._recent.clear()  # these events are of the run that this one continues
        elif isinstance(event, RunEnded) and self._all:
            self._put(texts.WHOLE_RUN, self._all)

    def _put(self, title: str, parts: dict[str, float]) -> None:
        whole = sum(parts.values())
        self._outbox.put(
            "time", {"title": title, "shares": [*_shares(parts.items(), whole)]} if whole else None
        )


def _shares(parts: Iterable[tuple[str, float]], whole: float) -> Iterable[list[str | float]]:
    for name, seconds in [*parts][:MOST]:
        yield [cut(name, NAME), round(seconds / whole, 4)]
