"""Finds a clip value: takes real updates without clipping, and reads their gradient norms. Then it
trains with the value and without.

How to read it: a clip value that a tenth of the norms exceed limits spikes and leaves usual updates
unchanged. If no norm stands out, clipping would change little, and none is recommended. Norms do
not tell whether a spike harms: where losses are noisy, large gradients are part of the mean, and a
value that cuts them makes training worse. So a value is recommended only if the held-out loss is
clearly lower with it. The norms of a whole run say more, since they usually fall during training:
`run.clip_suggestion` and `run.plot("clip")` use them.
Source: Pascanu, Mikolov & Bengio (2013), "On the difficulty of training recurrent neural networks",
section 3.2.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.events import ClipSearchEnded, Emit, StepsDone, last_of
from workbench.instruments.finite import NonFiniteError
from workbench.plots.chart import Chart
from workbench.plots.clip_statistics import ENOUGH, clip_share, suggest_clip
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.clip_value import clip_value
from workbench.runs.printable import paragraph, printable
from workbench.settings import Settings, SettingsError
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners import stretch
from workbench.tuners.trial_batches import cycled_windows
from workbench.units import number, rate
from workbench.values import shown

STANDS_OUT = 3.0
"""A norm stands out if it is this many times the median of the norms around it."""
CLEARLY = 0.05
"""A value is recommended only if the loss without clipping is higher by this share."""
_AROUND = 21
_FLUSH = 100
"""Updates between two reads of the meter, which holds a few hundred."""

Norms = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClipSearch(Drawable):
    """The result of a search for a clip value. `best`: the settings for `bench.set(**found.best)`;
    empty: clipping is not clearly better.

    `suggestion`: the value that a tenth of the norms exceed, also if it is not recommended.
    `norms`: for each optimizer the 2-norms of its gradients before clipping, one for each update.
    `reason` says why. `figure()` and `plot()` draw the share of updates that each clip value would
    clip.
    """

    best: Mapping[str, Any]
    suggestion: float | None
    norms: tuple[Norms, ...]
    reason: str
    ended: str

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> ClipSearch:
        """Make it from the events of a run or a record, complete or not."""
        end = last_of(events, ClipSearchEnded({}, None, (), "", "not ended"))
        return cls(
            end.best,
            end.suggestion,
            tuple(np.asarray(norms, np.float64) for norms in end.norms),
            end.reason,
            end.ended,
        )

    def share_at(self, clip_val: float) -> float:
        """Return the share of the updates that this clip value would have clipped, from 0 to 1."""
        return clip_share(self.norms, clip_val)

    def _charts(self) -> list[Chart]:
        return [clip_value(self.norms, self.suggestion)]

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={value!r}" for name, value in self.best.items()) or "unchanged"
        lines = [f"ClipSearch: {best} ({self.ended})", *paragraph(self.reason)]
        if not self.best and self.suggestion is not None:
            lines += paragraph(f"suggestion={rate(self.suggestion)} is not recommended")
        return "\n".join(map(printable, lines))


@dataclass(frozen=True)
class ClipRequest:
    """The arguments of a search for a clip value; updates: the number of updates whose norms are
    measured, and of each of the two stretches that are compared.
    """

    updates: int = 200

    def __post_init__(self) -> None:
        if (
            isinstance(self.updates, bool)
            or not isinstance(self.updates, int)
            or self.updates < ENOUGH
        ):
            raise SettingsError(
                f"updates={shown(self.updates)}: give a whole number of at least {ENOUGH}; 200 is"
                " usual."
            )

    def run(
        self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]
    ) -> ClipSearchEnded:
        """Take the updates until `stopped()`, derive a clip value from their norms, and train with
        it and without; the task is restored.
        """
        end = self.measured(task, settings, stopped)
        return _compared(task, settings, self.updates, end, stopped) if end.best else end

    def measured(
        self, task: Task, settings: Settings, stopped: Callable[[], bool]
    ) -> ClipSearchEnded:
        """Take the updates and derive a clip value, which is still to be tried."""
        if settings.gradient_clip_algorithm != "norm":
            raise TaskError(
                "find_clip_val measures norms, and"
                f" gradient_clip_algorithm={settings.gradient_clip_algorithm!r} limits each entry:"
                ' set "norm", or choose the value yourself.'
            )
        chosen = settings.replace(
            gradient_clip_val=None, track_grad_norm=2.0, log_every_n_steps=1, weight_averaging=None
        )
        with open_session(task, chosen) as session, scratch(session):
            norms, ended = _measure(session, self.updates, stopped)
        return candidate(norms, ended)


def _compared(
    task: Task, settings: Settings, updates: int, end: ClipSearchEnded, stopped: Callable[[], bool]
) -> ClipSearchEnded:
    """The end of the search after training with its clip value, and with the present one or
    without.
    """
    try:
        stretch.refuse(task, settings, "The comparison")
    except TaskError as error:
        return _unmeasured(end, str(error))
    with open_session(task, settings) as session:
        length = min(updates, session.updates or updates)
        start, why_not = stretch.starting_loss(session, length)
    if why_not:
        return _unmeasured(end, f"{why_not}.")
    by_val = start is not None
    if start is None:
        start = stretch.loss_after(task, settings, 0, by_val=False)
    losses = []
    for chosen in (settings, settings.replace(**end.best)):
        if stopped():
            return dataclasses.replace(end, best={}, reason="", ended="stopped")
        losses.append(stretch.loss_after(task, chosen, length, by_val=by_val))
    without, clipped = losses
    return conclusion(end, start, length, without, clipped, settings.gradient_clip_val)


def _unmeasured(end: ClipSearchEnded, why: str) -> ClipSearchEnded:
    """The end of a search whose value cannot be compared with training without it."""
    reason = (
        f"{end.reason}. The search cannot tell whether that helps, so it is not recommended: {why}"
    )
    return dataclasses.replace(end, best={}, reason=reason)


def conclusion(
    end: ClipSearchEnded,
    start: float,
    length: int,
    without: float,
    clipped: float,
    present: float | None = None,
) -> ClipSearchEnded:
    """The end of a search, by the held-out losses before training and after `length` updates
    without clipping, or with the `present` value, and with the new one.
    """
    before = "without clipping" if not present else f"with gradient_clip_val={rate(present)}"
    losses = f"{number(without)} {before} and {number(clipped)} with {rate(end.suggestion or 0.0)}"
    why = f"{end.reason}. The held-out loss after {length} updates is {losses}"
    helps = clipped < math.inf == without
    if max(without, clipped) < math.inf:
        excess = stretch.excess({0: without, 1: clipped}, start, abs(start), stretch.LEARNED)
        helps = excess[0] >= (1 + CLEARLY) * excess[1]
    if helps:
        return dataclasses.replace(end, reason=why)
    return dataclasses.replace(end, best={}, reason=f"{why}. It is not clearly lower")


def candidate(norms: tuple[tuple[float, ...], ...], ended: str) -> ClipSearchEnded:
    """The clip value to try for these norms: for each optimizer, one for each update."""
    series = [np.asarray(values, np.float64) for values in norms]
    value = suggest_clip(*series)
    if ended == "stopped" or value is None:
        reason = (
            "" if ended == "stopped" else f"fewer than {ENOUGH} updates have a finite gradient norm"
        )
        return ClipSearchEnded({}, value, norms, reason, ended)
    highest = max(stands_out(values) for values in series)
    share = (
        f"A clip value of {rate(value)} would cut {clip_share(series, value):.0%} of"
        f" {max(map(len, series))} updates"
    )
    if highest < STANDS_OUT:
        reason = (
            f"no norm stands out (the largest is {highest:.1f} times those around it), so clipping"
            f" would change little. {share}"
        )
        return ClipSearchEnded({}, value, norms, reason, ended)
    reason = f"some norms are up to {highest:.0f} times those around them. {share}"
    return ClipSearchEnded({"gradient_clip_val": value}, value, norms, reason, ended)


def stands_out(norms: Norms) -> float:
    """The largest ratio of a norm to the median of those around it; 0 for none."""
    known = norms[np.isfinite(norms) & (norms > 0)]
    if not len(known):
        return 0.0
    half = _AROUND // 2
    around = np.array(
        [np.median(known[max(0, i - half) : i + half + 1]) for i in range(len(known))]
    )
    return float((known / around).max())


def _measure(
    session: Session, updates: int, stopped: Callable[[], bool]
) -> tuple[tuple[tuple[float, ...], ...], str]:
    """Measure the norms of this many updates at the run's own rates, by optimizer; returns them,
    and how the measurement ended.
    """
    windows = cycled_windows(
        session.task,
        session.data.settings,
        epoch=session.state.epoch,
        in_step=session.parallel.rounds,
    )
    session.train_mode()
    session.state.searching = False  # schedules step as in the run, and the meter records
    flushes: list[StepsDone] = []
    ended = "all updates taken"
    with closing(windows) as feed:
        try:
            for number, window in enumerate(itertools.islice(feed, updates), 1):
                if stopped():
                    ended = "stopped"
                    break
                rng.yield_lock()
                train_step(session, window)
                if number % _FLUSH == 0:
                    flushes += session.meter.flush(session.state.epoch, wait=True)
        except NonFiniteError as error:
            if error.of_batch or session.state.step < ENOUGH:
                raise
            ended = f"training diverged: {error}"
    flushes += session.meter.flush(session.state.epoch, wait=True)
    names = (
        [f"grad_norm.{opt.index}" for opt in session.optimizers]
        if session.plan.several_optimizers
        else ["grad_norm"]
    )
    norms = tuple(
        tuple(float(norm) for flush in flushes for norm in flush.array(name) if np.isfinite(norm))
        for name in names
    )
    measured: tuple[tuple[tuple[float, ...], ...], str] = (norms, ended)
    return session.ranks.broadcast_object(measured)
