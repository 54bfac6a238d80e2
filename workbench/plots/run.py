"""A whole run in pictures: its loss above its gradient norms; its learning rate; what clipping did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.plots.chart import Array, Chart
from workbench.plots.clipping import Clipped, clipping
from workbench.plots.grad_norm import grad_norm
from workbench.plots.loss import Changes, loss
from workbench.plots.schedule import schedule

_LAYER = "grad_norm/"


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What there is to draw of a run: its `history` and `validation` as `Run` has them.

    `clip` is the clip value that the run began with (None: off); it is drawn only where it limits the recorded norm.
    """

    history: Mapping[str, Array]
    validation: Mapping[str, Array]
    changes: Changes = ()
    clip: float | None = None
    clips_norm: bool = True

    def whole(self) -> list[Chart]:
        """The loss, and the gradient norms where they were recorded."""
        return [*self.loss(), *self.grad_norm()]

    def loss(self) -> list[Chart]:
        val = self.validation
        drawn = loss(
            self.history["step"],
            self.history["loss"],
            val.get("step"),
            val.get("val_loss"),
            self.changes,
            averaged=val.get("val_loss_averaged"),
            parts=self._of_each("loss"),
        )
        return [drawn]

    def lr(self) -> list[Chart]:
        rates = self._of_each("lr") or {"learning rate": self.history["lr"]}
        return [schedule(self.history["step"], rates, self._changes("lr", "batch_size"))]

    def grad_norm(self) -> list[Chart]:
        total = self.history.get("grad_norm")
        if total is None:
            return []
        layers = {name.removeprefix(_LAYER): v for name, v in self.history.items() if name.startswith(_LAYER)}
        # Of several optimizers each one's norm is limited, and not the total.
        limit = self.limit if self.clips_norm and not self._of_each("grad_norm") else None
        return grad_norm(self.history["step"], total, layers, limit, self.changes, clipped(self.history, self.limit).share)

    def clipping(self) -> list[Chart]:
        parts = clipped_by_optimizer(self.history, self.limit)
        if not any(np.isfinite(part.before).any() for part in parts.values()):
            return []
        limit = self.limit if self.clips_norm else None
        return clipping(self.history["step"], parts, limit, self._changes("gradient_clip_val"))

    @property
    def limit(self) -> Array:
        """The clip value in force at each update, shape (rows,); NaN where it is off."""
        return clip_line(self.history["step"], self.clip, self.changes)

    def _of_each(self, quantity: str) -> dict[str, Array]:
        return {f"optimizer {i}": v for i, v in by_optimizer(self.history, quantity).items()}

    def _changes(self, *names: str) -> Changes:
        """The changes of these settings alone."""
        kept = [(at, {k: v for k, v in values.items() if k in names}) for at, values in self.changes]
        return [(at, values) for at, values in kept if values]


def by_optimizer(history: Mapping[str, Array], quantity: str) -> dict[int, Array]:
    """Of several optimizers, each one's column ("loss.0", "loss.1" …) by its number; empty where there is but one."""
    named = [(name.removeprefix(f"{quantity}."), values) for name, values in history.items() if name.startswith(f"{quantity}.")]
    return {int(i): values for i, values in sorted(named, key=lambda n: int(n[0]) if n[0].isdigit() else -1) if i.isdigit()}


def clipped(history: Mapping[str, Array], limit: Array, suffix: str = "") -> Clipped:
    """The norms before and after clipping, of all optimizers together or (with ".0" …) of one."""
    blank = np.full(len(limit), np.nan)
    before = history.get(f"grad_norm{suffix}", blank)
    return Clipped(before, history.get(f"grad_norm_clipped{suffix}", blank), np.isfinite(limit))


def clipped_by_optimizer(history: Mapping[str, Array], limit: Array) -> dict[str, Clipped]:
    """Those of each optimizer, by its name; by "" where there is but one."""
    several = by_optimizer(history, "grad_norm")
    if not several:
        return {"": clipped(history, limit)}
    return {f"optimizer {i}": clipped(history, limit, f".{i}") for i in several}


def clip_line(step: Array, clip: float | None, changes: Changes) -> Array:
    """The clip value in force at each update, shape (rows,); NaN where it is off."""
    out = np.full(len(step), np.nan if clip is None else clip)
    for at, values in changes:
        if "gradient_clip_val" in values:
            value = values["gradient_clip_val"]
            out[step >= at] = value if value else np.nan
    return out
