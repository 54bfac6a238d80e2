"""Tries values of settings that make a run faster or slower: loader workers, precision,
`torch.compile`.

Each trial opens a session with the values, takes real updates on the training data, and restores
all state. Values that change the numbers (precision) are recommended only if the losses agree with
those of float32.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from workbench import units
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.events import Emit, SpeedSearchEnded, SpeedTrial, last_of
from workbench.instruments.finite import NonFiniteError
from workbench.instruments.memory import is_out_of_memory
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.speed import speed
from workbench.runs.printable import paragraph, printable
from workbench.settings import Settings, SettingsError
from workbench.task import rng
from workbench.task.protocol import Task
from workbench.tuners.trial import at_size, free_memory
from workbench.tuners.trial_batches import cycled_windows
from workbench.values import shown

FASTER = 0.05
"""Values count as faster if they need less time by at least this share."""
KEEPS_UP = 0.05
"""Loaders are fast enough if training waits for less than this share of the time: more workers
cannot save more than that.
"""
_FEWEST, MOST = 10, 2000
"""The fewest updates over which a trial is timed (for each worker, where training waits for
them), and the most.
"""
_BLOCKS = 10
"""A trial is divided into this many parts, whose times show how well its speed is known."""


@dataclass(frozen=True)
class SpeedSearch(Drawable):
    """The result of a search for speed. `best`: the settings for `bench.set(**found.best)`;
    `reason` says why.

    `trials` are in the order in which they were made, with updates/s (of all ranks together).
    `ended` says how the search ended. `figure()` and `plot()` draw the updates/s of each trial, and
    the share of waiting.
    """

    best: Mapping[str, Any]
    reason: str
    trials: tuple[SpeedTrial, ...]
    ended: str

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> SpeedSearch:
        """Make it from the events of a run or a record, complete or not."""
        recorded = list(events)
        trials = tuple(e for e in recorded if isinstance(e, SpeedTrial))
        end = last_of(recorded, SpeedSearchEnded({}, "", "not ended"))
        return cls(end.best, end.reason, trials, end.ended)

    def _charts(self) -> list[Chart]:
        return [speed(self.trials, self.best)]

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={value!r}" for name, value in self.best.items()) or "none"
        rows = [self._row(t) for t in self.trials]
        columns = f"  {'settings':<34}  {'updates/s':>10}  {'':>5}  {'waits':>6}  {'loss':>9}"
        if self._measured_memory:
            columns += f"  {'memory':>9}"
        return "\n".join(
            map(
                printable,
                [
                    f"SpeedSearch: best {best} ({self.ended})",
                    *paragraph(self.reason),
                    columns,
                    *rows,
                ],
            )
        )

    @property
    def _measured_memory(self) -> bool:
        return any(t.peak_bytes is not None for t in self.trials)

    def _row(self, t: SpeedTrial) -> str:
        name = name_of(t.values)
        if t.updates_per_second is None:
            return f"  {name:<34}  failed: {(t.error or '').strip().partition(chr(10))[0][:100]}"
        within = "" if t.uncertainty is None else f"±{t.uncertainty:.0%}"
        waits = "" if t.waiting is None else f"{t.waiting:.0%}"
        loss = "" if t.loss is None else units.number(t.loss)
        peak = "" if t.peak_bytes is None else units.size(t.peak_bytes)
        memory = f"  {peak:>9}" if self._measured_memory else ""
        best = "  best" if t.values == dict(self.best) else ""
        return (
            f"  {name:<34}  {t.updates_per_second:>10,.1f}  {within:>5}  {waits:>6} "
            f" {loss:>9}{memory}{best}"
        )


def name_of(values: Mapping[str, Any]) -> str:
    """The values as text, as in code."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


@dataclass(frozen=True)
class WorkersRequest:
    """How to search the number of loader workers. max_val: None: the cores of this process, per
    rank.
    """

    max_val: int | None = None
    seconds_per_trial: float = 2.0

    def __post_init__(self) -> None:
        if self.max_val is not None and (
            isinstance(self.max_val, bool) or not isinstance(self.max_val, int) or self.max_val < 1
        ):
            raise SettingsError(
                f"max_val={shown(self.max_val)}: give the most workers to try, at least 1, or None"
                " for one a core."
            )
        _check_seconds(self.seconds_per_trial)

    def run(
        self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]
    ) -> SpeedSearchEnded:
        """Raise the number of workers until training waits no longer, or is no longer faster; then
        try the loader's other options.
        """
        trials: list[SpeedTrial] = []
        end = ""
        for number in _numbers(settings, self.max_val):
            if stopped():
                return SpeedSearchEnded({}, "", "stopped")
            trials.append(
                attempt(
                    task,
                    settings,
                    _with_workers(settings, number),
                    emit,
                    seconds=self.seconds_per_trial,
                    required=number == 0,
                )
            )
            end = _enough_workers(trials)
            if end:
                break
        recommended, reason = best_workers(trials)
        best = next(t for t in trials if t.values == recommended)
        for values in _variations(settings, best):
            if stopped():
                return SpeedSearchEnded({}, "", "stopped")
            trials.append(
                attempt(
                    task, settings, {**best.values, **values}, emit, seconds=self.seconds_per_trial
                )
            )
            if _clearly_faster(trials[-1], best):
                times = (trials[-1].updates_per_second or 0.0) / (
                    best.updates_per_second or math.inf
                )
                best, reason = (
                    trials[-1],
                    f"{reason} {name_of(values)} makes it {times:.2g} times as fast again.",
                )
        return SpeedSearchEnded(dict(best.values), reason, end or "all numbers tried")


@dataclass(frozen=True)
class PrecisionRequest:
    """How to search precision and `torch.compile`. try_compile: whether that is tried too, with the
    best precision.

    updates: of each trial; tolerance: the share by which the mean of its last losses may differ
    from float32's.
    """

    try_compile: bool = False
    updates: int = 50
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.try_compile, bool):
            raise SettingsError(f"try_compile={shown(self.try_compile)}: give True or False.")
        if (
            isinstance(self.updates, bool)
            or not isinstance(self.updates, int)
            or self.updates < _FEWEST
        ):
            raise SettingsError(
                f"updates={shown(self.updates)}: at least {_FEWEST} updates are needed; 50 is"
                " usual."
            )
        if (
            isinstance(self.tolerance, bool)
            or not isinstance(self.tolerance, int | float)
            or not 0 < self.tolerance < 1
        ):
            raise SettingsError(
                f"tolerance={shown(self.tolerance)}: give a share above 0 and below 1, such as"
                " 0.05."
            )

    def run(
        self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]
    ) -> SpeedSearchEnded:
        """Try each precision, then the best one compiled."""
        trials: list[SpeedTrial] = []
        for values in (
            {"precision": "32-true"},
            {"precision": "bf16-mixed"},
            {"precision": "16-mixed"},
        ):
            if stopped():
                return SpeedSearchEnded({}, "", "stopped")
            trials.append(
                attempt(
                    task,
                    settings,
                    values,
                    emit,
                    seconds=1.0,
                    updates=self.updates,
                    required=not trials,
                )
            )
        best, reason = best_precision(trials, self.tolerance)
        ended = stopped()
        if self.try_compile and not ended:
            trials.append(
                attempt(
                    task,
                    settings,
                    {**best, "compile": True},
                    emit,
                    seconds=1.0,
                    updates=self.updates,
                )
            )
            best, reason = best_precision(trials, self.tolerance)
        return SpeedSearchEnded(best, reason, "stopped" if ended else "all tried")


def _check_seconds(seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 600:
        raise SettingsError(
            f"seconds_per_trial={shown(seconds)}: give seconds above 0; 2 is usual."
        )


def _numbers(settings: Settings, most: int | None) -> Iterator[int]:
    """The numbers of workers to try: 0, 1, 2, 4, … and the largest one allowed."""
    devices = (
        settings.devices
        if isinstance(settings.devices, int) and settings.accelerator != "tpu"
        else 1
    )
    most = most or max(1, _cores() // max(1, devices))
    yield 0
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def _with_workers(settings: Settings, number: int) -> dict[str, Any]:
    """The settings for this number of workers; with 0, without the options that need workers."""
    ahead = {} if number or settings.prefetch_factor is None else {"prefetch_factor": None}
    return {"num_workers": number, **ahead}


def _variations(settings: Settings, best: SpeedTrial) -> Iterator[dict[str, Any]]:
    """Further options that may be faster than the best number of workers, where they are not set
    already.
    """
    workers, waits = best.values["num_workers"], (best.waiting or 0.0) >= KEEPS_UP
    if workers and not settings.persistent_workers:
        yield {"persistent_workers": True}
    if workers and waits and settings.prefetch_factor is None:
        yield {"prefetch_factor": 4}
        yield {"prefetch_factor": 8}
    if settings.pin_memory is False and settings.accelerator != "cpu" and torch.cuda.is_available():
        yield {"pin_memory": True}


def _clearly_faster(trial: SpeedTrial, base: SpeedTrial) -> bool:
    """Whether a trial is faster by more than noise can explain."""
    times = (trial.updates_per_second or 0.0) / (base.updates_per_second or math.inf)
    return times >= (1 + FASTER) * (1 + (base.uncertainty or 0.0)) * (
        1 + (trial.uncertainty or 0.0)
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _enough_workers(trials: Sequence[SpeedTrial]) -> str:
    """Why more workers cannot help; "": they may."""
    last = trials[-1]
    if last.updates_per_second is None:
        return f"{name_of(last.values)} failed"
    if last.waiting is not None and last.waiting < KEEPS_UP:
        return f"training waits {last.waiting:.1%} of the time with {name_of(last.values)}"
    speeds = [t.updates_per_second or 0.0 for t in trials]
    if len(speeds) > 2 and max(speeds[-2:]) < (1 + FASTER) * max(speeds[:-2]):
        return "more workers are not faster"
    return ""


def best_workers(trials: Sequence[SpeedTrial]) -> tuple[dict[str, Any], str]:
    """The smallest number of workers such that no other number is clearly faster, and the
    reason.
    """
    speeds = {t.values["num_workers"]: t for t in trials if t.updates_per_second is not None}
    best = min(
        number
        for number, t in speeds.items()
        if not any(_clearly_faster(other, t) for other in speeds.values())
    )
    chosen, alone = speeds[best], speeds[min(speeds)]
    waits = f"waits for data {chosen.waiting or 0:.0%} of the time"
    if best == min(speeds):
        return dict(chosen.values), f"{best}: training {waits}, and more workers are not faster."
    times = (chosen.updates_per_second or 0.0) / (alone.updates_per_second or math.inf)
    return (
        dict(chosen.values),
        (
            f"{best}: training is {times:.2g} times as fast as with {min(speeds)}. It {waits}, and"
            f" with {min(speeds)} {alone.waiting or 0:.0%}."
        ),
    )


def best_precision(trials: Sequence[SpeedTrial], tolerance: float) -> tuple[dict[str, Any], str]:
    """The fastest values whose losses agree with those of the first trial, and the reason."""
    base = trials[0]
    agreeing = [
        t for t in trials if t.updates_per_second is not None and _agrees(t, base, tolerance)
    ]
    best = max(agreeing, key=lambda t: t.updates_per_second or 0.0)
    times = (best.updates_per_second or 0.0) / (base.updates_per_second or math.inf)
    if not _clearly_faster(best, base):
        best = base
    out = [
        name_of(t.values) for t in trials if t.updates_per_second is not None and t not in agreeing
    ]
    apart = (
        f" The losses of {' and '.join(out)} differ by more than {tolerance:.0%}." if out else ""
    )
    if best is base:
        return (
            dict(base.values),
            f"{name_of(base.values)}: no other is clearly faster with the same losses.{apart}",
        )
    memory = ""
    if best.peak_bytes is not None and base.peak_bytes is not None:
        memory = (
            f" It takes {units.size(best.peak_bytes)} of memory instead of"
            f" {units.size(base.peak_bytes)}."
        )
    return (
        dict(best.values),
        (
            f"{name_of(best.values)}: {times:.2g} times as fast as {name_of(base.values)}, and the"
            f" losses agree.{memory}{apart}"
        ),
    )


def _agrees(trial: SpeedTrial, base: SpeedTrial, tolerance: float) -> bool:
    if trial is base or trial.loss is None or base.loss is None:
        return trial is base
    return math.isfinite(trial.loss) and abs(trial.loss - base.loss) <= tolerance * abs(base.loss)


def attempt(
    task: Task,
    settings: Settings,
    values: Mapping[str, Any],
    emit: Emit,
    *,
    seconds: float = 0.0,
    updates: int = 0,
    required: bool = False,
) -> SpeedTrial:
    """Try these values, and emit the trial. An error makes it a failed trial; with `required`,
    it is raised.
    """
    try:
        chosen = at_size(settings.replace(**values), settings.batch_size)
        with open_session(task, chosen) as session, scratch(session):
            trial = measured(session, chosen, values, seconds, updates)
    except Exception as error:
        if required and not is_out_of_memory(error):
            raise
        trial = SpeedTrial(dict(values), None, error=f"{type(error).__name__}: {error}"[:2000])
    finally:
        free_memory()
    emit(trial)
    return trial


def measured(
    session: Session, settings: Settings, values: Mapping[str, Any], seconds: float, updates: int
) -> SpeedTrial:
    """Take updates for about `seconds`, but at least `updates` of them, and enough for `spread`,
    after some warm-up updates. The trial's loss is the mean of the last ten of the first `updates`;
    updates=0: of all.
    """
    # each worker reads prefetch_factor batches ahead
    ready = 3 + (settings.prefetch_factor or 2) * settings.num_workers
    waits, times, losses = list[float](), list[float](), list[torch.Tensor]()
    windows = cycled_windows(
        session.task, settings, epoch=session.state.epoch, in_step=session.parallel.rounds
    )
    on_cuda = session.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(session.device)
    session.train_mode()
    with closing(windows) as feed:

        def take(count: int) -> float:
            """Take this many updates; returns the seconds until the device has finished them."""
            start = perf_counter()
            for _ in range(count):
                rng.yield_lock()
                began = perf_counter()
                window = next(feed)
                read = perf_counter()
                loss = train_step(session, window)
                if loss is not None:
                    losses.append(loss)
                waits.append(read - began)
                times.append(perf_counter() - began)
            if losses:
                losses[-1].item()
            return perf_counter() - start

        take(1)
        typical = take(ready) / ready
        waits_for_loaders = sum(waits[-ready:]) >= KEEPS_UP * sum(times[-ready:])
        # such workers deliver a batch each, and then none for a while
        together = max(1, settings.num_workers) if waits_for_loaders else 1
        count = min(MOST, max(_FEWEST * together, int(seconds / max(1e-6, typical))))
        count = int(session.ranks.broadcast_object(max(updates, count)))
        before = len(times)
        try:
            total = take(count)
        except NonFiniteError as error:
            count, total = len(times) - before, sum(times[before:])
            # the speed that was measured is good enough where there are updates enough
            if error.of_batch or updates or count < _FEWEST:
                raise
    compared = losses[: updates or None][-10:]
    last = torch.stack(compared).double().mean().item() if compared else None
    peak = int(torch.cuda.max_memory_allocated(session.device)) if on_cuda else None
    waiting = min(1.0, sum(waits[-count:]) / total)
    trial = SpeedTrial(
        dict(values),
        count / total,
        spread(times[-count:], together),
        waiting,
        last,
        peak_bytes=peak,
    )
    return session.ranks.broadcast_object(trial)


def spread(times: Sequence[float], together: int = 1) -> float | None:
    """Half the width of the 95% confidence interval of the mean time, as a share of the mean;
    computed from the means of ten parts.

    None: there are too few times. together: how many batches arrive at once; a part then has a
    multiple of that many, if there are enough times.
    """
    size = len(times) // _BLOCKS
    if not size:
        return None
    size = size // together * together or size
    means = [statistics.fmean(times[i * size : (i + 1) * size]) for i in range(_BLOCKS)]
    return 2.26 * statistics.stdev(means) / math.sqrt(_BLOCKS) / statistics.fmean(means)
