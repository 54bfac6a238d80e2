"""Defines Study: many fits of one bench that worker processes train, to find the best settings."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from workbench.bench.study_arguments import budget_of, checked_count
from workbench.bench.study_start import TrialBench, keep
from workbench.bench.study_view import StudyView
from workbench.export.source.capture import CallSite
from workbench.launch.study import local
from workbench.launch.study.liveness import ENDED, Observer
from workbench.launch.study.worker import new_name, plan_now
from workbench.runs.printable import printable
from workbench.runs.read import RUNS
from workbench.runs.run import Run
from workbench.runs.study.find import find_study, study_folders
from workbench.runs.study.record import (
    HEAD,
    MOST_SEEDS,
    Change,
    ChangeKind,
    PieceRecord,
    StudyHead,
    StudyRecord,
    TrialRecord,
)
from workbench.runs.study.write import change, new_study
from workbench.runs.tables.run_list import RunList
from workbench.settings import Settings, SettingsError, recorded_settings
from workbench.settings.space import OPTIMIZER, Choice, Space
from workbench.tuners.study.compare import compared, verdict
from workbench.tuners.study.next import AdviceList, advice
from workbench.tuners.study.plan import Ended
from workbench.tuners.study.verdict import Verdict
from workbench.units import duration, number
from workbench.values import plain, shown

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
        self.path = path
        self._workers, self._devices, self._trust = workers, devices, False
        self._has_begun = False
        """Whether it has started workers: others may be on machines that are not seen here."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The workers that this object has started, by name."""
        self._observer = Observer()
        self._read = StudyRecord.read(path)
        self._lock = threading.Lock()

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
    def id(self) -> str:
        """Its id, the name of its folder: "0003-study"."""
        return self.path.name

    @property
    def record(self) -> StudyRecord:
        """All that its folder says at this moment."""
        with self._lock:
            self._read = StudyRecord.read(self.path, self._read)
            return self._read

    @property
    def status(self) -> str:
        """ "running", "paused", "ended", or "no worker": nobody works on it."""
        return self._status(self.record)

    def _status(self, record: StudyRecord) -> str:
        if not self._has_process(record) and isinstance(plan_now(record), Ended):
            return "ended"
        if record.paused:
            return "paused"
        return "running" if self._has_worker(record) else "no worker"

    def _has_process(self, record: StudyRecord) -> bool:
        """Whether a worker that this object has started lives, and has not left."""
        return any(
            process.poll() is None and not record.workers.get(name, {}).get(ENDED)
            for name, process in self._processes.items()
        )

    def _has_worker(self, record: StudyRecord) -> bool:
        """Whether a worker lives, as far as it can be seen from here."""
        return self._has_process(record) or self._living(record) > 0

    def _living(self, record: StudyRecord) -> int:
        # each is looked at, so that all are watched from now on
        return len([name for name in record.workers if self._observer.is_alive(record, name)])

    @property
    def workers(self) -> int:
        """How many workers live and have said so, as far as it can be seen from here."""
        return self._living(self.record)

    @property
    def failure(self) -> str:
        """The error of the user's code that ended it; "": none did."""
        record = self.record
        ended = plan_now(record)
        causes = [
            piece.end.cause
            for _, piece in _pieces(record)
            if piece.end is not None and piece.end.status == "failed"
        ]
        failed = isinstance(ended, Ended) and any(cause in ended.why for cause in causes if cause)
        return ended.why if failed and isinstance(ended, Ended) else ""

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
    def compared(self) -> list[dict[str, Any]]:
        """A row for each value of the setting that `compare=` names, the best one first: its best
        trial, the settings and the metric of that, and the fits that tuned it. Empty without
        `compare=`.
        """
        record = self.record
        rows = []
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
        for _, piece in _pieces(self.record):
            folder = root / RUNS / piece.run
            if piece.run and folder.is_dir():
                runs.append(Run.open(folder))
        return runs

    @property
    def budget(self) -> str:
        """Its budget in words: "8 fits", "2 h 00 min"."""
        return _in_words(self.record.budget)

    def table(self) -> list[dict[str, Any]]:
        """A row for each piece of each trial: its values, status, metric, cost, run. A data frame:
        `pandas.DataFrame(study.table())`.
        """
        record, rows = self.record, []
        lives = self._status(record) in ("running", "paused")
        for trial, piece in _pieces(record):
            end = piece.end
            rows.append(
                {
                    "trial": trial.number,
                    "from": trial.origin,
                    **trial.absolute(end),
                    "seed": piece.seed,
                    "rung": record.head.rungs[min(piece.rung, record.last_rung)],
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

    @property
    def headline(self) -> str:
        """Its state in a line."""
        record = self.record
        ((unit, amount),) = record.budget.items()
        if unit == "fits":
            spent = f"{record.spent - record.by_hand:.1f} of {amount:g} fits"
            spent += f" and {record.by_hand:.1f} asked for" if record.by_hand else ""
        else:
            spent = f"{record.spent:.1f} fits, {duration(amount)} in all"
        arrow = "lower" if record.head.mode == "min" else "higher"
        best = record.best
        value = "nothing yet"
        if best is not None and (best_value := record.whole(best)) is not None:
            value = f"{number(best_value)} (trial {best.number})"
        rungs = [f"1/{round(1 / share)}" for share in record.head.rungs[:-1]]
        lengths = f"trials of {', '.join(rungs)} and whole fits" if rungs else "whole fits"
        return (
            f"{self.id}  {record.head.monitor} ({arrow} is better)  {self._status(record)}"
            f"  {spent}  {len(record.trials)} trials ({lengths})  best {value}"
        )

    # -- wait

    def result(self, timeout: float | None = None) -> Run:
        """Wait for its end, and return the best whole fit. A terminal gets a line for each trial.
        An interrupt of the cell ends the waiting, and the study goes on. It also waits for the
        first worker of a study that was made with workers=0, and while the study is paused.

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
            for trial, piece in _pieces(record):
                key = trial.number, piece.seed, piece.rung
                if piece.end is not None and key not in reported:
                    reported.add(key)
                    tell(_ended(record, trial, piece))
            if self._status(record) == "ended":
                return
            has_worker, waits = self._has_worker(record), ""
            if not (self._workers or self._has_begun or record.workers):
                waits = f"{self.id} waits for its first worker: workbench study work {self.id}"
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

    @property
    def hint(self) -> str:
        """How to start a worker, where none lives."""
        if self.status != "no worker":
            return ""
        return f"Start one: study.work(), or workbench study work {self.id}"

    @property
    def _paused(self) -> str:
        """What to do where it is paused."""
        return f"{self.id} is paused: study.resume(), or workbench study resume {self.id}"

    @property
    def why_idle(self) -> str:
        """Why nothing trains what was just asked for, and what to do; "": something does."""
        if hint := self.hint:
            return f"no worker works on {self.id}. {hint}"
        record = self.record
        action = plan_now(record)
        if not isinstance(action, Ended):
            return self._paused if record.paused else ""
        if self.failure:
            remedy = "mend it, and make a new study"
        else:
            more = "1" if "fits" in record.budget else "'30min'"
            remedy = f"study.more({more}) lets it go on, or workbench study more {self.id}"
        return f"{self.id} trains nothing now, {action.why}: {remedy}."

    def _last_words(self) -> str:
        """How the last worker on this machine has ended, and what it has printed; "": there was
        none.
        """
        name, words = local.last_words(self.path)
        if not name:
            return ""
        process = self._processes.get(name)
        code = None if process is None else process.poll()
        how = "" if code is None else f" ({local.how_ended(code)})"
        text = printable(words, lines=True)
        printed = f" has printed:\n{text}\n" if text else " has printed nothing. "
        return f"The last one, {name}{how},{printed}"

    def _why_nothing(self) -> str:
        causes = [
            f"trial {trial.number} {piece.end.status}: {piece.end.cause}"
            for trial, piece in _pieces(self.record)
            if piece.end is not None and piece.end.cause
        ]
        return "; ".join(causes[:3]) or "no trial has been trained to its end."

    # -- change

    def space(self, **ranges: Any) -> None:
        """Change ranges, or add what is searched: `study.space(lr=(1e-3, 0.3))`. Trials from now on
        come from the new space.
        """
        self._change("space", {"space": self._with_ranges(ranges).to_record()})

    def add(self, **values: Any) -> None:
        """Add a trial with these values: `study.add(lr=3e-3)`. It is the next one, and is trained
        beyond the budget.
        """
        self._change("add", {"values": self._checked(values)})

    def stop(self, trial: int | None = None) -> None:
        """Stop a trial: `study.stop(7)`. None: end the study; the trials that train stop at their
        next update, and keep what they have.
        """
        if trial is None:
            self._change("end", {}, works=False)
        else:
            self._change("stop", {"trial": self._trial(trial, "stop")}, works=False)

    def more(self, budget: float | str | timedelta) -> None:
        """Add to its budget, in its unit: `study.more(4)`, `study.more("1h")`."""
        added = budget_of(budget, "study.more", least=0)
        ((unit, _),) = self.record.budget.items()
        if unit not in added:
            hint = "so much time, study.more('1h')" if unit == "seconds" else "fits, study.more(4)"
            raise SettingsError(
                f"study.more({shown(budget)}): its budget is {self.budget}: give {hint}."
            )
        self._change("more", added)

    def seeds(self, trial: int, n: int) -> None:
        """Train a trial with so many seeds besides its own, and the baseline with the same ones,
        beyond the budget.
        """
        count = checked_count(n, "n", "study.seeds", most=MOST_SEEDS)
        self._change("seeds", {"trial": self._trial(trial, "seeds"), "n": count})

    def repeat(self, trial: int) -> None:
        """Train a trial once more, as a new trial: the same values and seed, beyond the budget."""
        self._change("repeat", {"trial": self._trial(trial, "repeat")})

    def pause(self) -> None:
        """Begin no more trials until `resume()`; those that train go on to their end."""
        self._change("pause", {}, works=False)

    def resume(self) -> None:
        """Go on after a pause."""
        self._change("resume", {})

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

    def _change(self, kind: ChangeKind, values: Mapping[str, Any], *, works: bool = True) -> None:
        """Leave a change. works: a worker is needed for it, which is started where this object has
        started the others.
        """
        change(self.path, Change(kind, values, len(self.record.trials)))
        if not works:
            return
        if self._has_begun and self.status == "no worker":
            self.work()
        elif why := self.why_idle:
            warnings.warn(why, stacklevel=3)

    def _trial(self, trial: int, method: str) -> int:
        numbers = [known.number for known in self.record.trials]
        if trial not in numbers or type(trial) is not int:
            known = f"1 to {max(numbers)}" if numbers else "none yet"
            raise SettingsError(f"study.{method}({shown(trial)}): its trials are {known}.")
        return trial

    def _with_ranges(self, ranges: Mapping[str, Any]) -> Space:
        """Its space with these ranges; SettingsError for what is no range."""
        record = self.record
        base, build = self._base()
        present = Space.from_record(record.space, record.priors)
        changed = present.with_ranges(Space.parse(dict(ranges), base, build))
        compare = record.head.compare
        if compare and not isinstance(changed.dimension(compare), Choice):
            raise SettingsError(
                f"study.space({compare}={shown(ranges[compare])}): the study compares its values:"
                f" give a list, {compare}=[…]."
            )
        return changed

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a trial by hand; SettingsError for one that a space could not have."""
        if not values:
            raise SettingsError("study.add(): give its values, study.add(lr=3e-3).")
        base, build = self._base()
        present = {**base.model_dump(), **build}
        settings = {name: plain(value) for name, value in values.items() if name not in build}
        for name, value in values.items():
            if name == OPTIMIZER and name in settings:
                continue
            if name in present and type(value) is type(present[name]) and value == present[name]:
                continue
            in_bench = present.get(name)
            if isinstance(value, str) and type(in_bench) in (int, float):
                raise SettingsError(
                    f"study.add({name}={shown(value)}): it is {shown(in_bench)} in the bench: give"
                    " a number."
                )
            try:
                Space.parse({name: [present.get(name), value]}, base, build)
            except SettingsError as error:
                why = str(error).removeprefix("space: ")
                raise SettingsError(f"study.add({name}={shown(value)}): {why}") from None
        base.replace(**settings)
        return {name: plain(value) for name, value in values.items()}

    def _base(self) -> tuple[Settings, dict[str, Any]]:
        """The settings of all its trials, and the values of the function's parameters."""
        base = self.record.head.base
        settings = {name: base[name] for name in base if name in Settings.model_fields}
        build = {name: base[name] for name in base if name not in settings}
        return recorded_settings(settings), build


def _pieces(record: StudyRecord) -> list[tuple[TrialRecord, PieceRecord]]:
    return [(trial, piece) for trial in record.trials for piece in trial.pieces]


def _settings(record: StudyRecord, trial: TrialRecord) -> dict[str, Any]:
    """The values of a trial's whole fit."""
    return trial.absolute(trial.end(record.last_rung))


def _in_words(budget: Mapping[str, float]) -> str:
    ((unit, amount),) = budget.items()
    return duration(amount) if unit == "seconds" else f"{amount:g} fits"


def _ended(record: StudyRecord, trial: TrialRecord, piece: PieceRecord) -> str:
    """A line that says how a piece ended."""
    assert piece.end is not None
    used = trial.absolute(piece.end)
    values = ", ".join(f"{name}={_text(value)}" for name, value in used.items())
    seed = f", seed {piece.seed}" if piece.seed else ""
    value = "" if piece.end.value is None else f"  {record.head.monitor} {number(piece.end.value)}"
    cause = f"  {piece.end.cause}" if piece.end.cause else ""
    return f"trial {trial.number} ({values or trial.origin}{seed}) {piece.end.status}{value}{cause}"


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def of_name(root: Path, head: StudyHead) -> tuple[Path | None, str]:
    """The newest study of this name that asks the same; where there is none, what differs in the
    newest one of this name; (None, ""): no study has it.
    """
    differs = ""
    asked = json.loads(json.dumps(asdict(head)))
    for folder in reversed(study_folders(root)):
        try:
            known = StudyRecord.read(folder).head
        except (OSError, ValueError):
            continue
        if known.name != head.name:
            continue
        recorded = json.loads(json.dumps(asdict(known)))
        differing = [name for name in _ASKED if asked[name] != recorded[name]]
        if not differing:
            return folder, ""
        if not differs:
            differs = f"{folder.name} has another {', '.join(differing)}".replace(
                "another data", "other data"
            )
    return None, differs


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
            f" and this is {_in_words(budget)}: give {other}, or another name."
        )
    if amount > known[unit]:
        study._change("more", {unit: amount - known[unit]}, works=False)
    if study._workers and study.status == "no worker":
        study.work()
    elif study.status == "paused":
        warnings.warn(study._paused, stacklevel=3)
    return study
