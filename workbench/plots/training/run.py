"""Composes the plots of a whole run: its loss above its gradient norms; its learning rate;
clipping; logged values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.metric_mode import AVERAGED
from workbench.plots.chart import Array, Chart, Mark
from workbench.plots.clip_statistics import clip_share, suggest_clip
from workbench.plots.searches.clip_value import clip_value
from workbench.plots.training.changes import Changes, only
from workbench.plots.training.clipping import Clipped, clipping
from workbench.plots.training.grad_norm import grad_norm
from workbench.plots.training.logged import Points, logged
from workbench.plots.training.loss import loss
from workbench.plots.training.noise_scale import noise_scale
from workbench.plots.training.schedule import schedule
from workbench.plots.training.update_ratio import update_ratio
from workbench.units import number

_LAYER = "grad_norm/"
_RATIO = "update_ratio/"
_NOISE = "gradient_noise_scale"
_OF_SETS = "val_loss/"
"""The prefix of the losses of several validation sets."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint: after how many updates it was written, and the metric that chose it."""

    step: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """The data of a run's plots: its `history`, `validation` and `logged` (over epochs) as `Run`
    has them.

    `clip` is the clip value that the run began with (None: off); it is drawn only where it limits
    the recorded norm.
    `same_norm`: the norms before clipping are 2-norms, as those after it always are.
    `by_model`: the columns of `history` that the model logged.
    """

    history: Mapping[str, Array]
    validation: Mapping[str, Array]
    changes: Changes = ()
    clip: float | None = None
    clips_norm: bool = True
    logged: Mapping[str, Array] = field(default_factory=dict)
    by_model: Collection[str] = ()
    best: Best | None = None
    same_norm: bool = True
    by_layer: Callable[[str], tuple[Array, Mapping[str, Array]]] | None = None
    """Of "grad_norm" or "update_ratio" the updates and the values by layer, where `history` does
    not have them.
    """

    def whole(self) -> list[Chart]:
        """The loss, and gradient norms and update ratios where they were recorded."""
        return [*self.loss(), *self.grad_norm(), *self.update_ratio()]

    def loss(self) -> list[Chart]:
        """The training loss, and the loss of each validation."""
        val = self.validation
        drawn = loss(
            self.history["step"],
            self.history["loss"],
            val.get("step"),
            val.get("val_loss"),
            self.changes,
            averaged=val.get("val_loss_averaged"),
            sets={name: val[name] for name in val if name.startswith(_OF_SETS)},
            parts=self._of_each("loss"),
            marks=self._best_of(
                next(
                    (name for name in val if name.startswith(_OF_SETS) and self._best_of(name)),
                    "val_loss",
                )
            ),
        )
        return [drawn]

    def lr(self) -> list[Chart]:
        """The learning rates of the updates."""
        rates = self._of_each("lr") or {"learning rate": self.history["lr"]}
        return [schedule(self.history["step"], rates, only(self.changes, "lr", "batch_size"))]

    def grad_norm(self) -> list[Chart]:
        """The gradient norms before clipping, in total and by layer; empty where they were not
        recorded.
        """
        total = self.history.get("grad_norm")
        if total is None:
            return []
        steps, layers = self._of_layers(_LAYER)
        # Of several optimizers each one's norm is limited, and not the total.
        limit = self.limit if self.clips_norm and not self._of_each("grad_norm") else None
        return grad_norm(
            self.history["step"], total, layers, limit, self.changes, self.clipped().share, steps
        )

    def update_ratio(self) -> list[Chart]:
        """How far each update moved each layer, relative to the layer's norm."""
        steps, layers = self._of_layers(_RATIO)
        return update_ratio(self.history["step"], layers, only(self.changes, "lr"), steps)

    def noise_scale(self) -> list[Chart]:
        """The gradient noise scale: of all parameters, and of each module where it was measured."""
        named = {
            name: values
            for name, values in self.history.items()
            if name == _NOISE or name.startswith(f"{_NOISE}/")
        }
        lines = {
            "all parameters" if name == _NOISE else name.removeprefix(f"{_NOISE}/"): v
            for name, v in named.items()
        }
        return noise_scale(self.history["step"], lines, only(self.changes, "batch_size"))

    def _of_layers(self, prefix: str) -> tuple[Array, Mapping[str, Array]]:
        if self.by_layer is not None:
            return self.by_layer(prefix.removesuffix("/"))
        measured = [
            name for name in self.history if name.startswith(prefix) and name not in self.by_model
        ]
        return self.history["step"], {
            name.removeprefix(prefix): self.history[name] for name in measured
        }

    def suggested_clip(self) -> float | None:
        """A clip value from the norms recorded; None where it is not those that are clipped, or
        they are too few.
        """
        if not self.clips_norm:
            return None
        apart = by_optimizer(self.history, "grad_norm")
        return suggest_clip(*(apart.values() or [self.history.get("grad_norm", np.empty(0))]))

    def clip_share_at(self, clip_val: float) -> float | None:
        """The share of updates that a clip value would have cut; None where the norms are not
        those that are clipped.
        """
        norms = [clipped.before for clipped in self.clipped_by_optimizer().values()]
        finite = self.clips_norm and any(np.isfinite(norm).any() for norm in norms)
        return clip_share(norms, clip_val) if finite else None

    def clipping(self) -> list[Chart]:
        """The gradient norms before and after clipping, and the share of clipped updates; empty
        where norms were not recorded.
        """
        parts = self.clipped_by_optimizer()
        if not any(np.isfinite(clipped.before).any() for clipped in parts.values()):
            return []
        limit = self.limit if self.clips_norm else None
        charts = clipping(
            self.history["step"], parts, limit, only(self.changes, "gradient_clip_val")
        )
        if self.clips_norm:
            charts.append(
                clip_value([clipped.before for clipped in parts.values()], self.suggested_clip())
            )
        return charts

    def clipped(self, suffix: str = "") -> Clipped:
        """The norms before and after clipping, of all optimizers together or (with ".0" …) of
        one.
        """
        limit = self.limit
        blank = np.full(len(limit), np.nan)
        before = self.history.get(f"grad_norm{suffix}", blank)
        return Clipped(
            before,
            self.history.get(f"grad_norm_clipped{suffix}", blank),
            np.isfinite(limit),
            self.same_norm,
        )

    def clipped_by_optimizer(self) -> dict[str, Clipped]:
        """`clipped` of each optimizer, by its name; by "" if there is one optimizer."""
        several = by_optimizer(self.history, "grad_norm")
        return (
            {f"optimizer {i}": self.clipped(f".{i}") for i in several}
            if several
            else {"": self.clipped()}
        )

    def names(self) -> list[str]:
        """What `named` can draw."""
        names = [name for name in self.history if name in self.by_model]
        names += [
            name for name in (*self.logged, *self.validation) if name not in ("step", "epoch")
        ]
        return [*dict.fromkeys(names)]

    def named(self, name: str) -> list[Chart]:
        """A logged value or a metric; by the name it was logged by also what was split into
        `…_step` and `…_epoch`.
        """
        by_update = {k: v for k, v in self.history.items() if k == "step" or k in self.by_model}
        updates = _points(by_update, name, f"{name}_step")
        epochs = _points(self.logged, name, f"{name}_epoch")
        checks = _points(self.validation, name, f"{name}_epoch")
        if updates is None and epochs is None and checks is None:
            return []
        averaged = _points(self.validation, f"{name}{AVERAGED}", f"{name}_epoch{AVERAGED}")
        return [logged(name, updates, epochs, checks, averaged, self.changes, self._best_of(name))]

    def _best_of(self, metric: str) -> tuple[Mark, ...]:
        """A point at the best checkpoint, where this metric has chosen it."""
        best = self.best
        if best is None or not {metric, f"{metric}_epoch"} & {
            best.metric,
            best.metric.removesuffix(AVERAGED),
        }:
            return ()
        why = f"after {best.step} updates, {best.metric} {number(best.value)}"
        return (Mark(best.step, "best checkpoint", best.value, why=why),)

    @property
    def limit(self) -> Array:
        """The clip value in force at each update, shape (rows,); NaN where it is off."""
        return clip_line(self.history["step"], self.clip, self.changes)

    def _of_each(self, quantity: str) -> dict[str, Array]:
        return {f"optimizer {i}": v for i, v in by_optimizer(self.history, quantity).items()}


def _points(table: Mapping[str, Array], *names: str) -> Points | None:
    """The first of these names that the table has, at its updates."""
    name = next((name for name in names if name in table and name not in ("step", "epoch")), None)
    return None if name is None else (table["step"], table[name])


def by_optimizer(history: Mapping[str, Array], quantity: str) -> dict[int, Array]:
    """Of several optimizers, each one's column ("loss.0", "loss.1" …) by its number; empty where
    there is but one.
    """
    named = [
        (name.removeprefix(f"{quantity}."), values)
        for name, values in history.items()
        if name.startswith(f"{quantity}.")
    ]
    return {
        int(i): values
        for i, values in sorted(named, key=lambda n: int(n[0]) if n[0].isdigit() else -1)
        if i.isdigit()
    }


def clip_line(step: Array, clip: float | None, changes: Changes) -> Array:
    """The clip value in force at each update, shape (rows,); NaN where it is off."""
    out = np.full(len(step), np.nan if clip is None else clip)
    for at, values in only(changes, "gradient_clip_val"):
        if not isinstance(values, str):
            value = values["gradient_clip_val"]
            out[step >= at] = value if value else np.nan
    return out
