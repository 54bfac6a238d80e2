"""Finds a total gradient norm that explodes, and clipping that clips hardly any update, or
nearly all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import Changed, Event, RunStarted, StepsDone
from workbench.plots.clip_statistics import WINDOW, RunNorms, suggest_clip, was_cut
from workbench.runs.health.finding import Finding, OneFinding, Rule, taken
from workbench.runs.record.series import column, norm_columns
from workbench.units import number, rate


class Explosion(OneFinding):
    """Compares the gradient norm with its running median. A single spike does not count:
    clipping handles spikes.
    """

    TIMES = 10.0
    """Norms of neighbouring updates differ by a factor of two or three; a factor of ten for
    twenty updates is not noise.
    """
    NOW, BEFORE, EVERY = 20, 200, 20
    """Numbers of updates: the last ones and those before them, whose medians are compared; and
    between two checks.
    """

    def __init__(self, start: RunStarted) -> None:
        super().__init__(start)
        self._norms: NDArray[Any] = np.empty(0, np.float32)
        """The last norms, as many as a check needs."""
        self._seen = 0

    def on_event(self, event: Event) -> None:
        if not isinstance(event, StepsDone) or self._found is not None:
            return
        norm, span = column(event, "grad_norm"), self.NOW + self.BEFORE
        known = taken(event) & np.isfinite(norm)
        steps, norms = event.steps[known], np.concatenate([self._norms, norm[known]])
        self._norms, self._seen = norms[-span:], self._seen + len(steps)
        ends = np.arange(len(norms) - self._seen % self.EVERY, span - 1, -self.EVERY)[::-1]
        ends = ends[ends > len(norms) - len(steps)]
        if len(steps) and len(ends):
            windows = np.lib.stride_tricks.sliding_window_view(norms, span)[ends - span]
            self._look(steps, windows, len(norms) - ends)

    def _look(
        self, steps: NDArray[np.int64], windows: NDArray[Any], later: NDArray[np.int64]
    ) -> None:
        """Check windows of norms, shape (checks, span). later: the number of norms after each
        window.
        """
        before, now = (
            np.median(windows[:, : self.BEFORE], axis=1),
            np.median(windows[:, self.BEFORE :], axis=1),
        )
        rose = np.flatnonzero((before > 0) & (now >= self.TIMES * before))
        if len(rose):
            i = int(rose[0])
            step = int(steps[max(0, len(steps) - 1 - int(later[i]))])
            text = (
                f"the gradient norm rose to {now[i] / before[i]:.0f} times its median by update"
                f" {step}, from {number(before[i])} to {number(now[i])}"
            )
            self._found = Finding("warning", text, "lower the learning rate, or clip", step)


class Clipping(Rule):
    """Reports the share of clipped updates if it is nearly all or none."""

    ALWAYS = 0.95
    """The share of the last 200 updates above which the clip value, and not the gradient,
    determines the length of each step.
    """
    NEVER = 1000
    """Consecutive updates without a clipped one; clipping that limits only spikes still clips
    about one update in a hundred.
    """

    def __init__(self, start: RunStarted) -> None:
        clip = start.settings.get("gradient_clip_val")
        self._clip = clip if isinstance(clip, float | int) else None
        self._same = start.settings.get("track_grad_norm", 2.0) == 2.0
        """Whether the norm before clipping is a 2-norm, as the one after it always is."""
        self._norms = RunNorms()
        self._clear()

    def _clear(self) -> None:
        self._cut: deque[bool] = deque(maxlen=WINDOW)
        self._seen, self._clipped, self._largest = 0, 0, 0.0

    def on_event(self, event: Event) -> None:
        if isinstance(event, Changed) and "gradient_clip_val" in event.values:
            self._clip = event.values["gradient_clip_val"]
            self._clear()
        elif isinstance(event, StepsDone) and self._same:
            self._norms.add(norm_columns(event))
            if not self._clip:
                return
            norm = column(event, "grad_norm")
            cut = was_cut(norm, column(event, "grad_norm_clipped"))
            known = np.isfinite(cut)
            if known.any():
                self._cut.extend((cut[known] > 0).tolist())
                self._seen += int(known.sum())
                self._clipped += int((cut[known] > 0).sum())
                self._largest = max(self._largest, float(norm[known].max()))

    def findings(self) -> Iterator[Finding]:
        if not self._clip:
            return
        share = sum(self._cut) / WINDOW
        if len(self._cut) == WINDOW and share >= self.ALWAYS:
            text = (
                f"{share:.0%} of the last {WINDOW} updates were clipped: the clip value sets the"
                " length of each step"
            )
            value = suggest_clip(*self._norms.clipped)
            below = "" if value is None else f"nine of ten norms of the run are below {rate(value)}"
            advice = below and f"{below}: a clip value there limits the largest alone"
            yield Finding("info", text, advice)
        elif self._seen >= self.NEVER and not self._clipped:
            text = (
                f"none of {self._seen} updates was clipped: the largest norm was"
                f" {rate(self._largest)}, the clip value is {rate(self._clip)}"
            )
            yield Finding("info", text, "as a safety net that is fine")
