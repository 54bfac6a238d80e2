"""Draws clipping on the canvas: the clip values of a fit, the share of clipped updates, and a
suggested clip value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import StepsDone
from workbench.plots.clip_statistics import WINDOW, RunNorms, clip_share, suggest_clip, was_cut
from workbench.runs.record.series import column, norm_columns
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox

CLIPS = 100
"""How many clip values are kept; the oldest are dropped."""


class Clipping:
    """Keeps the clip values and the norms before clipping."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._chosen: float | None = None
        """The clip value that is set for the next fit."""
        self._clear({})

    def _clear(self, settings: dict[str, Any]) -> None:
        self.norms: NDArray[np.float64] = np.empty(0)
        """The last norms before clipping."""
        self._of_run = RunNorms()
        self._cut: NDArray[np.float64] = np.empty(0)
        self._clips: list[list[Any]] = [[0, settings.get("gradient_clip_val")]]
        self._by_norm = settings.get("gradient_clip_algorithm", "norm") == "norm"
        order = settings.get("track_grad_norm", 2.0)
        self.order = float(order) if isinstance(order, int | float) and order > 0 else None
        """The order of the norms before clipping."""
        self._same = self.order == 2.0
        """Whether the norm before clipping is the 2-norm, as the norm after clipping is."""

    def start(self, settings: dict[str, Any]) -> None:
        """Begin a fit with these settings; {}: begin without a fit."""
        self._clear(settings)
        self._outbox.put("clips", self._clips.copy())

    def choose(self, value: float | None) -> bool:
        """Set the clip value of the next fit; returns whether it has changed."""
        other, self._chosen = value != self._chosen, value
        return other

    def changed(self, step: int, value: float | None) -> None:
        """Draw a new clip line from this update on."""
        self._clips.append([step, value])
        del self._clips[:-CLIPS]
        self._outbox.put("clips", [*self._clips])

    def cut(self, event: StepsDone, norm: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which updates of a flush were clipped, from their norms before and after clipping;
        shape (rows,).
        """
        after = (
            column(event, "grad_norm_clipped").astype(np.float64)
            if self._same
            else np.full(event.rows, np.nan)
        )
        return was_cut(norm, after) > 0

    def add(self, event: StepsDone, norm: NDArray[np.float64], cut: NDArray[np.bool_]) -> None:
        """Add a flush: its norms, NaN where an update is not drawn, and whether they were cut."""
        finite = np.isfinite(norm)
        self._cut = np.concatenate([self._cut, cut[finite]])[-WINDOW:]
        self.norms = np.concatenate([self.norms, norm[finite]])[-WINDOW:]
        self._of_run.add({**norm_columns(event), "grad_norm": norm})

    def settle(self, *, training: bool) -> None:
        """Send the caption and, unless the fit is training, the suggestion: it comes from all of
        its norms, and stays.
        """
        suggests = self._by_norm and self._same and not training
        self._outbox.put(
            "norm",
            {
                "caption": self._caption(),
                "by_norm": self._by_norm,
                # whether the clip value is a line among these norms
                "lined": self._by_norm and self._same,
                "suggested": suggest_clip(*self._of_run.clipped) if suggests else None,
            },
        )

    def _caption(self) -> str:
        if not len(self.norms):
            return ""
        p50, p95 = np.percentile(self.norms, [50, 95])
        spread = texts.norms(format.number(float(p50)), format.number(float(p95)))
        if not self._clips[-1][1]:
            return texts.no_clipping(spread) + self._would_cut()
        if not self._same:
            return texts.clip_not_drawn(self._by_norm, spread)
        share = format.percent(float(self._cut.mean()))
        return texts.clipped(share, len(self._cut), spread) + self._would_cut()

    def _would_cut(self) -> str:
        """What share of this fit's updates the clip value of the next fit would have clipped, in
        words; "": it is the same value, or off.
        """
        value = self._chosen
        if not value or value == self._clips[-1][1] or not self._by_norm or not self._same:
            return ""
        share = format.percent(clip_share(self._of_run.clipped, value))
        return texts.would_clip(format.rate(value), share, self._of_run.updates)
