"""The batch-size search: real updates at each size, and only sizes that were tried and passed come back.

`batch_sizes` has the search as arithmetic; here is what one trial does. The launcher supplies `trial`: on CPU it
runs `measure` in a child process with a memory limit, on a device in place.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from workbench.commands import Inbox, Stop
from workbench.engine.session import Session, opened
from workbench.engine.step import update
from workbench.engine.validate import validate
from workbench.events import Emit, Trial
from workbench.instruments import memory
from workbench.instruments.memory import is_out_of_memory
from workbench.settings import Settings, SettingsError
from workbench.task.protocol import Task, TaskError
from workbench.techniques.accumulation import size_at
from workbench.tuners.batch_sizes import BatchSizes as BatchSizes
from workbench.tuners.batch_sizes import NotEnoughData, check, ended_event, search
from workbench.tuners.batch_sizes import TrialStopped as TrialStopped
from workbench.tuners.feed import NoBatch, cycled_windows

ENOUGH = 0.4
"""Seconds of further updates that a trial which fits is timed over, to compare speeds."""
MOST = 50
"""Further updates at the most."""


@dataclasses.dataclass(frozen=True)
class BatchSizeRequest:
    """How to search. `max_memory`: bytes a CPU trial may take; None: what is free now."""

    mode: str = "power"
    init_val: int = 2
    steps_per_trial: int = 3
    max_trials: int = 25
    max_val: int | None = None
    headroom: float = 0.05
    max_memory: int | None = None

    def __post_init__(self) -> None:
        check(self.mode, self.init_val, self.max_trials, self.max_val, None, self.headroom)
        if not isinstance(self.steps_per_trial, int) or self.steps_per_trial < 1:
            raise SettingsError(
                f"steps_per_trial={self.steps_per_trial!r}: at least 1 update is needed; 3 is usual."
            )
        if self.max_memory is not None and self.max_memory <= 0:
            raise SettingsError(f"max_memory={self.max_memory!r}: bytes above 0, or None for what is free.")


def run(
    task: Task, request: BatchSizeRequest, emit: Emit, inbox: Inbox, trial: Callable[[int], Trial]
) -> BatchSizes:
    """Search with `trial`, telling each outcome as it happens."""
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        while inbox:
            stopped = isinstance(inbox.take(), Stop) or stopped
        return stopped

    def told(size: int) -> Trial:
        outcome = trial(size)
        emit(outcome)
        return outcome

    found = search(
        told,
        mode=request.mode,
        init_val=request.init_val,
        max_trials=request.max_trials,
        max_val=request.max_val,
        cap=cap_of(task),
        headroom=request.headroom,
        stop=stop,
    )
    emit(ended_event(found))
    return found


def cap_of(task: Task) -> int | None:
    """The most samples a batch can hold: the data's length. Refuses data that makes its own batches."""
    if task.train is None:
        raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
    own = task.train.parts.own_batches
    if own is not None:
        raise TaskError(
            f"find_batch_size cannot set the batch size of train: {own}. Give the Dataset instead."
        )
    return task.train.samples


def measure(task: Task, settings: Settings, size: int, steps: int) -> Trial:
    """Take `steps` updates at this batch size, and validate a batch of it; errors are raised as they are."""
    settings = settings.replace(batch_size=size, drop_last=True)
    with opened(task, settings) as session, session.scratch():
        idle = _begin_peak(session.device)
        # Full windows: an epoch's short one would take less time and memory than it is counted for.
        feed = cycled_windows(task, settings, across_epochs=True)
        session.train_mode()
        try:
            seconds = [_timed(session, feed) for _ in range(steps)]
        except NoBatch:
            raise NotEnoughData(f"the data holds fewer than {size} samples") from None
        _validate_once(session, size)
        peak = _peak(session.device, idle)
        # The first updates also allocate, choose kernels and start threads: a speed worth comparing needs more.
        until = perf_counter() + ENOUGH
        while perf_counter() < until and len(seconds) < steps + MOST:
            seconds.append(_timed(session, feed))
        typical = statistics.median(seconds[1:] or seconds)
        samples = size * size_at(settings.accumulate_grad_batches, 0)
        return Trial(size, True, typical, samples / typical, peak)


def _timed(session: Session, feed: Iterator[list[Any]]) -> float:
    """Seconds for one more update, its batches included."""
    began = perf_counter()
    loss = update(session, next(feed))
    if loss is not None:
        float(loss)  # waits for the device
    return perf_counter() - began


def measure_here(task: Task, settings: Settings, size: int, steps: int) -> Trial:
    """`measure` in this process: running out of memory is a failed trial, and what it held is let go."""
    try:
        return measure(task, settings, size, steps)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Trial(size, False, error=str(error))
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _begin_peak(device: torch.device) -> int:
    if device.type != "cuda":
        memory.reset_peak()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _peak(device: torch.device, idle: int) -> int:
    """Bytes held at most since `_begin_peak`, above what was held then (the weights)."""
    if device.type != "cuda":
        return memory.peak_bytes()
    return int(torch.cuda.max_memory_allocated(device)) - idle


def _validate_once(session: Session, size: int) -> None:
    spec = session.task.val
    if spec is None or spec.one_shot or spec.parts.own_batches:
        return
    loader = spec.loader(session.settings, batch_size=size)
    for batch in loader:
        validate(session, [batch])
        return
