"""When a fit ends: its length in updates, epochs or time, and early stopping.

Names and meaning are Lightning's. Whatever is reached first ends the fit; early stopping is honoured once both
minimums are met.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.values import EarlyStopping
from workbench.values import seconds as in_seconds


def reached(settings: Settings, step: int, epoch: int, seconds: float) -> str | None:
    """Which limit has been reached after so many updates, finished epochs and seconds, in words; None: none yet."""
    most, epochs = settings.max_steps, settings.epochs
    if most is not None and step >= most:
        return f"max_steps={most} reached"
    if epochs is not None and epoch >= epochs:
        return f"max_epochs={epochs} reached"
    if settings.max_time is not None and seconds >= in_seconds(settings.max_time):
        return f"max_time={settings.max_time!r} reached"
    return None


def minimums_met(settings: Settings, step: int, epoch: int) -> bool:
    """Whether early stopping may end the fit by now."""
    return step >= (settings.min_steps or 0) and epoch >= (settings.min_epochs or 0)


class EarlyStop:
    """Follows one metric from check to check, and says when it gives a reason to end the fit."""

    def __init__(self, monitor: EarlyStopping) -> None:
        self.monitor = monitor
        self._sign = 1.0 if monitor.mode == "min" else -1.0  # times this, lower is better in both modes
        self.best = self._sign * math.inf
        """The best value so far; infinite before the first."""
        self.waited = 0
        """Checks since the best value, those within the warm-up left out."""
        self._checks = 0

    def check(self, metrics: Mapping[str, float]) -> str | None:
        """Why to end the fit, in words, after one more check; None: go on."""
        value = self._value(metrics)
        self._checks += 1
        if self.monitor.check_finite and not math.isfinite(value):
            return f"{self.monitor.monitor} is {value}"
        patient = self._follow(value)
        return self._threshold(value) or (None if patient else self._stalled())

    def state_dict(self) -> dict[str, Any]:
        """How far it has come."""
        return {"best": self.best, "waited": self.waited, "checks": self._checks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same monitor."""
        self.best, self.waited, self._checks = state["best"], state["waited"], state["checks"]

    def _value(self, metrics: Mapping[str, float]) -> float:
        name = self.monitor.monitor
        if name not in metrics:
            there = ", ".join(metrics) or "none"
            raise TaskError(
                f"early_stopping: there is no metric {name!r} to monitor. Those of this run are: {there}. "
                "Give EarlyStopping(monitor=...) one of them."
            )
        return float(metrics[name])

    def _follow(self, value: float) -> bool:
        """Take the value in; whether patience lasts."""
        if self._sign * value + self.monitor.min_delta < self._sign * self.best:
            self.best, self.waited = value, 0
            return True
        if self._checks <= self.monitor.warmup:
            return True
        self.waited += 1
        return self.waited < self.monitor.patience

    def _threshold(self, value: float) -> str | None:
        name, good, bad = (
            self.monitor.monitor,
            self.monitor.stopping_threshold,
            self.monitor.divergence_threshold,
        )
        better, worse = ("below", "above") if self.monitor.mode == "min" else ("above", "below")
        if good is not None and self._sign * value < self._sign * good:
            return f"{name} is {value:.4g}, {better} the stopping_threshold of {good:.4g}"
        if bad is not None and self._sign * value > self._sign * bad:
            return f"{name} is {value:.4g}, {worse} the divergence_threshold of {bad:.4g}"
        return None

    def _stalled(self) -> str:
        on = f" on {self.best:.4g}" if math.isfinite(self.best) else ""
        by = f" by more than {self.monitor.min_delta:.4g}" if self.monitor.min_delta else ""
        checks = "1 check" if self.waited == 1 else f"{self.waited} checks"
        return f"{self.monitor.monitor} did not improve{on}{by} in {checks}"
