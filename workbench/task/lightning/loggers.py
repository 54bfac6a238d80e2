"""Replaces Lightning's loggers on a module: `self.logger` passes values to a tracker of the
bench while a fit runs.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from workbench.task.errors import TaskError
from workbench.task.lightning.logging.log import Shared
from workbench.task.lightning.strategy import UnsupportedTrainerAttribute
from workbench.task.protocol import Progress, Tracker
from workbench.task.ranks import rank_of_job

_CLASSES = {
    "comet_ml": "CometLogger",
    "mlflow": "MLFlowLogger",
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
}
"""By tracker, the name of Lightning's class for it."""
_PACKAGES = ("lightning.pytorch.loggers", "pytorch_lightning.loggers")


class DummyExperiment:
    """Accepts every call and does nothing, as Lightning's class of this name: on ranks other
    than 0, and where nothing is logged.
    """

    def _nothing(self, *_: Any, **__: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._nothing

    def __getitem__(self, index: int) -> DummyExperiment:
        return self

    def __setitem__(self, *_: Any) -> None:
        return None


class Logger(Shared):
    """One tracker as `self.logger`. It passes values on while a fit trains; in searches, trials and
    evaluations it drops them.

    For `isinstance` it is of Lightning's class for that tracker, since modules check that before
    they log an image.
    """

    def __init__(self, tracker: Tracker, trainer: Any) -> None:
        self.name = tracker.name
        self._tracker: Tracker | None = tracker
        self._trainer = trainer

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        named = _CLASSES.get(vars(self).get("name", ""), "Logger")
        classes = tuple(
            getattr(sys.modules[package], named)
            for package in _PACKAGES
            if hasattr(sys.modules.get(package), named)
        )
        return _joined(classes) if classes else Logger

    def __dir__(self) -> list[str]:  # or it would list the names of Lightning's class
        return [*vars(self), *dir(type(self))]

    def __reduce__(self) -> Any:  # pickle's default uses __class__
        return _blank, (), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tracker": None}  # it belongs to the process of the bench

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedTrainerAttribute(
            f"self.logger.{name} is not supported. Instead: self.logger.experiment is the object of"
            f" {self.name} itself, which has its own version and folder; log_metrics and"
            " log_hyperparams exist."
        )

    def use(self, tracker: Tracker | None) -> None:
        """Pass values on to this tracker, which belongs to the process that now runs the fit."""
        self._tracker = tracker

    @property
    def experiment(self) -> Any:
        """The tracker's own object: TensorBoard's SummaryWriter, the run of W&B, …"""
        tracker = self._live()
        return DummyExperiment() if tracker is None else tracker.experiment()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log these numbers. step=None: the number of updates taken."""
        tracker = self._live()
        if tracker is not None:
            numbers = {
                name: value.item() if isinstance(value, Tensor) else value
                for name, value in metrics.items()
            }
            tracker.add(numbers, self._trainer.global_step if step is None else step)

    def log_hyperparams(
        self, params: Mapping[str, Any] | Namespace, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Add these to the run's settings in the tracker."""
        tracker = self._live()
        if tracker is not None:
            tracker.configure(dict(vars(params) if isinstance(params, Namespace) else params))
            self.log_metrics(metrics or {})

    def save(self) -> None:
        """Do nothing: the tracker writes by itself."""

    def _live(self) -> Tracker | None:
        """The tracker while a fit trains, else None."""
        progress: Progress = self._trainer.progress
        state = progress.state
        if (
            rank_of_job().rank != 0
            or not state.fitting
            or state.searching
            or progress.settings.fast_dev_run
        ):
            return None
        if self._tracker is None:
            raise TaskError(
                f"self.logger: the tracker {self.name!r} belongs to the notebook's process, and"
                " this fit runs in others: log numbers with self.log, or give strategy='launch'"
                " and the tracker by its name, trackers='tensorboard'."
            )
        return self._tracker


def _blank() -> Logger:
    return Logger.__new__(Logger)


@functools.cache
def _joined(classes: tuple[type, ...]) -> type:
    """One class that inherits from them: Lightning has two packages, and both may be imported."""
    return classes[0] if len(classes) == 1 else type(classes[0].__name__, classes, {})
