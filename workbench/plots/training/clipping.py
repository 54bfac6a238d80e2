"""Plots what clipping did in a run: the norms before and after it, and the share of updates that
were cut.

How to read it: a share near 0% means that the clip value only catches spikes; near 100% it is the
clip value, and not the gradient, that sets the length of every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Series
from workbench.plots.clip_statistics import WINDOW, moving_share, was_cut
from workbench.plots.downsample import corners
from workbench.plots.ranges import span, wide
from workbench.plots.training.changes import Changes, change_marks


@dataclass(frozen=True, slots=True, eq=False)
class Clipped:
    """The norms of one optimizer's updates `before` and `after` clipping, and where it was `on`,
    each of shape (rows,).

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
        """1 where an update was cut, 0 where it was not, NaN where clipping was off or that was
        not measured.
        """
        return np.where(self.on & self.same, was_cut(self.before, self.after), np.nan)

    @property
    def share(self) -> float | None:
        """The share of updates that were cut; None where clipping was off all through, or that
        is not known.
        """
        finite = self.cut[np.isfinite(self.cut)]
        return float(finite.mean()) if finite.size else None


def clipping(
    step: Array, parts: Mapping[str, Clipped], limit: Array | None = None, changes: Changes = ()
) -> list[Chart]:
    """A chart of norms for each optimizer in `parts` (name: norms), and one of the share of updates
    that were cut.

    `limit` is the clip value at each row, shape (rows,), where it limits those norms; NaN: off.
    """
    charts: list[Chart] = []
    shares: list[Series] = []
    for name, clipped in parts.items():
        # of several: or the others' turns would tear its lines
        rows = clipped.turns if name else np.arange(len(step))
        charts.append(_norms(step, rows, name, clipped, limit))
        if clipped.share is not None:
            tone = _TONES[len(shares) % len(_TONES)]
            moving = 100 * moving_share(clipped.cut[rows])
            shares.append(Series(name or f"last {WINDOW} updates", step[rows], moving, tone=tone))
    if shares:
        note = f"Over the last {WINDOW} updates that were recorded, or as many as there were."
        axes = Axis("update"), Axis("clipped", "%", range=(-4, 104))
        charts.append(
            Chart(
                "Share of updates clipped",
                *axes,
                tuple(shares),
                change_marks(changes, step),
                notes=(note,),
            )
        )
    return charts


_TONES = (0, 2, 3, 4)
"""The colours of the lines; orange is the clip value's."""


def _norms(step: Array, rows: Array, name: str, clipped: Clipped, limit: Array | None) -> Chart:
    series = [
        Series("before clipping", step[rows], clipped.before[rows], "thin"),
        Series(
            "after clipping" if clipped.same else "after clipping (2-norm)",
            step[rows],
            clipped.after[rows],
            "thin",
            2,
        ),
    ]
    line = np.full(len(step), np.nan) if limit is None else limit
    if np.isfinite(line).any():
        kept = corners(line)
        series.append(Series("clip value", step[kept], line[kept], "limit", 1))
    log = wide(np.concatenate([clipped.before, clipped.after, line]), 10)
    total = "Gradient norm before and after clipping"
    if not clipped.same and clipped.on.any():
        note = (
            "What was measured before clipping (track_grad_norm) is not the 2-norm, which was"
            " measured after it: do not compare them."
        )
    else:
        note = (
            "Clipping was off."
            if clipped.share is None
            else f"{clipped.share:.0%} of the updates with clipping on were cut."
        )
    return Chart(
        f"{total}, {name}" if name else total,
        Axis("update"),
        Axis("gradient norm", log=log, range=span(clipped.before, clipped.after, line, log=log)),
        tuple(series),
        notes=(note,),
    )
