"""Reads the arguments of a page of the list, and filters and sorts runs by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.runs import read
from workbench.runs.tables.facts import columns_of
from workbench.runs.tables.filter import is_condition, parse
from workbench.server.rows import Entry, words
from workbench.values import shown

MOST = 200
"""The most rows of a page."""
_LONGEST = 200
"""The most characters of an argument."""
_STATUSES = ("running", "paused", "queued", "running?", "failed", "stopped", "finished")
"""The statuses, in the order in which a sort by status lists them; others come last."""
_ORDERS = ("desc", "asc")
_KEYS: dict[str, Callable[[Entry], Any]] = {
    "loss": lambda entry: entry.loss,
    "value": lambda entry: entry.value,
    "time": lambda entry: entry.summary.seconds,
    "name": lambda entry: (entry.annotations.name or entry.summary.id).lower(),
    "status": lambda entry: (
        _STATUSES.index(entry.status) if entry.status in _STATUSES else len(_STATUSES)
    ),
}
_SORTS = ("created", *_KEYS)
EXACT = ("loss", "value")
"""The sort keys that need the whole record of each run."""


@dataclass(frozen=True, slots=True)
class Query:
    """A page of the list: which runs, in which order, from which one on."""

    search: str = ""
    status: str = ""
    tag: str = ""
    root: str = ""
    sort: str = "created"
    order: str = "desc"
    offset: int = 0
    limit: int = 50

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Make the query from the arguments of a request; ValueError names the one that is
        wrong.
        """
        unknown = [name for name in given if name not in cls.__dataclass_fields__]
        if unknown:
            raise ValueError(
                f"{unknown[0]}={shown(given[unknown[0]], 40)}: there is no such argument. Give some"
                f" of {', '.join(cls.__dataclass_fields__)}."
            )
        for name, value in given.items():
            if len(value) > _LONGEST:
                raise ValueError(f"{name} has {len(value)} characters: give at most {_LONGEST}.")
        one_of(given, "sort", _SORTS)
        one_of(given, "order", _ORDERS)
        offset, limit = (
            whole(given, name, default) for name, default in (("offset", 0), ("limit", 50))
        )
        if not 1 <= limit <= MOST:
            raise ValueError(f"limit={limit}: give a number from 1 to {MOST}.")
        texts = {name: value for name, value in given.items() if name not in ("offset", "limit")}
        return cls(**texts, offset=offset, limit=limit)

    @property
    def needs_records(self) -> bool:
        """Whether the whole record of each run decides about the page."""
        return self.sort in EXACT or is_condition(self.search)

    def found(self, entries: Sequence[Entry], reading: bool = False) -> list[Entry]:
        """The runs that match, except for their status, in order. ValueError names the mistake in
        a condition.

        reading: some records are still to be read; until then a metric may be unknown, which is no
        mistake.
        """
        wanted = self._wanted(entries, reading)
        matching = [
            entry
            for entry in entries
            if (not self.root or entry.root.key == self.root)
            and (not self.tag or self.tag in entry.annotations.tags)
            and wanted(entry)
        ]
        ages = _ages(matching)
        # among equal ones the newest comes first
        matching.sort(key=lambda entry: ages[entry.key], reverse=True)
        if self.sort == "created":
            return matching if self.order == "desc" else matching[::-1]
        key = _KEYS[self.sort]
        # not NaN
        sortable = [
            entry for entry in matching if key(entry) is not None and key(entry) == key(entry)
        ]
        sortable.sort(key=key, reverse=self.order == "desc")
        return sortable + [
            entry for entry in matching if key(entry) is None or key(entry) != key(entry)
        ]

    def _wanted(self, entries: Sequence[Entry], reading: bool) -> Callable[[Entry], bool]:
        """Whether an entry matches the search: a condition, or words."""
        if not is_condition(self.search):
            texts = self.search.lower().split()
            return lambda entry: (
                not texts or all(word in text for text in (words(entry),) for word in texts)
            )
        known = {entry.key: entry.facts for entry in entries}
        try:
            holds = parse(self.search, columns_of(known.values()))
        except ValueError as error:
            if reading:
                return lambda entry: False
            raise ValueError(f"search={shown(self.search, 40)}: {error}") from None
        return lambda entry: holds(known[entry.key])


def _ages(entries: Iterable[Entry]) -> dict[tuple[str, str], Any]:
    """The keys that sort runs from the oldest to the newest: those of one root by their numbers,
    those of several roots by the clock.

    A run counts as made no earlier than the runs of its root before it, since the clock may have
    been set back. One without a number counts as made when its record says.
    """
    ages: dict[tuple[str, str], Any] = {}
    latest: dict[str, float] = {}
    for entry in sorted(
        entries, key=lambda entry: read.age(entry.summary.id, entry.summary.created)
    ):
        root, created = entry.root.key, entry.summary.created
        if read.number_of(entry.summary.id) is not None:
            created = latest[root] = max(latest.get(root, created), created)
        ages[entry.key] = created, root, read.age(entry.summary.id)
    return ages


def one_of(given: Mapping[str, str], name: str, known: Iterable[str]) -> None:
    """Return an argument that must be one of several words; ValueError for any other."""
    if name in given and given[name] not in known:
        raise ValueError(f"{name}={shown(given[name], 40)}: give one of {', '.join(known)}.")


def whole(given: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    """Return an argument that must be a whole number of at least `least`; ValueError for any
    other.
    """
    text = given.get(name, str(default))
    try:
        number = int(text)
        if least <= number <= 1 << 53:
            return number
    except ValueError:
        pass
    raise ValueError(f"{name}={shown(text, 40)}: give a whole number from {least} on.")
