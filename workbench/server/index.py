"""Keeps the runs of all roots in memory, as far as their list needs them, and finds out what has
changed on the disk.

One thread reads (`watcher.py`). Others may look at what is here while they hold the lock, under
which it changes; they may also ask for `changed`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from workbench.runs import read
from workbench.runs.folder.annotations import read_annotations
from workbench.runs.folder.ids import is_id
from workbench.runs.tables.brief import RunBrief
from workbench.server.roots import Root, is_readable
from workbench.server.rows import Entry
from workbench.ui.canvas.runs.run_brief import LiveRunBrief

Key = tuple[str, str]
BRIEFS = 1000
"""The most briefs of ended runs in memory, of some 15 kB each. All open pages together should
need fewer.
"""
_OPEN = 50
"""The most records that stay open of runs whose process cannot be seen from here. Others are
read whole when they grow.
"""
_TURN = 0.05
"""Seconds for which the record of one run is read before the next run's; at least a part of it
is read.
"""
_AGAIN = 10.0
"""Seconds until a record is tried again after the system refused to read it."""
_SETTLED = 2.0
"""Seconds after which a folder's modification time is older than the resolution of the file
system's clock.
"""
_EACH = 500
"""How many folders of ended runs one call of `look` checks for changed annotations."""
_FULL = 30.0
"""Seconds after which each root is listed again, whatever its modification times: those of
network folders may be late.
"""
_log = logging.getLogger("workbench.server")


class Index:
    """The runs of all roots. `look` finds new ones, `read_next` reads them one by one, and
    `move` reads on in those that train.
    """

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self.entries: dict[Key, Entry] = {}
        """The runs that are read."""
        self.roots: dict[str, Root] = {}
        self.unread: OrderedDict[Key, Path] = OrderedDict()
        """Folders that may be runs, in the order in which they are read."""
        self.moved: dict[Key, None] = {}
        """Runs that had not ended, and in whose records something new was read."""
        self._briefs: OrderedDict[Key, RunBrief] = OrderedDict()
        self._live: dict[Key, LiveRunBrief] = {}
        self._records: dict[Key, tuple[int, int]] = {}
        """The stamps of the records of runs that have not ended, when they were read."""
        self._no_runs: dict[Key, tuple[int, int]] = {}
        """The stamps of folders that hold no run; they are read again when they change."""
        self._listed: dict[str, tuple[int, float]] = {}
        """By root, the modification time of its folder of runs when it was listed, and the time
        of the listing.
        """
        self._turn = 0

    def use(self, roots: Iterable[Root]) -> None:
        """Keep the runs of these roots."""
        with self._lock:
            before, self.roots = self.roots, {root.key: root for root in roots}
            for root in self.roots.values():
                if root.key not in before and not is_readable(root):
                    _log.warning(
                        "%r lists no runs: its folder runs is a link. Give the folder that the link"
                        " leads to in WorkbenchServer.roots.",
                        str(root.path),
                    )
            for key in [
                key
                for key in (*self.entries, *self.unread, *self._no_runs)
                if key[0] not in self.roots
            ]:
                self._forget(key)
            self._listed = {key: seen for key, seen in self._listed.items() if key in self.roots}

    def brief(self, key: Key) -> RunBrief | None:
        """Return the brief of a run, if it was read."""
        with self._lock:
            if key in self._briefs:
                self._briefs.move_to_end(key)
            return self._briefs.get(key)

    def lacks(self, entry: Entry, exact: bool = False) -> bool:
        """Whether the brief of a fit is still to be read for its row; exact: for a sort by its
        loss or value, which are kept longer.
        """
        has = entry.exact if exact else entry.key in self._briefs
        return (
            entry.summary.kind == "fit" and not has and time.monotonic() >= entry.unreadable_until
        )

    def is_begun(self, key: Key) -> bool:
        """Whether a record was read only in part."""
        return key in self._live and self._live[key].reading

    def look(self) -> bool:
        """Find new and deleted folders. Returns whether a run was deleted or the annotations of
        a run changed.
        """
        changed = False
        for root in list(self.roots.values()):
            changed |= self._list(root)
        self._look_at_no_runs()
        return self._look_at_annotations() or changed

    def read_next(self) -> Entry | None:
        """Read the next unread folder; None: it holds no run."""
        with self._lock:
            key, path = next(iter(self.unread.items()))
            root = self.roots.get(key[0])
            if root is None:  # it has gone since its folder was found
                self._forget(key)
                return None
        return self.read(root, path)

    def read(self, root: Root, path: Path) -> Entry | None:
        """Read a folder; None: it holds no run."""
        key, stamp, record = (root.key, path.name), _stamp(path), _stamp(path / read.RECORD)
        try:
            entry = Entry.read(root, read.summary(path), _comparable(stamp))
        except FileNotFoundError:  # the folder is being made or deleted
            self._no_run(key, stamp)
            return None
        except Exception as error:  # noqa: BLE001 - as below
            read.name_unreadable(path, error)
            self._no_run(key, stamp)
            return None
        with self._lock:
            self._forget(key)
            self.entries[key] = entry
            # it may have ended long ago: its record is read when a page needs it
            if entry.summary.unseen:
                self._records[key] = record
        return entry

    def move(self) -> list[Entry]:
        """Read on in the record of each run that has not ended, for a moment. Returns those with
        something new since the last call.
        """
        for key, entry in [
            (entry.key, entry) for entry in list(self.entries.values()) if entry.live
        ]:
            stamp = _stamp(entry.summary.path / read.RECORD)
            before, self._records[key] = self._records.get(key), stamp
            if stamp == before and (
                entry.summary.unseen or not (key in self._live or entry.unreadable_until)
            ):
                continue
            self.read_brief(key)
        with self._lock:
            moved = [self.entries[key] for key in self.moved if key in self.entries]
            self.moved.clear()
        return moved

    def read_brief(self, key: Key) -> None:
        """Read what is new in the record of a run, for a moment: `is_begun` says whether there is
        more.

        Where it cannot be read, the run keeps a row, with its present state and no curve.
        """
        entry = self.entries.get(key)
        if entry is None:
            return
        path, brief = entry.summary.path, None
        growing = self._live.get(key) or LiveRunBrief(path)
        began = time.monotonic()
        try:
            if began >= entry.unreadable_until:
                brief = growing.brief(began + _TURN)
                entry.unreadable_until = 0.0
        except Exception as error:  # noqa: BLE001 - a damaged record must not prevent others from being read
            entry.unreadable_until = began + _AGAIN if isinstance(error, OSError) else math.inf
            if not isinstance(error, FileNotFoundError):
                read.name_unreadable(path, error)
        now = brief or _state(path)
        if now is None:
            return
        with self._lock:
            if self.entries.get(key) is not entry:
                return
            if entry.live:
                self.moved[key] = None
            entry.take_state(now)
            if brief is not None and growing.reading:
                self._live[key] = growing
                return
            if brief is not None:
                entry.take(brief)
                self._briefs[key] = brief
                self._briefs.move_to_end(key)
            self._live.pop(key, None)
            if not entry.live:
                self._records.pop(key, None)
            elif brief is not None and (not entry.summary.unseen or len(self._live) < _OPEN):
                self._live[key] = growing
            while len(self._briefs) > BRIEFS + len(self._live):
                self._briefs.popitem(last=False)

    def changed(self, key: Key) -> bool:
        """Read the annotations of a run if a file in its folder was replaced. Read all of it if
        the folder now holds another run. Returns whether anything has changed.
        """
        entry = self.entries.get(key)
        stamp = (0, 0) if entry is None else _stamp(entry.summary.path)
        if entry is None or stamp == entry.stamp:
            return False
        stamp = _comparable(stamp)
        if _created(entry.summary.path) not in (None, entry.summary.created):
            with self._lock:
                self._forget(key)
                self.unread[key] = entry.summary.path
            return True
        added = read_annotations(entry.summary.path)
        with self._lock:
            before, entry.annotations, entry.stamp = entry.annotations, added, stamp
        return before != added

    def _list(self, root: Root) -> bool:
        """List the folders of a root if it has changed. Returns whether a run was deleted."""
        folder, now = root.path / read.RUNS, time.time()
        changed_at = _stamp(folder)[0] if is_readable(root) else 0
        known, listed = self._listed.get(root.key, (-1, 0.0))
        if changed_at == known and now - changed_at / 1e9 > _SETTLED and now - listed < _FULL:
            return False
        self._listed[root.key] = changed_at, now
        try:
            folders = (
                {(root.key, path.name): path for path in read.run_folders(root.path)}
                if changed_at
                else {}
            )
        except OSError:
            folders = {}
        replaced = (
            [
                self.changed(key)
                for key in list(self.entries)
                if key[0] == root.key and key in folders
            ]
            if changed_at != known
            else []
        )
        known_keys = {
            key for key in (*self.entries, *self.unread, *self._no_runs) if key[0] == root.key
        }
        gone = known_keys - folders.keys()
        new = sorted(
            (
                (_stamp(path)[0], key, path)
                for key, path in folders.items()
                if key not in known_keys and is_id(key[1])
            ),
            reverse=True,
        )
        with self._lock:
            was_listed = any(key in self.entries for key in gone)
            for key in gone:
                self._forget(key)
            self.unread.update((key, path) for _, key, path in new)  # the newest first
        return was_listed or any(replaced)

    def _look_at_no_runs(self) -> None:
        """Read folders that were no runs again where they have changed."""
        for key, stamp in list(self._no_runs.items()):
            path = self.roots[key[0]].path / read.RUNS / key[1]
            if _stamp(path) != stamp or time.time() - stamp[0] / 1e9 < _SETTLED:
                with self._lock:
                    self._no_runs.pop(key, None)
                    self.unread[key] = path

    def _look_at_annotations(self) -> bool:
        """Look at runs that have not ended, and at the next ones of the others. Returns whether
        annotations have changed.
        """
        keys = list(self.entries)
        if not keys:
            return False
        first = self._turn % len(keys)
        self._turn = first + _EACH
        live = [entry.key for entry in list(self.entries.values()) if entry.live]
        changed = [key for key in (*live, *keys[first : first + _EACH]) if self.changed(key)]
        return bool(changed)

    def _no_run(self, key: Key, stamp: tuple[int, int]) -> None:
        with self._lock:
            self._forget(key)
            self._no_runs[key] = stamp

    def _forget(self, key: Key) -> None:
        for kept in (
            self.entries,
            self.unread,
            self.moved,
            self._briefs,
            self._live,
            self._records,
            self._no_runs,
        ):
            kept.pop(key, None)


def _state(folder: Path) -> read.RunSummary | None:
    """Return the state of a run, from the end of its record; None: it cannot be read."""
    try:
        return read.summary(folder)
    except Exception:  # noqa: BLE001 - the record may be damaged
        return None


def _created(folder: Path) -> float | None:
    """Return the creation time of the run in this folder; None where it cannot be read."""
    try:
        return read.created(read.read_header(folder), folder)
    except (OSError, ValueError):
        return None


def _comparable(stamp: tuple[int, int]) -> tuple[int, int]:
    """Return the stamp to compare with later; (-1, -1), which no folder has, if a second change
    could leave the same stamp.
    """
    return stamp if time.time() - stamp[0] / 1e9 > _SETTLED else (-1, -1)


def _stamp(path: Path) -> tuple[int, int]:
    """Return a stamp that changes whenever the file or folder does; zeros where it does not
    exist.
    """
    try:
        stat = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size
