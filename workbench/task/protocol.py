"""What the engine needs of the thing it trains: the Task.

`supervised.py` makes one of an nn.Module with a loss, `lightning.py` of an object with `training_step` and
`configure_optimizers`; a user may also subclass `Task` directly.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workbench.settings import Settings

if TYPE_CHECKING:
    from workbench.task.data import DataSpec


class TaskError(ValueError):
    """A model, loss or data set that cannot be trained as it is; the message says why and what to do."""


@dataclass(slots=True)
class Scores:
    """What one validation batch gives: means over its samples (scalars or floats), and how many samples."""

    values: Mapping[str, Tensor | float]
    weight: float


@dataclass(slots=True)
class Schedule:
    """A learning-rate scheduler and when it steps."""

    scheduler: LRScheduler
    interval: Literal["step", "epoch"] = "step"
    frequency: int = 1


@dataclass(slots=True)
class Optimization:
    """The optimizer of a run, with its schedules."""

    optimizer: Optimizer
    schedules: tuple[Schedule, ...] = ()
    lr: float | None = None
    """The base rate that it was made at; None: `settings.lr`, as it was asked for."""


class Progress(Protocol):
    """How far a session has come."""

    step: int
    """Updates taken."""
    epoch: int
    """Epochs finished."""


class Task(abc.ABC):
    """A model, its loss, its optimizer and its data, in the form that the engine runs.

    Subclasses set `model` (whose parameters are trained) and the three data specs (None: no such data).
    """

    model: nn.Module
    train: DataSpec | None = None
    val: DataSpec | None = None
    test: DataSpec | None = None

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All modules that a step uses (the model, a loss with weights, …): moved and kept safe together."""
        return (self.model,)

    def weight(self, batch: Any) -> float:
        """How much a batch counts within an accumulation window: its samples where the loss is their mean, else 1."""
        return 1.0

    @abc.abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch that lies on the model's device, as a scalar with a graph behind it."""

    @abc.abstractmethod
    def validation_step(self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val") -> Scores:
        """The metrics of one batch, named as they are reported ("val_loss", "val_accuracy", …)."""

    @abc.abstractmethod
    def configure(self, settings: Settings, updates: int | None) -> Optimization:
        """The optimizer at `settings.lr`, and its schedules for a run of `updates` updates (None: unknown)."""

    def follow(self, progress: Progress) -> None:  # noqa: B027  # most tasks need not know
        """A session of this task has begun; `progress` says how far it is at any time."""

    def running(self, settings: Settings) -> contextlib.AbstractContextManager[None]:
        """What holds on the user's object while a job runs (nothing, unless a task says so)."""
        return contextlib.nullcontext()

    @property
    def implied(self) -> dict[str, Any]:
        """Settings that the user's own objects imply where none was given (a loader's batch size, say)."""
        return dict(self.train.defaults) if self.train else {}
