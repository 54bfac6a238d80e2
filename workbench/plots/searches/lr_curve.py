"""Plots the LR finder's curve: loss against learning rate, with the suggestion of each rule.

How to read it: the loss is flat while the rate is too small, falls, and explodes beyond the edge. A
good rate is well to the left of the edge; the band is where a rate is about as good as the
recommended one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from workbench.plots.chart import Array, Axis, Band, Chart, Mark, Series
from workbench.plots.ranges import span
from workbench.units import rate


class Proposal(Protocol):
    """The attributes of a suggestion that are drawn (`events.Suggestion` has them)."""

    @property
    def name(self) -> str: ...
    @property
    def lr(self) -> float | None: ...
    @property
    def why(self) -> str: ...


class Raced(Protocol):
    """The attributes of a raced rate that are drawn (`events.RaceTrial` has them)."""

    @property
    def lr(self) -> float: ...
    @property
    def updates(self) -> int: ...
    @property
    def loss(self) -> float: ...


def lr_curve(
    lrs: Array,
    losses: Array,
    smoothed: Array,
    suggestions: Iterable[Proposal] | Mapping[str, Proposal] = (),
    suggestion: float | None = None,
    notes: Iterable[str] = (),
    race: Iterable[Raced] = (),
) -> Chart:
    """The chart of a sweep: `lrs` (rising), raw `losses` and `smoothed`, each of shape
    (points,); `race`: what followed.
    """
    proposals = list(suggestions.values() if isinstance(suggestions, Mapping) else suggestions)
    marks = [_mark(p, p.lr, lrs, smoothed, suggestion) for p in proposals if p.lr is not None]
    if suggestion is not None and not any(m.emphasis for m in marks):
        height = _height(suggestion, lrs, smoothed)
        marks.append(Mark(suggestion, f"recommended {rate(suggestion)}", height, emphasis=True))
    silent = [f"{p.name} proposes nothing: {p.why}" for p in proposals if p.lr is None]
    band = () if suggestion is None else (Band(suggestion / 2, suggestion * 2, "÷2 to ×2"),)
    return Chart(
        title="Learning-rate finder" + (": no recommendation" if suggestion is None else ""),
        x=Axis("learning rate", log=True, range=span(lrs, log=True)),
        y=Axis("loss", range=_loss_range(losses, smoothed, [t.loss for t in race])),
        series=(
            Series("each update", lrs, losses, "faint"),
            Series("smoothed", lrs, smoothed),
            *_raced(race),
        ),
        # several rules may propose the recommended rate: one mark says so
        marks=(*(m for m in marks if not m.emphasis), *[m for m in marks if m.emphasis][:1]),
        bands=band,
        notes=(*notes, *silent),
    )


def _mark(
    proposal: Proposal, lr: float, lrs: Array, smoothed: Array, suggestion: float | None
) -> Mark:
    recommended = suggestion is not None and bool(np.isclose(lr, suggestion))
    height = _height(lr, lrs, smoothed)
    if recommended:
        return Mark(
            lr,
            f"recommended {rate(lr)}",
            height,
            emphasis=True,
            why=f"{proposal.name}: {proposal.why}",
        )
    return Mark(lr, f"{proposal.name} {rate(lr)}", height, why=proposal.why)


def _height(lr: float, lrs: Array, smoothed: Array) -> float:
    """Where the smoothed curve is at `lr`, between its points if need be; zero for a curve with
    no points.
    """
    finite = np.isfinite(smoothed) & (lrs > 0)
    if not finite.any():
        return 0.0
    return float(np.interp(np.log(lr), np.log(lrs[finite]), smoothed[finite]))


def _raced(race: Iterable[Raced]) -> list[Series]:
    trials = sorted((t for t in race if np.isfinite(t.loss)), key=lambda t: t.lr)
    if not trials:
        return []
    shortest, longest = min(t.updates for t in trials), max(t.updates for t in trials)
    updates = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
    return [
        Series(
            f"held-out loss after {updates} updates",
            np.array([t.lr for t in trials]),
            np.array([t.loss for t in trials]),
            "points",
            tone=1,
        )
    ]


def _loss_range(
    losses: Array, smoothed: Array, raced: Iterable[float] = ()
) -> tuple[float, float] | None:
    """From the lowest point to a little above the start: the explosion itself would flatten all
    the rest.
    """
    finite = smoothed[np.isfinite(smoothed)]
    if not finite.size:
        return span(losses)
    low, start = float(finite.min()), float(np.median(finite[:10]))
    top = min(float(finite.max()), start + max(0.75 * (start - low), 0.1 * abs(start)))
    usual = losses[np.isfinite(losses) & (losses <= top)]
    return span(np.array([low, top]), usual, np.array([loss for loss in raced if loss <= top]))
