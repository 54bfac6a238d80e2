"""Defines Task, the interface between the engine and what it trains.

`supervised.py` makes one of an nn.Module with a loss, `lightning/task.py` of an object with
`training_step` and `configure_optimizers`; a user may also subclass `Task`.
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

from workbench.settings import Settings, SettingsError
from workbench.task.batch import sample_count
from workbench.task.errors import TaskError
from workbench.task.hooks import Hooks
from workbench.task.modules import own_name
from workbench.task.ranks import Communication
from workbench.values import shown

if TYPE_CHECKING:  # a script with the user's own Task contains this file, but not the data sets
    from workbench.task.data.spec import DataSpec

Phase = Literal["fit", "validate", "test", "predict"]
"""A kind of job, as in `setup(stage)`; finders and trials are fits."""


@dataclass(slots=True)
class Scores:
    """The result of one validation batch: means over its samples (scalars or floats), and how
    many samples.
    """

    values: Mapping[str, Tensor | float]
    weight: float
    seen: tuple[Any, Any] | None = None
    """The output and the target for `Task.epoch_metrics`; None: this batch does not update them."""
    outputs: Any = None
    """What the model (of a LightningModule, its validation step) returned, for `bench.watch`."""


@dataclass(slots=True)
class Schedule:
    """A learning-rate scheduler and when it steps: every `frequency` updates ("step") or epochs
    ("epoch").

    A ReduceLROnPlateau steps after a validation, with the metric named by `monitor`; its interval
    is "epoch" and its frequency counts validations. "manual": the task steps it itself.
    """

    scheduler: LRScheduler | ReduceLROnPlateau
    interval: Literal["step", "epoch", "manual"] = "step"
    frequency: int = 1
    monitor: str | None = None
    by_batches: bool = False
    """With "step": `frequency` counts the batches of each epoch anew, as in Lightning, and the
    scheduler steps where an update ends at such a batch.
    """
    strict: bool = True
    """Whether a `monitor` that nothing reports raises an error; False: the scheduler does not
    step then.
    """


@dataclass(slots=True)
class Optimization:
    """One optimizer of a run, with its schedules."""

    optimizer: Optimizer
    schedules: tuple[Schedule, ...] = ()
    lr: float | None = None
    """The base rate at which it was made; None: `settings.lr`."""
    frequency: int = 0
    """For one of several optimizers: for how many updates in a row only this one steps. 0 for
    all: each steps at every update.
    """


StepResult = Tensor | Mapping[str, Any] | None
"""What a training step returns: the loss; or {"loss": …} with "weight" (how much the batch counts:
its tokens, for example) or "hiddens" (state for the next piece of a split batch); None to leave the
batch out. Other scalar tensors and floats in the dict are recorded by their names, as parts of the
loss.
"""


@dataclass(frozen=True, slots=True)
class Averaging:
    """The user's functions for averaging weights: `avg_fn(averaged, current, count)`,
    `should_update(step, epoch)`.
    """

    avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None
    should_update: Callable[[int, int], bool] | None = None


class Handle(Protocol):
    """The handle through which a task with `manual = True` steps its optimizers; the engine clips,
    measures and accumulates.
    """

    @property
    def scheduling(self) -> bool:
        """Whether schedulers may step now; in a search they may not."""

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Run the backward of the loss, times the batch's share of its window."""

    def step(self, optimizer: int = 0, **options: Any) -> None:
        """Clip and step with this optimizer at the window's last batch; at earlier ones, only keep
        its gradients.

        options: further arguments of the optimizer's step.
        """

    def clip(self, optimizer: int, clip_val: float, algorithm: str) -> None:
        """Clip this optimizer's gradients in this way ("norm" or "value") at its next step,
        instead of by the settings.
        """

    def zero_grad(self, optimizer: int = 0, set_to_none: bool = True) -> None:
        """Drop the gradients of this optimizer's parameters, or set them to zero; the kept ones
        of earlier batches stay.
        """

    def toggle(self, optimizer: int) -> None:
        """Let only this optimizer's parameters require gradients from now on."""

    def untoggle(self, optimizer: int) -> None:
        """Let all parameters require gradients again that did before `toggle`."""


class Counters(Protocol):
    """The counters of a job's progress (`engine/state.py`)."""

    step: int
    """Updates taken."""
    epoch: int
    """Epochs finished."""
    batch_idx: int
    """Finished batches of this epoch."""
    mid_epoch: bool
    """Whether an epoch has begun and not ended."""
    stage: Literal["sanity", "train", "val", "test", "predict", ""]
    """The current stage; "": none yet."""
    metrics: dict[str, float]
    """The latest value of every metric that the run has reported."""
    clip_val: float | None
    fitting: bool
    """Whether a fit trains, from its first hook to its end."""
    searching: bool
    """Whether a search runs, after which all state is restored."""


class Progress(Protocol):
    """The progress of a session, with its settings and ranks."""

    settings: Settings
    """The settings in effect, with dry runs and overfitting applied."""
    device: torch.device
    updates: int | None
    """Updates of the whole run; None where they cannot be known."""

    @property
    def optimizations(self) -> Sequence[Any]:
        """The optimizers, each an object with `optimizer` and `schedules`."""

    @property
    def state(self) -> Counters:
        """The present counters."""

    @property
    def ranks(self) -> Communication:
        """The processes that do the job together."""

    @property
    def batches(self) -> tuple[int | None, tuple[int | None, ...]]:
        """The numbers of training batches of an epoch, and of validation batches of each set;
        None where unknown.
        """


class Tracker(Protocol):
    """A tracker of the bench, for a task that logs to it itself; only while a fit runs."""

    name: str

    def experiment(self) -> Any:
        """The tracker's own object (a SummaryWriter, a run of W&B). Waits until the tracker has
        opened its run.
        """

    def add(self, values: dict[str, Any], step: int) -> None:
        """Log numbers of an update."""

    def configure(self, values: dict[str, Any]) -> None:
        """Add settings to those of the run."""


class Preparation(Protocol):
    """Sets up the user's objects before a job, and tears them down afterwards
    (`lightning/setup.py`).
    """

    callback_settings: dict[str, Any]
    """The settings that replace the module's own callbacks."""
    callback_note: str
    """Which settings the module's own callbacks became; "": it has none."""

    @property
    def sources(self) -> Sequence[Any]:
        """The objects that are set up."""

    def follow(self, progress: Progress) -> None:
        """Note the session that has begun."""

    def around(self, phase: Phase, settings: Settings) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the objects are set up for a job of this kind."""


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
    hooks: Hooks | None = None
    """The task's hooks while a job runs; None: it has none."""
    preparation: Preparation | None = None
    """The objects that make the loaders, and their set-up before a job (a DataModule's setup);
    None without such objects.
    """
    manual: bool = False
    """Whether `training_step` calls backward and steps the optimizers itself, through the handle
    of `drive`.
    """

    drawn: int | None = None
    """How many samples the current batch was made of, where its loader knows; None: count them
    in the batch.
    """
    dataloader_idx: int | None = None
    """While one of several sets of held-out data is read, its number, from 0; None: there is one
    set.
    """
    loss_part_names: frozenset[str] = frozenset()
    """The names of the parts of the loss, which training alone reports; the dry run shows them."""
    epoch_metrics: Mapping[str, Any] = MappingProxyType({})
    """By name, objects with `reset()`, `update(output, target)` and `compute()` that are
    computed over a validation.
    """
    compiler: Callable[..., Any] | None = None
    """How the user has compiled the model (`torch.compile(model)`), as a function; None: it is
    not compiled.
    """

    own_lr: float = 1e-3
    """The rate of its fits unless the user sets `lr`."""
    partial: bool = True
    """Whether an update may leave some parameters without a gradient; the dry run shows whether
    all have one.
    """

    seen_sparse: str = ""
    """The name of a parameter whose gradient the dry run has seen to be sparse; "": none."""

    @property
    def sparse_layer(self) -> str:
        """The name of the layer with a sparse gradient, as the dry run or the model's layers
        show it; "": no layer has one.
        """
        tables = [
            (name, layer)
            for name, layer in self.model.named_modules()
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))
        ]
        return self.seen_sparse or next(
            (name for name, layer in tables if layer.sparse and layer.weight.requires_grad), ""
        )

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All modules that a step uses (the model, a loss with weights, …): they are moved and
        saved together.
        """
        return (self.model,)

    def begin_batch(self, samples: int | None) -> None:
        """Note how many samples the batch has that is evaluated next, where its loader knows;
        None: count them in the batch.
        """
        self.drawn = samples

    def begin_evaluation(self, *, again: bool) -> None:  # noqa: B027  # most tasks need not know
        """Note that the batches of an update are evaluated, for an optimizer that may evaluate
        them several times. again: it is not the first time.
        """

    freezes: bool = False
    """Whether `freeze` freezes parameters in some epoch."""

    def freeze(self, parameters: Mapping[str, Tensor], epoch: int) -> Mapping[str, Tensor]:
        """Freeze the parameters that do not train in this epoch, and let the others of those that
        it froze train; returns the frozen ones by name. parameters: all that the optimizers train.
        """
        return {}

    def samples_in(self, batch: Any) -> int:
        """Return how many samples the current batch has: as its loader counted them, else by
        `sample_count`.
        """
        return sample_count(batch) if self.drawn is None else self.drawn

    @property
    def trained_modules(self) -> Mapping[str, nn.Module]:
        """The modules whose parameters are trained, the model first, by the prefix of their
        parameters' names ("": none).
        """
        return {"": self.model}

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of all trained modules by name, each once; those of the model come
        first.
        """
        names: dict[nn.Parameter, str] = {}
        for prefix, module in self.trained_modules.items():
            for name, parameter in module.named_parameters():
                names.setdefault(parameter, prefix + own_name(name))
        return {name: parameter for parameter, name in names.items()}

    def weight(self, batch: Any) -> float:
        """Return the weight of a batch within an accumulation window: its samples if the loss is
        their mean, else 1.
        """
        return 1.0

    @abc.abstractmethod
    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        """Return the loss of one batch on the model's device, as a scalar with a graph.

        extra: `optimizer_idx` where there are several optimizers and the task is not manual;
        `hiddens` with `truncated_bptt_steps` (None at the first piece of a batch).
        """

    @abc.abstractmethod
    def validation_step(
        self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val"
    ) -> Scores:
        """Return the metrics of one batch, by the names under which they are reported ("val_loss",
        "val_accuracy", …).

        Where there are several sets of data, `dataloader_idx` is the number of this one, and the
        engine adds its name to those of the metrics ("val_loss/clean").
        """

    def suffix_of(self, spec: DataSpec) -> str:
        """The end of the names of metrics for one of several sets; "": there is one."""
        return f"/{spec.key}" if spec.key else ""

    @abc.abstractmethod
    def configure(
        self, settings: Settings, updates: int | None
    ) -> Optimization | Sequence[Optimization]:
        """Make the optimizers at `settings.lr`, each with its schedules for a run of `updates`
        updates (None: unknown).
        """

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the model's output for one batch, with or without targets."""
        raise TaskError(f"{type(self).__name__} defines no predict_step.")

    def split(self, batch: Any, length: int, time_dim: int) -> Sequence[Any] | None:
        """Split the batch into pieces of `length` time steps; None: the workbench splits it."""
        return None

    def checking_steps(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the dry run tries steps: the task also checks for mistakes
        that raise no error.
        """
        return contextlib.nullcontext()

    def drive(self, handle: Handle) -> None:  # noqa: B027  # only a manual task needs it
        """Give a manual task the handle of the session that begins. It is not called for other
        tasks.
        """

    def reported(self, settings: Settings) -> tuple[str, ...] | None:
        """Return the names of all metrics that the validations of a fit will report; None:
        unknown until it runs.
        """
        return None

    def follow(self, progress: Progress) -> None:
        """Note that a session of this task has begun; `progress` always has its present state."""
        if self.preparation is not None:
            self.preparation.follow(progress)

    def running(
        self, settings: Settings, phase: Phase = "fit"
    ) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the user's objects are set up for a job of this kind."""
        return (
            contextlib.nullcontext()
            if self.preparation is None
            else self.preparation.around(phase, settings)
        )

    def use_trackers(self, trackers: Sequence[Tracker]) -> None:  # noqa: B027  # only an object with a logger needs it
        """Note the trackers that this process runs; a tracker that another process ran is one of
        the same name.
        """

    @property
    def implied(self) -> dict[str, Any]:
        """Settings that the user's own objects imply (a loader's batch size, for example), for
        those that the user did not set.
        """
        if self.train is None:
            return {}
        defaults = dict(self.train.defaults)
        if (
            self.train.parts.own_batches is not None
            and self.val is not None
            and "batch_size" in self.val.defaults
        ):
            # it applies to the validation data alone
            defaults.setdefault("batch_size", self.val.defaults["batch_size"])
        return defaults

    @property
    def uses_batch_size(self) -> bool:
        """Whether a fit has a batch size to record: not where all its data come in batches of
        unknown size.

        An object that makes its loaders may read the setting as an attribute.
        """
        data = [spec for spec in (self.train, self.val) if spec is not None]
        if any(spec.made_by_object for spec in data):
            return True
        return any(
            "batch_size" in dataset.defaults or not dataset.parts.own_batches
            for spec in data
            for dataset in spec.sets
        )

    def implied_by(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings that the task implies beside those that the user gave."""
        return self.implied

    @property
    def optimizer_text(self) -> str:
        """What makes the optimizer where the settings name none, for records; "": the task does."""
        return ""

    @property
    def loss_text(self) -> str:
        """The name of `loss=`, for records; "": the model or the task has the loss."""
        return ""

    @property
    def groups_text(self) -> str:
        """The rules that divide its parameters into groups, for records; "": there are none."""
        return ""

    def refuse_optimizer(self, settings: Settings) -> None:
        """Raise SettingsError where the task cannot have the optimizer that the settings name."""
        if settings.optimizer is not None:
            raise SettingsError(
                f"optimizer={shown(settings.optimizer)}: {type(self.model).__name__} makes its own"
                " optimizer (configure_optimizers, or the task's configure): leave the setting out."
            )

    def refuse_unused(self, given: Mapping[str, Any], stage: Phase = "fit") -> None:
        """Raise SettingsError for a setting that the user gave for this kind of job and that has no
        effect on its data, and TaskError for a batch size larger than the training data.
        """
        specs = {
            "fit": self.train,
            "validate": self.val,
            "test": self.test,
            "predict": self.predict or self.test,
        }
        spec = specs[stage]
        if spec is not None:
            spec.refuse_unused(given, train=stage == "fit")
            if stage == "fit" and given.get("batch_size") is not None:
                spec.refuse_larger(int(given["batch_size"]))
