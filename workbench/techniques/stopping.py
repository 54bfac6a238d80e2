"""Decides when a fit ends: by updates, epochs or time, and by early stopping.

Names and meanings are Lightning's. The first limit that is reached ends the fit. Early stopping
ends it only after both `min_steps` and `min_epochs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.metric_mode import known_mode
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.units import counted, number
from workbench.values import EarlyStopping
from workbench.values import seconds as in_seconds

LENGTHS = ("max_epochs", "max_steps", "max_time")
"""The settings that limit a fit's length."""


class Limits(NamedTuple):
    """The length of a fit, as numbers; None: no limit."""

    max_steps: int | None
    max_epochs: int | None
    max_seconds: float | None

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that settings give."""
        return cls(
            settings.max_steps,
            settings.epochs,
            None if settings.max_time is None else in_seconds(settings.max_time),
        )

    def reached(self, step: int, epoch: int, seconds: float) -> str:
        """Return the setting that these updates, finished epochs and seconds have reached; "":
        none yet.
        """
        if self.max_steps is not None and step >= self.max_steps:
            return "max_steps"
        if self.max_epochs is not None and epoch >= self.max_epochs:
            return "max_epochs"
        return "max_time" if self.max_seconds is not None and seconds >= self.max_seconds else ""


def reached(settings: Settings, step: int, epoch: int, seconds: float) -> str | None:
    """Return in words which limit these updates, finished epochs and seconds have reached; None:
    none yet.
    """
    limits = Limits.of(settings)
    name = limits.reached(step, epoch, seconds)
    value = limits.max_epochs if name == "max_epochs" else getattr(settings, name, None)
    return f"{name}={value!r} reached" if name else None


def minimums_met(settings: Settings, step: int, epoch: int) -> bool:
    """Whether early stopping may end the fit now."""
    return step >= (settings.min_steps or 0) and epoch >= (settings.min_epochs or 0)


class EarlyStop:
    """Follows one metric over validations and gives a reason to end the fit where there is one."""

    def __init__(self, monitor: EarlyStopping) -> None:
        self.monitor = monitor
        # times this, lower is better in both modes
        self._sign = 1.0 if monitor.direction == "min" else -1.0
        self.best = self._sign * math.inf
        """The best value so far; infinite before the first."""
        self.waited = 0
        """Validations since the best value, without those within the warm-up."""
        self._validations = 0

    def check(self, metrics: Mapping[str, float]) -> str | None:
        """Return in words why the fit should end after one more validation; None: it continues."""
        value = self._value(metrics)
        self._validations += 1
        if self.monitor.check_finite and not math.isfinite(value):
            return f"{self.monitor.monitor} is {value}"
        patient = self._follow(value)
        return self._threshold(value) or (None if patient else self._stalled())

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the counts."""
        return {"best": self.best, "waited": self.waited, "checks": self._validations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same monitor."""
        self.best, self.waited, self._validations = state["best"], state["waited"], state["checks"]

    def _value(self, metrics: Mapping[str, float]) -> float:
        name = self.monitor.monitor
        if name not in metrics:
            names = ", ".join(metrics) or "none"
            raise TaskError(
                f"early_stopping: this run has no metric {name!r} to monitor. Its metrics are: "
                f"{names}. "
                "Give one of them, EarlyStopping(monitor=…)."
            )
        return float(metrics[name])

    def _follow(self, value: float) -> bool:
        """Compare a value with the best one; return whether patience lasts."""
        if self._sign * value + self.monitor.min_delta < self._sign * self.best:
            self.best, self.waited = value, 0
            return True
        if self._validations <= self.monitor.warmup:
            return True
        self.waited += 1
        return self.waited < self.monitor.patience

    def _threshold(self, value: float) -> str | None:
        name, good, bad = (
            self.monitor.monitor,
            self.monitor.stopping_threshold,
            self.monitor.divergence_threshold,
        )
        better, worse = (
            ("below", "above") if self.monitor.direction == "min" else ("above", "below")
        )
        if good is not None and self._sign * value < self._sign * good:
            return f"{name} is {number(value)}, {better} the stopping_threshold of {number(good)}"
        if bad is not None and self._sign * value > self._sign * bad:
            return f"{name} is {number(value)}, {worse} the divergence_threshold of {number(bad)}"
        return None

    def _stalled(self) -> str:
        on = f" on {number(self.best)}" if math.isfinite(self.best) else ""
        by = f" by more than {number(self.monitor.min_delta)}" if self.monitor.min_delta else ""
        way = "lower" if self.monitor.direction == "min" else "higher"
        how = (
            ""
            if known_mode(self.monitor.monitor) in (None, self.monitor.direction)
            else f" (mode={self.monitor.direction!r}: {way} is better)"
        )
        return (
            f"{self.monitor.monitor} did not improve{on}{by} in"
            f" {counted(self.waited, 'validation')}{how}"
        )
