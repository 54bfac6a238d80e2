"""Runs a trial of a batch-size search: in a child process with a memory limit on CPU, in this
process on a device.

A search inside a fit on several ranks runs it on all of them; `find_batch_size` for several ranks
is in `distributed_search.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from workbench.commands import Inbox, Stop
from workbench.engine.runtime.runtime import Runtime
from workbench.engine.session import Session
from workbench.events import Trial
from workbench.instruments.noise_scale import NoiseScale
from workbench.launch.process.run_in_child import Outcome, available_memory, run_in_child
from workbench.settings import Settings
from workbench.share.package import pack
from workbench.task.protocol import Task
from workbench.tuners.batch_size.batch_size_finder import (
    BatchSizeRequest,
    Seconds,
    Trials,
    TrialStopped,
)
from workbench.tuners.batch_size.distributed_trial import measure_on_ranks
from workbench.tuners.batch_size.noise_trial import (
    OUT_OF_MEMORY,
    Stretch,
    measure_noise,
    noise_within,
)
from workbench.tuners.batch_size.speeds import compare, compare_within
from workbench.tuners.trial import measure, measure_here, measure_within


@contextlib.contextmanager
def trials(
    task: Task,
    settings: Settings,
    request: BatchSizeRequest,
    inbox: Inbox,
    session: Session | None = None,
) -> Iterator[Trials]:
    """Context manager with the trials of a search of this task; model and data are packed once for
    all child processes.

    session: of a fit that continues afterwards. On a device the trials run in it, with the memory
    that it leaves.
    """
    if session is not None and session.ranks.several:
        yield in_all(settings, request, inbox, session)
        return
    device = session.device if session is not None else Runtime(settings).device
    if device.type != "cpu":
        yield _in_place(task, settings, request, inbox, session)
        return
    threads, epoch = torch.get_num_threads(), session.state.epoch if session is not None else 0
    with pack((task, settings), names={"task": task}, lists=True) as package:

        def in_child(function: Callable[..., Any], *args: Any) -> tuple[Outcome, int]:
            limit = request.max_memory or available_memory()
            outcome = run_in_child(
                function,
                package,
                *args,
                memory_limit=limit,
                stop=lambda: inbox.has(Stop),
                threads=threads,
            )
            if outcome.kind == "stopped":
                raise TrialStopped
            return outcome, limit

        def trial(size: int) -> Trial:
            outcome, limit = in_child(_measure, request, size, epoch)
            if outcome.out_of_memory:
                said = str(outcome.error or outcome.died)
                return Trial(
                    size, False, peak_bytes=outcome.peak_bytes, error=said, limit_bytes=limit
                )
            measured = outcome.get()
            assert isinstance(measured, Trial)
            return replace(measured, limit_bytes=limit)

        def noise(size: int, most: int, stretch: Stretch) -> NoiseScale:
            outcome, _ = in_child(_measure_noise, size, most, epoch, stretch)
            if outcome.out_of_memory:
                return NoiseScale(None, None, OUT_OF_MEMORY)
            measured = outcome.get()
            assert isinstance(measured, NoiseScale)
            return measured

        def speeds(passed: Sequence[Trial], seconds: Seconds) -> list[Trial]:
            outcome, limit = in_child(_compare, request, list(passed), seconds, epoch)
            if outcome.out_of_memory:
                return list(passed)
            compared = outcome.get()
            assert isinstance(compared, list)
            return [replace(t, limit_bytes=limit) for t in compared]

        yield Trials(trial, noise, speeds)


def _in_place(
    task: Task, settings: Settings, request: BatchSizeRequest, inbox: Inbox, session: Session | None
) -> Trials:
    steps, method = request.steps_per_trial, request.method

    def stop() -> bool:
        return inbox.has(Stop)

    def trial(size: int) -> Trial:
        at_size = request.settings_at(settings, size)
        if session is not None:
            return measure_within(session, at_size, size, steps)
        return measure_here(task, at_size, size, steps, method)

    def noise(size: int, most: int, stretch: Stretch) -> NoiseScale:
        if session is not None:
            return noise_within(session, settings, size, most, session.state.epoch, stop, stretch)
        return measure_noise(task, settings, size, most, stop=stop, stretch=stretch)

    def speeds(passed: Sequence[Trial], seconds: Seconds) -> list[Trial]:
        if session is not None:
            epoch = session.state.epoch
            return compare_within(session, settings, request, passed, seconds, epoch, stop)
        return compare(task, settings, request, passed, seconds, stop=stop)

    return Trials(trial, noise, speeds)


def in_all(settings: Settings, request: BatchSizeRequest, inbox: Inbox, session: Session) -> Trials:
    """Trials that all ranks of this session run together."""

    def trial(size: int) -> Trial:
        return measure_on_ranks(
            session,
            request.settings_at(settings, size),
            size,
            request.steps_per_trial,
            request.method,
            session.state.epoch,
            max_memory=request.max_memory,
            stop=lambda: inbox.has(Stop),
        )

    def speeds(passed: Sequence[Trial], seconds: Seconds) -> list[Trial]:
        epoch = session.state.epoch
        stop = functools.partial(inbox.has, Stop)
        return compare_within(session, settings, request, passed, seconds, epoch, stop)

    return Trials(trial, speeds=speeds if request.method == "fit" else None)


def _compare(
    task_and_settings: tuple[Task, Settings],
    request: BatchSizeRequest,
    passed: list[Trial],
    seconds: Seconds,
    epoch: int,
) -> list[Trial]:
    return compare(*task_and_settings, request, passed, seconds, epoch)


def _measure(
    task_and_settings: tuple[Task, Settings], request: BatchSizeRequest, size: int, epoch: int
) -> Trial:
    task, settings = task_and_settings
    settings = request.settings_at(settings, size)
    return measure(task, settings, size, request.steps_per_trial, request.method, epoch)


def _measure_noise(
    task_and_settings: tuple[Task, Settings], size: int, most: int, epoch: int, stretch: Stretch
) -> NoiseScale:
    return measure_noise(*task_and_settings, size, most, epoch, stretch=stretch)
