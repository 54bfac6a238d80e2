"""Draws a fit on the canvas: loss, validation, live changes. Its gradients are in gradients/."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from workbench.events import (
    Changed,
    Logged,
    Resumed,
    RunStarted,
    Spiked,
    StepsDone,
    Validated,
)
from workbench.metric_mode import AVERAGED, known_mode
from workbench.plots.smooth import Smoother
from workbench.plots.training.compare import are_losses
from workbench.runs.chart_data import SPIKES, UNMARKED
from workbench.runs.record.series import column
from workbench.ui import format, texts
from workbench.ui.canvas.gradients.gradients import Gradients
from workbench.ui.canvas.transport.channels import Buckets, Samples
from workbench.ui.canvas.transport.messages import Outbox, cut

LINE_BUCKETS = 1000
MARKS = 100
"""How many live changes the plot shows; the oldest are dropped."""
MARK = 160
"""Bytes for the text of one of them."""
ON_BAR = 8
"""How many of the model's values the progress line shows: the first ones that come."""


class Training:
    """Collects a fit's events in channels and values of bounded size."""

    def __init__(self, outbox: Outbox, fit: Buckets, val: Samples, gradients: Gradients) -> None:
        self._outbox, self._fit, self._val, self._gradients = outbox, fit, val, gradients
        self._clear()

    def _clear(self) -> None:
        self._smooth = Smoother()
        self._marks: list[tuple[int, list[str]]] = []
        self._monitor: str | None = None
        self.loss: float | None = None
        self.val: float | None = None
        self.averaged: float | None = None
        self._best: tuple[float, int] | None = None
        """The best value of the plot's metric, and the epoch after which it was measured, from 1;
        None: none, or it is not known what is better.
        """
        self.on_bar: dict[str, float] = {}
        """The values that the model logs with `prog_bar=True`, by its names."""

    def start(self, event: RunStarted) -> None:
        """Begin a fit."""
        self.clear()
        self._gradients.start(event)

    def clear(self) -> None:
        """Begin without a fit, or with one that has no events yet."""
        self._clear()
        self._fit.reset()
        self._val.reset()
        self._outbox.put("changes", [])
        self._outbox.put("val", {"name": texts.VAL, "averaged": ""})

    def steps(self, event: StepsDone) -> None:
        """Add one flush: the loss and the norms."""
        if not event.rows:
            return
        loss = column(event, "loss").astype(np.float64)
        of = self._gradients.steps(event, loss)
        finite = np.where(np.isfinite(loss), loss, np.nan)
        least, most, mean = (
            (finite, of.norm),
            (finite, of.norm, of.bad),
            (of.norm, of.clipped, finite),
        )
        last = (self._smooth.add(loss), _learning_rate(event), of.smooth)
        table = np.array([*least, *most, *mean, *last]).T
        self._fit.add(
            event.steps, event.every, [table[:, :2], table[:, 2:5], table[:, 5:8], table[:, 8:]]
        )
        self.loss = float(loss[-1])
        self._show(event)

    def validated(self, event: Validated) -> None:
        """Add a validation."""
        raw = [name for name in event.metrics if not name.endswith(AVERAGED)]
        if self._monitor is None and raw:
            self._monitor = "val_loss" if "val_loss" in raw else raw[0]
        value, averaged = (
            event.metrics.get(self._monitor or ""),
            event.metrics.get(f"{self._monitor}{AVERAGED}"),
        )
        self._show(event)
        if value is None:
            return
        # another metric cannot be drawn on the axis of the loss
        if are_losses([self._monitor or ""]):
            self._val.add([float(event.step), _drawn(value), _drawn(averaged)])
        self._compare(value, event.epoch)
        self.val, self.averaged = value, self.averaged if averaged is None else averaged
        self._outbox.put("val", {
            "name": str(self._monitor)[:40] if are_losses([self._monitor or ""]) else "",
            "averaged": texts.AVERAGED if averaged is not None or self.averaged is not None else "",
        })  # fmt: skip

    def _compare(self, value: float, epoch: int) -> None:
        mode = known_mode(self._monitor or "")
        if mode is None or not math.isfinite(value):
            return
        if self._best is None or (
            value < self._best[0] if mode == "min" else value > self._best[0]
        ):
            self._best = value, epoch + 1

    def headline(self, is_failing: bool) -> str:
        """How the fit stands: 'val_loss 0.031, best 0.024 at epoch 8'; before the first
        validation 'loss 0.31'. is_failing: its loss has diverged, say, so nothing is good now.
        """
        if self.val is None:
            return "" if self.loss is None else f"{texts.LOSS} {format.number(self.loss)}"
        name, value = str(self._monitor)[:40], format.number(self.val)
        if self._best is None:
            return f"{name} {value}"
        best, epoch = self._best
        if self.val == best and is_failing:
            return f"{name} {value}"
        if self.val == best:
            return texts.best_now(name, value)
        return texts.best_before(name, value, format.number(best), epoch)

    def logged(self, event: Logged) -> None:
        """Add values that the model logged for an epoch to the progress line, if logged with
        `prog_bar=True`.
        """
        self._show(event)

    def changed(self, event: Changed) -> None:
        """Mark a live change on the plots."""
        marked = {name: value for name, value in event.values.items() if name not in UNMARKED}
        if marked:
            self._mark(event.step, [format.change(name, value) for name, value in marked.items()])
        self._gradients.changed(event)

    def resumed(self, event: Resumed) -> None:
        """Mark the update at which this run continues another one."""
        self._mark(
            event.step,
            [texts.RESUMED, *(format.change(name, value) for name, value in event.values.items())],
        )

    def spiked(self, event: Spiked) -> None:
        """Mark a spike of the loss on the plots."""
        self._mark(event.step, [SPIKES[event.action]])

    def _mark(self, step: int, said: list[str]) -> None:
        """Mark an update on the plots. All changes at one update share a line, or their names
        would overlap.
        """
        if self._marks and self._marks[-1][0] == step:
            said = [*dict.fromkeys([*self._marks.pop()[1], *said])]
        self._marks.append((step, said))
        del self._marks[:-MARKS]
        self._outbox.put(
            "changes", [[step, cut(", ".join(said), MARK)] for step, said in self._marks]
        )

    def _show(self, event: StepsDone | Validated | Logged) -> None:
        """Show the values with `prog_bar=True` on the progress line, except for that of the
        plot, which is there anyway.
        """
        for name, value in event.on_bar.items():
            if name not in (self._monitor, f"{self._monitor}{AVERAGED}") and (
                name in self.on_bar or len(self.on_bar) < ON_BAR
            ):
                self.on_bar[name] = value


def _drawn(value: float | None) -> float:
    """The value as a point of the plot; NaN, which is not drawn, if it is not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def _learning_rate(event: StepsDone) -> NDArray[np.float64]:
    """The rate of the first optimizer, where there are several."""
    return column(event, "lr" if "lr" in event.columns else "lr.0").astype(np.float64)
