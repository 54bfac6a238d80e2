"""Replaces Lightning's Trainer on a module, and on a DataModule, while a job runs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench.settings import Settings
from workbench.task.data.spec import DataSpec
from workbench.task.data.to_dataset import UNNAMED
from workbench.task.errors import TaskError
from workbench.task.lightning.fit_loop import FitLoop
from workbench.task.lightning.loggers import Logger
from workbench.task.lightning.logging.log import Log, Shared
from workbench.task.lightning.strategy import Strategy, UnsupportedTrainerAttribute
from workbench.task.protocol import Phase, Progress, Tracker
from workbench.task.ranks import Communication, SingleProcess, rank_of_job

_STAGES: Mapping[str, str] = {
    "fit": "train",
    "validate": "val",
    "test": "test",
    "predict": "predict",
}
_NAMES: Mapping[str, str] = {
    "train": "train",
    "val": "validate",
    "sanity": "sanity_check",
    "test": "test",
    "predict": "predict",
}
"""The stages by the names of Lightning's RunningStage."""

_BENCH = "it is the bench that starts jobs: bench.{}()"
_CHECKPOINTS = (
    "checkpoint_every=… and job.checkpoint() write one between two updates, of which"
    " run.to_lightning(path) makes Lightning's file"
)
REMEDIES: Mapping[str, str] = {
    **{job: _BENCH.format(job) for job in ("fit", "validate", "test", "predict")},
    "save_checkpoint": _CHECKPOINTS,
    "ckpt_path": "bench.fit(start=…) continues from a checkpoint, bench.load(…) loads one",
    "precision_plugin": "the module itself has self.clip_gradients and self.manual_backward",
    "distributed_sampler_kwargs": (
        "the workbench shards the batches over the ranks: world_size and global_rank exist"
    ),
    "log_dir": (
        "trackers have folders of their own, which self.logger.experiment has;"
        " self.trainer.default_root_dir is the present folder"
    ),
    "accelerator": "the module itself has self.device",
    "num_test_batches": "len(self.trainer.test_dataloaders) counts them, before limit_test_batches",
    "barebones": "self.log is there on the trained module, not on those inside it",
    "profiler": "bench.profile() says what limits the speed, and makes a trace",
}


def unknown() -> int | None:
    """Return None: the length is unknown."""
    return None


@dataclass
class NoneYet:
    """The `Counters` of a job that has not begun."""

    clip_val: float | None
    step: int = 0
    epoch: int = 0
    batch_idx: int = 0
    stage: Literal["sanity", "train", "val", "test", "predict", ""] = ""
    metrics: dict[str, float] = field(default_factory=dict)
    mid_epoch: bool = False
    fitting: bool = False
    searching: bool = False


class PlannedProgress:
    """The `Progress` of a job that has not begun."""

    device = torch.device("cpu")
    batches: tuple[int | None, tuple[int | None, ...]] = (None, ())
    ranks: Communication = SingleProcess()
    optimizations: Sequence[Any] = ()

    def __init__(self, settings: Settings, count: Callable[[], int | None] = unknown) -> None:
        self.settings = settings
        self.state = NoneYet(settings.gradient_clip_val)
        self._count = count

    @property
    def updates(self) -> int | None:
        """The planned number of updates; None: unknown."""
        return self._count()


class Trainer(Shared):
    """The object that a module finds as `self.trainer`: the job's progress and objects; any
    other attribute raises an error.
    """

    read_sanity_stage: bool
    """Whether the stage was read during a sanity check."""
    should_stop: bool
    """If True, the fit ends as soon as the minimums are met."""
    callbacks: list[Any]
    """The callbacks whose hooks are called."""
    loggers: list[Any]
    """One logger for each tracker of the bench."""

    progress_bar_callback = checkpoint_callback = early_stopping_callback = scaler = None
    interrupted = received_sigterm = False

    def __init__(self, module: Any, log: Log) -> None:
        vars(self).update(
            should_stop=False,
            lightning_module=module,
            datamodule=None,
            _log=log,
            _progress=None,
            _model=None,
            callbacks=[],
            loggers=[],
            _plan=PlannedProgress(Settings()),
            _phase="fit",
            _ahead="",
            _made=(),
            _specs={},
            _batch_idx=0,
            _mirror=({}, frozenset()),
            read_sanity_stage=False,
            _manual=None,
        )

    def __getstate__(self) -> dict[str, Any]:
        # A session belongs to its process, and refers to everything of a job.
        return {
            **vars(self),
            "_progress": None,
            "_made": (),
            "_mirror": ({}, frozenset()),
            "_plan": PlannedProgress(self._plan.settings),
        }

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "should_stop":
            raise UnsupportedTrainerAttribute(
                f"self.trainer.{name} = … is not supported: only should_stop can be"
                f" set.{_instead(name)}"
            )
        vars(self)[name] = bool(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedTrainerAttribute(f"self.trainer.{name} is not supported.{_instead(name)}")

    # -- set by the task

    def set_model(self, model: nn.Module, specs: Mapping[str, DataSpec | None]) -> None:
        """Set the task's model and data."""
        vars(self).update(_model=model, _specs=dict(specs))

    def set_manual(self, manual: Any) -> None:
        """Set the methods with which the module steps its optimizers itself."""
        vars(self)["_manual"] = manual

    def set_datamodule(self, datamodule: Any) -> None:
        """Set the object that makes the data."""
        vars(self)["datamodule"] = datamodule

    def set_callbacks(self, callbacks: list[Any]) -> None:
        """Set the callbacks whose hooks are called."""
        vars(self)["callbacks"] = callbacks

    def use_trackers(self, trackers: Sequence[Tracker]) -> None:
        """Make a logger of each tracker; in another process, give the loggers that process's
        own.
        """
        by_name = {tracker.name: tracker for tracker in trackers}
        for logger in self.loggers:
            logger.use(by_name.get(logger.name))
        if not self.loggers:
            vars(self)["loggers"] = [Logger(tracker, self) for tracker in trackers]

    def follow(self, progress: Progress) -> None:
        """Follow a session that has begun."""
        vars(self)["_progress"] = progress

    def set_optimizers(self, optimizations: Sequence[Any]) -> None:
        """Set the session's optimizers."""
        vars(self)["_made"] = tuple(optimizations)

    def set_batch_idx(self, batch_idx: int) -> None:
        """Set the number of the current batch."""
        vars(self)["_batch_idx"] = batch_idx

    def module_properties(self) -> dict[str, Any]:
        """Return the values of a LightningModule's properties: epoch, step, device."""
        now = self.progress
        return {
            "current_epoch": now.state.epoch,
            "global_step": now.state.step,
            "device": now.device,
        }

    def refresh(self) -> None:
        """Update the attributes of an object that lacks these properties."""
        attributes, names = self._mirror
        if names:
            attributes.update(
                {name: value for name, value in self.module_properties().items() if name in names}
            )

    @contextlib.contextmanager
    def mirrored(self, attributes: dict[str, Any], names: Iterable[str]) -> Iterator[None]:
        """Context manager in which the object's attributes of these names are kept up to date."""
        before, vars(self)["_mirror"] = (
            self._mirror,
            (attributes, frozenset(names) & self.module_properties().keys()),
        )
        try:
            yield
        finally:
            vars(self)["_mirror"] = before

    @contextlib.contextmanager
    def planned(
        self, settings: Settings, count: Callable[[], int | None] = unknown
    ) -> Iterator[None]:
        """Context manager before the session of a job with these settings: the properties come
        from the settings until `follow`.
        """
        before = {name: vars(self)[name] for name in ("_plan", "_progress", "_made", "should_stop")}
        vars(self).update(
            _plan=PlannedProgress(settings, count), _progress=None, _made=(), should_stop=False
        )
        try:
            yield
        finally:
            vars(self).update(before)

    @contextlib.contextmanager
    def running_phase(self, phase: Phase) -> Iterator[None]:
        """Context manager in which a job of this kind runs."""
        before = self._phase
        vars(self)["_phase"] = phase
        try:
            yield
        finally:
            vars(self)["_phase"] = before

    @contextlib.contextmanager
    def ahead(self, stage: str) -> Iterator[None]:
        """Context manager in which this stage counts as begun."""
        vars(self)["_ahead"] = stage
        try:
            yield
        finally:
            vars(self)["_ahead"] = ""

    @property
    def progress(self) -> Progress:
        """The session's progress, or the plan of the job to come."""
        current: Progress = self._plan if self._progress is None else self._progress
        return current

    # -- progress

    @property
    def current_epoch(self) -> int:
        return self.progress.state.epoch

    @property
    def global_step(self) -> int:
        """Updates taken."""
        return self.progress.state.step

    @property
    def _stage(self) -> str:
        stage = self._ahead or self.progress.state.stage or _STAGES[self._phase]
        if stage == "sanity":
            vars(self)["read_sanity_stage"] = True
        return stage

    @property
    def training(self) -> bool:
        return self._stage == "train"

    @property
    def validating(self) -> bool:
        return self._stage == "val"

    @property
    def sanity_checking(self) -> bool:
        return self._stage == "sanity"

    @property
    def testing(self) -> bool:
        return self._stage == "test"

    @property
    def predicting(self) -> bool:
        return self._stage == "predict"

    @property
    def evaluating(self) -> bool:
        return self._stage in ("val", "sanity", "test")

    @property
    def state(self) -> SimpleNamespace:
        return SimpleNamespace(fn=self._phase, stage=_NAMES[self._stage], status="running")

    @property
    def is_last_batch(self) -> bool:
        batches = self.progress.batches[0]
        if batches is None:
            raise TaskError(
                "self.trainer.is_last_batch: unknown, since the training data has no length."
            )
        return bool(self._batch_idx + 1 >= batches)

    # -- length

    @property
    def max_epochs(self) -> int:
        """-1: no number of epochs ends it."""
        epochs = self.progress.settings.epochs
        return -1 if epochs is None else epochs

    @property
    def min_epochs(self) -> int | None:
        return self.progress.settings.min_epochs

    @property
    def max_steps(self) -> int:
        """-1: no number of updates ends it."""
        steps = self.progress.settings.max_steps
        return -1 if steps is None else steps

    @property
    def min_steps(self) -> int | None:
        return self.progress.settings.min_steps

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Updates of the whole fit."""
        updates = self.progress.updates
        if updates is not None:
            return updates
        steps = self.progress.settings.max_steps
        return math.inf if steps is None else steps

    @property
    def num_training_batches(self) -> int | float:
        return _or_inf(self.progress.batches[0])

    @property
    def num_val_batches(self) -> list[int | float]:
        return (
            []
            if self._specs.get("val") is None
            else [_or_inf(batches) for batches in self.progress.batches[1] or (None,)]
        )

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        return [min(self.num_sanity_val_steps, batches) for batches in self.num_val_batches]

    @property
    def num_sanity_val_steps(self) -> int | float:
        steps = self.progress.settings.num_sanity_val_steps
        return math.inf if steps < 0 else steps

    @property
    def enable_validation(self) -> bool:
        return self._specs.get("val") is not None and self.progress.settings.limit_val_batches > 0

    # -- settings

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches in one update of this epoch."""
        setting = self.progress.settings.accumulate_grad_batches
        if isinstance(setting, int):
            return setting
        return setting.get(
            max((epoch for epoch in setting if epoch <= self.current_epoch), default=-1), 1
        )

    @property
    def gradient_clip_val(self) -> float | None:
        return self.progress.state.clip_val

    @property
    def gradient_clip_algorithm(self) -> str | None:
        """None where nothing is clipped."""
        return (
            None
            if self.progress.state.clip_val is None
            else self.progress.settings.gradient_clip_algorithm
        )

    def limits(self, clip_val: float | None, algorithm: str | None) -> tuple[float, str]:
        """The arguments of a module's `clip_gradients`, with the settings as defaults; 0:
        nothing is clipped.
        """
        algorithm = (algorithm or self.progress.settings.gradient_clip_algorithm).lower()
        value = self.progress.state.clip_val if clip_val is None else clip_val
        if algorithm not in ("norm", "value"):
            raise TaskError(
                f"clip_gradients(gradient_clip_algorithm={algorithm!r}): 'norm' or 'value'."
            )
        return float(value or 0.0), algorithm

    @property
    def default_root_dir(self) -> str:
        return os.getcwd()

    @property
    def log_dir(self) -> str:
        if self.loggers:
            # __getattr__ replaces it by the error with its remedy
            raise UnsupportedTrainerAttribute
        return os.getcwd()

    # -- ranks and devices

    @property
    def is_global_zero(self) -> bool:
        return rank_of_job().rank == 0

    @property
    def global_rank(self) -> int:
        return rank_of_job().rank

    @property
    def local_rank(self) -> int:
        return rank_of_job().local_rank

    @property
    def node_rank(self) -> int:
        return rank_of_job().node_rank

    @property
    def world_size(self) -> int:
        return rank_of_job().world

    @property
    def num_devices(self) -> int:
        """The number of processes on one machine."""
        return rank_of_job().local_world

    @property
    def num_nodes(self) -> int:
        return rank_of_job().nodes

    @property
    def device_ids(self) -> list[int]:
        asked, rank = self.progress.settings.devices, rank_of_job()
        if not rank.several:
            return [self.progress.device.index or 0]
        return list(asked) if isinstance(asked, tuple) else list(range(rank.local_world))

    @property
    def strategy(self) -> Strategy:
        """The supported part of Lightning's strategies: collectives between the processes of the
        job.
        """
        return Strategy(self.progress.device, self._manual)

    # -- model, optimizers and data

    @property
    def fit_loop(self) -> FitLoop:
        """Has `epoch_progress`."""
        return FitLoop(self.progress.state, self._log.hook)

    @property
    def model(self) -> Any:
        return (
            self.lightning_module if isinstance(self.lightning_module, nn.Module) else self._model
        )

    @property
    def optimizers(self) -> list[Any]:
        return [optimization.optimizer for optimization in self._made]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """Each has scheduler, interval, frequency and monitor."""
        return [schedule for optimization in self._made for schedule in optimization.schedules]

    @property
    def train_dataloader(self) -> Any:
        """A loader like the one for training."""
        return self._loader("train")

    @property
    def val_dataloaders(self) -> Any:
        return self._loader("val")

    @property
    def test_dataloaders(self) -> Any:
        return self._loader("test")

    @property
    def predict_dataloaders(self) -> Any:
        return self._loader("predict")

    def _loader(self, name: str) -> Any:
        spec = self._specs.get(name)
        if spec is None:
            return None
        loaders = {
            dataset.key: dataset.loader(self.progress.settings, train=name == "train")
            for dataset in spec.sets
        }
        if not spec.several:
            return loaders[""]
        return list(loaders.values()) if f"{UNNAMED}0" in loaders else loaders

    @property
    def logger(self) -> Any:
        """The first of the loggers; None: the bench has no tracker."""
        return self.loggers[0] if self.loggers else None

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return []

    early_stopping_callbacks = checkpoint_callbacks

    # -- metrics

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest value of every metric; a logged value has its own name, also where the
        record has another.
        """
        logged = self._log.known()
        return {
            name: torch.as_tensor(value)
            for name, value in {**self.progress.state.metrics, **logged}.items()
        }

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The metrics of `callback_metrics`, and the latest values that were logged for single
        batches of a validation.
        """
        return {
            **self.callback_metrics,
            **{name: torch.as_tensor(value) for name, value in self._log.batch_values.items()},
        }

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        shown = self._log.on_bar
        return {
            name: float(value) for name, value in self.callback_metrics.items() if name in shown
        }

    def print(self, *arguments: Any, **options: Any) -> None:
        """Print on rank 0 only."""
        if self.is_global_zero:
            print(*arguments, **options)


def _setting(name: str) -> Any:
    return property(lambda self: getattr(self.progress.settings, name), doc=f"The setting {name}.")


for _name in (
    "precision",
    "log_every_n_steps",
    "check_val_every_n_epoch",
    "val_check_interval",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "fast_dev_run",
    "reload_dataloaders_every_n_epochs",
):
    setattr(Trainer, _name, _setting(_name))


def _or_inf(batches: int | None) -> int | float:
    return math.inf if batches is None else batches


def _instead(name: str) -> str:
    return f" Instead: {REMEDIES[name]}." if name in REMEDIES else ""
