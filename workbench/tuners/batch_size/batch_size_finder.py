"""Searches the batch size with real updates at each size; it returns only sizes that were tried and
passed.

`batch_size_search` has the arithmetic of the search, `trial` one trial (`distributed_trial`: on
several ranks). The launcher runs the trials: on CPU in a child process with a memory limit, on a
device in this process, for several ranks in their processes. After the trials the search measures
the gradient noise scale (`noise_trial`) and compares the speeds (`speeds`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from workbench.commands import Inbox, Stop
from workbench.events import Emit, Trial, TrialStarted
from workbench.instruments.noise_scale import NoiseScale
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners.batch_size.batch_size_choice import Epoch
from workbench.tuners.batch_size.batch_size_search import BatchSizes as BatchSizes
from workbench.tuners.batch_size.batch_size_search import TrialStopped as TrialStopped
from workbench.tuners.batch_size.batch_size_search import (
    at_least_one,
    check,
    ended_event,
    search,
)
from workbench.tuners.batch_size.effective_batch import accumulation, effective_batch
from workbench.tuners.batch_size.noise_trial import (
    MOST,
    ON_RANKS,
    Stretch,
    size_for_noise,
    stretch_of,
)
from workbench.tuners.stages import METHODS, data_of_stage
from workbench.units import number
from workbench.values import seconds as in_seconds
from workbench.values import shown

SHARE = 0.1
"""Speeds are compared for this share of the training that they are for."""
SHORTEST, MOST_SECONDS = 0.5, 10.0
"""The bounds of that time in seconds."""
CERTAIN = 0.02
"""The comparison ends when each speed is known within this share of itself."""
AT_LEAST, LONGEST = 2.0, 20.0
"""Trials, and then the comparison by the clock, take at most as long as the training that they are
for, or so many seconds if that is more. The comparison ends after `LONGEST` seconds, however slow
the model or busy the machine.
"""
LONGEST_SAMPLES = (
    "not measured: the trials took the longest samples, whose gradients say little about the others"
)


@dataclasses.dataclass(frozen=True)
class BatchSizeRequest:
    """The arguments of a search. `max_memory`: bytes that a trial may use on CPU, in each rank;
    None: an equal share of the free memory.
    """

    mode: str = "power"
    init_val: int = 2
    steps_per_trial: int = 3
    max_trials: int = 25
    max_val: int | None = None
    headroom: float = 0.05
    max_memory: int | None = None
    method: str = "fit"
    """The stage that is tried: "fit" (updates), or batches of "validate", "test" or "predict"."""
    keep_effective: bool = False
    """Whether an update keeps the number of samples that the settings give, whatever the batch
    size.
    """
    min_updates_per_epoch: int = 10
    """The least number of updates in an epoch: a size with fewer is recommended only if the
    smallest one has fewer, too.
    """
    longest: bool = False
    """Whether trials take the longest samples (longest_first.py)."""

    def __post_init__(self) -> None:
        check(self.mode, self.init_val, self.max_trials, self.max_val, None, self.headroom)
        at_least_one("steps_per_trial", self.steps_per_trial, "3 is usual")
        at_least_one("min_updates_per_epoch", self.min_updates_per_epoch, "1 has no such bound")
        if self.max_memory is not None:
            at_least_one("max_memory", self.max_memory, "bytes, or None for what is free")
        for name, value in (("keep_effective", self.keep_effective), ("longest", self.longest)):
            if not isinstance(value, bool):
                raise SettingsError(f"{name}={shown(value)}: give True or False.")
        if self.method not in METHODS:
            raise SettingsError(
                f"method={self.method!r}: give one of {', '.join(map(repr, METHODS))}."
            )
        if self.keep_effective and self.method != "fit":
            raise SettingsError(
                f"keep_effective=True is about updates, and method={self.method!r} takes none:"
                " leave it out."
            )

    def settings_at(self, settings: Settings, size: int) -> Settings:
        """The settings with which a trial of this size runs."""
        many = self.batches_at(settings, size)
        return settings if many is None else settings.replace(accumulate_grad_batches=many)

    def batches_at(self, settings: Settings, size: int) -> int | None:
        """The number of batches of this size in an update, if the effective batch is kept; None:
        as in the settings.
        """
        return accumulation(effective_batch(settings), size) if self.keep_effective else None


class Seconds(NamedTuple):
    """How long a measurement may last, in seconds. core: without those in which other programs had
    the core; clock: all.
    """

    core: float
    clock: float


@dataclasses.dataclass(frozen=True)
class Trials:
    """The functions that the launcher supplies. trial: tries a size. noise: measures the gradient
    noise scale with a size, from at most the given number of batches, at the places of a stretch;
    None: it cannot be measured there.
    """

    trial: Callable[[int], Trial]
    noise: Callable[[int, int, Stretch], NoiseScale] | None = None
    speeds: Callable[[Sequence[Trial], Seconds], Sequence[Trial]] | None = None
    """Compares the speeds of trials that passed for at most so many seconds, and returns them with
    what it found; None: they cannot be compared there.
    """

    def __call__(self, size: int) -> Trial:
        return self.trial(size)


def run(
    task: Task,
    settings: Settings,
    request: BatchSizeRequest,
    emit: Emit,
    inbox: Inbox,
    trials: Trials,
    ranks: int = 1,
) -> BatchSizes:
    """Search with `trials`, which this number of ranks makes together, and emit each result.

    A Stop ends the search, and stays in the inbox.
    """

    cap = cap_of(task, request.method, ranks)
    epoch = _epoch(settings, request, cap)

    def tried(size: int) -> Trial:
        many = request.batches_at(settings, size)
        emit(TrialStarted(size, many))
        updates = (
            None
            if epoch is None
            else dataclasses.replace(epoch, batches=many or epoch.batches).updates(size)
        )
        outcome = dataclasses.replace(
            trials(size), accumulate_grad_batches=many, updates_per_epoch=updates
        )
        emit(outcome)
        return outcome

    def planned(passed: Sequence[Trial]) -> _Planned:
        return _planned(settings, _nearest(passed, settings.batch_size))

    def too_long(passed: Sequence[Trial], size: int) -> str:
        if request.mode != "power" or request.method != "fit" or size <= settings.batch_size:
            return ""
        spent = sum((t.seconds or 0.0) for t in passed)
        spent += (passed[-1].seconds or 0.0) * size / passed[-1].size
        training = planned(passed).seconds
        if request.steps_per_trial * spent <= max(AT_LEAST, training):
            return ""
        return (
            f"{size} was not tried: the trials would take longer than the planned training, about"
            f" {number(training)} s"
        )

    def speeds(passed: Sequence[Trial]) -> tuple[Sequence[Trial], str]:
        if trials.speeds is None:
            return passed, ""
        by_size = {t.size: t for t in passed}
        training = planned(passed).seconds
        seconds = Seconds(
            min(max(SHARE * training, SHORTEST), MOST_SECONDS),
            min(max(AT_LEAST, training), LONGEST),
        )
        began = perf_counter()
        compared = [
            dataclasses.replace(
                by_size[t.size],
                seconds=t.seconds,
                samples_per_second=t.samples_per_second,
                uncertainty=t.uncertainty,
            )
            for t in trials.speeds(passed, seconds)
        ]
        for trial in compared:
            emit(trial)
        return compared, _ended_by_time(compared, perf_counter() - began)

    def noise(passed: Sequence[Trial]) -> NoiseScale:
        if request.longest:
            return NoiseScale(None, None, LONGEST_SAMPLES)
        if trials.noise is None:
            return NoiseScale(None, None, ON_RANKS)
        training, near = planned(passed), _nearest(passed, settings.batch_size)
        stretch = stretch_of(near, training.updates, max(AT_LEAST, training.seconds))
        size = size_for_noise([t.size for t in passed], cap)
        # reads no sample twice
        return trials.noise(size, MOST if cap is None else min(MOST, cap // size), stretch)

    sizes = search(
        tried,
        mode=request.mode,
        init_val=request.init_val,
        max_trials=request.max_trials,
        max_val=request.max_val,
        cap=cap,
        headroom=request.headroom,
        effective=effective_batch(settings, ranks) if request.keep_effective else None,
        ranks=ranks,
        epoch=epoch,
        present=settings.batch_size,
        noise=noise if request.method == "fit" else None,
        speeds=speeds,
        too_long=too_long,
        stop=lambda: inbox.has(Stop),
    )
    emit(ended_event(sizes))
    return sizes


class _Planned(NamedTuple):
    """The training that a search is for; inf: no end is known."""

    updates: float
    seconds: float


def _nearest(passed: Sequence[Trial], present: int) -> Trial:
    """The trial of the present size, or of the largest one below it, or of the smallest."""
    below = [t for t in passed if t.size <= present]
    return max(below, key=lambda t: t.size) if below else min(passed, key=lambda t: t.size)


def _planned(settings: Settings, trial: Trial) -> _Planned:
    """The training with batches of a trial's size."""
    updates = math.inf if settings.max_steps is None else float(settings.max_steps)
    if settings.epochs is not None and trial.updates_per_epoch is not None:
        updates = min(updates, settings.epochs * trial.updates_per_epoch)
    longest = math.inf if settings.max_time is None else in_seconds(settings.max_time)
    if trial.seconds is None:
        return _Planned(updates, longest)
    return _Planned(min(updates, longest / trial.seconds), min(updates * trial.seconds, longest))


def _ended_by_time(compared: Sequence[Trial], seconds: float) -> str:
    """What time left unknown of the speeds; "": they are all known."""
    known = [t.uncertainty for t in compared if t.uncertainty is not None]
    if len(known) == len(compared) and max(known) <= CERTAIN:
        return ""
    within = f"within {max(known):.0%}" if len(known) == len(compared) else "roughly"
    return f"The comparison ended after {seconds:.1f} s; speeds are known {within}."


def _epoch(settings: Settings, request: BatchSizeRequest, samples: int | None) -> Epoch | None:
    """The length of an epoch, for the recommendation; None: unknown, or a stage without updates."""
    if samples is None or request.method != "fit":
        return None
    batches = settings.accumulate_grad_batches
    most = batches if isinstance(batches, int) else max(1, *batches.values())
    return Epoch(samples, most, request.min_updates_per_epoch)


def cap_of(task: Task, method: str = "fit", ranks: int = 1) -> int | None:
    """The most samples that a batch can have: the data's length, for each rank; None: unknown.
    Raises TaskError for data that makes its own batches.
    """
    spec = data_of_stage(task, method)
    own_batches = spec.parts.own_batches
    if own_batches is not None:
        raise TaskError(
            f"find_batch_size cannot set the batch size of {spec.name}: {own_batches}. Give the"
            " Dataset instead."
        )
    if spec.samples is None:
        return None
    if spec.samples < ranks:
        raise TaskError(
            f"{spec.name} has {spec.samples} samples, too few for {ranks} ranks: take"
            f" devices={spec.samples}."
        )
    return spec.samples // ranks
