"""Decides which batch sizes to try, and computes the result from the trials.

The caller supplies the trials (`tuners/trial.py` trains for a few updates). Names and modes are
Lightning's; unlike in Lightning, a size that is returned was always tried and passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import units
from workbench.events import SearchEnded, Trial
from workbench.instruments.noise_scale import NoiseScale, rounded
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.batch_size import batch_size
from workbench.runs.printable import paragraph, printable
from workbench.runs.tables.render import data_frame
from workbench.settings import SettingsError
from workbench.settings.spellings import with_hints
from workbench.tuners.batch_size.batch_size_choice import Epoch, choose, shortlist
from workbench.tuners.batch_size.effective_batch import accumulation, next_size, rescaled, short_of
from workbench.values import shown

if TYPE_CHECKING:
    from pandas import DataFrame

MODES = ("power", "binsearch")


class ModelDoesNotFit(RuntimeError):
    """Not even one sample fits: the model alone needs more memory than is available."""


class NotEnoughData(Exception):
    """The data, whose length was unknown, does not fill one batch of this size."""


class TrialStopped(Exception):
    """A trial was ended because its search was stopped; it gives no result about its size."""


NoiseOf = Callable[[Sequence[Trial]], NoiseScale]
"""Measures the gradient noise scale, given the trials that passed."""
SpeedsOf = Callable[[Sequence[Trial]], tuple[Sequence[Trial], str]]
"""Compares the speeds of these trials, and returns them with what it found, and what time left
unknown.
"""
TooLong = Callable[[Sequence[Trial], int], str]
"""Why the trial of a size would take too long after the trials that passed; "": it would not."""


@with_hints("sizes")
@dataclass(frozen=True)
class BatchSizes(Drawable):
    """The result of a batch-size search. Sizes are samples in a batch per device; all were tried
    and passed.

    `largest` is the biggest that passed; `fastest` the smallest with at least 90% of the best
    samples/s. `best` is the smallest size that reaches a loss in nearly the least time, by its
    speed and the noise scale. It is the present size where that size would not save more than 10%
    of the time. It makes `min_updates_per_epoch` updates in an epoch. `reason` says what decided,
    and what is not known since time ended the comparison of speeds.
    `noise_scale`: the gradient noise scale in samples of an update, known within
    `noise_uncertainty` of itself (95%): the mean of up to three places in a stretch of updates from
    the present weights of the model; batches larger than it save few updates. It grows while the
    loss falls. None: unknown; `noise_reason` then says why, and what it is at least where that is
    known, which counts in its place.
    After "binsearch" `best` and `fastest` are at most the size that `headroom` left, since a run at
    the very limit may fail later. All are None if the search was stopped before any size passed.
    `trials` are in the order in which they were made.
    `accumulate_grad_batches`: with `keep_effective=True`, how many batches of `best` make the
    effective batch. `figure()` and `plot()` draw samples/s and peak memory over the sizes; with
    `ax`, the speed alone.
    """

    best: int | None
    largest: int | None
    trials: tuple[Trial, ...]
    ended: str
    accumulate_grad_batches: int | None = None
    fastest: int | None = None
    reason: str = ""
    noise_scale: float | None = None
    noise_uncertainty: float | None = None
    noise_reason: str = ""

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> BatchSizes:
        """Make it from the events of a run or a record: the last search among them, complete or
        not.
        """
        trials: dict[int, Trial] = {}
        last: SearchEnded | None = None
        for event in events:
            if isinstance(event, Trial):
                if last is not None:  # another search, at the start of a later epoch
                    trials, last = {}, None
                trials[event.size] = event  # its speed may come later
            elif isinstance(event, SearchEnded):
                last = event
        if last is None:
            last = SearchEnded(None, None, "not ended")
        return cls(
            last.best,
            last.largest,
            tuple(trials.values()),
            last.ended,
            last.accumulate_grad_batches,
            last.fastest,
            last.reason,
            last.noise_scale,
            last.noise_uncertainty,
            last.noise_reason,
        )

    def lr(self, lr: float, from_size: int, rule: str = "linear") -> float:
        """Return `lr`, which was right for batches of `from_size`, rescaled for batches of `best`;
        nothing is set.

        rule: "linear" (twice the batch, twice the rate: SGD), "sqrt" (times the square root: Adam
        and similar optimizers) or "none". If the effective batch was kept, or no size passed, the
        rate is unchanged. This is a rule of thumb: `find_lr` at the new size measures it.
        """
        kept = self.accumulate_grad_batches is not None or self.best is None
        if isinstance(from_size, bool) or not isinstance(from_size, int) or from_size < 1:
            raise SettingsError(f"from_size={from_size!r}: a batch size of at least 1 is needed.")
        return rescaled(lr, rule, 1.0 if kept or self.best is None else self.best / from_size)

    def to_pandas(self) -> DataFrame:
        """Return a pandas data frame with a row for each trial and the fields of `trials`
        ("size", "ok", "samples_per_second", …).
        """
        return data_frame(
            {
                field.name: [getattr(trial, field.name) for trial in self.trials]
                for field in fields(Trial)
            }
        )

    def _charts(self) -> list[Chart]:
        return batch_size(self.trials, self.best, self.largest, self.fastest)

    def __repr__(self) -> str:
        many = self.accumulate_grad_batches
        best = _or_none(self.best) + (f" x {many} batches" if many is not None else "")
        ranks = max((t.ranks for t in self.trials), default=1)
        each = f" on each of {ranks} devices" if ranks > 1 else ""
        head = f"BatchSizes: best {best}, largest {_or_none(self.largest)}{each} ({self.ended})"
        rows = [self._row(t) for t in sorted(self.trials, key=lambda t: t.size)]
        columns = f"  {'size':>8}  {'outcome':<8}  {'samples/s':>10}  {'':>5}  {'peak':>10}"
        reasons = [
            self._limits(),
            self.reason,
            self.noise_reason and f"Noise scale: {self.noise_reason}",
        ]
        lines = [line for reason in reasons for line in paragraph(reason)]
        return "\n".join(map(printable, [head, *lines, columns, *rows]))

    def _limits(self) -> str:
        """A line with the numbers that limit a batch size, of which the noise scale may be unknown;
        "" if it was not to be measured.
        """
        if self.largest is None or not self.noise_reason:
            return ""
        limits = [f"fits up to {self.largest:,}"]
        if self.fastest is not None:
            limits.append(f"fastest from {self.fastest:,}")
        if self.noise_scale is not None:
            limits.append(f"noise suggests about {rounded(self.noise_scale)} now")
        return " · ".join(limits)

    def _row(self, t: Trial) -> str:
        rate = "-" if t.samples_per_second is None else f"{t.samples_per_second:,.0f}"
        peak = "-" if t.peak_bytes is None else units.size(t.peak_bytes)
        within = "" if t.uncertainty is None else f"±{t.uncertainty:.0%}"
        chosen = {"best": self.best, "largest": self.largest}
        if self.fastest != self.best:
            chosen["fastest"] = self.fastest
        note = (
            ", ".join(name for name in chosen if chosen[name] == t.size)
            if t.ok
            else _first_line(t.error)
        )
        if t.ok:
            outcome = "passed"
        else:
            outcome = "refused" if t.fits else "failed"
        return f"  {t.size:>8}  {outcome:<8}  {rate:>10}  {within:>5}  {peak:>10}  {note}".rstrip()


def search(
    trial: Callable[[int], Trial],
    *,
    mode: str = "power",
    init_val: int = 2,
    max_trials: int = 25,
    max_val: int | None = None,
    cap: int | None = None,
    headroom: float = 0.05,
    effective: int | None = None,
    ranks: int = 1,
    epoch: Epoch | None = None,
    present: int | None = None,
    noise: NoiseOf | None = None,
    speeds: SpeedsOf | None = None,
    too_long: TooLong = lambda passed, size: "",
    stop: Callable[[], bool] = lambda: False,
) -> BatchSizes:
    """Try sizes until the limit is known; sizes are samples per device.

    `trial(size)` tries one size and returns whether it fitted; any error but running out of memory
    is raised and ends the search. A size that fits and that the model refuses, itself or a short
    last batch, is never recommended. Where a BatchNorm refuses a last batch of one sample, the next
    smaller size is tried, too, whose last batch is another. "power" doubles from `init_val` until a
    size fails. Where the next size would leave an epoch too few updates to be recommended, the
    largest one allowed is tried instead; if it passes, all below it would. "binsearch" finds the
    maximum, predicted from the memory of the sizes that passed (or by bisection, if memory was not
    measured), takes off `headroom` (a fraction) and verifies that the smaller size passes; the
    maximum is known within 1%, without headroom exactly. epoch: the updates that a recommended size
    should make. No size is above `max_val` (the user's) or `cap` (the data set's length per rank);
    the lower of them is tried itself. If the start fails it is halved down to 1; if 1 fails too,
    `ModelDoesNotFit` is raised. No size is tried twice. `stop()` is called before each trial.
    `noise(trials)`: measures the gradient noise scale after the trials, given those of which one
    may be recommended; None: it is not measured. `speeds(trials)`: compares the speeds of those
    that come into question; None: the trials' own speeds are good enough. `too_long`: no further
    size is tried when it returns a reason. `present`: the size that the user has. It is tried, too,
    unless it is below `init_val` or above a limit, and it is recommended where no other gains
    clearly.
    `effective`: an effective batch to keep, of all `ranks` together. No size is above a rank's part
    of it. Sizes that divide that part are preferred, for trials and for `best`, and the result has
    the number of batches of `best` that make it. If no size failed, memory is not the limit, and no
    headroom is taken off.
    """
    check(mode, init_val, max_trials, max_val, cap, headroom)
    per_rank = None if effective is None else max(1, effective // ranks)
    each = "" if ranks == 1 else " per device"
    limits = {
        "max_val": max_val,
        f"the size of the data set{each}": cap,
        f"the effective batch{each}": per_rank,
    }
    known = {name: value for name, value in limits.items() if value is not None}
    limit_name = min(known, key=lambda name: known[name], default="")
    hunt = _SizeSearch(trial, max_trials, stop, too_long)
    limit = known.get(limit_name)
    if mode == "binsearch" and per_rank is None:
        sizes = _by_memory(hunt, int(init_val), limit, present)
    else:
        sizes = _doubling(hunt, int(init_val), limit, per_rank, epoch)
    ended = _power(hunt, sizes, limit_name)
    ceiling = None
    if mode == "binsearch" and hunt.smallest_failed is not None:
        if hunt.why is None:
            ended, ceiling = _bisect(hunt, headroom)
        if ceiling is None and hunt.largest is not None:
            ceiling = _less(hunt.largest, headroom)
    failed = hunt.smallest_failed
    beyond = limit if failed is None else failed - 1
    if present is not None and init_val <= present and (beyond is None or present <= beyond):
        hunt.try_present(present)
    # Where the effective batch is kept, an epoch has as many updates with any size.
    epoch, many = epoch if effective is None else None, None
    safe, scale, unknown = hunt.safe(ceiling, per_rank), NoiseScale(None, None, ""), ""
    if safe and hunt.why != "stopped" and not stop():
        try:
            scale = scale if noise is None else noise(safe)
            close = shortlist(safe, epoch, scale, present)
            if speeds is not None and len(close) > 1 and not stop():
                compared, unknown = speeds(close)
                hunt.put(compared)
        except TrialStopped:
            hunt.why = "stopped"
    choice = choose(hunt.safe(ceiling, per_rank), epoch, scale, present)
    if choice.best is None:
        refusals = (f"None: {t.error}" for t in hunt.trials if t.refused is not None)
        choice = replace(choice, reason=next(refusals, ""))
    elif unknown:
        choice = replace(choice, reason=f"{choice.reason} {unknown}")
    ended, best = hunt.why or ended, choice.best
    if effective is not None and best is not None:
        many = accumulation(effective, ranks * best)
        ended = "; ".join(filter(None, [ended, short_of(effective, best, ranks)]))
    return BatchSizes(
        best, hunt.largest, tuple(hunt.trials), ended, many, choice.fastest, choice.reason,
        scale.value, scale.uncertainty, scale.reason,
    )  # fmt: skip


def ended_event(found: BatchSizes) -> SearchEnded:
    """The event at the end of a search."""
    return SearchEnded(
        found.best,
        found.largest,
        found.ended,
        found.accumulate_grad_batches,
        found.fastest,
        found.reason,
        found.noise_scale,
        found.noise_uncertainty,
        found.noise_reason,
    )


class _SizeSearch:
    """The trials so far. `passes` returns None when no more may be made; `why` then has the
    reason.
    """

    def __init__(
        self,
        trial: Callable[[int], Trial],
        max_trials: int,
        stop: Callable[[], bool],
        too_long: TooLong,
    ) -> None:
        self._trial = trial
        self._max = max_trials
        self._stop = stop
        self._too_long = too_long
        self.trials: list[Trial] = []
        self.why: str | None = None
        self._is_late = False
        """Whether time has ended the trials."""

    def passes(self, size: int) -> bool | None:
        """Whether a size fits: it is tried, unless it has been."""
        known = next((t for t in self.trials if t.size == size), None)
        if known is not None:
            return known.fits
        if self._stop():
            self.why = "stopped"
        elif len(self.trials) >= self._max:
            self.why = f"max_trials={self._max} trials did not reach the limit"
        elif passed := [t for t in self.trials if t.ok]:
            self.why = self._too_long(passed, size) or None
            self._is_late = self.why is not None
        if self.why is not None:
            return None
        try:
            self.trials.append(self._trial(size))
        except TrialStopped:
            self.why = "stopped"
            return None
        except NotEnoughData as error:
            self.why = str(error)
            return None
        except Exception as error:
            if self.largest_that_fits:
                error.add_note(
                    f"It came from the trial of batch size {size}:"
                    f" max_val={self.largest_that_fits}, the largest that fits, leaves it out."
                )
            raise
        trial = self.trials[-1]
        if trial.refused == 1 < size - 1 and "more than 1 value" in (trial.error or ""):
            # leaves another last batch; a larger size may be above the limits
            self.passes(size - 1)
        return trial.fits

    def try_present(self, size: int) -> None:
        """Try the size that the user has, if a trial is left: also where time has ended the
        trials.
        """
        if len(self.trials) >= self._max or (self.why is not None and not self._is_late):
            return
        ended, self.why, self._too_long = self.why, None, lambda passed, size: ""
        self.passes(size)
        self.why = self.why or ended

    def put(self, trials: Sequence[Trial]) -> None:
        """Replace the trials of these sizes."""
        by_size = {t.size: t for t in trials}
        self.trials = [by_size.get(t.size, t) for t in self.trials]

    @property
    def measures_memory(self) -> bool:
        """Whether the peak and the limit of trials are known."""
        return any(
            t.fits and t.peak_bytes is not None and t.limit_bytes is not None for t in self.trials
        )

    @property
    def smallest_failed(self) -> int | None:
        return min((t.size for t in self.trials if not t.fits), default=None)

    @property
    def largest_that_fits(self) -> int:
        """The largest size that fitted, below the smallest that did not; 0: there is none."""
        fitted, failed = [t.size for t in self.trials if t.fits], self.smallest_failed
        return max((size for size in fitted if failed is None or size < failed), default=0)

    @property
    def largest(self) -> int | None:
        """The largest size that passed, below the smallest that failed: one above a failure
        passed by luck.
        """
        passed = [t.size for t in self.trials if t.ok]
        failed = self.smallest_failed
        below = [size for size in passed if failed is None or size < failed]
        return max(below or passed, default=None)

    def safe(self, ceiling: int | None, effective: int | None = None) -> list[Trial]:
        """The trials that passed, of which one may be recommended.

        Sizes above `ceiling`, and sizes that do not divide `effective`, are returned only if there
        are no others.
        """
        passed = [t for t in self.trials if t.ok and t.size <= (self.largest or 0)]
        if ceiling is not None:
            passed = [t for t in passed if t.size <= ceiling] or passed
        if effective is not None:
            passed = [t for t in passed if effective % t.size == 0] or passed
        return passed


def _power(hunt: _SizeSearch, sizes: Iterator[int], limit_name: str) -> str:
    """Increase the size until one fails or the limit passes; halve it if the start fails.
    Returns how it ended.
    """
    size = next(sizes)
    if hunt.passes(size) is False:
        return _down(hunt, size)
    for size in sizes:
        outcome = hunt.passes(size)
        if outcome is None:
            break
        if not outcome:
            return f"{size} did not fit"
    if hunt.smallest_failed is not None:
        return f"{hunt.smallest_failed} did not fit"
    return f"stopped at {limit_name} ({size})"


def _doubling(
    hunt: _SizeSearch,
    start: int,
    limit: int | None,
    effective: int | None,
    epoch: Epoch | None,
) -> Iterator[int]:
    """Double from the start up to the limit, which is tried itself, or to the first size that does
    not fit; with an effective batch, only to sizes that divide it. Past the sizes that leave an
    epoch enough updates the limit comes next.
    """
    size, most = start, math.inf if limit is None else limit
    while size < most:
        yield size
        following = next_size(size, effective)
        useful = epoch is None or epoch.updates(following) >= epoch.least
        if limit is not None and effective is None and not useful and hunt.passes(limit):
            break
        failed = hunt.smallest_failed
        most = most if failed is None else min(most, failed)
        size = following
    if limit is not None and most == limit:
        yield limit


def _down(hunt: _SizeSearch, size: int) -> str:
    while size > 1:
        failed, size = size, size // 2
        if hunt.passes(size) is not False:
            return f"{failed} did not fit"
    raise ModelDoesNotFit(_does_not_fit(hunt.trials[-1]))


def _does_not_fit(trial: Trial) -> str:
    needs = "more memory than there is"
    if trial.peak_bytes is not None:
        needs += f" (it failed at a peak of {units.size(trial.peak_bytes)} above idle)"
    said = f" The error was: {_first_line(trial.error)}" if trial.error else ""
    return (
        f"The model alone does not fit: even a batch of 1 sample needs {needs}. "
        f"Use a smaller model, lower precision, or a device with more memory.{said}"
    )


def _by_memory(
    hunt: _SizeSearch, start: int, limit: int | None, present: int | None
) -> Iterator[int]:
    """Sizes from the start upwards: predicted from the memory of the sizes that passed, if
    known, else doubled. The present size is tried on the way.
    """
    size = start if limit is None else min(start, limit)
    yield size
    while limit is None or size < limit:
        predicted = size_that_fills(hunt.trials)
        if predicted is None and not hunt.measures_memory:
            size = 2 * size
        elif present is not None and size < present <= _FARTHEST * size:
            size = present
        elif predicted is None:  # large enough for the two peaks to differ
            size = _FAR * size
        else:
            size = min(max(predicted, size + 1), _FARTHEST * size)
        size = size if limit is None else min(size, limit)
        yield size


_FAR, _FARTHEST = 8, 16
"""The largest ratio of a size to the one before, without and with a prediction."""
_TELLS = 0.02
"""A prediction needs two peaks that differ by at least this share of the limit."""


def size_that_fills(trials: Sequence[Trial]) -> int | None:
    """The largest size that would fit, extrapolated from the largest that passed and another one:
    memory is linear in the size.

    None if the peaks or the limit are unknown, or all peaks are too close together.
    """
    peaks = {t.size: t.peak_bytes for t in trials if t.fits and t.peak_bytes is not None}
    largest = max(peaks, default=0)
    limit = next((t.limit_bytes for t in trials if t.size == largest), None)
    if limit is None:
        return None
    other = max(
        (size for size, peak in peaks.items() if peaks[largest] - peak >= _TELLS * limit),
        default=None,
    )
    if other is None:
        return None
    each = (peaks[largest] - peaks[other]) / (largest - other)
    return largest + math.floor((limit - peaks[largest]) / each)


def _bisect(hunt: _SizeSearch, headroom: float) -> tuple[str, int | None]:
    """Search between the last size that passed and the first that failed until the maximum is
    known; then take off the headroom.

    With headroom, 1% is exact enough: near the limit a size passes or fails by luck. The size
    predicted from the memory of the others is tried first. If it lies outside the interval, the
    maximum is near that end, and steps from there grow. Returns how it ended, and the size that
    passed with the headroom taken off (None: there were too few trials).
    """
    low, high = hunt.largest_that_fits, hunt.smallest_failed
    assert high is not None
    step = 1
    within = min(0.01, headroom / 5)
    while high - low > max(1, math.floor(within * low)):
        predicted = size_that_fills(hunt.trials)
        middle = (low + high) // 2 if high < 4 * low else math.isqrt(low * high)
        if predicted is not None and low < predicted < high:
            middle, step = predicted, 1
        elif predicted is not None and predicted <= low:
            # the predicted size has passed, and is often exact
            middle, step = min(low + max(step, math.floor(within * low)), middle), 4 * step
        elif predicted is not None:
            middle, step = max(high - step * max(1, high // 50), middle), 4 * step
        outcome = hunt.passes(middle)
        if outcome is None:
            return "", None
        low, high = (middle, high) if outcome else (low, middle)
    return _verify(hunt, low, high, headroom)


def _verify(
    hunt: _SizeSearch, maximum: int, failed: int, headroom: float
) -> tuple[str, int | None]:
    """Verify that the maximum without the headroom passes; try smaller sizes if it does not."""
    size = _less(maximum, headroom)
    while (outcome := hunt.passes(size)) is False and size > 1:
        size = min(_less(size, headroom), size - 1)
    known = (
        f"exact maximum {maximum}"
        if failed == maximum + 1
        else f"{maximum} fits, {failed} does not"
    )
    if size == maximum:
        return f"{known}, no headroom taken", size
    if not outcome:
        return f"{maximum} passed once, but no smaller size passed after it", None
    return f"{known}; with {headroom:.0%} headroom {size} passed", size


def _less(size: int, headroom: float) -> int:
    """`size` with the headroom taken off, at least 1. (100 x 0.95 is 94.99… in floats.)"""
    return max(1, math.floor(size * (1 - headroom) + 1e-9))


def check(
    mode: str, init_val: int, max_trials: int, max_val: int | None, cap: int | None, headroom: float
) -> None:
    """Raise SettingsError for invalid arguments of a search."""
    if mode not in MODES:
        raise SettingsError(
            f"mode={mode!r}: give 'power' (doubling) or 'binsearch' (to the exact maximum)."
        )
    at_least_one("init_val", init_val)
    at_least_one("max_trials", max_trials)
    if max_val is not None:
        at_least_one("max_val", max_val)
        if max_val < init_val:
            raise SettingsError(
                f"max_val={max_val} is below init_val={init_val}: raise max_val or lower init_val."
            )
    if cap is not None and cap < 1:
        raise SettingsError(
            "the data set is empty: a batch-size search needs at least one sample on each rank."
        )
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 0 <= headroom < 1:
        raise SettingsError(
            f"headroom={headroom!r}: give a fraction from 0 up to below 1, such as 0.05."
        )


def at_least_one(name: str, value: object, remedy: str = "") -> None:
    """Raise SettingsError for an argument that is no whole number of at least 1."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:  # type: ignore[operator]
        after = f"; {remedy}" if remedy else ""
        raise SettingsError(
            f"{name}={shown(value)}: a whole number of at least 1 is needed{after}."
        )


def _or_none(size: int | None) -> str:
    return "none" if size is None else str(size)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0][:120]
