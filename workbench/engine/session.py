"""The session: all state of one job that changes while it runs, in one place.

A fit, a finder and a trial each open one. `snapshot` and `restore` bring everything back, which is how a finder
leaves no trace.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.engine import rng
from workbench.engine.meter import Meter
from workbench.engine.runtime import Runtime
from workbench.engine.weights import Weights
from workbench.settings import Settings
from workbench.task.data import Loader, batches_in
from workbench.task.protocol import Schedule, Task, TaskError
from workbench.techniques.accumulation import updates_in


class Session:
    """A task with its optimizer and loaders on a device, and how far it has come.

    `step` counts the updates taken, `epoch` the epochs finished, `batch_idx` the batches of this epoch.
    """

    def __init__(self, task: Task, settings: Settings, runtime: Runtime) -> None:
        self.task = task
        self.settings = settings
        self.device = runtime.device
        self.on_cpu = runtime.device.type == "cpu"
        for module in task.modules[1:]:
            module.to(runtime.device)
        self.model = runtime.prepare(task.model)
        named = [(name, p) for name, p in task.model.named_parameters() if p.requires_grad]
        if not named:
            raise TaskError("the model has no trainable parameters: nothing requires a gradient.")
        self.names = tuple(name for name, _ in named)
        self.parameters = [p for _, p in named]
        if task.train is None:
            raise TaskError("no training data: give train= (a Dataset, a DataLoader, or arrays).")
        self.train_loader: Loader = task.train.loader(settings, train=True)
        self.updates_per_epoch = _updates(self.train_loader, settings)
        self.updates = _total(self.updates_per_epoch, settings)
        self._val_loader: Loader | None = None
        if task.val is not None:
            # An object's val_dataloader() may draw random numbers: now, not in the middle of the run.
            self._val_loader = task.val.loader(settings)
        optimization = task.configure(settings, self.updates)
        self.optimizer: Optimizer = optimization.optimizer
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise TaskError("optimizer=LBFGS needs its step to evaluate the loss again, which is not served yet.")
        self.schedules: tuple[Schedule, ...] = optimization.schedules
        self.all_schedules = optimization.schedules
        self.step = 0
        self.epoch = 0
        self.batch_idx = 0
        task.follow(self)
        self.base_lr = settings.lr if optimization.lr is None else optimization.lr
        if self.base_lr != settings.lr:
            self.set_lr(settings.lr)
        norm = settings.track_grad_norm
        self.norm_order = None if norm is None else float(norm)
        self.clip_val = settings.gradient_clip_val
        self.recording = True
        self.meter = Meter(len(self.names), self.device, settings.log_every_n_steps, norm is not None)

    @property
    def lr(self) -> float:
        """The rate of the first parameter group as it is now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """A new base rate: schedules and the ratios of parameter groups multiply it."""
        old, self.base_lr = self.base_lr, lr

        def scaled(value: Any) -> Any:
            return lr if value == old else value * (lr / old)

        for group in self.optimizer.param_groups:
            for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                if key in group:
                    group[key] = scaled(group[key])
        for schedule in self.schedules:
            for part in chain(schedule.scheduler):
                for name in ("base_lrs", "max_lrs"):
                    if hasattr(part, name):
                        setattr(part, name, [scaled(value) for value in getattr(part, name)])
                if isinstance(getattr(part, "eta_min", None), float):
                    part.eta_min = scaled(part.eta_min)

    def train_mode(self) -> None:
        """Training mode for all of the model, unless it is on: then a part that the user set to eval stays so."""
        if not self.task.model.training:
            self.task.model.train()

    def val_loader(self) -> Loader | None:
        """The validation loader, made once for the job."""
        return self._val_loader

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """Inside, anything may be tried: nothing is recorded, no schedule steps, and all comes back on every exit.

        The copy of the weights lies in host memory, so that it takes none of the device's.
        """
        before = Snapshot.take(self)
        clip_val = self.clip_val
        self.schedules, self.recording = (), False
        try:
            yield
        finally:
            self.schedules, self.recording, self.clip_val = self.all_schedules, True, clip_val
            before.restore()

    def close(self) -> None:
        """Let go of gradients and loader processes."""
        for parameter in self.parameters:
            parameter.grad = None
        for loader in (self.train_loader, self._val_loader):
            workers = getattr(loader, "_iterator", None)
            if workers is not None and hasattr(workers, "_shutdown_workers"):
                workers._shutdown_workers()


@contextlib.contextmanager
def opened(task: Task, settings: Settings) -> Iterator[Session]:
    """A session for one job: seeded, with the process's random state and torch flags put back after."""
    with rng.kept(), _deterministic(settings.deterministic), task.running(settings):
        rng.seed(settings.seed)
        for spec in (task.train, task.val, task.test):
            if spec is not None:
                spec.refresh()
        modes = Modes.of(task)
        kept = [(p, p.grad) for module in task.modules for p in module.parameters()]
        for parameter, _ in kept:
            parameter.grad = None
        session: Session | None = None
        try:
            session = Session(task, settings, Runtime(settings))
            yield session
        finally:
            modes.restore()
            if session is not None:
                session.close()
            for parameter, grad in kept:  # the parameter may lie on another device now
                parameter.grad = None if grad is None else grad.to(parameter.device)


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warn_only)
        torch.backends.cudnn.benchmark = before[1]


@dataclass(frozen=True)
class Modes:
    """Which modules are in training mode."""

    modules: tuple[tuple[nn.Module, bool], ...]

    @classmethod
    def of(cls, task: Task) -> Modes:
        return cls(tuple((part, part.training) for whole in task.modules for part in whole.modules()))

    def restore(self) -> None:
        for module, training in self.modules:
            module.training = training


@dataclass(frozen=True)
class Snapshot:
    """A session at one moment; `restore` brings all of it back, whatever happened in between."""

    session: Session
    weights: Weights
    optimizer: dict[str, Any]
    schedules: tuple[dict[str, Any], ...]
    counters: tuple[int, int, int, float]
    modes: Modes
    random: rng.RandomState

    @classmethod
    def take(cls, session: Session) -> Snapshot:
        return cls(
            session,
            Weights.of(session.task, tensors=True),
            copy.deepcopy(session.optimizer.state_dict()),
            tuple(copy.deepcopy(s.scheduler.state_dict()) for s in session.all_schedules),
            (session.step, session.epoch, session.batch_idx, session.base_lr),
            Modes.of(session.task),
            rng.RandomState.capture(),
        )

    def restore(self) -> None:
        session = self.session
        try:
            self.weights.put(session.task)
            session.optimizer.load_state_dict(self.optimizer)
            for schedule, state in zip(session.all_schedules, self.schedules, strict=True):
                schedule.scheduler.load_state_dict(state)
        finally:
            for parameter in session.parameters:
                parameter.grad = None
            session.step, session.epoch, session.batch_idx, session.base_lr = self.counters
            self.modes.restore()
            self.random.restore()


def _updates(loader: Loader, settings: Settings) -> int | None:
    batches = batches_in(loader)
    if batches == 0:
        raise TaskError(
            "an epoch has no batch: drop_last leaves out the only one; take a smaller batch_size or drop_last=False."
        )
    return None if batches is None else updates_in(batches, settings.accumulate_grad_batches)


def _total(per_epoch: int | None, settings: Settings) -> int | None:
    """Updates of the whole run; None where nobody can know before."""
    by_epochs = None
    if settings.epochs is not None and per_epoch is not None:
        by_epochs = settings.epochs * per_epoch
    if settings.max_steps is None:
        return by_epochs
    return settings.max_steps if by_epochs is None else min(settings.max_steps, by_epochs)


def chain(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those inside it (SequentialLR, ChainedScheduler)."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from chain(part)
