"""Searches the batch size with real updates at each size; it returns only sizes that were tried and
passed.

`batch_size_search` has the arithmetic of the search, `trial` one trial (`distributed_trial`: on
several ranks). The
launcher runs the trials: on CPU in a child process with a memory limit, on a device in this
process, for several ranks in their processes. After the trials the search measures the gradient
noise scale (`noise_trial`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from workbench.commands import Inbox, Stop
from workbench.events import Emit, Trial, TrialStarted
from workbench.instruments.noise_scale import NoiseScale
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners.batch_size.batch_size_choice import Epoch
from workbench.tuners.batch_size.batch_size_search import BatchSizes as BatchSizes
from workbench.tuners.batch_size.batch_size_search import TrialStopped as TrialStopped
from workbench.tuners.batch_size.batch_size_search import check, ended_event, search
from workbench.tuners.batch_size.effective_batch import accumulation, effective_batch
from workbench.tuners.batch_size.noise_trial import MOST, ON_RANKS, size_for_noise
from workbench.tuners.stages import METHODS, data_of_stage

SHARE = 0.1
"""Speeds are compared for this share of the training that they are for."""
SHORTEST, MOST_SECONDS = 0.5, 10.0
"""The bounds of that time in seconds."""
LONGEST = (
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
        if not isinstance(self.steps_per_trial, int) or self.steps_per_trial < 1:
            raise SettingsError(
                f"steps_per_trial={self.steps_per_trial!r}: at least 1 update is needed; 3 is"
                " usual."
            )
        if not isinstance(self.min_updates_per_epoch, int) or self.min_updates_per_epoch < 1:
            raise SettingsError(
                f"min_updates_per_epoch={self.min_updates_per_epoch!r}: give a whole number; 1"
                " recommends by speed alone."
            )
        if self.max_memory is not None and self.max_memory <= 0:
            raise SettingsError(
                f"max_memory={self.max_memory!r}: bytes above 0, or None for what is free."
            )
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


@dataclasses.dataclass(frozen=True)
class Trials:
    """The functions that the launcher supplies. trial: tries a size. noise: measures the gradient
    noise scale with a size, from at most the given number of batches; None: it cannot be measured
    there.
    """

    trial: Callable[[int], Trial]
    noise: Callable[[int, int], NoiseScale] | None = None
    speeds: Callable[[Sequence[Trial], float], Sequence[Trial]] | None = None
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

    def speeds(passed: Sequence[Trial]) -> Sequence[Trial]:
        if trials.speeds is None:
            return passed
        by_size = {t.size: t for t in passed}
        now = by_size.get(settings.batch_size, passed[0])
        compared = [
            dataclasses.replace(
                by_size[t.size],
                seconds=t.seconds,
                samples_per_second=t.samples_per_second,
                uncertainty=t.uncertainty,
            )
            for t in trials.speeds(passed, _seconds(settings, now))
        ]
        for trial in compared:
            emit(trial)
        return compared

    def noise(passed: Sequence[Trial]) -> NoiseScale:
        if request.longest:
            return NoiseScale(None, None, LONGEST)
        if trials.noise is None:
            return NoiseScale(None, None, ON_RANKS)
        size = size_for_noise([t.size for t in passed], cap)
        # reads no sample twice
        return trials.noise(size, MOST if cap is None else min(MOST, cap // size))

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
        stop=lambda: inbox.has(Stop),
    )
    emit(ended_event(sizes))
    return sizes


def _seconds(settings: Settings, trial: Trial) -> float:
    """For how long speeds are compared: a share of the training that they are for, within bounds.
    trial: at the present size, or the smallest one.
    """
    updates = math.inf if settings.max_steps is None else settings.max_steps
    if settings.epochs is not None and trial.updates_per_epoch is not None:
        updates = min(updates, settings.epochs * trial.updates_per_epoch)
    training = math.inf if trial.seconds is None else updates * trial.seconds
    return min(max(SHARE * training, SHORTEST), MOST_SECONDS)


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
