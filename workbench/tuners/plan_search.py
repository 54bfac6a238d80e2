"""Decides what of a tuning is used: trains for stretches of equal samples, and compares the losses
on held-out samples.

A larger batch is faster, and takes fewer updates for the same samples; a sweep or a race sees only
part of a run. So each setting that changes what a model learns has to show its worth. All stretches
begin with the same state, have the same number of samples and the run's own schedule, made as short
as they are, and the same held-out samples judge them. The last comparison is of the whole plan with
the present settings: if the plan is not clearly better, the present settings stay.

The updates of all this are at most `RUNS` of the run, counted with batches of the present size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.commands import Inbox, Stop
from workbench.engine.setup import open_session
from workbench.events import CurveEnded, CurvePoint, Emit, Event, RaceTrial, TuneStep, TuneTrial
from workbench.instruments.finite import NonFiniteError, refuse_bad_data
from workbench.plots.clip_statistics import ENOUGH
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.tuners import clip_search, stretch
from workbench.tuners.batch_size.effective_batch import rescaled
from workbench.tuners.clip_search import ClipRequest
from workbench.tuners.learning_rate import lr_finder, sweep
from workbench.tuners.learning_rate.lr_finder import LRRequest, is_adaptive
from workbench.units import number

RUNS = 1.5
"""The most that rates and stretches train in all, as a multiple of the run's updates."""
LONGEST = 1000
"""The most updates of a stretch."""
RACED = 300
"""Runs with fewer updates have no race: the sweep's rate is compared with the present one alone."""
FEWEST_POINTS = 20
"""A sweep has at most half of the run's updates, and at least so many."""
CLEARLY = 0.03
"""The plan is used if the loss at the present settings is higher by at least this share
(`stretch.excess`).
"""
EQUAL = 0.02
"""Losses that differ by at most this share count as equal."""
FASTER = 1.05
"""A larger batch has to be so many times as fast."""
_CHECK = "check"


@dataclass(frozen=True)
class PlanRequest:
    """What a tuning has found before it trains.

    searches: which of "find_batch_size", "find_lr" and "find_clip_val" take part. decided: settings
    that are used in any case, since they do not change what is learned, or the present ones do not
    fit; the session has them. speeds: the samples/s of the batch sizes up to the recommended one.
    """

    searches: tuple[str, ...]
    decided: Mapping[str, Any] = field(default_factory=dict)
    speeds: Mapping[int, float] = field(default_factory=dict)
    speeds_reason: str = ""

    def is_faster(self, size: int, than: int) -> bool:
        """Whether batches of this size are clearly faster than those of another one."""
        if not self.speeds or size > max(self.speeds) or than < min(self.speeds):
            return False
        sizes = sorted(self.speeds)
        speeds = np.interp(np.log([size, than]), np.log(sizes), [self.speeds[s] for s in sizes])
        return bool(speeds[0] >= FASTER * speeds[1])


class _Stopped(Exception):
    """Raised when a Stop has arrived."""


class PlanSearch:
    """One search; `run` is called once, on every rank."""

    def __init__(
        self, task: Task, settings: Settings, request: PlanRequest, emit: Emit, inbox: Inbox
    ) -> None:
        """settings: the present ones."""
        self._task, self._settings, self._request = task, settings, request
        self._emit_event, self._inbox = emit, inbox
        self._spent = 0.0
        """In updates with batches of the present size."""
        self._losses: dict[str, float] = {}
        self._plan: dict[str, Any] = {}

    def run(self) -> bool:
        """Find the rate, then raise the batch size and clip where that shows its worth, and compare
        the whole with the present settings. Returns False if a Stop has ended it.
        """
        with open_session(self._task, self._settings) as session:
            self._ranks = session.ranks
            self._planned, opt = session.updates, session.optimizers[0]
            self._rate = stretch.present_rate(opt)
            self._rule = "sqrt" if is_adaptive(opt.optimizer) else "linear"
            try:
                stretch.refuse(session.task, session.settings, "The comparison")
                start, self._why_not = stretch.starting_loss(session, stretch.FEWEST)
            except TaskError as error:
                start, self._why_not = None, str(error)
            self._by_val = start is not None
            self._held = stretch.HELD_OUT if self._by_val else stretch.held_out(session)
            self._longest = LONGEST if self._by_val else min(LONGEST, stretch.longest(session))
            self._follows = not self._by_val or session.data.batch_size("val") is not None
            """Whether the held-out batches have the batch size of the session."""
        try:
            if "find_lr" in self._request.searches:
                self._find_lr()
            self._length = self._choose_length()
            if self._length:
                self._start = (
                    stretch.loss_after(self._task, self._settings, 0, by_val=False)
                    if start is None
                    else start
                )
            if "find_batch_size" in self._request.searches:
                self._raise_batch_size()
            if "find_clip_val" in self._request.searches:
                self._clip()
            self._check()
        except _Stopped:
            return False
        return True

    def _emit(self, event: Event) -> None:
        if isinstance(event, CurvePoint | RaceTrial):
            self._spent += 1 if isinstance(event, CurvePoint) else event.updates
        self._emit_event(event)

    def _step(self, search: str, values: Mapping[str, Any], reason: str) -> None:
        self._plan |= values
        self._emit(TuneStep(search, dict(values), reason))

    def _leave_if_stopped(self) -> None:
        if self._ranks.any(self._inbox.has(Stop)):
            raise _Stopped

    @property
    def _left(self) -> float:
        """The updates that are left."""
        return math.inf if self._planned is None else RUNS * self._planned - self._spent

    def _find_lr(self) -> None:
        planned = math.inf if self._planned is None else self._planned
        usual = LRRequest()
        request = LRRequest(
            num_training=int(min(usual.num_training, max(FEWEST_POINTS, planned // 2))),
            race=not self._why_not and planned >= RACED,
            race_updates=int(min(usual.race_updates, max(200, planned // 2))),
        )
        try:
            with open_session(self._task, self._settings) as session:
                inbox = session.ranks.listen(self._inbox)
                end = lr_finder.run(session, request, self._emit, inbox)
        except (TaskError, NonFiniteError) as error:
            refuse_bad_data(error)
            self._step("find_lr", {}, str(error))
            return
        if end.ended == sweep.STOPPED:
            raise _Stopped
        self._step("find_lr", *_rate_in(end))

    def _choose_length(self) -> int:
        """The updates of a stretch with batches of the present size; 0: no stretch is possible. If
        there are too few for all, clipping is left out first, then the batch size.
        """
        if self._why_not:
            return 0
        needed = 2 if self._plan else 1
        sizes = self._larger_sizes()
        clips = "find_clip_val" in self._request.searches
        for tried, tries_clip in (
            (min(sizes, 2), clips),
            (min(sizes, 1), clips),
            (min(sizes, 1), False),
            (0, False),
        ):
            self._tries_size, self._tries_clip = tried > 0, tries_clip
            count = needed + tried + 2 * tries_clip
            length = int(min(self._left / count, self._longest, self._planned or LONGEST))
            if length >= stretch.FEWEST:
                return length
        return length if length >= stretch.FEWEST / 2 else 0

    def _larger_sizes(self) -> int:
        """How many larger batch sizes may be tried."""
        count, size = 0, self._larger(self._settings.batch_size)
        while size is not None:
            count, size = count + 1, self._larger(size)
        return count

    def _loss(self, values: Mapping[str, Any]) -> float:
        """The held-out loss after a stretch with these settings in place of the present ones."""
        chosen = self._settings.replace(**values)
        key = repr(sorted(values.items()))
        if key not in self._losses:
            self._leave_if_stopped()
            times = chosen.batch_size // self._settings.batch_size
            length = self._length // times
            held = self._held // times if self._follows else self._held
            loss = stretch.loss_after(self._task, chosen, length, by_val=self._by_val, held=held)
            self._spent += self._length
            self._losses[key] = loss
            self._emit(TuneTrial(dict(values), length, loss))
        return self._losses[key]

    def _is_as_good(self, loss: float, other: float) -> bool:
        """Whether the first loss is lower than the other one, or equal to it."""
        return math.isfinite(loss) and self._excess(loss, other) <= 1 + EQUAL

    def _is_better(self, loss: float, other: float) -> bool:
        """Whether the first loss is clearly lower than the other one."""
        return math.isfinite(loss) and self._excess(other, loss) >= 1 + CLEARLY

    def _excess(self, loss: float, other: float) -> float:
        """How many times the second loss the first one is (`stretch.excess`); one is finite."""
        if math.inf in (loss, other):
            return math.inf if loss == math.inf else 0.0
        excess = stretch.excess({0: loss, 1: other}, self._start, abs(self._start), stretch.LEARNED)
        return excess[0] / excess[1]

    def _larger(self, size: int) -> int | None:
        """Twice this batch size, if it is known to be faster, and the same held-out samples can
        judge it.
        """
        larger = 2 * size
        times = larger // self._settings.batch_size
        if not self._request.is_faster(larger, size) or self._held % times or self._held < times:
            return None
        return larger if "find_batch_size" in self._request.searches else None

    def _raise_batch_size(self) -> None:
        present, search = self._settings.batch_size, "find_batch_size"
        reason = self._request.speeds_reason
        rate = self._plan.get("lr", self._rate)
        if self._larger(present) is None:
            self._step(search, {}, f"no larger batch is faster than {present}. {reason}")
            return
        if not self._length or not self._tries_size or rate is None:
            self._step(
                search, {}, f"{present} stays: {self._why_untried(rate is not None)}. {reason}"
            )
            return
        best, listed = dict[str, Any](), [f"{present}: {number(self._loss(self._plan))}"]
        size = self._larger(present)
        # the present settings and a clip value are still to be tried
        reserved = (1 + bool(self._plan) + 2 * self._tries_clip) * self._length
        while size is not None and (not best or self._left >= reserved):
            factor = size / present
            values = {"batch_size": size, "lr": _rounded(rescaled(rate, self._rule, factor))}
            loss = self._loss({**self._plan, **values})
            listed.append(f"{size}: {number(loss)}")
            if not self._is_as_good(loss, self._loss({**self._plan, **best})):
                break
            best, size = values, self._larger(size)
        chosen = best.get("batch_size", present)
        why = (
            f"held-out loss after {self._length * present:,} samples with batches of"
            f" {', '.join(listed)}. "
            + (f"{chosen} is faster, and as good" if best else f"{present} stays")
        )
        if self._settings.max_steps is not None and best:
            why += f". max_steps={self._settings.max_steps} then trains on more samples"
        self._step(search, best, why)

    def _why_untried(self, has_rate: bool = True) -> str:
        if not has_rate and self._length:
            return "a schedule of your own decides the rate, which has to follow the batch size"
        return self._why_not or f"a run of {self._planned} updates is too short"

    def _clip(self) -> None:
        search = "find_clip_val"
        if not self._length or not self._tries_clip:
            self._step(search, {}, f"nothing was tried: {self._why_untried()}")
            return
        self._leave_if_stopped()
        current = self._settings.replace(**self._plan)
        times = current.batch_size // self._settings.batch_size
        request = ClipRequest(max(ENOUGH, min(ClipRequest().updates, self._length // times)))
        try:
            end = request.measured(
                self._task, current, lambda: self._ranks.any(self._inbox.has(Stop))
            )
        except (TaskError, NonFiniteError) as error:
            refuse_bad_data(error)
            self._step(search, {}, str(error))
            return
        if end.ended == "stopped":
            raise _Stopped
        self._spent += request.updates * times
        if end.best:
            end = clip_search.conclusion(
                end,
                self._start,
                self._length // times,
                self._loss(self._plan),
                self._loss({**self._plan, **end.best}),
                current.gradient_clip_val,
            )
        self._emit(end)
        self._step(search, end.best, end.reason)

    def _check(self) -> None:
        """Compare the whole plan with the present settings, which stay if it is not clearly
        better.
        """
        decided, plan = dict(self._request.decided), dict(self._plan)
        if not plan:
            self._step(_CHECK, decided, "no search found better values, so nothing was compared")
            return
        if not self._length:
            why = self._why_untried()
            self._step(_CHECK, decided, f"nothing was compared, so your settings stay: {why}")
            return
        before, after = self._loss({}), self._loss(plan)
        size = plan.get("batch_size", self._settings.batch_size)
        why = (
            f"held-out loss after {self._length * self._settings.batch_size:,} samples:"
            f" {number(before)} with the present settings and {number(after)} with the plan's"
        )
        if self._is_better(after, before):
            self._step(_CHECK, {**decided, **plan}, f"{why}. The plan's are clearly better")
        elif size > self._settings.batch_size and self._is_as_good(after, before):
            self._step(_CHECK, {**decided, **plan}, f"{why}. The plan's are as good, and faster")
        else:
            self._step(_CHECK, decided, f"{why}. The plan's are not clearly better, so yours stay")


def _rate_in(end: CurveEnded) -> tuple[dict[str, Any], str]:
    """The rate that a search suggests, as a setting, and why."""
    if end.suggestion is None:
        return {}, " ".join(end.doubts) or end.ended
    return {"lr": _rounded(end.suggestion)}, "; ".join([end.why, *end.doubts])


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
