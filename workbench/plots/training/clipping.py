"""Plots clipping, and computes from gradient norms what a clip value cuts and which value to suggest.

How to read it: a share near 0% means that the clip value only catches spikes; near 100% it is the clip value, and not
the gradient, that sets the length of every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.plots.ranges import span, wide
from workbench.plots.training.changes import Changes, change_marks
from workbench.units import rate

WINDOW = 200
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Clipped:
    """The norms of one optimizer's updates `before` and `after` clipping, and where it was `on`, each of shape (rows,).

    `after` is the 2-norm; `same`: so is `before`. Norms of two orders cannot be compared.
    """

    before: Array
    after: Array
    on: Array
    same: bool = True

    @property
    def turns(self) -> Array:
        """The rows at which it was this optimizer's turn."""
        return np.flatnonzero(~np.isnan(self.before))

    @property
    def cut(self) -> Array:
        """1 where an update was cut, 0 where it was not, NaN where clipping was off or that was not measured."""
        return np.where(self.on & self.same, was_cut(self.before, self.after), np.nan)

    @property
    def share(self) -> float | None:
        """The share of updates that were cut; None where clipping was off all through, or that is not known."""
        finite = self.cut[np.isfinite(self.cut)]
        return float(finite.mean()) if finite.size else None


def was_cut(before: Array, after: Array) -> Array:
    """1 where the norm fell by more than rounding, 0 where it did not, NaN where it was not measured."""
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    finite = np.isfinite(before) & ~np.isnan(after)
    return np.where(finite, (after < before * (1 - _ROUNDING)).astype(np.float64), np.nan)


def clipping(step: Array, parts: Mapping[str, Clipped], limit: Array | None = None, changes: Changes = ()) -> list[Chart]:
    """A chart of norms for each optimizer in `parts` (name: norms), and one of the share of updates that were cut.

    `limit` is the clip value at each row, shape (rows,), where it limits those norms; NaN: off.
    """
    charts: list[Chart] = []
    shares: list[Series] = []
    for name, part in parts.items():
        rows = part.turns if name else np.arange(len(step))  # of several: or the others' turns would tear its lines
        charts.append(_norms(step, rows, name, part, limit))
        if part.share is not None:
            tone = _TONES[len(shares) % len(_TONES)]
            moving = 100 * moving_share(part.cut[rows])
            shares.append(Series(name or f"last {WINDOW} updates", step[rows], moving, tone=tone))
    if shares:
        note = f"Over the last {WINDOW} updates that were recorded, or as many as there were."
        axes = Axis("update"), Axis("clipped", "%", range=(-4, 104))
        charts.append(Chart("Share of updates clipped", *axes, tuple(shares), change_marks(changes, step), notes=(note,)))
    return charts


_TONES = (0, 2, 3, 4)
"""The colours of the lines; orange is the clip value's."""


def _norms(step: Array, rows: Array, name: str, part: Clipped, limit: Array | None) -> Chart:
    series = [
        Series("before clipping", step[rows], part.before[rows], "thin"),
        Series("after clipping" if part.same else "after clipping (2-norm)", step[rows], part.after[rows], "thin", 2),
    ]
    line = np.full(len(step), np.nan) if limit is None else limit
    if np.isfinite(line).any():
        kept = corners(line)
        series.append(Series("clip value", step[kept], line[kept], "limit", 1))
    log = wide(np.concatenate([part.before, part.after, line]), 10)
    total = "Gradient norm before and after clipping"
    if not part.same and part.on.any():
        note = "What was measured before clipping (track_grad_norm) is not the 2-norm, which was measured after it: do not compare them."
    else:
        note = "Clipping was off." if part.share is None else f"{part.share:.0%} of the updates with clipping on were cut."
    return Chart(
        f"{total}, {name}" if name else total,
        Axis("update"),
        Axis("gradient norm", log=log, range=span(part.before, part.after, line, log=log)),
        tuple(series),
        notes=(note,),
    )


ENOUGH = 20
"""The fewest norms from which a clip value is proposed."""
_PERCENTILE = 90


def suggest_clip(*norms: Array) -> float | None:
    """A clip value from the norms before clipping, shape (rows,) for each optimizer: nine of ten of the last `WINDOW` lie below.

    It cuts the tail and leaves the rest alone, and a spike does not move it. Of several optimizers, each clipped by its own
    norm, the largest: none is cut more often than that. Two digits; None where fewer than `ENOUGH` finite norms are known.

    Taking it from norms that were seen is the advice of Pascanu, Mikolov & Bengio (2013), "On the difficulty of training
    recurrent neural networks", section 3.2; taking a percentile is AutoClip (Seetharaman et al., 2020), whose own choice, the
    10th, cuts nine of ten and so sets the length of nearly every step: more than a suggestion should do.
    """
    found = []
    for one in norms:
        values = np.asarray(one, np.float64)
        finite = values[np.isfinite(values)][-WINDOW:]
        if len(finite) >= ENOUGH:
            found.append(float(np.percentile(finite, _PERCENTILE)))
    return float(f"{max(found):.2g}") if found and max(found) > 0 else None


def clip_share(norms: Sequence[Array], clip_val: float) -> float:
    """The share of updates that a clip value would cut, by their norms before clipping (shape (rows,) for each optimizer)."""
    values = np.concatenate([np.asarray(one, np.float64) for one in norms] or [np.empty(0)])
    finite = values[np.isfinite(values)]
    return float((finite > clip_val * (1 + _ROUNDING)).mean()) if len(finite) else 0.0


def cut_by_value(norms: Sequence[Array], suggestion: float | None = None) -> Chart:
    """The share of updates that each clip value would cut: of the first, the middle and the last third of the updates.

    How to read it: lines that lie apart mean that norms change while it trains, so no single value cuts the same share
    all the time.
    """
    series: list[Series] = []
    for tone, (name, part) in enumerate((("first third", 0), ("middle third", 1), ("last third", 2))):
        thirds = [np.array_split(np.asarray(one, np.float64), 3)[part] for one in norms]
        finite = np.sort(np.concatenate([one[np.isfinite(one) & (one > 0)] for one in thirds] or [np.empty(0)]))
        if len(finite):
            series.append(Series(name, finite, 100 * (1 - np.arange(1, len(finite) + 1) / len(finite)), "line", tone))
    marks = () if suggestion is None else (Mark(suggestion, rate(suggestion), None, emphasis=True, why="a tenth of the last norms exceed it"),)
    return Chart(
        "Share of updates that a clip value would cut", Axis("clip value", log=True), Axis("clipped", "%", range=(-4, 104)), tuple(series), marks
    )


def moving_share(cut: Array, window: int = WINDOW) -> Array:
    """The mean of the known among the last `window` values, shape (rows,); NaN where the value itself is unknown."""
    finite = np.isfinite(cut)
    ones = np.concatenate([[0.0], np.cumsum(np.where(finite, cut, 0.0))])
    count = np.concatenate([[0], np.cumsum(finite)])
    first = np.maximum(np.arange(len(cut)) + 1 - window, 0)
    total = count[1:] - count[first]
    return np.where(finite, (ones[1:] - ones[first]) / np.maximum(total, 1), np.nan)


def corners(limit: Array) -> Array:
    """The places where a stepped line gets another value, and its two ends."""
    same = (limit[1:] == limit[:-1]) | (np.isnan(limit[1:]) & np.isnan(limit[:-1]))
    return np.unique(np.concatenate([[0], np.flatnonzero(~same) + 1, [len(limit) - 1]]))
