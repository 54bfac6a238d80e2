"""Suggests a learning rate from a swept curve, with notes on how far to trust it.

Each rule takes `lrs` and losses of one sweep, shape (n,), in the order of the sweep, and returns a
`Suggestion` with a reason, or with `lr=None` and the reason why there is none. `Landmarks`, which
is recommended, is this project's own and reads the raw losses; `rules` has those of other
libraries, which read the smoothed ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from workbench.events import Suggestion
from workbench.techniques.schedules import WITHOUT_LENGTH
from workbench.tuners.learning_rate.rules import (
    FULL,
    Array,
    length_of,
    longest_fall,
    minimum,
    nearest,
    none_of,
    pair,
    points_of,
    slide,
    steepest,
    valley,
)
from workbench.tuners.learning_rate.sweep import Level, running_median, smooth
from workbench.units import counted, rate

RECOMMENDED = "landmarks"
_DIVERGED = 4.0  # a raw loss above this many times the highest one at the start is the edge
_STAYS = 5  # the median of so many losses shows whether it was one sample or the rate
_BELOW = 0.316  # the good rate is half a decade below the edge and the minimum
_USUAL_END = 10.0  # where the default sweep ends
# losses usually diverge at about this many times the rate from which on they stay near the start
_BEFORE = 1.5
_LONG = 5.0  # a loss that stays near the start while the rate rises by this factor will not diverge
# the least number of losses before the lowest that show their noise; a fall is clear if it is this
# many times the spread of their steps
_FEW, _CLEAR = 5, 2.0
_LITTLE = 0.15  # a loss is clearly lower than another one if it is lower by this share


@dataclass(frozen=True, slots=True)
class Died:
    """The point of a sweep from which on most units of a layer are dead: they get no gradient
    any more.
    """

    point: int
    layer: str
    """The name of the layer's module; "": the model itself."""


@dataclass(frozen=True, slots=True)
class Raced:
    """The rate that follows from the losses of a race, and the loss of the race at this rate; the
    lowest one where this rate was not tried.
    """

    lr: float
    loss: float


class Landmarks:
    """Three landmarks of the *raw* losses of a sweep, and the suggested rate: their median, since
    each is wrong for other curves.

    - edge: the first rate whose loss is not finite or above 4 times the highest of the first ten
      losses, or from which on most units of a layer are dead (`died`). A single loss that the next
      four do not follow is no edge: single samples may be anything. If there is none,
      it is the last rate, or 10 if that is higher, where a default
      sweep ends. Some models do not diverge: their loss goes back to its start and stays there, as
      that of a transformer that breaks. There the edge is 1.5 times the rate from which on the
      median of five losses is nearer to the start (the median of the
      first ten losses) than to the lowest loss. This counts if the rate
      still rises by a factor of five from there, and if the fall before was at least twice the
      spread of the differences of neighbouring losses. The estimate is the edge times (1 - beta) x
      0.316, and x 0.56 for adaptive optimizers;
    - valley: 4 times the valley of the losses before the edge, smoothed by 0.9, without the first
      ten;
    - minimum: the rate of the lowest of these smoothed losses, without the first five, times sqrt(1
      - beta) x 0.316.

    The suggestion is the median times 0.75, or times 1.33 if the rate falls to 0 (one-cycle,
    linear, cosine), since the low rates at the end remove the noise of a high one, as the averages
    of a schedule-free optimizer do. It is at most
    the last rate if no loss diverged. The factors were found on 17 tasks and checked once on 13
    others, all swept from 1e-5 to 10 in 100 updates; those for cosine and linear on the tasks of
    `tests/benchmarks/lr_regret.py`.

    In a sweep of another length, ten stands for a tenth of it, five for a twentieth, and 0.9
    becomes 0.9^(100 / length), so that each covers the same share of the sweep. `num_training` is
    the length of a sweep that ended early; without it the length is 100, or the number of points if
    that is larger. If one of the first ten losses is below 0, or their median is 0, the edge is a
    rise by 3 times the size of the start, or by 3 times the range of the losses so far if that is
    wider (`sweep.Level`).
    """

    def __init__(
        self,
        lrs: ArrayLike,
        losses: ArrayLike,
        *,
        beta: float,
        adaptive: bool,
        schedule: str = "constant",
        num_training: int | None = None,
        died: Died | None = None,
    ) -> None:
        """beta: the optimizer's momentum or beta1, 0 without; adaptive: it scales gradients per
        parameter (Adam, RMSprop, Adagrad, …).

        schedule: the `lr_schedule` of the next fit; num_training: the planned points of the sweep,
        if it ended early; died: where units died.
        """
        self.lrs, self.num_training = lrs, num_training
        self._beta, self._schedule = beta, schedule
        self._found = _find(lrs, losses, beta, adaptive, schedule, num_training, died)

    @property
    def suggestion(self) -> Suggestion:
        """The recommended rate."""
        landmarks = self._found
        if isinstance(landmarks, str):
            return none_of(RECOMMENDED, landmarks)
        if landmarks.flat:
            return none_of(RECOMMENDED, _flat_in_words(landmarks))
        x = np.asarray(self.lrs, dtype=np.float64)
        why = (
            f"median of three estimates ({landmarks.in_words}), times"
            f" {_factor(self._schedule):g} for a"
            f" {_SPOKEN.get(self._schedule, self._schedule)} rate"
        )
        return Suggestion(RECOMMENDED, landmarks.lr, nearest(x, landmarks.lr), why)

    @property
    def estimate(self) -> float | None:
        """The rate with which a race begins. A flat curve has one, too, though it suggests none."""
        return None if isinstance(self._found, str) else self._found.lr

    def notes(self, raced: Raced | None = None) -> tuple[str, ...]:
        """Notes on how far to trust the rate, or the one that a race chose; `doubts` come first.

        There is no confidence interval: the spread of the landmarks does not predict how wrong they
        are.
        """
        landmarks = self._found
        if isinstance(landmarks, str) or (landmarks.flat and raced is None):
            return self.doubts(raced)
        lr = landmarks.lr if raced is None else raced.lr
        return (*self.doubts(raced), *_facts(landmarks, lr))

    def doubts(self, raced: Raced | None = None) -> tuple[str, ...]:
        """The notes that speak against the rate, or say why no rate is recommended."""
        if isinstance(self._found, str):
            return (f"No recommendation: {self._found}.",)
        if self._found.flat and raced is None:
            return (f"No recommendation: {_flat_in_words(self._found)}.",)
        return tuple(_flags(self._found, self._beta, self._schedule, raced))


def suggest_all(landmarks: Landmarks, smoothed: ArrayLike) -> tuple[Suggestion, ...]:
    """The suggestions of all five rules, the recommended one first. smoothed: the losses of the
    same sweep.
    """
    lrs, num_training = landmarks.lrs, landmarks.num_training
    return (
        landmarks.suggestion,
        steepest(lrs, smoothed, num_training=num_training),
        valley(lrs, smoothed),
        minimum(lrs, smoothed),
        slide(lrs, smoothed, num_training=num_training),
    )


def recommended(suggestions: Iterable[Suggestion]) -> float | None:
    """The recommended rate among these suggestions; None: the recommended rule found none."""
    return next((s.lr for s in suggestions if s.name == RECOMMENDED), None)


def divergence(
    lrs: ArrayLike, losses: ArrayLike, *, num_training: int | None = None
) -> float | None:
    """The edge of `Landmarks`: the first rate whose loss diverged or is not finite. None: there
    is no such rate.
    """
    x, y = pair(lrs, losses)
    level = level_of(y, num_training)
    if level is None:
        return float(x[0]) if len(x) else None
    edge = _edge(y, level, points_of(10, num_training, len(x)))
    return None if edge is None else float(x[edge])


@dataclass(frozen=True, slots=True)
class _Found:
    """The landmarks of one curve, and the values from which they were computed."""

    lr: float
    edge: float
    valley: float
    minimum: float
    edge_at: float
    """The rate at the edge; if no edge was seen, the rate used in its place."""
    edge_seen: bool
    first: float
    last: float
    """The lowest and the highest rate swept."""
    fall: float
    """How far the loss fell, as a share of its start."""
    falls: bool
    """Whether the loss is lowest at the end of the sweep."""
    flat: bool
    """Whether no rate changed the loss: it has no edge, and its fall may be noise."""
    length: int
    """The planned number of points of the sweep."""
    died: Died | None
    """Where units died, if that is the edge."""
    lost: float | None
    """The rate from which on the loss stays near its start, if that is where the edge is."""
    start: float
    lowest: float
    dead: float | None
    """The loss at the start, the lowest smoothed one, and the one after units died; None: none
    died, or a loss was below 0.
    """

    @property
    def three(self) -> tuple[float, float, float]:
        return self.edge, self.valley, self.minimum

    @property
    def in_words(self) -> str:
        """A phrase with the three landmarks. It does not use the names of rules, whose numbers
        differ.
        """
        edge = "the edge" if self.edge_seen else "an edge beyond the sweep"
        return (
            f"{edge} {rate(self.edge, 2)}, the longest fall {rate(self.valley, 2)}, the lowest loss"
            f" {rate(self.minimum, 2)}"
        )


def _facts(found: _Found, lr: float) -> Iterable[str]:
    yield f"Three places of the curve give an estimate each: {found.in_words}."
    if found.died is not None:
        where = f"layer {found.died.layer}" if found.died.layer else "the model"
        yield (
            f"Most units of {where} are dead from a rate of {rate(found.edge_at, 2)} on,"
            f" {_times(found.edge_at / lr)} this rate."
        )
    elif found.lost is not None:
        yield (
            f"From a rate of {rate(found.lost, 2)} on, {_times(found.lost / lr)} this rate, the"
            " loss stays near its start."
        )
    elif found.edge_seen:
        times = _times(found.edge_at / lr)
        yield f"The loss diverges at {rate(found.edge_at, 2)}, {times} this rate."
    else:
        yield f"The sweep ended at {rate(found.last, 2)}, {_times(found.last / lr)} this rate."
    yield f"Worth trying: half to twice this rate, {rate(lr / 2, 2)} to {rate(lr * 2, 2)}."


def _times(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _flat_in_words(found: _Found) -> str:
    remedy = (
        f"Raise max_lr, which is {rate(found.last, 2)}"
        if found.last < _USUAL_END
        else "A race tries higher rates for longer: find_lr(race=True)"
    )
    return f"the curve is flat, since no rate of this sweep changed the loss. {remedy}"


def _flags(found: _Found, beta: float, schedule: str, raced: Raced | None) -> Iterable[str]:
    lowest = found.lowest if raced is None else raced.loss
    if (
        found.dead is not None
        and found.start > _DIVERGED * found.dead
        and lowest > (1 - _LITTLE) * found.dead
    ):
        fell = "never fell" if raced is None else "in the race at this rate it did not fall"
        yield (
            f"Do not trust this rate. The loss began at {found.start:.3g} and {fell} clearly"
            f" below {found.dead:.3g}, its value when the units are dead. Scale the inputs and"
            " targets to a mean of 0 and a standard deviation of 1, then search again."
        )
    # the other doubts are about the sweep's rate, and not about one from a race
    if raced is not None:
        return
    if not found.edge_seen:
        further = (
            " The loss still falls at the end of the sweep: a higher max_lr says more."
            if found.falls
            else ""
        )
        yield (
            "No edge seen: no loss rose clearly above its start. The search took"
            f" {rate(found.edge_at, 2)} as the edge.{further}"
        )
    if found.fall < _LITTLE:
        yield (
            f"The loss fell by only {max(found.fall, 0):.0%}, so the curve says little. A longer"
            f" sweep says more: num_training={4 * found.length}."
        )
    # An edge above the sweep is a guess, and does not count as a landmark that disagrees.
    three = found.three if found.edge_at <= found.last else found.three[1:]
    apart = math.log10(max(three) / min(three))
    if apart > 1.2:
        yield f"The three estimates do not agree: they are {apart:.1f} decades apart."
    if found.lr < found.first:
        yield (
            "The suggestion lies below all rates of the sweep. Sweep again with a min_lr below"
            f" {rate(found.first, 2)}."
        )
    if found.length < FULL / 2:
        yield (
            f"A sweep of {found.length} updates is short: it passes high rates before the loss can"
            " diverge. So the suggestion may be too high."
        )
    if schedule == "one_cycle" and beta == 0:
        yield (
            "This optimizer has no momentum. If your one-cycle schedule cycles momentum, it gives"
            f" it 0.95: then take a tenth of the rate, {rate(found.lr / 10, 2)}."
        )


_SPOKEN = {
    "one_cycle": "one-cycle",
    "constant": "constant",
    "linear": "linearly falling",
    "cosine": "cosine",
    "wsd": "constant and then falling",
    "polynomial": "falling",
    "inverse_sqrt": "slowly falling",
    "cosine_restarts": "restarting",
    "schedule_free": "schedule-free",
}


def _factor(schedule: str) -> float:
    return 0.75 if schedule in (*WITHOUT_LENGTH, "wsd") else 1.33


def _find(
    lrs: ArrayLike,
    losses: ArrayLike,
    beta: float,
    adaptive: bool,
    schedule: str,
    num_training: int | None,
    died: Died | None,
) -> _Found | str:
    """The landmarks, or why the curve has none."""
    if not 0 <= beta < 1:
        return f"beta={beta!r} is not a momentum: 0 <= beta < 1 is needed"
    x, y = pair(lrs, losses)
    ten, five = points_of(10, num_training, len(x)), points_of(5, num_training, len(x))
    level = level_of(y, num_training)
    if level is None:
        return "no loss was finite" if len(x) else "the sweep has no points"
    base = level.base
    edge = _edge(y, level, ten)
    dead = _dead_loss(y, died) if level.spread is None else None
    if died is not None and (edge is None or died.point < edge):
        edge = died.point
    else:
        died = None
    kept = len(y) if edge is None else edge
    if kept < ten + 3:
        return _too_few(kept, ten, x, edge, died)
    s = smooth(y[:kept], 0.9 ** (FULL / length_of(num_training, len(x))))
    fall = longest_fall(s[ten:])
    if fall is None:
        return "the loss never fell, so the curve shows no good rate"
    low = five + int(np.argmin(s[five:]))
    lost = None if died is not None else _lost(x[:kept], y[:kept], float(s[low]), base, low, five)
    edge_at = max(float(x[-1]), _USUAL_END) if edge is None else float(x[edge])
    if lost is not None:
        edge_at = _BEFORE * lost
    e = edge_at * (1 - beta) * _BELOW * (0.56 if adaptive else 1.0)
    v = 4 * float(x[ten + fall[0]])
    m = float(x[low]) * math.sqrt(1 - beta) * _BELOW
    lr = float(np.median([e, v, m])) * _factor(schedule)
    fell, edge_seen = base - float(s[low]), edge is not None or lost is not None
    share = fell / level.size if level.size > 0 else 0.0
    return _Found(
        lr=lr if edge is not None else min(lr, float(x[-1])),
        edge=e,
        valley=v,
        minimum=m,
        edge_at=edge_at,
        edge_seen=edge_seen,
        first=float(x[0]),
        last=float(x[-1]),
        fall=share,
        falls=low >= kept - max(1, five),
        flat=not edge_seen and share < _LITTLE and fell <= float(np.std(np.diff(y))),
        length=length_of(num_training, len(x)),
        died=died,
        lost=lost,
        start=base,
        lowest=float(s[low]),
        dead=dead,
    )


def _lost(x: Array, y: Array, lowest: float, base: float, low: int, five: int) -> float | None:
    """The rate from which on the loss stays nearer to its start than to its lowest value; None: it
    diverges soon after, or stays low.

    It uses the median of five points, since the smoothed loss lags. A fall that may be noise of the
    batches, estimated from the differences of neighbouring losses, does not count.
    """
    if low < _FEW or base - lowest <= _CLEAR * float(np.std(np.diff(y[: low + 1]))):
        return None
    typical = running_median(y, five // 2)
    at = int(np.flatnonzero(typical <= (base + lowest) / 2).max(initial=low)) + 1
    return float(x[at]) if at < len(x) and x[-1] >= _LONG * x[at] else None


def _too_few(kept: int, ten: int, x: Array, edge: int | None, died: Died | None) -> str:
    if edge is None:
        return f"only {counted(kept, 'finite point')}: at least {ten + 3} are needed"
    cause = "the loss diverged or was not finite" if died is None else "units died"
    return (
        f"{cause} at {rate(x[edge], 2)}, point {edge + 1}. Sweep again over lower rates, and scale"
        " inputs and targets if they are large numbers"
    )


def _dead_loss(y: Array, died: Died | None) -> float | None:
    """The median loss after units died, None: none did."""
    after = np.array([]) if died is None else y[died.point :]
    after = after[np.isfinite(after)]
    return float(np.median(after)) if len(after) else None


def level_of(losses: ArrayLike, num_training: int | None = None) -> Level | None:
    """The level of the first tenth of a sweep's losses; None: none of them is finite."""
    y = np.asarray(losses, dtype=np.float64)
    start = y[: max(1, points_of(10, num_training, len(y)))]
    start = start[np.isfinite(start)]
    return Level.of(start) if len(start) else None


def _edge(y: Array, level: Level, ten: int) -> int | None:
    """The first point whose loss diverged or is not finite; None: there is none."""
    lowest = level.base
    for i, loss in enumerate(y):
        risen = loss > level.limit(_DIVERGED, lowest)
        if not math.isfinite(loss) or (risen and np.median(y[i : i + _STAYS]) > level.high):
            return i if level.spread is not None else min(i, _at_once(y[:i], ten) or i)
        lowest = min(lowest, float(loss))
    return _at_once(y, ten) if level.spread is None else None


def _at_once(y: Array, ten: int) -> int | None:
    """The first of the `ten` points from which on no loss comes back to 4 times those before it, or
    to 16 times if that is one loss, which may be low by chance; None: there is none.

    There the losses diverge so early that those of the start are high, too.
    """
    for i in range(1, min(ten, len(y))):
        times = _DIVERGED if i > 1 else _DIVERGED**2
        if y[i:].min() > times * y[:i].max():
            return i
    return None
