"""Takes the updates of a profile: some to warm up, some without the profiler for the speed, and
some with it for the trace. Then one update counts its floating-point operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor
from torch.profiler import record_function

from workbench.commands import Inbox, Stop
from workbench.engine.metrics.flush import Recorder
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.events import Event, ProfileEnded, TimeSpent
from workbench.plots.training.time_spent import total
from workbench.task import rng
from workbench.task.batch import sample_count
from workbench.techniques.accumulation import size_at
from workbench.tuners.profiling.flops import count_flops, utilization
from workbench.tuners.profiling.recording import READ, UPDATE, Recording
from workbench.tuners.profiling.verdict import Setup, verdict
from workbench.tuners.trial_batches import Window, cycled_windows

SECONDS = 1.0
"""How long the updates for the speed take at least."""
MOST = 2000
"""The most updates for the speed."""
MOST_EVENTS = 200_000
"""The most events of a trace: it takes seconds to read and to write them, and tens of megabytes."""
_PATIENCE = 10.0
"""The most seconds of warming up after the first updates."""
TRACE = "trace.json.gz"
"""The name of the trace in the folder of the run."""


class Stretch(NamedTuple):
    """Updates that were taken one after another. `samples` and `tokens` are of all of them; None:
    not known.
    """

    updates: int
    seconds: float
    samples: int | None
    tokens: float | None

    def per_second(self, count: float | None) -> float | None:
        """How many of these a second has."""
        return None if count is None or not self.seconds else count / self.seconds


class Stopped(Exception):
    """The user has stopped the profile."""


def run(session: Session, updates: int, inbox: Inbox, folder: Path | None) -> ProfileEnded:
    """Profile updates of this session, which is restored. folder: gets the trace."""
    inbox = session.ranks.listen(inbox)
    try:
        with scratch(session), session.timer.compilations(), closing(_Updates(session, inbox)) as w:
            return _profile(session, w, updates, folder)
    except Stopped:
        return ProfileEnded("", "stopped")


def _profile(session: Session, work: _Updates, updates: int, folder: Path | None) -> ProfileEnded:
    session.timer.begin()
    work.warm_up()
    compiling = work.spent().get("compile", 0.0)
    typical = work.take(2)
    fewest = max(updates, min(MOST, int(SECONDS * typical.updates / max(1e-9, typical.seconds))))
    work.spent()
    speed = work.take(session.ranks.broadcast_object(fewest))
    parts = {name: seconds / speed.updates for name, seconds in work.spent().items()}
    if not session.ranks.first:  # it takes part in the updates, and nobody reads its result
        work.take(1)
        work.take(session.ranks.broadcast_object(updates))
        count_flops(session, work.next_whole())
        return ProfileEnded("", "all updates taken")
    events_of_one = work.record(1).size
    updates = session.ranks.broadcast_object(
        min(updates, max(1, MOST_EVENTS // max(1, events_of_one)))
    )
    recording = work.record(updates)
    flops = count_flops(session, work.next_whole())
    if folder is not None:
        recording.write(folder / TRACE)
    busy_seconds, seconds = recording.busy_seconds(updates), speed.seconds / speed.updates
    busy = None if busy_seconds is None else min(1.0, busy_seconds / seconds)
    operators, kernels = recording.operators(updates), recording.kernels(updates)
    used = utilization(session, flops, seconds)
    return ProfileEnded(
        verdict(parts, busy, operators, kernels, Setup.of(session)),
        "all updates taken",
        updates,
        speed.updates / speed.seconds,
        speed.per_second(speed.samples),
        speed.per_second(speed.tokens),
        compiling,
        parts,
        busy,
        operators,
        kernels,
        recording.memory(),
        flops.in_update,
        used.share,
        used.reason,
    )


class _Updates:
    """Takes updates of a session as a fit does, from a loader of its own."""

    def __init__(self, session: Session, inbox: Inbox) -> None:
        self._session, self._inbox = session, inbox
        self._weights: list[Tensor | float] = []
        """The weights that training_step has reported."""
        self._spent: list[Mapping[str, float]] = []
        """The seconds by part since `spent` was called."""
        self._recorder = Recorder(session, self._hear)
        self._most = 0
        """The samples of the largest update of this process."""
        self._last: Tensor | None = None
        """The last loss; reading it waits for the device."""
        session.train_mode()
        session.state.searching = False  # norms are measured, as in a fit
        # a profile may take more updates than a schedule of the user's was made for
        self._schedules = [(opt, opt.schedules) for opt in session.optimizers]
        for opt in session.optimizers:
            opt.schedules = ()
        session.plan = replace(
            session.plan, training_step=self._watched(session.plan.training_step)
        )
        parallel = session.parallel
        watched = self._watched(parallel.training_step)
        parallel.training_step = watched  # type: ignore[method-assign]
        self._windows = cycled_windows(
            session.task,
            session.data.settings,
            epoch=session.state.epoch,
            in_step=self._in_step,
        )

    def close(self) -> None:
        """End the loader's processes, and give the optimizers their schedules back."""
        self._windows.close()
        for opt, schedules in self._schedules:
            opt.schedules = schedules

    def _in_step(self, windows: Iterable[Window]) -> Iterator[Window]:
        """The windows of a pass as in a fit: in step with the other ranks, and with the time that
        each takes to arrive.
        """
        session = self._session
        size = size_at(session.settings.accumulate_grad_batches, session.state.epoch)
        timed = session.meter.waiting(iter(windows), session.timer)
        return session.parallel.rounds(timed, session.data.whole_windows(size))

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **extra: Any) -> Any:
            result = step(*args, **extra)
            if isinstance(result, Mapping) and result.get("weight") is not None:
                self._weights.append(result["weight"])
            return result

        return counted

    def _hear(self, event: Event) -> None:
        if isinstance(event, TimeSpent):
            self._spent.append(event.parts)

    def spent(self) -> dict[str, float]:
        """The seconds by part since the last call, the largest first."""
        self._recorder.time()
        parts, self._spent = total(self._spent), []
        return parts

    def warm_up(self) -> None:
        """Take updates until kernels are chosen and compiled, and the loader's processes have
        read ahead.
        """
        settings = self._session.settings
        self.take(1)
        first = self.take(2)
        ahead = 1 + (settings.prefetch_factor or 2) * settings.num_workers
        bearable = int(_PATIENCE * first.updates / max(1e-9, first.seconds))
        self.take(self._session.ranks.broadcast_object(min(ahead, bearable)))

    def take(
        self, count: int, named: Callable[[str], AbstractContextManager[Any]] = nullcontext
    ) -> Stretch:
        """Take this many updates. named: makes a range of the trace, by its name. Raises Stopped
        where the user stops the job.
        """
        session = self._session
        samples: int | None = 0
        self._weights.clear()
        began = perf_counter()
        for number in range(count):
            if self._inbox.has(Stop):
                raise Stopped
            rng.yield_lock()
            with named(f"{UPDATE} {number}"):
                with named(READ):
                    window = self.next()
                loss = train_step(session, window)
            self._last = self._last if loss is None else loss
            self._most = max(self._most, sample_count(window) or 0)
            of_update = session.parallel.samples(window)
            samples = None if samples is None or of_update is None else samples + of_update
            session.timer.end()
            if session.meter.due():
                self._recorder.flush()
        if self._last is not None:
            self._last.item()
        return Stretch(count, perf_counter() - began, samples, self._tokens())

    def record(self, count: int) -> Recording:
        """Take this many updates under the profiler."""
        recording = Recording(self._session.device)
        with recording.on():
            self.take(count, record_function)
        return recording

    def next(self) -> Sequence[Any]:
        """The batches of the next update."""
        return next(self._windows)

    def next_whole(self) -> Sequence[Any]:
        """The batches of the next update that is not smaller, as an epoch's last one may be."""
        window = self.next()
        if self._session.ranks.broadcast_object((sample_count(window) or 0) < self._most):
            train_step(self._session, window)
            window = self.next()
        return window

    def _tokens(self) -> float | None:
        """The sum of the weights of all ranks; None: none was reported."""
        reported = [float(weight) for weight in self._weights]
        of_ranks = self._session.ranks.all_gather_object(sum(reported) if reported else None)
        known = [tokens for tokens in of_ranks if tokens is not None]
        return sum(known) if known else None
