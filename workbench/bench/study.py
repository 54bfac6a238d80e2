"""Defines Study: many fits of one bench that worker processes train, to find the best settings."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.bench.study_start import TrialBench, keep
from workbench.bench.study_view import StudyView, TrialRows
from workbench.export.source.capture import CallSite
from workbench.launch.study import local
from workbench.launch.study.liveness import ENDED
from workbench.launch.study.worker import new_name
from workbench.runs.printable import printable
from workbench.runs.read import RUNS
from workbench.runs.run import Run
from workbench.runs.study.find import find_study, study_folders
from workbench.runs.study.record import (
    HEAD,
    PieceRecord,
    StudyHead,
    StudyRecord,
    TrialRecord,
)
from workbench.runs.study.write import new_study
from workbench.runs.tables.run_list import RunList
from workbench.settings import SettingsError
from workbench.settings.space import assigned
from workbench.tuners.study.budget import budget_text, checked_count
from workbench.tuners.study.compare import compared, verdict
from workbench.tuners.study.next import AdviceList, advice
from workbench.tuners.study.verdict import Verdict
from workbench.units import counted, number

_ASKED = (
    "code",
    "data",
    "space",
    "base",
    "monitor",
    "mode",
    "length",
    "limits",
    "seeds",
    "compare",
    "method",
)
"""What is equal in two studies that ask the same."""
_LATEST = 20
"""How many studies, the latest ones, are looked at for one that asks the same."""
_LOOK = 0.5
"""Seconds between two looks at the record while a cell waits."""
_started: list[subprocess.Popen[bytes]] = []
"""Workers that this process has started; they are its children, and outlive it."""


class Study(StudyView):
    """Many fits that find the best settings of a bench: `bench.study(budget=8)`.

    Its trials are trained by worker processes, which go on when this process ends. All that it
    knows is in its folder, so that any process can follow and change it: `wb.Study.open(...)`.
    """

    def __init__(self, path: Path, workers: int = 1, devices: Sequence[str] = ("",)) -> None:
        """path: its folder. workers, devices: those that are started where none lives."""
        super().__init__(path)
        self._workers, self._devices, self._trust = workers, devices, False
        self._has_begun = False
        """Whether it has started workers: others may be on machines that are not seen here."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The workers that this object has started, by name."""

    @classmethod
    def open(
        cls, study: str | int | Path, root: str | Path = ".workbench", *, trust: bool = False
    ) -> Study:
        """Open a recorded study: `wb.Study.open("0003-study")`, `wb.Study.open(3)`.

        root: of the bench that made it. trust: its workers may run code that somebody else has
        kept in it.

        Raises FileNotFoundError where there is none, ValueError where it cannot be read.
        """
        folder = Path(str(study)).expanduser()
        if not (folder / HEAD).is_file():
            folder = find_study(Path(root).expanduser().absolute(), str(study))
        opened = cls(folder.absolute())
        opened._trust = trust
        return opened

    # -- what it knows

    @property
    def verdict(self) -> Verdict:
        """Whether the best trial's settings are better than the bench's, by fresh seeds of both. Of
        a study with `compare=`: whether they are better than the best of each other value.
        """
        return verdict(self.record)

    @property
    def next(self) -> AdviceList:
        """What to do next, each in a sentence with the line of code that does it."""
        return advice(self.record)

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best whole fit so far; None: none has ended."""
        return self.record.best

    @property
    def value(self) -> float | None:
        """The value of the best trial so far; None: none has ended."""
        record = self.record
        return None if record.best is None else record.whole(record.best)

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the best trial, for `bench.set(**study.settings)`: settings, and parameters
        of the function that makes the model.
        """
        record = self.record
        return {} if record.best is None else _settings(record, record.best)

    @property
    def compared(self) -> TrialRows:
        """A row for each value of the setting that `compare=` names, the best one first: its best
        trial, the settings and the metric of that, and the fits that tuned it. It prints as a
        table. Empty without `compare=`.
        """
        record, rows = self.record, TrialRows()
        for entry in compared(record) if record.head.compare else ():
            best = entry.best
            rows.append(
                {
                    record.head.compare: entry.value,
                    "trial": None if best is None else best.number,
                    record.head.monitor: None if best is None else record.whole(best),
                    "settings": {} if best is None else _settings(record, best),
                    "fits": entry.fits,
                }
            )
        return rows

    @property
    def runs(self) -> RunList:
        """Its fits, by trial; it prints as a table."""
        runs, root = RunList(), self.path.parents[1]
        for _, piece in self.record.pieces:
            folder = root / RUNS / piece.run
            if piece.run and folder.is_dir():
                runs.append(Run.open(folder))
        return runs

    def table(self) -> TrialRows:
        """A row for each piece of each trial: its values, seed, length (a share of a whole fit),
        status, metric, cost, run. It prints as a table, and is a list of dicts:
        `pandas.DataFrame(study.table())`.
        """
        record, rows = self.record, TrialRows()
        names, lives = record.names, self._has_worker(record)
        for trial, piece in record.pieces:
            end = piece.end
            values = record.values_of(trial, end)
            rows.append(
                {
                    "trial": trial.number,
                    "from": trial.source,
                    **{name: values.get(name) for name in names},
                    "seed": piece.seed,
                    "length": record.head.rungs[min(piece.rung, record.last_rung)],
                    "status": piece.status(lives),
                    record.head.monitor: None if end is None else end.value,
                    "cost": None if end is None else end.cost,
                    "run": piece.run,
                }
            )
        return rows

    def summary(self) -> dict[str, Any]:
        """Its state as plain data."""
        record = self.record
        best, baseline = record.best, record.baseline
        return {
            "id": self.id,
            "status": self._status(record),
            "monitor": record.head.monitor,
            "mode": record.head.mode,
            "budget": dict(record.budget),
            "spent": record.spent,
            "by_hand": record.by_hand,
            "trials": len(record.trials),
            "best": None if best is None else best.number,
            "value": None if best is None else record.whole(best),
            "settings": {} if best is None else _settings(record, best),
            "baseline": None if baseline is None else record.whole(baseline),
        }

    # -- wait

    def result(self, timeout: float | None = None) -> Run:
        """Wait for its end, and return the best whole fit. A terminal gets a line for each trial.
        An interrupt of the cell ends the waiting, and the study goes on. It also waits for the
        first worker of a study on which none has worked yet, and while the study is paused.

        Raises RuntimeError where no trial has a result, or where no worker is left; TimeoutError
        after `timeout` seconds.
        """

        def tell(text: str) -> None:
            if sys.stderr.isatty():
                print(printable(text), file=sys.stderr)

        tell(self.headline)
        try:
            self.follow(tell, timeout, lambda text: print(printable(text), file=sys.stderr))
        except KeyboardInterrupt:
            print(f"{self.id} goes on. To end it: study.stop(), or workbench study stop {self.id}")
            raise
        record = self.record
        best = record.best
        if best is None or self.failure:
            raise RuntimeError(f"{self.id} has no result: {self.failure or self._why_nothing()}")
        end = best.end(record.last_rung)
        assert end is not None  # it is the best whole fit
        return Run.open(self.path.parents[1] / RUNS / end.run)

    def follow(
        self,
        tell: Callable[[str], object],
        timeout: float | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """Wait for its end. tell: called with a line for each piece that has ended. say: called
        with why nothing trains, once; None: `tell` is.

        Raises RuntimeError where no worker is left, TimeoutError after `timeout` seconds.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        reported: set[tuple[int, int, int]] = set()
        unseen, said = 0, ""
        while True:
            record = self.record
            for trial, piece in record.pieces:
                key = trial.number, piece.seed, piece.rung
                if piece.end is not None and key not in reported:
                    reported.add(key)
                    tell(_ended(record, trial, piece))
            if self._status(record) == "ended":
                return
            has_worker, waits = self._has_worker(record), ""
            if not (self._has_begun or record.workers):
                waits = f"{self._last_words()}{self.id} waits for its first worker:"
                waits += f" workbench study work {self.id}"
            elif record.paused and has_worker:
                waits = self._paused
            # a worker that was started elsewhere may not have said so yet
            unseen = 0 if has_worker or waits else unseen + 1
            if unseen > 2:
                remedy = self._paused if record.paused else self.hint
                raise RuntimeError(f"no worker works on {self.id}. {self._last_words()}{remedy}")
            if waits and waits != said:
                (say or tell)(waits)
            said = waits
            if time.monotonic() >= until:
                raise TimeoutError(f"{self.id} still runs after {timeout} s; it goes on.")
            time.sleep(max(0.0, min(_LOOK, until - time.monotonic())))

    # -- change

    def work(self, workers: int | None = None) -> None:
        """Start workers on this machine: None: as many as it began with, or one."""
        count = max(1, self._workers)
        if workers is not None:
            count = checked_count(workers, "workers", "study.work")
        devices = list(self._devices) if count == self._workers else [""] * count
        names = [new_name() for _ in range(count)]
        processes = local.start(self.path, names, devices, trust=self._trust)
        self._processes |= processes
        self._has_begun = True
        running = [process for process in _started if process.poll() is None]
        _started[:] = [*running, *processes.values()]

    def _needs_worker(self) -> None:
        """Start workers where this object has started the others; else warn where none works."""
        if self._has_begun and self.status == "no worker":
            self.work()
        elif why := self.why_idle:
            warnings.warn(why, stacklevel=4)

    def _has_process(self, record: StudyRecord) -> bool:
        return any(
            process.poll() is None and not record.workers.get(name, {}).get(ENDED)
            for name, process in self._processes.items()
        )

    def _exit_code(self, worker: str) -> int | None:
        process = self._processes.get(worker)
        return None if process is None else process.poll()


def _settings(record: StudyRecord, trial: TrialRecord) -> dict[str, Any]:
    """The values of a trial's whole fit."""
    return trial.absolute(trial.end(record.last_rung))


def _ended(record: StudyRecord, trial: TrialRecord, piece: PieceRecord) -> str:
    """A line that says how a piece ended."""
    assert piece.end is not None
    values = assigned(trial.absolute(piece.end)) or trial.source
    seed = f", seed {piece.seed}" if piece.seed else ""
    value = "" if piece.end.value is None else f"  {record.head.monitor} {number(piece.end.value)}"
    cause = f"  {piece.end.cause}" if piece.end.cause else ""
    text = f"trial {trial.number} ({values}{seed}) {piece.end.status}{value}{cause}"
    return printable(text, lines=True)


def of_name(root: Path, head: StudyHead) -> tuple[Path | None, str]:
    """The newest study of this name that asks the same; where there is none, what differs in the
    newest one of this name; (None, ""): no study has it.
    """
    differs = ""
    asked = _plain(head)
    for folder in reversed(study_folders(root)):
        try:
            known = StudyRecord.read(folder).head
        except (OSError, ValueError):
            continue
        if known.name != head.name:
            continue
        recorded = _plain(known)
        differing = [name for name in _ASKED if asked[name] != recorded[name]]
        if not differing:
            return folder, ""
        if not differs:
            differs = f"{folder.name} has another {', '.join(differing)}".replace(
                "another data", "other data"
            )
    return None, differs


def asked_before(root: Path, head: StudyHead) -> str:
    """Which of the latest studies asks the same, and how to go on with it: a cell that runs twice
    makes two; "": none does.
    """
    asked = _plain(head)
    for folder in reversed(study_folders(root)[-_LATEST:]):
        try:
            study = Study(folder)
        except (OSError, ValueError):
            continue
        recorded = _plain(study.record.head)
        # data are compared where a study has a name
        if any(asked[name] != recorded[name] for name in _ASKED if name != "data"):
            continue
        elsewhere = root.absolute() != Path(".workbench").absolute()
        argument = f", root={str(root)!r}" if elsewhere else ""
        status = study.status
        more = "; study.work()" if status == "no worker" else ""
        if status == "ended":
            more = "; study.more(1)" if "fits" in study.record.budget else "; study.more('30min')"
        trials = counted(len(study.record.trials), "trial")
        return (
            f"{study.id} asks the same ({status}, {trials}). To go on with it:"
            f" study = wb.Study.open({study.id!r}{argument}){more}."
        )
    return ""


def _plain(head: StudyHead) -> dict[str, Any]:
    """As it is recorded."""
    record: dict[str, Any] = json.loads(json.dumps(asdict(head)))
    return record


def begin(
    bench: TrialBench,
    site: CallSite,
    head: StudyHead,
    values: Mapping[str, Any],
    settings: Mapping[str, Any],
    workers: int,
    method: Any = None,
) -> Study:
    """Make the folder of a study, keep what its trials start from, and start its workers.

    site: where the bench was made. values, settings: that all trials have. method: a sampler of
    Optuna that proposes trials.
    """
    devices = local.devices_of(bench.settings.replace(**settings), workers)
    path = new_study(bench.root, head)
    try:
        keep(bench, site, path, values, settings, method)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    study = Study(path, workers, devices)
    if workers:
        study.work()
    return study


def go_on(study: Study, budget: Mapping[str, float]) -> Study:
    """Let a study of the same name go on, with this budget where it is larger.

    SettingsError: its budget has another unit.
    """
    ((unit, amount),) = budget.items()
    known = study.record.budget
    if unit not in known:
        other = "a number of fits" if unit == "seconds" else "a time"
        raise SettingsError(
            f"study: budget: {study.id}, the study of this name, has a budget of {study.budget},"
            f" and this is {budget_text(budget)}: give {other}, or another name."
        )
    if amount > known[unit]:
        study._change("more", {unit: amount - known[unit]}, works=False)
    if study._workers and study.status == "no worker":
        study.work()
    elif study.status == "paused":
        warnings.warn(study._paused, stacklevel=3)
    return study
