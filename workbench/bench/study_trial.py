"""Trains the pieces of a study in a worker's process, each on a bench made anew."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from workbench.bench.study_arguments import above
from workbench.bench.study_start import TrialBench, bench_of, open_start
from workbench.events import CurvePoint, Event, RunStarted, Trial, Validated
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.job import AnyJob, Job
from workbench.launch.start.kept_start import StartFile
from workbench.launch.study.liveness import began_at, cost_of
from workbench.launch.study.worker import Attend, Piece, Worker
from workbench.runs.folder.files import Folder, make_folder, read_json
from workbench.runs.health.numbers import NonFiniteValidation
from workbench.runs.printable import printable
from workbench.runs.read import RUNS, STUDY
from workbench.runs.run import Run
from workbench.runs.study.record import (
    Change,
    EndStatus,
    PieceEnd,
    StudyRecord,
    TrialProposal,
    TrialRecord,
)
from workbench.runs.study.write import change
from workbench.settings import SettingsError
from workbench.settings.space import OPTIMIZER, TIMES_FOUND, Space
from workbench.task.errors import TaskError
from workbench.tracebacks import user_line
from workbench.tuners.batch_size.batch_size_finder import SHARE, BatchSizeRequest
from workbench.tuners.study.brackets import trains_whole
from workbench.tuners.study.halt import halt_at
from workbench.tuners.study.sampler import ask

T = TypeVar("T")
_RATES = "rates"
"""The folder in a study with the rates that searches of trials have found."""
_NO_RATE = ("lr", "weight_decay", "warmup", "lr_schedule", "gradient_clip_val")
"""Settings of a trial on which the search of its rate does not depend, or hardly."""
_STEPS = BatchSizeRequest().steps_per_trial
_LARGEST = 1 << 16
_LOST = 1 << 28
"""Bytes of a GPU by which the memory in use may grow from piece to piece."""
_CAUSE = 2000
"""The most characters of an error that a record of a study keeps; the run has all of it."""


class TrialTrainer:
    """Trains pieces; each starts from what the study has kept, whatever was trained before."""

    def __init__(self, study: Path, *, trust: bool = False) -> None:
        """trust: see `StartFile.of_study`, whose errors it raises."""
        self._study, self._trust = study, trust
        self.device = open_start(study, trust=trust).device
        self._memory: int | None = None
        """The bytes of the GPU that were in use before its first piece."""

    def prepare(self, record: StudyRecord, attend: Attend) -> None:
        """Run the searches that come before the first trial, where nobody has, and record where
        they expect good values. `attend` waits for their jobs.

        Two workers that do this at once find the same.
        """
        start = open_start(self._study, trust=self._trust)
        with start.restored():
            bench = bench_of(start, self._study.parents[1], {}, record.head.seed)
            bench._header = {STUDY: {"id": self._study.name, "trial": 0, "seed": 0, "rung": 0}}
            with contextlib.closing(bench):
                searches = TrialSearches(record, bench, attend)
                searches.run(Space.from_record(record.space, record.priors))
        now = StudyRecord.read(self._study)
        # another worker, which this one has not seen, may have been faster
        if not searches.stopped and not any(known.kind == "priors" for known in now.changes):
            priors = {"priors": searches.priors, "spent": searches.cost}
            change(self._study, Change("priors", priors, len(now.trials)))

    def propose(self, record: StudyRecord, planned: TrialProposal) -> TrialProposal:
        """The trial to make in place of a planned one: what the study's own sampler proposes. What
        somebody asked for, and the bench's own settings, stay as they are.
        """
        if not record.head.method or trains_whole(TrialRecord(0, {}, planned.origin)):
            return planned
        start = open_start(self._study, trust=self._trust)
        with start.restored():
            return ask(record, start.method, planned)

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        """Train a piece, and return how it ended; `attend` waits for its job."""
        start = open_start(self._study, trust=self._trust)
        values, settings = start.recipe.split(piece.values)
        seed = record.head.seed + piece.seed
        with start.restored():
            try:
                bench = bench_of(start, self._study.parents[1], values, seed)
            except Exception as error:  # noqa: BLE001 - code of the user may raise anything
                return _failed(error)
            parameters = bench.summary.parameters
            if cause := above(record.head.limits, parameters):
                return PieceEnd("infeasible", 0.0, cause=cause, parameters=parameters)
            bench._header = {
                STUDY: {
                    "id": self._study.name,
                    "trial": piece.trial,
                    "seed": piece.seed,
                    "rung": piece.rung,
                    "length": record.head.rungs[piece.rung],
                }
            }
            with contextlib.closing(bench):
                searches = TrialSearches(record, bench, attend)
                key = [piece.trial, piece.seed, piece.rung]
                rate = searches.rate(piece.values, settings, key)
                if searches.stopped:
                    return PieceEnd("stopped", searches.cost, cause=searches.stopped)
                arguments = {"seed": seed, **values, **settings, **rate}
                end = self._fit(record, piece, bench, arguments, attend)
                return replace(end, cost=end.cost + searches.cost, values=rate)

    def is_worn(self) -> bool:
        """Whether memory of the GPU has not come back after a piece, so that the next one would
        have less.
        """
        gc.collect()
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        torch.cuda.empty_cache()
        used = torch.cuda.memory_allocated()
        if self._memory is None:
            self._memory = used
        return used > self._memory + _LOST

    def _fit(
        self,
        record: StudyRecord,
        piece: Piece,
        bench: TrialBench,
        arguments: Mapping[str, Any],
        attend: Attend,
    ) -> PieceEnd:
        share = record.head.rungs[min(piece.rung, record.last_rung)]
        bench._halt = share if share < 1 else None
        try:
            start, lost = _start_of(record, piece, share)
            if start:  # it has the settings of that run
                chosen, _ = bench._split(arguments)
                job = bench.fit(start, **chosen)
            else:
                job = bench.fit(**arguments)
        except Exception as error:  # noqa: BLE001 - see above
            return _failed(error)
        why = attend(job)
        job.wait()  # it shows the job's warnings
        end = _end_of(record, piece, bench, job, why, share)
        return replace(end, cause="; ".join(filter(None, (end.cause, lost))))


def _start_of(record: StudyRecord, piece: Piece, share: float) -> tuple[str, str]:
    """The checkpoint that a piece continues, as `bench.fit` takes it, and ""; where it begins
    afresh "", and why it does not continue what was trained of it.
    """
    if not piece.continues:
        return "", ""
    try:
        run = Run.open(record.path.parents[1] / RUNS / piece.continues)
    except (OSError, ValueError):
        return "", f"it began again at update 0: run {piece.continues} cannot be read any more"
    trial = record.trial(piece.trial)
    below = [] if trial is None else [trial.end(rung, piece.seed) for rung in range(piece.rung)]
    halted = [end.step for end in below if end is not None and end.run == piece.continues]
    updates = _updates(run.events)
    last = halt_at(share, updates) if updates and share < 1 else None
    if halted:
        last = halted[-1]
    points = [point for point in run.checkpoints if point.resumable]
    steps = [point.step for point in points if last is None or point.step <= last]
    if not steps:
        return "", f"it began again at update 0: run {run.id} has no checkpoint any more"
    return f"{run.id}@{max(steps)}", ""


class TrialSearches:
    """The searches of a study on one bench: what they have found, and what they cost."""

    def __init__(self, record: StudyRecord, bench: TrialBench, attend: Attend) -> None:
        self._record, self._bench, self._attend = record, bench, attend
        self.priors: dict[str, dict[str, float]] = {}
        """By the name of a dimension, as `StudyHead.priors` has them."""
        self.cost = 0.0
        self.stopped = ""
        """Why they were stopped; "": they were not."""

    def run(self, space: Space) -> None:
        """Search what this space needs before the first trial: a rate, one for each optimizer that
        has a range of its own, and the largest batch.
        """
        for dimension in space.dimensions:
            if self.stopped or dimension.path[-1] != "lr":
                continue
            if len(dimension.path) == 1:
                self._rate({})
            else:
                self._rate({OPTIMIZER: dimension.path[1]}, dimension.name)
        if "batch_size" in space.names and not self.stopped:
            sizes = self._result(self._bench.find_batch_size)
            if sizes is not None and sizes.largest is not None:
                self.priors["batch_size"] = {"largest": sizes.largest}

    def rate(
        self, values: Mapping[str, Any], settings: Mapping[str, Any], piece: list[int]
    ) -> dict[str, Any]:
        """The rate of a trial whose values have a multiple of what is found for its model: {"lr":
        2.1e-3}; {}: they have a rate, or none.

        settings: those of the values that are settings. piece: trial, seed and rung; a piece pays
        for the search that was made for it. What was found for an equal model is not searched
        again.
        """
        times = values.get("lr")
        if not isinstance(times, Mapping):
            return {}
        others = {name: value for name, value in values.items() if name not in _NO_RATE}
        key = hashlib.sha256(repr(sorted(others.items())).encode()).hexdigest()[:16]
        folder = make_folder(self._record.path / _RATES)
        try:
            known = read_json(folder / f"{key}.json", _LARGEST)
            suggestion = known["lr"]
            if known.get("piece") == piece:  # its worker was killed after the search
                self.cost += _share(known.get("cost"))
        except (OSError, ValueError, KeyError):
            chosen = {name: value for name, value in settings.items() if name not in _NO_RATE}
            suggestion = self._rate(chosen)
            if not self.stopped:
                with Folder.opened(folder) as opened:
                    paid = {"piece": piece, "cost": self.cost}
                    data = json.dumps({"lr": suggestion, "values": others, **paid}).encode()
                    opened.create(f"{key}.json", data)
        usual = self._record.priors.get("lr", {}).get("center", self._bench.settings.lr)
        rate = suggestion if isinstance(suggestion, int | float) else usual
        if rate is None:  # the optimizer's own
            return {"lr": None}
        return {"lr": float(f"{float(rate) * float(times[TIMES_FOUND]):.4g}")}

    def _rate(self, settings: Mapping[str, Any], name: str = "lr") -> float | None:
        """Sweep the rate; returns the suggestion, None: there is none. name: of the dimension."""
        curve = self._result(partial(self._bench.find_lr, **settings))
        if curve is None or curve.suggestion is None:
            return None
        suggestion = float(f"{curve.suggestion:.3g}")
        self.priors[name] = {"center": suggestion}
        if curve.diverged is not None:
            self.priors[name]["edge"] = float(curve.diverged)
        return suggestion

    def _result(self, begin: Callable[[], Job[T]]) -> T | None:
        """The result of a search; None: it could not be made here, as a trial will say."""
        try:
            job = begin()
        except (SettingsError, TaskError):
            return None
        self.stopped = self._attend(job)
        whole = whole_updates(self._record, self._bench)
        self.cost += _share_of(job.events, whole, self._bench.settings.batch_size)
        if self.stopped or job.exception() is not None:
            return None
        return job.result()


def _share(cost: object) -> float:
    return min(1.0, max(0.0, float(cost))) if isinstance(cost, int | float) else 0.0


def _share_of(events: Sequence[Event], whole: int, batch_size: int) -> float:
    """About what a search has cost, as a share of a fit with `whole` updates of this batch size."""
    updates, compared = 0.0, False
    sizes: set[int] = set()
    for event in events:
        if isinstance(event, CurvePoint):
            updates += 1
        elif isinstance(event, Trial):  # once more, where it is compared for its speed
            compared = compared or event.size in sizes
            sizes.add(event.size)
    updates += sum(_STEPS * max(1.0, size / batch_size) for size in sizes)
    return min(1.0, updates / whole + (SHARE if compared else 0.0))


def whole_updates(record: StudyRecord, bench: TrialBench) -> int:
    """About how many updates a whole fit has."""
    length = record.head.length
    if "updates" in length:
        return max(1, int(length["updates"]))
    samples = None if bench._task.train is None else bench._task.train.samples
    batch = bench.settings.batch_size
    return max(1, math.ceil((samples or 100 * batch) / batch) * int(length["epochs"]))


def _end_of(
    record: StudyRecord, piece: Piece, bench: TrialBench, job: AnyJob, why: str, share: float
) -> PieceEnd:
    """How a piece ended. why: why it was asked to stop. share: of a whole fit, at which it
    halts.
    """
    run = Run.open(bench.root / RUNS / job.id)
    monitor, metrics, step = record.head.monitor, run.metrics, run.step
    checks = [event for event in job.events if isinstance(event, Validated) and event.asked]
    halted = run.status == "stopped" and not why and share < 1 and bool(checks)
    value = metrics.get(monitor)
    if halted:
        step = checks[0].step - 1  # see `halt`
        metrics = {**metrics, **checks[0].metrics}
        value = checks[0].metrics.get(monitor)
    error = job.exception()
    status, cause = _status(run, monitor, value, error, why, halted=halted)
    trial = record.trial(piece.trial)
    trained = 1 - began_at(record, trial, run) / run.step if run.step else 0.0
    return PieceEnd(
        status,
        cost_of(record, trial, run),
        value=value,
        run=run.id,
        seconds=run.seconds * trained,
        cause=cause,
        step=step,
        best_step=_best_step(run, record),
        parameters=bench.summary.parameters,
        metrics={name: number for name, number in metrics.items() if math.isfinite(number)},
    )


def _status(
    run: Run,
    monitor: str,
    value: float | None,
    error: BaseException | None,
    why: str,
    *,
    halted: bool,
) -> tuple[EndStatus, str]:
    """The status of a piece, and its cause."""
    if error is not None and not isinstance(error, Exception):
        raise error
    if isinstance(error, FloatingPointError):
        return "infeasible", _text(error)
    if error is not None and is_out_of_memory(error):
        return "infeasible", f"out of memory: {_text(error)}"
    if error is not None:
        where = user_line(error)
        return "failed", f"{type(error).__name__}: {_text(error)}" + (
            f" ({where})" if where else ""
        )
    if run.status == "stopped" and not halted:
        return "stopped", why or "its run was stopped"
    if value is None:
        return "failed", f"no validation has reported {monitor}"
    if not math.isfinite(value):
        causes = [f.text for f in run.health if f.trouble == NonFiniteValidation.TROUBLE]
        return "infeasible", [*causes, f"{monitor} is not finite"][0][:_CAUSE]
    return "completed", ""


def _failed(error: Exception) -> PieceEnd:
    if is_out_of_memory(error):
        return PieceEnd("infeasible", 0.0, cause=f"out of memory: {_text(error)}")
    where = user_line(error)
    cause = f"{type(error).__name__}: {_text(error)}" + (f" ({where})" if where else "")
    return PieceEnd("failed", 0.0, cause=cause)


def _text(error: BaseException) -> str:
    return printable(str(error), lines=True)[:_CAUSE]


def _updates(events: Sequence[Event]) -> int | None:
    """The updates of a whole fit; None: they are unknown."""
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    return None if started is None else started.updates


def _best_step(run: Run, record: StudyRecord) -> int | None:
    """The update of the best validation; None: there was none."""
    values = run.validation.get(record.head.monitor)
    if values is None or not np.isfinite(values).any():
        return None
    best = np.nanargmax if record.head.mode == "max" else np.nanargmin
    return int(run.validation["step"][best(np.where(np.isfinite(values), values, np.nan))])


def work(
    study: Path, tell: Callable[[str], object], *, name: str = "", trust: bool = False
) -> None:
    """Train trials of the study in this folder until it ends, or a signal comes.

    It is for a process that does nothing else. tell: called with a line for each thing that it
    does. name, trust: see `Worker` and `StartFile.of_study`.
    """
    study, began_in = study.absolute(), Path.cwd()
    with contextlib.suppress(OSError):  # it is on another machine, or gone
        os.chdir(StartFile.of_study(study, trust=trust).folder or ".")
    trainer = TrialTrainer(study, trust=trust)
    worker = Worker(study, trainer, trainer.prepare, tell, name, trainer.propose)
    why = worker.run(trainer.device)
    if worker.worn:
        tell("the memory of the device did not come back: a new process takes its place")
        os.chdir(began_in)  # paths of the command line are relative to it
        os.execv(sys.executable, sys.orig_argv)
    if why:
        tell(f"{study.name} has ended: {why}")
