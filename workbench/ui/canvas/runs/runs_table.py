"""Lists a bench's fits for the canvas: newest first, read on a thread, each record once."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workbench.runs import read
from workbench.runs.tables.brief import RunBrief
from workbench.ui import format
from workbench.ui.canvas.runs.run_brief import LiveRunBrief
from workbench.ui.canvas.transport.messages import cut
from workbench.units import duration

MOST = 1000
"""How many fits are read, the newest first; if the folder has more, the card says so."""
SPARK = 32
"""How many points a sparkline has, each a height from 0 to 99."""
COLUMNS = 6
"""How many of the settings that differ are shown: the first ones in the order of the settings."""
METRICS = 3
"""How many metrics have columns, besides the losses."""
CELL, ADDED = 60, 960
"""Bytes of a cell, and of a name or a tag that the user gave."""
EVERY = 2.0
"""Seconds between two reads of the records of running runs."""


class RunsTable:
    """Reads the folder in a thread of its own after `refresh`. `read_it` is called with the fits
    read so far, newest first, how many the folder has, and how many of these are still to be read.

    While one of them runs, in any process, another thread reads its record regularly: `moved` is
    called with the fits of which only the values have changed.
    """

    def __init__(
        self,
        root: Path,
        read_it: Callable[[list[RunBrief], int, int], None],
        moved: Callable[[list[RunBrief]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._root, self._read_it, self._moved, self._failed = root, read_it, moved, failed
        self._known: dict[Path, tuple[tuple[int, int], RunBrief]] = {}
        self._growing: dict[Path, LiveRunBrief] = {}
        self._listed: tuple[list[RunBrief], int] = [], 0
        """The latest argument of `read_it`."""
        self._lock, self._one = threading.Lock(), threading.Lock()
        """Locks for the flags below, and for the data that was read."""
        self._reading, self._again, self._moving = False, False, False
        self._closed = threading.Event()

    def refresh(self) -> None:
        """Read new and changed runs; returns at once. A call during a read causes one more read
        afterwards.
        """
        with self._lock:
            self._again = True
            if self._reading or self._closed.is_set():
                return
            self._reading = True
        threading.Thread(target=self._work, name="workbench-runs", daemon=True).start()

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again or self._closed.is_set():
                    self._reading = False
                    return
                self._again = False
            try:
                with self._one:
                    self._read()
            except Exception as error:  # noqa: BLE001 - shown; the table does not change
                self._failed(error)
            self._move_on()

    def _read(self) -> None:
        paths = fits(self._root)
        self._known = {path: self._known[path] for path in paths[:MOST] if path in self._known}
        self._growing = {
            path: self._growing[path] for path in paths[:MOST] if path in self._growing
        }
        briefs: list[RunBrief] = []
        said = time.monotonic()
        for at, path in enumerate(paths[:MOST], 1):
            if self._closed.is_set():
                return
            brief = self._brief(path)
            if brief is not None:
                briefs.append(brief)
            # for long records: show the part that is read together with the earlier rows
            if time.monotonic() > said + 0.5:
                known = [self._known[path][1] for path in paths[at:MOST] if path in self._known]
                self._read_it([*briefs, *known], len(paths), len(paths[at:MOST]) - len(known))
                said = time.monotonic()
        self._listed = briefs, len(paths)
        self._read_it(*self._listed, 0)

    def _move_on(self) -> None:
        """Start the thread that updates the rows of running runs."""
        with self._lock:
            if self._moving or self._closed.is_set() or not self._goes_on():
                return
            self._moving = True
        threading.Thread(target=self._move, name="workbench-rows", daemon=True).start()

    def _goes_on(self) -> bool:
        return any(brief.status not in read.OVER for brief in self._listed[0])

    def _move(self) -> None:
        while not self._closed.wait(EVERY):
            try:
                with self._one:
                    self._look_again()
            except Exception as error:  # noqa: BLE001 - shown; the rows are not updated until the next refresh
                self._failed(error)
                break
            with self._lock:
                if not self._goes_on():
                    self._moving = False
                    return
        with self._lock:
            self._moving = False

    def _look_again(self) -> None:
        """Read the records of running runs, and no others."""
        before, count = self._listed
        briefs = []
        for brief in before:
            now = (
                brief
                if brief.status in read.OVER or brief.path is None
                else self._brief(brief.path)
            )
            # one read may fail and the next one succeed
            if now is not None or (brief.path is not None and brief.path.is_dir()):
                briefs.append(now or brief)
        if briefs == before:
            return
        self._listed = briefs, count - (len(before) - len(briefs))
        if [(brief.path, brief.status) for brief in briefs] == [
            (brief.path, brief.status) for brief in before
        ]:
            self._moved([brief for brief in briefs if brief.status not in read.OVER])
        else:
            self._read_it(*self._listed, 0)

    def _brief(self, path: Path) -> RunBrief | None:
        """The brief of one folder. A record that has not grown is not read again, unless its
        process may have died meanwhile.
        """
        try:
            stat = os.stat(path / read.RECORD)
            stamp = (stat.st_mtime_ns, stat.st_size)
            known = self._known.get(path)
            if known is not None and known[0] == stamp and known[1].status in read.OVER:
                return known[1]
            if path in self._growing or not read.summary(path).over:
                brief = self._growing.setdefault(path, LiveRunBrief(path)).brief()
            else:
                brief = RunBrief.read(path)
        except (OSError, ValueError):  # it is being made, or being deleted
            self._growing.pop(path, None)
            return None
        if known is not None and known[0] == stamp and known[1].status == brief.status:
            return known[1]
        if brief.status in read.OVER:
            self._growing.pop(path, None)
        self._known[path] = (stamp, brief)
        return brief


def fits(root: Path) -> list[Path]:
    """The folders of all fits, newest first; their records are not read."""
    dated = []
    try:
        folders = list(read.run_folders(root))
    except OSError:
        return []
    for folder in folders:
        try:
            header = read.read_header(folder)
        except FileNotFoundError:  # it is being made, or being deleted
            continue
        except (OSError, ValueError) as error:
            read.name_unreadable(folder, error)
            continue
        if header.get("kind") == "fit":
            dated.append((read.age(folder.name, read.created(header, folder)), folder))
    return [path for _, path in sorted(dated, reverse=True)]


def moving(one: RunBrief) -> dict[str, Any]:
    """The part of a run's row that changes while it runs, besides its cells."""
    spark, dots = _drawn(one)
    return {
        "run": one.id,
        "status": read.shown_status(one.status, one.unseen),
        "loss": format.number(one.loss),
        "metric": cut(one.monitor, CELL),
        "value": "" if one.value is None else format.number(one.value),
        "step": one.step,
        "time": duration(one.seconds),
        "spark": spark,
        "dots": dots,
        "trouble": None if one.trouble is None else [one.trouble.level, one.trouble.trouble],
    }


def finite(value: float | None) -> float | None:
    """The value, if it is a finite number; else None."""
    return value if value is not None and math.isfinite(value) else None


def _drawn(brief: RunBrief) -> tuple[list[int], list[list[int]]]:
    """The smoothed loss as heights from 0 to 99 at even distances, and the validations as [x, y]
    on the same scale.
    """
    if not len(brief.curve):
        return [], []
    steps, loss = brief.curve[:, 0], brief.curve[:, 3]
    at = np.linspace(steps[0], steps[-1], min(SPARK, len(steps)))
    line = np.interp(at, steps, loss)
    checks = (
        brief.checks[:: max(1, -(-len(brief.checks) // 12))]
        if "loss" in brief.monitor
        else brief.checks[:0]
    )
    seen = np.concatenate([line, checks[:, 3]])
    seen /= float(np.abs(seen).max()) or 1.0  # the difference of two huge losses could overflow
    line, checked = np.split(seen, [len(line)])
    low, high = float(seen.min()), float(seen.max())
    span = (high - low) or 1.0
    length = float(steps[-1] - steps[0]) or 1.0
    heights = np.rint(99 * (line - low) / span).astype(int)
    across = np.clip(np.rint(99 * (checks[:, 0] - steps[0]) / length), 0, 99).astype(int)
    up = np.rint(99 * (checked - low) / span).astype(int)
    return heights.tolist(), [
        list(point) for point in zip(across.tolist(), up.tolist(), strict=True)
    ]
