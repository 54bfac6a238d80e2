"""What the engine needs of the thing it trains: the Task.

`supervised.py` makes one of an nn.Module with a loss, `lightning.py` of an object with `training_step` and
`configure_optimizers`; a user may also subclass `Task` directly.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workbench.settings import Settings
from workbench.task.batch import sample_count
from workbench.task.compiled_model import own_name
from workbench.task.hooks import Hooks
from workbench.task.ranks import Communication
from workbench.tracebacks import UserError

if TYPE_CHECKING:
    from workbench.task.data.spec import DataSpec
    from workbench.task.lightning.setup import Preparation


Phase = Literal["fit", "validate", "test", "predict"]
"""A kind of job, as `setup(stage)` knows them; finders and trials are fits."""


class TaskError(UserError):
    """A model, loss or data set that cannot be trained as it is; the message says why and what to do."""


@dataclass(slots=True)
class Scores:
    """What one validation batch gives: means over its samples (scalars or floats), and how many samples."""

    values: Mapping[str, Tensor | float]
    weight: float
    seen: tuple[Any, Any] | None = None
    """The output and the target that `Task.epoch_metrics` are updated with; None: they are not, with this batch."""


@dataclass(slots=True)
class Schedule:
    """A learning-rate scheduler and when it steps: every `frequency` updates ("step") or epochs ("epoch").

    A ReduceLROnPlateau steps after a check of the validation data, with the metric named by `monitor`; its
    interval is "epoch" and its frequency counts those checks. "manual": the task steps it itself.
    """

    scheduler: LRScheduler | ReduceLROnPlateau
    interval: Literal["step", "epoch", "manual"] = "step"
    frequency: int = 1
    monitor: str | None = None
    by_batches: bool = False
    """Of "step": `frequency` counts the batches of each epoch anew, as Lightning does, and the scheduler steps where an
    update ends at such a batch."""
    strict: bool = True
    """Whether a `monitor` that nothing reports is an error; False: the scheduler does not step then."""


@dataclass(slots=True)
class Optimization:
    """One optimizer of a run, with its schedules."""

    optimizer: Optimizer
    schedules: tuple[Schedule, ...] = ()
    lr: float | None = None
    """The base rate that it was made at; None: `settings.lr`, as it was asked for."""
    frequency: int = 0
    """Of several optimizers: for how many updates in a row it is this one's turn alone. 0 for all: each at every update."""


StepResult = Tensor | Mapping[str, Any] | None
"""What a training step returns: the loss; or {"loss": …} with "weight" (how much the batch counts: its tokens, say) or
"hiddens" (state carried to the next piece of a split batch); None to leave the batch out."""


@dataclass(frozen=True, slots=True)
class Averaging:
    """The user's own ways of averaging weights: `avg_fn(averaged, current, count)`, `should_update(step, epoch)`."""

    avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None
    should_update: Callable[[int, int], bool] | None = None


class Handle(Protocol):
    """What a task with `manual = True` steps its optimizers through; clipping, norms and accumulation stay the engine's."""

    @property
    def scheduling(self) -> bool:
        """Whether schedulers may step now; in a search they may not."""

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Gradients of the loss, at the batch's share of its window."""

    def step(self, optimizer: int = 0, **options: Any) -> None:
        """Clip and take a step with this optimizer, at the window's last batch; before it, set its gradients aside.

        options: what the optimizer's step is called with.
        """

    def clip(self, optimizer: int, clip_val: float, algorithm: str) -> None:
        """Clip this optimizer's gradients so at its next step, in place of the settings; "norm" or "value"."""

    def zero_grad(self, optimizer: int = 0) -> None:
        """Drop the gradients of this optimizer's parameters; those set aside stay."""

    def toggle(self, optimizer: int) -> None:
        """From here on only this optimizer's parameters require gradients."""

    def untoggle(self, optimizer: int) -> None:
        """All parameters require gradients again that did before `toggle`."""


class Progress(Protocol):
    """How far a session has come, and what it works with."""

    settings: Settings
    """Those that hold, dry runs and overfitting worked in."""
    device: torch.device
    step: int
    """Updates taken."""
    epoch: int
    """Epochs finished."""
    batch_idx: int
    """Batches of this epoch that are done with."""
    stage: Literal["sanity", "train", "val", "test", "predict", ""]
    """What goes on; "": nothing yet."""
    updates: int | None
    """Updates of the whole run; None where nobody can know."""
    metrics: dict[str, float]
    """The latest value of every metric that the run has reported."""
    clip_val: float | None

    @property
    def ranks(self) -> Communication:
        """The processes that do the job together."""

    @property
    def batches(self) -> tuple[int | None, int | None]:
        """Training batches of an epoch, and validation batches of a check; None where nobody can know."""


class Task(abc.ABC):
    """A model, its loss, its optimizer and its data, in the form that the engine runs.

    Subclasses set `model` (whose parameters are trained) and the data specs (None: no such data).
    """

    model: nn.Module
    train: DataSpec | None = None
    val: DataSpec | None = None
    test: DataSpec | None = None
    predict: DataSpec | None = None
    averaging: Averaging = Averaging()
    moments: Hooks | None = None
    """What the task wants to hear of, or do its own way, while a job runs; None: nothing."""
    preparation: Preparation | None = None
    """The objects that make the loaders, and what they set up before a job (a DataModule's setup); None: there are none."""
    manual: bool = False
    """Whether `training_step` calls backward and steps the optimizers itself, through the handle of `drive`."""

    drawn: int | None = None
    """How many samples the batch at hand was made of, where its loader knows; None: count them in the batch."""
    epoch_metrics: Mapping[str, Any] = MappingProxyType({})
    """By name, objects with `reset()`, `update(output, target)` and `compute()` that are computed over a check."""
    compiler: Callable[..., Any] | None = None
    """What compiles a function as the user has compiled the model (`torch.compile(model)`); None: it was not compiled."""

    partial: bool = True
    """Whether an update may leave some parameters without a gradient; the dry run shows whether all have one."""

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All modules that a step uses (the model, a loss with weights, …): moved and kept safe together."""
        return (self.model,)

    def samples_in(self, batch: Any) -> int:
        """How many samples the batch at hand holds: those that its loader drew, else as `sample_count` says."""
        return sample_count(batch) if self.drawn is None else self.drawn

    @property
    def trained_modules(self) -> Mapping[str, nn.Module]:
        """The modules whose parameters are trained, the model first, by the prefix of their parameters' names ("": none)."""
        return {"": self.model}

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of all trained modules by name, each once; those of the model come first."""
        found: dict[nn.Parameter, str] = {}
        for prefix, module in self.trained_modules.items():
            for name, parameter in module.named_parameters():
                found.setdefault(parameter, prefix + own_name(name))
        return {name: parameter for parameter, name in found.items()}

    def weight(self, batch: Any) -> float:
        """How much a batch counts within an accumulation window: its samples where the loss is their mean, else 1."""
        return 1.0

    @abc.abstractmethod
    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        """The loss of one batch that lies on the model's device, as a scalar with a graph behind it.

        extra: `optimizer_idx` where there are several optimizers and the task is not manual; `hiddens` under
        `truncated_bptt_steps` (None at the first piece of a batch).
        """

    @abc.abstractmethod
    def validation_step(self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val") -> Scores:
        """The metrics of one batch, named as they are reported ("val_loss", "val_accuracy", …)."""

    @abc.abstractmethod
    def configure(self, settings: Settings, updates: int | None) -> Optimization | Sequence[Optimization]:
        """The optimizers at `settings.lr`, each with its schedules for a run of `updates` updates (None: unknown)."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The model's output for one batch, with or without targets."""
        raise TaskError(f"{type(self).__name__} defines no predict_step.")

    def split(self, batch: Any, length: int, time_dim: int) -> Sequence[Any] | None:
        """The batch in pieces of `length` time steps, where the task has its own way; None: the workbench's."""
        return None

    def trying(self) -> contextlib.AbstractContextManager[None]:
        """Inside, steps are only tried out: mistakes that raise no error of themselves are looked for."""
        return contextlib.nullcontext()

    def drive(self, handle: Handle) -> None:  # noqa: B027  # only a manual task needs it
        """Of a manual task: the handle of the session that begins. (A task that is not manual never hears of it.)"""

    def reported(self, settings: Settings) -> tuple[str, ...] | None:
        """The names of all metrics that checks of a fit will know of; None: they show only as it runs."""
        return None

    def follow(self, progress: Progress) -> None:
        """A session of this task has begun; `progress` says how far it is at any time."""
        if self.preparation is not None:
            self.preparation.follow(progress)

    def running(self, settings: Settings, phase: Phase = "fit") -> contextlib.AbstractContextManager[None]:
        """What holds on the user's objects while a job of this kind runs: what its data counts on is set up."""
        return contextlib.nullcontext() if self.preparation is None else self.preparation.around(phase, settings)

    @property
    def implied(self) -> dict[str, Any]:
        """Settings that the user's own objects imply where none was given (a loader's batch size, say)."""
        if self.train is None:
            return {}
        found = dict(self.train.defaults)
        if self.train.parts.own_batches is not None and self.val is not None and "batch_size" in self.val.defaults:
            found.setdefault("batch_size", self.val.defaults["batch_size"])  # it counts for the validation data alone
        return found

    def refuse_unused(self, given: Mapping[str, Any], stage: Phase = "fit") -> None:
        """Raise SettingsError for a setting that the user gave for this kind of job and that cannot take effect on its data."""
        specs = {"fit": self.train, "validate": self.val, "test": self.test, "predict": self.predict or self.test}
        spec = specs[stage]
        if spec is not None:
            spec.refuse_unused(given, train=stage == "fit")
