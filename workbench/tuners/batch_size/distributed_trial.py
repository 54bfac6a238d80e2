"""Runs one trial of the batch-size search on several ranks: first each rank alone, then all
together.

In the first part no rank waits for another, so that a rank that runs out of memory leaves no other
rank waiting within an update. The worst result counts for all. The second part measures the speed
of real updates of all ranks together.
"""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from workbench.engine.distributed.process_group import BUCKET, ProcessGroup
from workbench.engine.distributed.single import Single
from workbench.engine.optim.optimizers import Optimizers
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.events import Trial
from workbench.instruments import memory
from workbench.instruments.core_time import core_seconds
from workbench.instruments.memory import is_out_of_memory
from workbench.settings import Settings
from workbench.tuners.batch_size.batch_size_search import NotEnoughData, TrialStopped
from workbench.tuners.trial import (
    LastBatch,
    at_size,
    free_memory,
    last_batches,
    measured,
    trial_step,
)


def measure_on_ranks(
    session: Session,
    settings: Settings,
    size: int,
    steps: int,
    method: str = "fit",
    epoch: int = 0,
    *,
    max_memory: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trial:
    """Run one trial on all ranks, inside their session, which is restored.

    max_memory: bytes that it may use in each rank on CPU; None: an equal share of the free memory.
    stop: called between two updates of all ranks; returns the same value on all of them.
    """
    last = last_batches(session.task, settings, size, method)
    settings = at_size(settings, size, method)
    with scratch(session):
        allowed = _allowed(session.ranks, max_memory) if session.plan.on_cpu else None
        aside = _of_gradients(session.parallel, session.optimizers) if method == "fit" else 0
        with session.alone():
            trial_of_rank = _trial_alone(
                session, settings, size, steps, method, epoch, allowed, aside, last
            )
        trial = _worst(session.ranks.all_gather_object(trial_of_rank))
        for _ in session.ranks.rounds([None]):  # fetches commands that have come meanwhile
            if stop():
                raise TrialStopped
        if trial.ok and method == "fit":
            trial = _trial_of_all_ranks(session, settings, trial, steps, epoch, stop)
        return trial


def _allowed(ranks: ProcessGroup, max_memory: int | None) -> int:
    """Bytes that a trial may use in this process; called when all ranks have the memory that
    they need before it.
    """
    free = min(ranks.all_gather_object(memory.available_memory()))
    return max_memory or free // ranks.local_world


def _trial_alone(
    session: Session, settings: Settings, size: int, steps: int, method: str, epoch: int,
    allowed: int | None, aside: int, last: Sequence[LastBatch],
) -> Trial | NotEnoughData:  # fmt: skip
    """Run this rank's own part, with `aside` bytes allocated in addition; raises errors other
    than running out of memory.
    """
    try:
        with memory.limited(allowed):
            held = torch.empty(aside, dtype=torch.uint8, device=session.device)  # noqa: F841 - takes the memory of the all-reduce
            passed = measured(session, settings, size, steps, method, epoch, last=last)
            return passed if allowed is None else replace(passed, limit_bytes=allowed)
    except NotEnoughData as error:
        return NotEnoughData(str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        peak = memory.peak_bytes() if session.plan.on_cpu else None
        failed = Trial(size, False, peak_bytes=peak, error=str(error), limit_bytes=allowed)
        # The frames refer to the tensors that use the memory, of which the next steps need some.
        traceback.clear_frames(error.__traceback__)
    finally:
        session.optimizers.drop_gradients()
        free_memory()
    return failed


def _of_gradients(parallel: Single, optimizers: Optimizers) -> int:
    """The bytes that the all-reduce of the gradients needs; 0 if the session has allocated them
    already.
    """
    if parallel.reduce_buffers_ready:
        return 0
    return BUCKET + max(p.numel() * p.element_size() for p in optimizers.trained)


def _worst(found: Sequence[Trial | NotEnoughData]) -> Trial:
    """Combine the trials of all ranks into one: it passed if each passed, and its peak is the
    highest one.
    """
    trials = []
    for trial_of_rank in found:
        if isinstance(trial_of_rank, NotEnoughData):
            raise trial_of_rank
        trials.append(trial_of_rank)
    peak = max((t.peak_bytes for t in trials if t.peak_bytes is not None), default=None)
    memory_first = sorted(enumerate(trials), key=lambda numbered: numbered[1].fits)
    for rank, trial in memory_first:
        if not trial.ok:
            said = trial.error if len(trials) == 1 else f"rank {rank}: {trial.error}"
            return replace(trial, peak_bytes=peak, error=said, ranks=len(trials))
    rate = sum(t.samples_per_second or 0.0 for t in trials)
    return replace(trials[0], samples_per_second=rate, peak_bytes=peak, ranks=len(trials))


def _trial_of_all_ranks(
    session: Session,
    settings: Settings,
    trial: Trial,
    steps: int,
    epoch: int,
    stop: Callable[[], bool],
) -> Trial:
    """The trial with the speed of updates that all ranks take together."""
    step = trial_step(session, settings, trial.size, "fit", epoch)
    seconds: list[float] = []
    try:
        for _ in range(1 + steps):  # in the first update, DDP rebuilds its buckets
            seconds.append(core_seconds(step.once))
            if stop():
                raise TrialStopped
        samples = sum(session.ranks.all_gather_object(step.samples))
    finally:
        session.optimizers.drop_gradients()
        free_memory()
    typical = session.ranks.broadcast_object(statistics.median(seconds[1:]))
    return replace(trial, seconds=typical, samples_per_second=samples / typical)
