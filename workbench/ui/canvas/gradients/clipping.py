"""Draws clipping on the canvas: the clip values of a fit, the share of clipped updates, and a suggested clip value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import StepsDone
from workbench.plots.clip_statistics import WINDOW, clip_share, suggest_clip, was_cut
from workbench.runs.record.series import column
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox

CLIPS = 100
"""How many clip values are kept; the oldest are dropped."""
_NEAR = 0.1
"""A suggestion that changes by less is not updated, so that the user can press its button."""


class Clipping:
    """Keeps the clip values and the last norms before clipping."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._chosen: float | None = None
        """The clip value that is set for the next fit."""
        self._clear({})

    def _clear(self, settings: dict[str, Any]) -> None:
        self.norms: dict[str, NDArray[np.float64]] = {}
        """The last norms before clipping: of all, and of each optimizer where there are several."""
        self._first: NDArray[np.float64] = np.empty(0)
        """The first norms of all."""
        self._cut: NDArray[np.float64] = np.empty(0)
        self._clips: list[list[Any]] = [[0, settings.get("gradient_clip_val")]]
        self._by_norm = settings.get("gradient_clip_algorithm", "norm") == "norm"
        order = settings.get("track_grad_norm", 2.0)
        self.order = float(order) if isinstance(order, int | float) and order > 0 else None
        """The order of the norms before clipping."""
        self._same = self.order == 2.0
        """Whether the norm before clipping is the 2-norm, as the norm after clipping is."""
        self._suggested: float | None = None

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
        """Which updates of a flush were clipped, from their norms before and after clipping; shape (rows,)."""
        after = column(event, "grad_norm_clipped").astype(np.float64) if self._same else np.full(event.rows, np.nan)
        return was_cut(norm, after) > 0

    def add(self, event: StepsDone, norm: NDArray[np.float64], cut: NDArray[np.bool_]) -> None:
        """Add a flush: its norms, NaN where an update is not drawn, and whether they were cut."""
        there = np.isfinite(norm)
        self._cut = np.concatenate([self._cut, cut[there]])[-WINDOW:]
        self.norms["grad_norm"] = _last(self.norms.get("grad_norm"), norm[there])
        if len(self._first) < WINDOW:
            self._first = np.concatenate([self._first, norm[there]])[:WINDOW]
        for name in event.columns:
            if name.startswith("grad_norm.") and name.removeprefix("grad_norm.").isdigit():
                self.norms[name] = _last(self.norms.get(name), column(event, name).astype(np.float64))

    def settle(self) -> None:
        """Send the caption and the suggestion."""
        self._outbox.put("norm", {
            "caption": self._caption(),
            "by_norm": self._by_norm,
            "lined": self._by_norm and self._same,  # whether the clip value is a line among these norms
            "suggested": self._suggest(),
        })  # fmt: skip

    def _suggest(self) -> float | None:
        """Suggest a clip value from the 2-norm of each optimizer; other norms give no suggestion."""
        if not self._by_norm or not self._same:
            return None
        apart = [norms for name, norms in self.norms.items() if name != "grad_norm"]
        new = suggest_clip(*(apart or self.norms.values()))
        if new is None or self._suggested is None or abs(new - self._suggested) > _NEAR * self._suggested:
            self._suggested = new
        return self._suggested

    def _caption(self) -> str:
        norms = self.norms.get("grad_norm", np.empty(0))
        if not len(norms):
            return ""
        p50, p95 = np.percentile(norms, [50, 95])
        spread = texts.norms(format.number(float(p50)), format.number(float(p95)))
        if not self._clips[-1][1]:
            return texts.no_clipping(spread) + self._would_cut(norms)
        if not self._same:
            return texts.clip_not_drawn(self._by_norm, spread)
        return texts.clipped(format.percent(float(self._cut.mean())), len(self._cut), spread) + self._would_cut(norms)

    def _would_cut(self, norms: NDArray[np.float64]) -> str:
        """What share of this fit's updates the clip value of the next fit would have clipped, in words; "": it is the same value, or off."""
        value = self._chosen
        if not value or value == self._clips[-1][1] or not self._by_norm or not self._same or len(self.norms) > 1:
            return ""
        then, now = (format.percent(clip_share([part], value)) for part in (self._first, norms))
        return texts.would_clip(format.rate(value), then, len(self._first), now, len(norms))


def _last(known: NDArray[np.float64] | None, new: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = new[np.isfinite(new)]
    return (finite if known is None else np.concatenate([known, finite]))[-WINDOW:]
