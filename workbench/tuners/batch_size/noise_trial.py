"""Measures the gradient noise scale from the gradients of single batches, all at the same weights:
a session's present ones, or those at some places of a stretch of updates, whose mean it is then.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from workbench.engine.backward import batch_gradient
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.events import Trial
from workbench.instruments.core_time import core_seconds
from workbench.instruments.memory import is_out_of_memory
from workbench.instruments.noise_scale import (
    PRESENT,
    Array,
    NoiseScale,
    Sketch,
    mean_of,
    noise_scale,
)
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners.batch_size.batch_size_search import TrialStopped
from workbench.tuners.trial import at_size, free_memory, trial_step
from workbench.tuners.trial_batches import NoBatch, cycled_windows

MANY = 64
"""The batch size is chosen so that the data has this many batches."""
MOST = 256
"""How many batches are read at most."""
_SECONDS = 5.0
"""The most seconds after which no more batches are read, if there are enough for an estimate."""
_ENOUGH = 16
"""The least number of batches, and the number between two estimates."""
_CERTAIN = 0.2
"""A measurement ends when the noise scale is known within this share of itself."""
FIRST = 20
"""The updates before the first measurement of a search. A model that has learned nothing yet has
large gradients that all agree, so its noise scale says little about the training.
"""
_PLACES = 3
"""The most places where a search measures: the noise scale may grow tenfold from one to the next.
"""
_SHARE, _LONGEST, _FURTHEST = 0.2, 5.0, 100_000
"""After `FIRST` updates a search takes further ones up to this share of those that are planned, for
at most so many seconds, and at most so many.
"""


class Stretch(NamedTuple):
    """The updates before the measurements of a search."""

    size: int
    """Their batch size."""
    places: tuple[int, ...]
    """After how many updates each measurement comes."""
    seconds: float
    """For how long each of them reads batches."""


def stretch_of(trial: Trial, planned: float, seconds: float) -> Stretch:
    """The stretch of a search: with batches of this trial's size, to the last doublings of `FIRST`
    within a share of the planned updates. seconds: how long all may take, about.
    """
    most = _SHARE * planned
    if trial.seconds is not None:
        most = min(most, min(_LONGEST, seconds / 2) / trial.seconds)
    # the counts are coarse, so that they are the same in each search
    places = [int(min(FIRST, max(1, planned)))]
    while 2 * places[-1] <= min(most, _FURTHEST):
        places.append(2 * places[-1])
    places = places[-_PLACES:]
    return Stretch(trial.size, tuple(places), min(_SECONDS, seconds / 2) / len(places))


def size_for_noise(passed: list[int], samples: int | None) -> int:
    """The batch size for the measurement: the largest of which the data has enough batches; at
    most `MANY` if the data's length is unknown.
    """
    most = MANY if samples is None else samples // MANY
    return max((size for size in passed if size <= most), default=min(passed))


def measure_noise(
    task: Task,
    settings: Settings,
    size: int,
    most: int,
    epoch: int = 0,
    stop: Callable[[], bool] = lambda: False,
    stretch: Stretch | None = None,
) -> NoiseScale:
    """Do the same as `noise_within`, in a new session."""
    with open_session(task, _settings(settings, size)) as session:
        return noise_within(session, settings, size, most, epoch, stop, stretch)


def noise_within(
    session: Session,
    settings: Settings,
    size: int,
    most: int,
    epoch: int = 0,
    stop: Callable[[], bool] = lambda: False,
    stretch: Stretch | None = None,
) -> NoiseScale:
    """Measure the noise scale in this session, which is restored afterwards, from at most `most`
    batches of this size at each place of the stretch; None: at the present weights. If memory runs
    out, it stays unknown.
    """
    why = _not_here(session)
    if why is not None:
        return NoiseScale(None, None, f"not measured: {why}.")
    with scratch(session):
        sized = _settings(settings, size)
        try:
            if stretch is None:
                return _measured(session, sized, size, most, epoch, stop, PRESENT, _SECONDS)
            larger = at_size(settings, stretch.size)
            step = trial_step(session, larger, stretch.size, "fit", epoch)
            scales: dict[int, NoiseScale] = {}
            for after in stretch.places:
                for _ in range(after - max(scales, default=0)):
                    step.once()
                    if stop():
                        raise TrialStopped
                at = f"the weights after {after} updates"
                scales[after] = _measured(
                    session, sized, size, most, epoch, stop, at, stretch.seconds
                )
            return mean_of(scales)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
        finally:
            session.optimizers.drop_gradients()
            free_memory()
    return NoiseScale(None, None, OUT_OF_MEMORY)


OUT_OF_MEMORY = "not measured: it needs a little more memory than there is."
ON_RANKS = "not measured on several ranks; a search on one device measures it."


def _settings(settings: Settings, size: int) -> Settings:
    return at_size(settings, size).replace(accumulate_grad_batches=1)


def _not_here(session: Session) -> str | None:
    """Why this session's gradients have no single noise scale; None: they have one."""
    if session.ranks.several:
        return "it takes one device"
    if session.task.manual:
        return "with manual optimization the model calls backward itself"
    if session.plan.several_optimizers:
        return "each of several optimizers has a gradient of its own"
    return (
        "the pieces of a batch in time depend on each other"
        if session.plan.tbptt is not None
        else None
    )


def _measured(
    session: Session,
    settings: Settings,
    size: int,
    most: int,
    epoch: int,
    stop: Callable[[], bool],
    at: str,
    longest: float,
) -> NoiseScale:
    (opt,) = session.optimizers
    session.train_mode()
    gradients: list[Array] = []
    weights: list[float] = []
    sketch = Sketch(opt.trained)
    seconds = 0.0
    with closing(cycled_windows(session.task, settings, epoch=epoch, across_epochs=True)) as feed:

        def read() -> None:
            weight = batch_gradient(session, opt, next(feed))
            if weight is not None and 0 < float(weight) < math.inf:
                gradient = sketch.take()
                # the first gradients in float16 may overflow, until the loss scale is low enough
                if np.isfinite(gradient).all():
                    gradients.append(gradient)
                    weights.append(float(weight))

        try:
            for batches in range(1, most + 1):
                # a busy machine reads as many batches, so a search repeats
                seconds += core_seconds(read)
                if stop():
                    raise TrialStopped
                if batches % _ENOUGH == 0 and (
                    seconds > longest or _is_certain(gradients, weights, size)
                ):
                    break
        except NoBatch:
            raise TaskError(f"the data holds fewer than {size} samples") from None
    return noise_scale(gradients, weights, size, at)


def _is_certain(gradients: list[Array], weights: list[float], size: int) -> bool:
    known = noise_scale(gradients, weights, size).uncertainty
    return known is not None and known <= _CERTAIN
