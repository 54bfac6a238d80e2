"""Runs one trial of the batch-size search: real updates, or batches of another stage, timed and
measured.

It is for one process; `distributed_trial` is for several ranks.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import torch

from workbench.engine.data.first_batches import first_batches
from workbench.engine.data.loaders import Loaders
from workbench.engine.optim.weight_averaging import WeightAverage
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.engine.validation.predict import predict
from workbench.engine.validation.validate import validate
from workbench.events import Trial
from workbench.instruments import memory
from workbench.instruments.core_time import core_seconds
from workbench.instruments.memory import is_out_of_memory
from workbench.settings import Settings
from workbench.task.data.loader_parts import length_of
from workbench.task.data.spec import DataSpec, set_epoch
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.techniques.accumulation import size_at
from workbench.techniques.limits import effective_settings, fraction_of
from workbench.tuners.batch_size.batch_size_search import NotEnoughData
from workbench.tuners.stages import data_of_stage
from workbench.tuners.trial_batches import NoBatch, cycled_windows
from workbench.units import counted

ENOUGH = 0.05
"""The seconds for which a trial that fits takes further updates, for a first idea of its speed."""
MOST = 10
"""The most further updates."""


class LastBatch(NamedTuple):
    """The last batch of an epoch, which is shorter than the others."""

    spec: DataSpec
    samples: int


class TrialStep(NamedTuple):
    """The step that a trial repeats: an update, or a batch of another stage."""

    once: Callable[[], object]
    samples: float
    """How many samples each step reads."""

    def repeat(self, count: int) -> None:
        """Take so many steps."""
        for _ in range(count):
            self.once()


def measure(
    task: Task, settings: Settings, size: int, steps: int, method: str = "fit", epoch: int = 0
) -> Trial:
    """Take `steps` updates at this batch size, and validate a batch of this size; errors are
    raised.

    method: "validate", "test" and "predict" take batches of that stage instead. epoch: the epoch
    whose accumulation is used.
    """
    last = last_batches(task, settings, size, method)
    settings = at_size(settings, size, method)
    with open_session(task, settings) as session, scratch(session):
        make_average(session.average, method)
        return measured(session, settings, size, steps, method, epoch, last=last)


def measure_here(
    task: Task, settings: Settings, size: int, steps: int, method: str = "fit"
) -> Trial:
    """Do the same as `measure`, but return a failed trial if memory runs out, and free the
    memory.
    """
    try:
        return measure(task, settings, size, steps, method)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Trial(size, False, error=str(error))
    finally:
        free_memory()


def measure_within(session: Session, settings: Settings, size: int, steps: int) -> Trial:
    """Do the same as `measure_here` within the session of a fit, between two updates; the
    session is restored.
    """
    last = last_batches(session.task, settings, size)
    settings = at_size(settings, size)
    with scratch(session):
        try:
            return measured(session, settings, size, steps, "fit", session.state.epoch, last=last)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error)
            # The frames refer to the tensors that use the memory, of which restoring the session
            # needs some.
            traceback.clear_frames(error.__traceback__)
        finally:
            session.optimizers.drop_gradients()
            free_memory()
        return Trial(size, False, error=said)


def at_size(settings: Settings, size: int, method: str = "fit") -> Settings:
    """The settings with this batch size, without those that depend on the number of batches,
    which do not matter for a trial.
    """
    sized = {"batch_size": size, "drop_last": True} if method == "fit" else {}
    return settings.replace(
        **sized,
        limit_train_batches=1.0,
        limit_val_batches=1.0,
        overfit_batches=0,
        fast_dev_run=0,
        lr_schedule="constant",
        warmup=0,
        find_lr_at=(),
        find_batch_size_at=(),
    )


def last_batches(
    task: Task, settings: Settings, size: int, method: str = "fit"
) -> tuple[LastBatch, ...]:
    """The short last batches that a job with batches of this size meets: of the training data and
    of each validation set, or of a stage's data.
    """
    limited = effective_settings(settings)
    sets: list[tuple[DataSpec, str]] = []
    if method == "fit":
        sets += [] if settings.drop_last else [(data_of_stage(task, method), "limit_train_batches")]
        held_out = () if task.val is None else task.val.sets
        sets += [(spec, "limit_val_batches") for spec in held_out]
    else:
        name = f"limit_{'val' if method == 'validate' else method}_batches"
        sets += [(spec, name) for spec in data_of_stage(task, method).sets]
    lasts = (LastBatch(spec, _last_of(spec, size, getattr(limited, name))) for spec, name in sets)
    return tuple(last for last in lasts if last.samples)


def _last_of(spec: DataSpec, size: int, limit: int | float) -> int:
    """The samples of a pass's last batch, if it is shorter than `size`, and a job reads it; else
    0.
    """
    if spec.one_shot or spec.parts.own_batches is not None:
        return 0
    samples = spec.samples if spec.parts.sampler is None else length_of(spec.parts.sampler)
    batches = 0 if samples is None else math.ceil(samples / size)
    read = min(limit, batches) if isinstance(limit, int) else fraction_of(batches, limit)
    return 0 if samples is None or read < batches else samples % size


def make_average(average: WeightAverage | None, method: str) -> None:
    """Allocate the average of the weights, since it needs memory in a fit."""
    if average is not None and method == "fit":
        average.add()


def measured(
    session: Session, settings: Settings, size: int, steps: int, method: str, epoch: int, *,
    last: Sequence[LastBatch] = (),
) -> Trial:  # fmt: skip
    """Run the trial in this session. last: what `last_batches` found for its size."""
    idle, limit = _begin_peak(session.device), _left(session.device)
    work = trial_step(session, settings, size, method, epoch)
    try:
        seconds = [core_seconds(work.once) for _ in range(steps)]
        if method == "fit":
            _validate_once(session, size)
    except ValueError as error:
        if not _of_a_single_value(error):
            raise
        return Trial(size, False, error=str(error), limit_bytes=limit, refused=size)
    refused = _refused(session, settings, method, last)
    peak = _peak(session.device, idle)
    # The first updates also allocate memory, choose kernels and start threads.
    until = perf_counter() + ENOUGH
    while perf_counter() < until and len(seconds) < steps + MOST:
        seconds.append(core_seconds(work.once))
    typical = statistics.median(seconds[1:] or seconds)
    trial = Trial(size, True, typical, work.samples / typical, peak, limit_bytes=limit)
    return (
        trial if refused is None else replace(trial, ok=False, error=refused[1], refused=refused[0])
    )


def _of_a_single_value(error: ValueError) -> bool:
    """Whether a normalisation refuses a batch with but one value of each channel: larger ones
    have more.
    """
    return str(error).startswith("Expected more than 1 value per channel")


def _refused(
    session: Session, settings: Settings, method: str, last: Sequence[LastBatch]
) -> tuple[int, str] | None:
    """The samples and the error of the first of these batches with which the model fails; None:
    with none.
    """
    for spec, samples in last:
        try:
            _try_batch(session, settings.replace(batch_size=samples), method, spec)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            line = (str(error).strip().splitlines() or ["no message"])[0]
            line = line.partition(". ")[0]  # without a remedy for batches of the data
            remedy = f"take another number of {spec.name} samples"
            if spec is session.task.train:
                remedy = "drop_last=True leaves it out"
            return (
                samples,
                (
                    f"the last batch of {spec.name} has {counted(samples, 'sample')}, which the"
                    f" model refuses ({type(error).__name__}: {line}): {remedy}"
                ),
            )
        finally:
            session.optimizers.drop_gradients()
    return None


def _try_batch(session: Session, settings: Settings, method: str, spec: DataSpec) -> None:
    """Take one batch of `settings.batch_size` samples as a job does: in an update, a check or a
    prediction.
    """
    if method == "fit" and spec is session.task.train:
        alone = settings.replace(accumulate_grad_batches=1)
        feed = cycled_windows(session.task, alone, in_step=session.parallel.rounds)
        with closing(feed) as windows:
            session.train_mode()
            train_step(session, next(windows))
        return
    batches = itertools.islice(spec.loader(settings), 1)
    if method == "predict":
        predict(session, batches)
    else:
        validate(session, [(spec, batches)], "test" if method == "test" else "val", trial=True)


def trial_step(
    session: Session, settings: Settings, size: int, method: str, epoch: int
) -> TrialStep:
    """The step that a trial repeats: an update, or a batch of another stage."""
    if method == "fit":
        return _updates(session, settings, size, epoch)
    return _batches(session, settings, size, method)


def _updates(session: Session, settings: Settings, size: int, epoch: int) -> TrialStep:
    """The step of a trial that takes updates of full windows; an epoch's last, short window
    would need less time and memory.
    """
    feed = cycled_windows(
        session.task, settings, epoch=epoch, across_epochs=True, in_step=session.parallel.rounds
    )
    session.train_mode()
    carried: dict[int, Any] = {}

    def once() -> None:
        nonlocal carried
        try:
            window = next(feed)
        except NoBatch:
            raise NotEnoughData(f"the data holds fewer than {size} samples") from None
        # sizes that take turns may change between two pieces of a batch in time
        session.state.hiddens = carried
        loss = train_step(session, window)
        carried = session.state.hiddens
        if loss is not None:
            float(loss)  # waits for the device

    batches = size_at(settings.accumulate_grad_batches, epoch) / _pieces(
        session.task, session.data, settings
    )
    return TrialStep(once, size * batches)


def _pieces(task: Task, data: Loaders, settings: Settings) -> int:
    """The number of updates for each batch: 1, or the number of its pieces in time (truncated
    BPTT).
    """
    if settings.truncated_bptt_steps is None:
        return 1
    batch = next(iter(data_of_stage(task, "fit").loader(settings, train=True)), None)
    return max(1, sum(1 for _ in data.split([batch])))


def _batches(session: Session, settings: Settings, size: int, method: str) -> TrialStep:
    feed, spec = (
        _whole_batches(session.task, settings, size, method),
        data_of_stage(session.task, method),
    )

    def once() -> None:
        batch = next(feed)
        if method == "predict":
            predict(session, [batch])
        else:
            validate(session, [(spec, [batch])], "test" if method == "test" else "val", trial=True)

    return TrialStep(once, size)


def _whole_batches(task: Task, settings: Settings, size: int, method: str) -> Iterator[Any]:
    """Batches of a stage, all of this size, without end."""
    spec = data_of_stage(task, method)
    if spec.one_shot:
        raise TaskError(
            f"{spec.name} can be read only once (it is an iterator), and a search would use it up: "
            "give a Dataset, a DataLoader, or wb.batches(list)."
        )
    # Only a training loader leaves out the short batch at the end; the order of the samples does
    # not matter.
    loader = spec.loader(
        settings.replace(drop_last=True, shuffle=True), batch_size=size, train=True
    )
    for epoch in itertools.count():
        empty = True
        set_epoch(loader, epoch)
        for batch in first_batches(loader, None):
            empty = False
            yield batch
        if empty:
            raise NotEnoughData(f"the data holds fewer than {size} samples")


def _validate_once(session: Session, size: int) -> None:
    sets = () if session.task.val is None else session.task.val.sets
    if sets and not any(spec.one_shot or spec.parts.own_batches for spec in sets):
        first = (
            (spec, itertools.islice(spec.loader(session.settings, batch_size=size), 1))
            for spec in sets
        )
        validate(session, first, trial=True)


def _begin_peak(device: torch.device) -> int:
    if device.type != "cuda":
        if device.type == "cpu":
            memory.reset_peak()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.memory_allocated(device))


def _left(device: torch.device) -> int | None:
    """Bytes that this process may still use on a device; None for a CPU, whose limit the caller
    sets.
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    # new in torch 2.8
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device.index)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return int(min(free + reserved, share * total) - allocated)


def _peak(device: torch.device, idle: int) -> int | None:
    """The peak in bytes since `_begin_peak`, above the memory at that time (the weights); None:
    this kind of device does not report it.
    """
    if device.type == "cpu":
        return memory.peak_bytes()
    if device.type != "cuda":
        return None
    return int(torch.cuda.max_memory_allocated(device)) - idle


def free_memory() -> None:
    """Free memory that is no longer needed."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
