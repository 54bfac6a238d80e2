"""Watches the roots on one thread, for all pages and connections: it answers pages of the list, and
notifies listeners of changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.runs.folder.ids import check_id
from workbench.runs.read import name_unreadable, run_folders
from workbench.server.errors import NotFoundError
from workbench.server.index import Index, Key
from workbench.server.query import Query
from workbench.server.roots import Root, find_roots, is_readable
from workbench.server.rows import Entry, cells, row
from workbench.values import shown

Listener = Callable[[dict[str, Any]], None]
EVERY = 1.0
"""Seconds between two checks of the roots while there is a listener."""
_ROOTS_EVERY = 5.0, 30.0
"""Seconds between two searches for roots, at least and at most."""
_SHARE = 0.002
"""The share of a CPU core that searches for roots may use, within these bounds."""
_SLICE = 0.1
"""Seconds for which new runs are read, and then the records that pages need, before other work
has a turn.
"""
_PATIENCE, _FOR_ROWS, _FOR_ONE = 0.5, 0.3, 5.0
"""The most seconds that a page waits for the list, then for its own rows, and for a run that is
not in the list yet. A later message tells it about the rest.
"""
_AT_ONCE = 8
"""The most long records that are read in turns. Each of them stays open, so further ones wait."""
_LIST_EVERY = 5.0
"""Seconds between two messages about progress to pages, while long records are read."""
_log = logging.getLogger("workbench.server")


class Watcher:
    """All methods may be called from any thread. Nothing is read while nobody listens and nobody
    asks.
    """

    def __init__(self, top: Path, depth: int, given: Sequence[str]) -> None:
        """top, depth, given: where roots are looked for, as in `find_roots`."""
        self._where = top, depth, given
        self._changed = threading.Condition()
        """Guards everything below."""
        self._index = Index(self._changed)
        self._listeners: list[Listener] = []
        self._since = 0.0
        """When the first listener was added; runs that began before are not reported as new."""
        self._requested = self._answered = 0
        """The number of the last look that was requested, and of the last one that was done."""
        self._wanted: dict[Key, None] = {}
        """Runs whose whole records are to be read, in this order."""
        self._lacking = False
        """Whether a request for the list was answered before all records were read."""
        self._list_due = 0.0
        self._longer = False
        """Whether more runs were read since the listeners were last notified of the list."""
        self._sent: dict[Key, dict[str, Any]] = {}
        """The last row of each live run that the listeners have."""
        self._roots_due = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Send messages to this listener, first about all live runs, then about changes. It must
        return at once. Call the result to end this.

        Messages: {"type": "rows", "rows": […]}, the live runs with something new, at most once a
        second, and all of them first; {"type": "began", "row": …}; {"type": "ended", "row": …};
        {"type": "list"}: runs were added or deleted or ended, or the annotations of a run changed,
        so that pages should be fetched again.
        """
        with self._changed:
            # before the first message: runs that begin from now on are reported
            began = time.time()
            self._look_now()
            live = [entry for entry in self._index.entries.values() if entry.live]
            self._read_whole([entry for entry in live if not entry.summary.unseen])
            rows = {entry.key: row for entry, row in self._rows(live)}
            if not self._listeners:
                self._since, self._sent = began, rows
                self._index.moved.clear()  # what moved before is in these rows
            self._listeners.append(listener)
            listener({"type": "rows", "rows": [*rows.values()]})
            self._changed.notify_all()
        return lambda: self._leave(listener)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._listeners.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(5.0)

    def page(self, query: Query) -> dict[str, Any]:
        """Return a page of the list, after less than a second; "reading": whether more is to be
        read, about which listeners get a message.
        """
        with self._changed:
            self._look_now()
            entries = list(self._index.entries.values())
            # now: the thread may have read more when the rows are made
            reading = bool(self._index.unread or not self._answered)
            exact = self._read_whole(entries, exact=True) if query.needs_records else True
        selected = query.found(entries, reading or not exact)
        matching = [entry for entry in selected if query.status in ("", entry.status)]
        page = matching[query.offset : query.offset + query.limit]
        with self._changed:
            exact &= self._read_whole(page)
            columns, values = cells(page)
            rows = [row for _, row in self._rows(page, values)]
            reading |= not exact
            self._lacking |= reading
            roots = [{"key": root.key, "name": root.name} for root in self._index.roots.values()]
        return {
            "rows": rows,
            "matching": len(matching),
            "total": len(entries),
            "columns": columns,
            "statuses": dict(Counter(entry.status for entry in selected)),
            "tags": sorted({tag for entry in entries for tag in entry.annotations.tags}),
            "roots": roots,
            "reading": reading,
        }

    def roots(self) -> dict[str, Root]:
        """The roots that are read, by key."""
        with self._changed:
            self._look_now()
            return dict(self._index.roots)

    def find(self, key: str, id: str) -> Entry:
        """The present state of the run with these names. ValueError: the id is impossible;
        NotFoundError: no such run exists.
        """
        check_id(id)
        with self._changed:
            self._look_now()
            root, entry = self._index.roots.get(key), self._index.entries.get((key, id))
        if root is None:
            raise NotFoundError(
                f"root={shown(key, 40)}: the server reads no root of this key. List the runs again:"
                " each has the key of its root."
            )
        folder = (
            next((path for path in run_folders(root.path) if path.name == id), None)
            if is_readable(root)
            else None
        )
        if folder is None:
            raise NotFoundError(
                f"run={shown(id, 80)}: there is no such run in {root.name}. It may have been"
                " deleted: list the runs again."
            )
        if self._index.changed((key, id)):
            entry = self._index.entries.get((key, id))
        entry = entry or self._read_first((key, id), folder)
        if entry is None:
            raise NotFoundError(
                f"run={shown(id, 80)}: its folder in {root.name} holds no readable record."
            )
        return entry

    def row(self, entry: Entry) -> dict[str, Any]:
        """The row of a run that was found."""
        self._index.changed(entry.key)
        with self._changed:
            self._read_whole([entry])
            return row(entry, self._index.brief(entry.key))

    def look(self) -> None:
        """Check the roots soon, because this process changed or deleted a run."""
        with self._changed:
            self._notify({"type": "list"})
            self._requested += 1
            self._start()

    def _look_now(self) -> None:
        """Check the roots, and wait until all is read, but not for long. The caller holds the
        lock.
        """
        self._requested += 1
        requested = self._requested
        self._start()
        self._changed.wait_for(
            lambda: self._closed or (self._answered >= requested and not self._index.unread),
            _PATIENCE,
        )

    def _read_whole(self, entries: Sequence[Entry], exact: bool = False) -> bool:
        """Read the records of these fits next: for their rows, or for an exact sort. The caller
        holds the lock. Returns whether it was done within a while.
        """
        self._wanted = {
            entry.key: None for entry in entries if self._index.lacks(entry, exact)
        } | self._wanted
        self._start()
        return self._changed.wait_for(
            lambda: self._closed or not any(self._index.lacks(entry, exact) for entry in entries),
            _FOR_ROWS,
        )

    def _read_first(self, key: Key, folder: Path) -> Entry | None:
        """Let the thread read a folder next, and return its run; None: the folder holds no run."""
        with self._changed:
            if key not in self._index.entries:
                self._index.unread[key] = folder
                self._index.unread.move_to_end(key, last=False)
                self._start()
                self._changed.wait_for(
                    lambda: self._closed or key not in self._index.unread, _FOR_ONE
                )
            return self._index.entries.get(key)

    def _rows(
        self, entries: Sequence[Entry], values: Sequence[Sequence[str]] = ()
    ) -> list[tuple[Entry, dict[str, Any]]]:
        """Their rows. One that cannot be made is left out and logged: it does not hold up the
        others. values: their cells.
        """
        rows = []
        for at, entry in enumerate(entries):
            try:
                rows.append(
                    (entry, row(entry, self._index.brief(entry.key), values[at] if values else ()))
                )
            except Exception as error:  # noqa: BLE001 - the record may be damaged
                name_unreadable(entry.summary.path, error)
        return rows

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="workbench-watcher", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _leave(self, listener: Listener) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def _notify(self, message: dict[str, Any]) -> None:
        for listener in list(self._listeners):
            listener(message)

    # The thread: only it reads records.

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._changed:
                if not (
                    self._closed
                    or self._requested > self._answered
                    or self._index.unread
                    or self._wanted
                ):
                    self._changed.wait(
                        max(0.0, due - time.monotonic()) if self._listeners else None
                    )
                if self._closed:
                    return
                requested = self._requested
                look = requested > self._answered or (
                    bool(self._listeners) and time.monotonic() >= due
                )
            try:
                if look:
                    due = time.monotonic() + EVERY
                    self._look()
                self._read_new(until=time.monotonic() + _SLICE)
                self._read_wanted(until=time.monotonic() + _SLICE)
            except Exception:  # noqa: BLE001 - logged; the next look may succeed
                _log.exception("The list of runs could not be read; the server tries again.")
                time.sleep(EVERY)
            with self._changed:
                self._answered = requested
                self._changed.notify_all()

    def _look(self) -> None:
        """Find what has changed, and notify listeners."""
        if time.monotonic() >= self._roots_due:
            began, (least, most) = time.thread_time(), _ROOTS_EVERY
            self._index.use(find_roots(*self._where))
            self._roots_due = time.monotonic() + min(
                most, max(least, (time.thread_time() - began) / _SHARE)
            )
        changed = self._index.look()
        moved = self._index.move()
        with self._changed:
            self._wanted |= {entry.key: None for entry in moved if self._index.is_begun(entry.key)}
            rows = self._rows(moved)
            news = [row for entry, row in rows if entry.live and self._sent.get(entry.key) != row]
            self._sent = {
                key: row for key, row in self._sent.items() if key in self._index.entries
            } | {entry.key: row for entry, row in rows if entry.live}
            if news:
                self._notify({"type": "rows", "rows": news})
            for entry, row in rows:
                if not entry.live:
                    self._sent.pop(entry.key, None)
                    self._notify({"type": "ended", "row": row})
                    changed = True
            if changed:
                self._notify({"type": "list"})

    def _read_new(self, until: float) -> None:
        """Read new runs for a while."""
        added: list[Entry] = []
        while self._index.unread and time.monotonic() < until:
            entry = self._index.read_next()
            if entry is None:
                continue
            self._longer = True
            if self._listeners and entry.summary.created >= self._since:
                self._index.read_brief(entry.key)
                added.append(entry)
        with self._changed:
            for entry, row in self._rows(added):
                self._notify({"type": "began" if entry.live else "ended", "row": row})
                if not entry.live:
                    self._index.moved.pop(entry.key, None)  # its listeners have it
            if self._longer and not self._index.unread:
                self._longer = False
                self._notify({"type": "list"})

    def _read_wanted(self, until: float) -> None:
        """Read the records that pages need, for a while."""
        while self._wanted and time.monotonic() < until:
            with self._changed:
                key = next(iter(self._wanted))
                del self._wanted[key]
            entry = self._index.entries.get(key)
            if entry is None or not (self._index.lacks(entry) or self._index.is_begun(key)):
                continue
            self._index.read_brief(key)
            if self._index.is_begun(key):
                with self._changed:
                    by_turns = sum(map(self._index.is_begun, self._wanted)) < _AT_ONCE
                    self._wanted = (
                        self._wanted | {key: None} if by_turns else {key: None} | self._wanted
                    )
        with self._changed:
            if (
                self._lacking
                and not self._index.unread
                and (not self._wanted or time.monotonic() >= self._list_due)
            ):
                self._list_due = time.monotonic() + _LIST_EVERY
                self._lacking = bool(self._wanted)
                self._notify({"type": "list"})
