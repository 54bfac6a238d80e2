"""Lists the studies of all roots, and finds one by its name.

A folder may come from a stranger, so that the size of a study and the time for reading one are
bounded. A study is read when somebody asks for the list, and seldom where that takes long.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.launch.study.followed import FollowedStudy
from workbench.runs.folder.ids import check_id, is_id
from workbench.runs.printable import printable
from workbench.runs.study.find import study_folders
from workbench.runs.study.record import CHANGES, HEAD, STUDIES, WORKERS, Limits
from workbench.server.errors import NotFoundError
from workbench.server.roots import Root
from workbench.ui import format
from workbench.ui.canvas.runs.runs_table import CELL
from workbench.ui.canvas.transport.messages import cut
from workbench.values import shown

LIMITS = Limits(size=1 << 25, trials=2000, seconds=5.0)
"""How much the server reads of a study."""
MOST = 100
"""The most studies in the list: the newest ones."""
_SLICE = 0.3
"""Seconds for which one answer reads studies; the next one reads more."""
_SHARE, _OFTEN = 0.05, 1.0
"""The share of the time that readings of one study may take, and the least seconds between two."""
_ERROR = 400
"""The most bytes of the reason why a study cannot be read."""
_log = logging.getLogger("workbench.server")
Key = tuple[str, str]


@dataclass(slots=True)
class _Listed:
    """What the list knows of a study."""

    row: dict[str, Any]
    study: FollowedStudy | None = None
    """None: it has ended, or cannot be read. Its record is not kept then."""
    stamp: tuple[int, ...] = ()
    """Of the folders that change when it goes on."""
    due: float = 0.0
    """The `time.monotonic` before which it is not read again."""


class Studies:
    """The studies of the roots. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while studies are read: one thread does that at a time."""
        self._known: dict[Key, _Listed] = {}

    def page(self, roots: Iterable[Root]) -> dict[str, Any]:
        """The rows of the newest studies, the newest first. "reading": not all are read yet, so
        that whoever asks again has more. "more": how many older ones are not listed.
        """
        folders = {(root.key, path.name): path for root in roots for path in _folders(root)}
        newest = sorted(folders, key=lambda key: _begun(folders[key]), reverse=True)[:MOST]
        if self._lock.acquire(timeout=_SLICE):
            try:
                self._read(newest, folders)
            finally:
                self._lock.release()
        rows = [self._known[key].row for key in newest if key in self._known]
        rows.sort(key=lambda row: row["created"], reverse=True)
        return {
            "studies": rows,
            "more": len(folders) - len(newest),
            "reading": len(rows) < len(newest),
        }

    def _read(self, keys: list[Key], folders: dict[Key, Path]) -> None:
        self._known = {key: listed for key, listed in self._known.items() if key in folders}
        until = time.monotonic() + _SLICE
        # first those that were not read yet
        for key in sorted(keys, key=lambda key: key in self._known):
            if time.monotonic() > until:
                return
            listed = self._known.get(key)
            if listed is None or self._is_due(listed, folders[key]):
                self._known[key] = self._listed(key, folders[key], listed)

    def _is_due(self, listed: _Listed, path: Path) -> bool:
        if time.monotonic() < listed.due:
            return False
        return listed.study is not None or listed.stamp != _stamp(path)

    def _listed(self, key: Key, path: Path, before: _Listed | None) -> _Listed:
        begin, stamp = time.monotonic(), _stamp(path)
        study = None if before is None else before.study
        try:
            study = study or FollowedStudy(path, LIMITS)
            row = _row(key, study)
        except Exception as error:  # noqa: BLE001 - it may be damaged: the others are listed
            _log.warning("The study %r cannot be read: %s", str(path), str(error)[:_ERROR])
            why = str(error).replace(f"{path}{os.sep}", "")
            study, row = None, _unreadable(key, why)
        if row["status"] == "ended":
            study = None
        now = time.monotonic()
        return _Listed(row, study, stamp, now + max(_OFTEN, (now - begin) / _SHARE))


def find(root: Root | None, key: str, id: str) -> Path:
    """The folder of a study. ValueError: the id is impossible; NotFoundError: there is none."""
    check_id(id)
    if root is None:
        raise NotFoundError(
            f"root={shown(key, 40)}: the server reads no root of this key. List the studies again:"
            " each has the key of its root."
        )
    for path in _folders(root):
        if path.name == id:
            return path
    raise NotFoundError(
        f"study={shown(id, 80)}: there is no such study in {root.name}. It may have been deleted:"
        " list the studies again."
    )


def _folders(root: Root) -> list[Path]:
    """The studies in a root itself: a link may lead anywhere."""
    if (root.path / STUDIES).is_symlink():
        return []
    try:
        return [path for path in study_folders(root.path) if is_id(path.name)]
    except OSError:  # deleted meanwhile, or not readable
        return []


def _begun(path: Path) -> int:
    """When a study was made, as the file system says."""
    return _changed(path / HEAD)


def _stamp(path: Path) -> tuple[int, ...]:
    return tuple(_changed(path / name) for name in (CHANGES, WORKERS))


def _changed(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _row(key: Key, study: FollowedStudy) -> dict[str, Any]:
    record, status = study.record, study.status
    best = record.best
    value = None if best is None else record.whole(best)
    ((unit, amount),) = record.budget.items()
    spent = record.spent - record.by_hand
    if unit == "seconds":
        spent = amount - max(0.0, record.seconds_left(time.time()))
    return {
        "root": key[0],
        "study": cut(printable(study.id), CELL),
        "status": status,
        "monitor": cut(printable(record.head.monitor), CELL),
        "best": "" if value is None else format.number(value),
        "trials": len(record.trials),
        "spent": format.duration(spent) if unit == "seconds" else f"{spent:.1f}",
        "budget": cut(study.budget, CELL),
        "progress": min(1.0, max(0.0, spent / amount)) if amount > 0 else 1.0,
        "created": record.head.created if math.isfinite(record.head.created) else 0.0,
        "error": "",
    }


def _unreadable(key: Key, why: str) -> dict[str, Any]:
    texts = ("monitor", "best", "spent", "budget")
    return {
        "root": key[0],
        "study": cut(printable(key[1]), CELL),
        "status": "unreadable",
        **dict.fromkeys(texts, ""),
        "trials": 0,
        "progress": 1.0,
        "created": 0.0,
        "error": cut(printable(why), _ERROR),
    }
