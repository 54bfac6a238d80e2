"""Keeps the runs of all roots in memory, as far as their list needs them, and finds out what has changed on the disk.

One thread reads (`watcher.py`). Others may look at what is here while they hold the lock, under which it changes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from workbench.runs import read
from workbench.runs.brief import RunBrief
from workbench.runs.folder.annotations import read_annotations
from workbench.runs.folder.ids import is_id
from workbench.server.roots import Root, is_readable
from workbench.server.rows import Entry
from workbench.ui.canvas.runs.run_brief import LiveRunBrief

Key = tuple[str, str]
BRIEFS = 400
"""Briefs of ended runs in memory at most, of some 15 kB each."""
_SETTLED = 2.0
"""Seconds after which a folder's time is older than its clock is coarse."""
_EACH = 500
"""Ended runs in whose folders one look sees whether a person has changed something."""
_FULL = 30.0
"""Seconds after which each root is listed again, whatever its times say: those of a network's folders may be late."""


class Index:
    """`look` finds what is new, and `read_next` reads it run by run; `move` reads what has come of the runs that run."""

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self.entries: dict[Key, Entry] = {}
        """The runs that are read."""
        self.roots: dict[str, Root] = {}
        self.unread: OrderedDict[Key, Path] = OrderedDict()
        """Folders that may be runs, in the order in which they are read."""
        self._briefs: OrderedDict[Key, RunBrief] = OrderedDict()
        self._live: dict[Key, LiveRunBrief] = {}
        self._records: dict[Key, tuple[int, int]] = {}
        """The stamps of the records of runs that have not ended, when they were read."""
        self._no_runs: dict[Key, tuple[int, int]] = {}
        """The stamps of folders that hold no run; they are read again when they change."""
        self._listed: dict[str, tuple[int, float]] = {}
        """By root, the time of its folder of runs when it was listed, and when that was."""
        self._turn = 0

    def use(self, roots: Iterable[Root]) -> None:
        """Keep the runs of these roots."""
        with self._lock:
            self.roots = {root.key: root for root in roots}
            for key in [key for key in (*self.entries, *self.unread, *self._no_runs) if key[0] not in self.roots]:
                self._forget(key)
            self._listed = {key: seen for key, seen in self._listed.items() if key in self.roots}

    def brief(self, key: Key) -> RunBrief | None:
        """The brief of a run, if it was read."""
        with self._lock:
            if key in self._briefs:
                self._briefs.move_to_end(key)
            return self._briefs.get(key)

    def look(self) -> bool:
        """Find new folders and those that are gone. Returns whether a run is gone, or what a person has added to one has changed."""
        changed = False
        for root in list(self.roots.values()):
            changed |= self._list(root)
        self._look_at_no_runs()
        return self._look_at_annotations() or changed

    def read_next(self) -> Entry | None:
        """Read the next unread folder; None: it holds no run."""
        key, path = next(iter(self.unread.items()))
        return self.read(self.roots[key[0]], path)

    def read(self, root: Root, path: Path) -> Entry | None:
        """Read a folder; None: it holds no run."""
        key, stamp = (root.key, path.name), _stamp(path)
        try:
            entry = Entry.read(root, read.summary(path), stamp)
        except FileNotFoundError:  # being made, or being deleted
            self._no_run(key, stamp)
            return None
        except Exception as error:  # noqa: BLE001 - as below
            read.name_unreadable(path, error)
            self._no_run(key, stamp)
            return None
        with self._lock:
            self._forget(key)
            self.entries[key] = entry
        return entry

    def move(self) -> list[Entry]:
        """Read what is new of the runs that have not ended. Returns those whose record has grown, or that have ended."""
        moved = []
        for key, entry in [(one.key, one) for one in list(self.entries.values()) if one.live]:
            stamp = _stamp(entry.summary.path / read.RECORD)
            before, self._records[key] = self._records.get(key), stamp
            if stamp == before and (entry.summary.unseen or key not in self._live):
                continue
            if self.read_brief(key):
                moved.append(entry)
        return moved

    def read_brief(self, key: Key) -> bool:
        """Read what is new in the record of a run. False: it cannot be read now, or is not there any more."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        path = entry.summary.path
        growing = self._live.get(key) or LiveRunBrief(path)
        try:
            brief = growing.brief()
        except Exception as error:  # noqa: BLE001 - a record of anybody's making; it must not keep others from being read
            if not isinstance(error, FileNotFoundError):
                read.name_unreadable(path, error)
            entry.exact = True  # there is no more to be had
            return False
        with self._lock:
            if self.entries.get(key) is not entry:
                return False
            entry.take(brief)
            self._briefs[key] = brief
            self._briefs.move_to_end(key)
            if entry.live:
                self._live[key] = growing
            else:
                self._live.pop(key, None)
                self._records.pop(key, None)
            while len(self._briefs) > BRIEFS + len(self._live):
                self._briefs.popitem(last=False)
        return True

    def annotations_changed(self, key: Key) -> bool:
        """Read what a person has added to a run, if a file in its folder was replaced. Returns whether it has changed."""
        entry = self.entries.get(key)
        stamp = (0, 0) if entry is None else _stamp(entry.summary.path)
        if entry is None or stamp == entry.stamp:
            return False
        added = read_annotations(entry.summary.path)
        with self._lock:
            before, entry.annotations, entry.stamp = entry.annotations, added, stamp
        return before != added

    def _list(self, root: Root) -> bool:
        """List the folders of a root if it has changed. Returns whether a run is gone from it."""
        folder, now = root.path / read.RUNS, time.time()
        changed_at = _stamp(folder)[0] if is_readable(root) else 0
        known, listed = self._listed.get(root.key, (-1, 0.0))
        if changed_at == known and now - changed_at / 1e9 > _SETTLED and now - listed < _FULL:
            return False
        self._listed[root.key] = changed_at, now
        try:
            found = {(root.key, path.name): path for path in read.run_folders(root.path)} if changed_at else {}
        except OSError:
            found = {}
        known_keys = {key for key in (*self.entries, *self.unread, *self._no_runs) if key[0] == root.key}
        gone = known_keys - found.keys()
        new = sorted(((_stamp(path)[0], key, path) for key, path in found.items() if key not in known_keys and is_id(key[1])), reverse=True)
        with self._lock:
            was_listed = any(key in self.entries for key in gone)
            for key in gone:
                self._forget(key)
            self.unread.update((key, path) for _, key, path in new)  # the newest first
        return was_listed

    def _look_at_no_runs(self) -> None:
        """Read folders that were no runs again where they have changed."""
        for key, stamp in list(self._no_runs.items()):
            path = self.roots[key[0]].path / read.RUNS / key[1]
            if _stamp(path) != stamp or time.time() - stamp[0] / 1e9 < _SETTLED:
                with self._lock:
                    self._no_runs.pop(key, None)
                    self.unread[key] = path

    def _look_at_annotations(self) -> bool:
        """Look at runs that have not ended, and at the next ones of the others. Returns whether annotations have changed."""
        keys = list(self.entries)
        if not keys:
            return False
        first = self._turn % len(keys)
        self._turn = first + _EACH
        live = [entry.key for entry in list(self.entries.values()) if entry.live]
        changed = [key for key in (*live, *keys[first : first + _EACH]) if self.annotations_changed(key)]
        return bool(changed)

    def _no_run(self, key: Key, stamp: tuple[int, int]) -> None:
        with self._lock:
            self._forget(key)
            self._no_runs[key] = stamp

    def _forget(self, key: Key) -> None:
        for kept in (self.entries, self.unread, self._briefs, self._live, self._records, self._no_runs):
            kept.pop(key, None)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes with a file or a folder; zeros where there is none."""
    try:
        told = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return told.st_mtime_ns, told.st_size
