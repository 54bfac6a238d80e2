"""Compares the speeds of batch sizes: all in one session, in turn, over several rounds.

One size after the other would be compared at different loads of the machine. In a round each size
has its turn, and the sizes of a round are compared with each other. `core_seconds` leaves out the
time in which other programs had the core.
"""

from __future__ import annotations

import itertools
import math
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.events import Trial
from workbench.instruments.core_time import core_seconds
from workbench.instruments.memory import is_out_of_memory
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners.batch_size.batch_size_finder import CERTAIN, BatchSizeRequest, Seconds
from workbench.tuners.batch_size.batch_size_search import TrialStopped
from workbench.tuners.trial import TrialStep, at_size, free_memory, trial_step

BLOCK = 0.01
"""A size takes updates for about so many seconds in each round, and at least one."""
_FEWEST = 10
"""The least number of rounds from which their spread can be estimated."""


def compare(
    task: Task,
    settings: Settings,
    request: BatchSizeRequest,
    trials: Sequence[Trial],
    seconds: Seconds,
    epoch: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> list[Trial]:
    """Do the same as `compare_within`, in a new session."""
    with open_session(task, at_size(settings, settings.batch_size, request.method)) as session:
        return compare_within(session, settings, request, trials, seconds, epoch, stop)


def compare_within(
    session: Session,
    settings: Settings,
    request: BatchSizeRequest,
    trials: Sequence[Trial],
    seconds: Seconds,
    epoch: int,
    stop: Callable[[], bool],
) -> list[Trial]:
    """Return these trials with speeds that are compared in this session, which is restored.

    seconds: for how long at the most, after a first round. When this time is up, no other size has
    its turn, and a round that is not whole is left out. Where no round is whole, or memory runs
    out, the trials are returned as they are. Several ranks compare together. stop:
    returns the same value on all of them.
    """
    with scratch(session):
        try:
            return _compared(session, settings, request, trials, seconds, epoch, stop)
        except Exception as error:
            if not is_out_of_memory(error) or session.ranks.several:
                raise
            traceback.clear_frames(error.__traceback__)
            return list(trials)
        finally:
            session.optimizers.drop_gradients()
            free_memory()


def _compared(
    session: Session,
    settings: Settings,
    request: BatchSizeRequest,
    trials: Sequence[Trial],
    seconds: Seconds,
    epoch: int,
    stop: Callable[[], bool],
) -> list[Trial]:
    method = request.method
    steps: dict[int, TrialStep] = {}
    for t in trials:
        sized = at_size(request.settings_at(settings, t.size), t.size, method)
        steps[t.size] = trial_step(session, sized, t.size, method, epoch)
    rounds: list[dict[int, float]] = []
    for times in _rounds(session, steps, seconds, stop):
        rounds.append(times)
        certain = all(u is not None and u <= CERTAIN for _, u in typical(rounds).values())
        if session.ranks.broadcast_object(certain):
            break
    if not rounds:
        return list(trials)
    known = session.ranks.broadcast_object(typical(rounds))
    samples = {
        size: sum(session.ranks.all_gather_object(step.samples)) for size, step in steps.items()
    }
    return [
        replace(
            t,
            seconds=known[t.size][0],
            samples_per_second=samples[t.size] / known[t.size][0],
            uncertainty=known[t.size][1],
        )
        for t in trials
    ]


def _rounds(
    session: Session, steps: Mapping[int, TrialStep], seconds: Seconds, stop: Callable[[], bool]
) -> Iterator[dict[int, float]]:
    """The seconds of an update at each size, in each round, until the time is up. A round that is
    not whole is left out.
    """
    counts = dict.fromkeys(steps, 1)
    end, left = perf_counter() + seconds.clock, math.inf
    for number in itertools.count():
        times: dict[int, float] = {}
        for size, step in steps.items():
            if session.ranks.broadcast_object(left <= 0 or perf_counter() >= end):
                return
            spent = core_seconds(lambda: step.repeat(counts[size]))  # noqa: B023
            if stop():
                raise TrialStopped
            times[size] = spent / counts[size]
            left -= spent
        if number == 0:
            # this round makes the optimizer's state and the loaders' workers
            left = seconds.core
            continue
        yield times
        if number == 1:
            # the first times tell how many updates fill a block
            counts = session.ranks.broadcast_object(
                {size: max(1, round(BLOCK / each)) for size, each in times.items()}
            )


def typical(rounds: Sequence[Mapping[int, float]]) -> dict[int, tuple[float, float | None]]:
    """The typical seconds of an update at each size, and half the width of their 95% interval as a
    share of them (None for fewer than ten rounds).

    A round in which everything was slower counts as the others: each time is divided by the mean
    of its round.
    """
    sizes = list(rounds[0])
    logs = np.log([[times[size] for size in sizes] for times in rounds])
    of_round = logs.mean(axis=1, keepdims=True)
    scale = math.exp(statistics.median(of_round.ravel().tolist()))
    shares = np.exp(logs - of_round)
    return {
        size: (scale * float(np.median(column)), _uncertainty(np.sort(column)))
        for size, column in zip(sizes, shares.T, strict=True)
    }


def _uncertainty(times: NDArray[np.float64]) -> float | None:
    """The interval of a median lies between two of the sorted values, whose places follow from the
    binomial distribution (Conover, Practical Nonparametric Statistics, 1999): no distribution of
    the times is assumed.
    """
    n = len(times)
    if n < _FEWEST:
        return None
    half = 0.98 * math.sqrt(n)
    low = times[max(0, math.floor(n / 2 - half))]
    high = times[min(n - 1, math.ceil(n / 2 + half) - 1)]
    return float((high - low) / 2 / np.median(times))
