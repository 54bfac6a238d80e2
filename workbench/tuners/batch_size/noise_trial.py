"""Measures the gradient noise scale from the gradients of single batches, all at the same weights:
a session's present ones, or those after a few further updates.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from contextlib import closing

import numpy as np

from workbench.engine.backward import batch_gradient
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.instruments.core_time import core_seconds
from workbench.instruments.memory import is_out_of_memory
from workbench.instruments.noise_scale import PRESENT, Array, NoiseScale, Sketch, noise_scale
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
"""Seconds after which no more batches are read, if there are enough for an estimate."""
_ENOUGH = 16
"""The least number of batches, and the number between two estimates."""
_CERTAIN = 0.1
"""The measurement ends when the noise scale is known within this share of itself."""
AFTER = 20
"""A search takes so many updates first. A model that has learned nothing yet has large gradients
that all agree, so its noise scale says little about the training.
"""


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
    after: int = 0,
) -> NoiseScale:
    """Measure the noise scale in a new session, from at most `most` batches of this size, after so
    many updates.
    """
    with open_session(task, _settings(settings, size)) as session:
        return noise_within(session, settings, size, most, epoch, stop, after)


def noise_within(
    session: Session,
    settings: Settings,
    size: int,
    most: int,
    epoch: int = 0,
    stop: Callable[[], bool] = lambda: False,
    after: int = 0,
) -> NoiseScale:
    """Measure the noise scale in this session, which is restored afterwards. If memory runs out,
    it stays unknown.
    """
    why = _not_here(session)
    if why is not None:
        return NoiseScale(None, None, f"not measured: {why}.")
    with scratch(session):
        settings = _settings(settings, size)
        try:
            step = trial_step(session, settings, size, "fit", epoch)
            for _ in range(after):
                step.once()
                if stop():
                    raise TrialStopped
            at = f"the weights after {after} updates" if after else PRESENT
            return _measured(session, settings, size, most, epoch, stop, at)
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
                    seconds > _SECONDS or _is_certain(gradients, weights, size)
                ):
                    break
        except NoBatch:
            raise TaskError(f"the data holds fewer than {size} samples") from None
    return noise_scale(gradients, weights, size, at)


def _is_certain(gradients: list[Array], weights: list[float], size: int) -> bool:
    known = noise_scale(gradients, weights, size).uncertainty
    return known is not None and known <= _CERTAIN
