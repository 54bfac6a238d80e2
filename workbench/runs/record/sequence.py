"""Defines sequences of events that need not be in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import overload

from workbench.events import BY_LAYER, Event, StepsDone


class Events(Sequence[Event]):
    """Events in order. `stream` reads them in pieces, and decodes only the requested columns."""

    @abstractmethod
    def stream(self, only: Container[str] | None = None) -> Iterator[Event]:
        """Yield the events from the first one on. only: the columns of flushes that are needed;
        others may be present.
        """

    def __iter__(self) -> Iterator[Event]:
        return self.stream()

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return (
                [*islice(self.since(start), max(0, stop - start))] if step == 1 else [*self][index]
            )
        event = next(
            self.since(index) if index >= 0 else islice(reversed(self), -index - 1, None), None
        )
        if event is None:
            raise IndexError(index)
        return event

    def since(self, seen: int) -> Iterator[Event]:
        """The events after the first `seen`."""
        return islice(self.stream(), seen, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


def stream(events: Iterable[Event], only: Container[str] | None = None) -> Iterator[Event]:
    """Yield the events of any sequence. only: the columns of flushes that are needed; others may
    be present.
    """
    return events.stream(only) if isinstance(events, Events) else iter(events)


class _ButByLayer:
    """Contains the names of all columns except those by layer."""

    def __contains__(self, name: object) -> bool:
        return name not in BY_LAYER


BUT_BY_LAYER = _ButByLayer()


def but_by_layer(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, without the columns by layer."""
    for event in stream(events, BUT_BY_LAYER):
        if isinstance(event, StepsDone) and not event.columns.keys().isdisjoint(BY_LAYER):
            yield replace(
                event,
                columns={
                    name: data for name, data in event.columns.items() if name not in BY_LAYER
                },
            )
        else:
            yield event
