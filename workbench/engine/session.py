"""Defines Session, which connects a task with its device, optimizers, loaders and meter for one
job.

A fit, a finder and a trial each open one (`engine/setup.py`). `Session.state` has its progress.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engine.data.loaders import Loaders, NoLoaders
from workbench.engine.distributed.place_weights import check_shardable, distributed, place_weights
from workbench.engine.distributed.process_group import MultiProcessGroup, ProcessGroup
from workbench.engine.distributed.single import Single
from workbench.engine.hooks.update_hooks import UpdateHooks
from workbench.engine.metrics.meter import Meter
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.metrics.step_timer import StepTimer
from workbench.engine.metrics.update_ratio import UpdateRatios
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.optim.optimizers import Optimizers, optimizers_of
from workbench.engine.optim.total_steps import TotalSteps
from workbench.engine.optim.weight_averaging import WeightAverage
from workbench.engine.replay import Replay
from workbench.engine.runtime.runtime import Runtime
from workbench.engine.spikes import Spikes
from workbench.engine.state import TrainState
from workbench.events import LayersMeasured, Message
from workbench.instruments.layer_groups import modules
from workbench.instruments.layer_probe import LayerProbe
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.batch import to_device
from workbench.task.device import xla
from workbench.task.errors import TaskError
from workbench.task.hooks import Hooks, Stage
from workbench.task.modules import train_mode
from workbench.task.protocol import Handle, Phase, StepResult, Task
from workbench.task.state.of_task import kept_state
from workbench.techniques import limits
from workbench.techniques.precision import Precision
from workbench.techniques.tbptt import Piece
from workbench.units import counted, rate
from workbench.values import first_names


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """Properties of a session that are the same in all its updates; they are computed once,
    before the first.
    """

    on_cpu: bool
    """Whether values can be read at once: the device is the CPU."""
    lazy: bool
    """Whether operations wait for `Session.sync_device` (a TPU)."""
    cores: int
    """How many cores of a TPU share each batch."""
    moves: bool
    """Whether batches are moved to the device, by torch or by the task's own hook."""
    several_optimizers: bool
    """Whether there are several optimizers."""
    tbptt: int | None
    """The length of the pieces into which batches are split in time (truncated BPTT); None: they
    are not split.
    """
    skips_nonfinite: bool
    """Whether updates with non-finite values are skipped; else they end the run."""
    direct: bool
    """Whether an update of one batch can take the short path `backward.of_one_batch`: no other
    ranks, hooks or turns.
    """
    training_step: Callable[..., StepResult]
    """The task's training step in the precision of the settings, for such an update."""


class Session:
    """A task with its optimizers and loaders on a device, and the state of its job."""

    def __init__(
        self, task: Task, settings: Settings, runtime: Runtime, phase: Phase = "fit",
        past: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        settings = limits.effective_settings(settings)
        trains = phase == "fit"
        self.task = task
        self.settings = settings
        self.device = runtime.device
        self.precision = _precision_of(task, settings, runtime.device)
        self.state = TrainState(clip_val=settings.gradient_clip_val)
        leaves_out = settings.on_nonfinite == "skip" or settings.on_spike in ("skip", "rollback")
        self.replay = Replay(runtime.device, task.modules if leaves_out else ())
        self.notes: list[Message] = []
        """Messages for the user, to be emitted at their place in the record."""
        self.ranks = runtime.ranks
        self.weights = place_weights(task, runtime)
        self.parameters = _trainable(task)
        """The parameters that are trained, by name."""
        self.data = Loaders(task, settings, self.ranks) if trains else NoLoaders(task, settings)
        self.total_steps = TotalSteps(self.data, past)
        self.updates = self.total_steps.planned()
        """The length of the run as planned when it began, for its schedules;
        `total_steps.planned()` is the present plan.
        """
        parameters = list(self.parameters.values())
        self.optimizers = (
            optimizers_of(task, settings, self.updates, parameters, self.weights)
            if trains
            else Optimizers((), parameters, self.weights)
        )
        self.hooks = Hooks() if task.hooks is None else task.hooks
        self.update_hooks = UpdateHooks()
        """The calls around the hooks within an update; `open_session` replaces it for a task
        that has such hooks.
        """
        self.plan = self._plan(trains)
        if self.plan.lazy:
            self._refuse_on_tpu()
        self.frozen: Mapping[str, Tensor] = {}
        """The parameters that do not train in this epoch, of those that are trained later."""
        if trains:
            self.freeze()
        self.spikes = self._spikes() if trains else None
        """Watches the losses for spikes; None: off."""
        self._connect_task(trains)
        self.optimizers.modes.check(settings, self.weights.shard_strategy)
        self.optimizers.modes.train()
        self.average = (
            WeightAverage(task, settings, self.weights)
            if trains and settings.weight_averaging
            else None
        )
        self.handle: Handle | None = None
        """The handle through which a task with manual optimization steps
        (engine/optim/manual.py).
        """
        self.meter = self._meter()
        self.timer = StepTimer(self.device, lambda: self.meter.seconds)
        self.ratios: UpdateRatios | None = None
        """Measures how far updates move the weights; None: not measured."""
        self.track_ratios(settings.track_update_ratio)
        self.noise_scale = self._noise_scale() if trains and settings.track_noise_scale else None
        """Measures the gradient noise scale; None: not measured."""
        self.probe: LayerProbe | None = None
        """Measures layers in the next update; None: nobody has asked for it."""
        self.parallel = self._parallel(runtime, trains)
        """Takes this process's part in an update."""
        self._note_doubts()

    def _refuse_on_tpu(self) -> None:
        """Raise TaskError for options with which torch_xla would compile each update anew, or
        which it does not support.
        """
        why = "this one has several" if self.plan.several_optimizers else ""
        if any(opt.needs_closure for opt in self.optimizers):
            why = f"{type(self.optimizers[0].optimizer).__name__} evaluates the loss itself"
        if why:
            raise TaskError(
                "accelerator='tpu': the bench trains with one optimizer there, which steps once"
                f" for each gradient, and {why}; take another accelerator."
            )
        if self.settings.compile:
            raise TaskError(
                f"compile={self.settings.compile!r} on a TPU: torch_xla compiles each update"
                " itself; leave compile out."
            )

    def _spikes(self) -> Spikes | None:
        """Make the object that watches for spikes. Raises TaskError where `on_spike` cannot be
        carried out.
        """
        action = self.settings.on_spike
        if action is None:
            return None
        why = ""
        if action == "report":
            return Spikes(action, self.ranks, self.replay)
        if self.task.manual:
            why = (
                "with manual optimisation the task steps by itself, before the whole loss is known"
            )
        elif self.plan.several_optimizers:
            why = "with several optimizers one may have stepped before the loss of another is known"
        elif self.optimizers[0].needs_closure:
            kind = type(self.optimizers[0].optimizer).__name__
            why = f"{kind} evaluates the loss itself, at several weights in an update"
        elif self.plan.lazy:
            why = "on a TPU each update would wait for its loss"
        elif action == "rollback" and self.weights.sharded:
            why = f"{self.weights.shard_strategy}: no process has the whole weights"
        if why:
            raise TaskError(f"on_spike={action!r} is not possible: {why}. Take 'report'.")
        return Spikes(action, self.ranks, self.replay)

    def _plan(self, trains: bool) -> UpdatePlan:
        on_cpu, lazy, devices = (
            self.device.type == "cpu",
            xla.is_xla(self.device),
            self.settings.devices,
        )
        return UpdatePlan(
            on_cpu=on_cpu,
            lazy=lazy,
            cores=devices if lazy and isinstance(devices, int) else 1,
            moves=not on_cpu or self.hooks.transfers,
            several_optimizers=len(self.optimizers) > 1,
            tbptt=self.settings.truncated_bptt_steps,
            skips_nonfinite=self.settings.on_nonfinite == "skip",
            direct=trains and self._direct(),
            training_step=self.precision.autocasting(
                self.weights.training_step if self.weights.sharded else self.task.training_step
            ),
        )

    def _direct(self) -> bool:
        needs_more = (
            self.ranks.several or self.hooks.within or len(self.optimizers) > 1 or self.task.manual
        )
        measures_noise = self.settings.track_noise_scale and self._why_no_noise_scale() is None
        needs_more = needs_more or self.settings.truncated_bptt_steps is not None or measures_noise
        return not needs_more and not any(opt.needs_closure for opt in self.optimizers)

    def _connect_task(self, trains: bool) -> None:
        """Give the task this session, which now has optimizers; they begin at the rate of the
        settings.
        """
        if self.weights.sharded:
            check_shardable(self.task, self.settings, self.optimizers, self.weights.shard_strategy)
        self.task.follow(self)
        if trains and self.optimizers.base_lr != self.settings.lr:
            self.optimizers.set_lr(self.settings.lr)

    def _meter(self) -> Meter:
        double = any(p.dtype is torch.float64 for p in self.task.model.parameters())
        every, norms = self.settings.log_every_n_steps, self.settings.track_grad_norm
        kinds = {p.dtype for p in self.parameters.values()}
        kind = kinds.pop() if len(kinds) == 1 else None
        return Meter(
            len(self.parameters), self.device, every, norms, len(self.optimizers), double, kind
        )

    def _parallel(self, runtime: Runtime, trains: bool) -> Single:
        """Make the object that takes this process's part in an update: `Single`, `DDP` or
        `FSDP`.
        """
        if isinstance(self.ranks, MultiProcessGroup):
            self.ranks.clock = lambda: self.meter.seconds
            if trains:
                return distributed(
                    self.task,
                    self.data,
                    self.weights,
                    self.ranks,
                    runtime,
                    self.state,
                    self.notes,
                    self.timer,
                    self.noise_scale,
                    alternating=self.plan.several_optimizers,
                )
        return Single(self.task, self.weights, self.plan.on_cpu)

    def _note_doubts(self) -> None:
        """Add messages about how the weights are sharded and how the optimizers step."""
        if self.weights.shard_message:
            self.notes.append(Message(self.weights.shard_message, "info"))
        doubt = self.optimizers.modes.doubt(self.task.model)
        if doubt is not None:
            self.notes.append(Message(doubt, "warning"))

    def _noise_scale(self) -> RunningNoiseScale | None:
        """Make the object that measures the gradient noise scale; None: off, or (with a message)
        impossible.
        """
        why = self._why_no_noise_scale()
        if why is not None:
            self.notes.append(
                Message(
                    f"track_noise_scale: the gradient noise scale is not measured, since {why}.",
                    "warning",
                )
            )
            return None
        by_module = self.settings.track_noise_scale == "modules"
        return RunningNoiseScale(
            list(self.parameters.values()), modules(tuple(self.parameters)) if by_module else {}
        )

    def _why_no_noise_scale(self) -> str | None:
        """Why the gradient noise scale cannot be measured; None: it can."""
        many = self.settings.accumulate_grad_batches
        if self.weights.sharded:
            return (
                f"{self.weights.shard_strategy} averages gradients over the ranks piece by piece:"
                " no rank has a whole one of its own"
            )
        if not self.ranks.several and (many if isinstance(many, int) else max(many.values())) < 2:
            return (
                "each update has one batch: set accumulate_grad_batches to 2 or more, or train on"
                " several devices; find_batch_size() measures it without"
            )
        if (
            self.task.manual
            or len(self.optimizers) > 1
            or self.settings.truncated_bptt_steps is not None
        ):
            return "that needs one optimizer, automatic optimization and whole batches"
        return "float16 scales the gradients" if self.precision.scaler is not None else None

    def change_settings(self, **values: Any) -> None:
        """Replace the values of these settings from now on."""
        self.settings = self.settings.replace(**values)

    def track_ratios(self, wanted: bool) -> None:
        """Measure update ratios from the next update on, or stop. Only rank 0 measures, since
        all ranks have the same weights.
        """
        self.change_settings(track_update_ratio=wanted)
        if not wanted:
            self.ratios = None
            self.meter.end_ratios()
        elif self.weights.sharded or self.plan.lazy:
            why = (
                "on a TPU each row would be compiled"
                if self.plan.lazy
                else f"{self.weights.shard_strategy}: between two updates no layer is whole"
            )
            text = f"update ratios are not measured ({why})."
            self.notes.append(Message(text, "warning", self.state.step))
        elif self.ratios is None and self.ranks.first:
            self.ratios = UpdateRatios(self.meter)

    def measure_layers(self, wanted: Sequence[str]) -> None:
        """Measure weights and activations of these layers in the next update, with those that it
        was asked for before. Only rank 0 does: its weights are those of all ranks, and its
        activations are of its own batch.
        """
        if not self.ranks.first:
            return
        if self.weights.sharded or self.plan.lazy:
            why = (
                "on a TPU each value would be waited for"
                if self.plan.lazy
                else f"{self.weights.shard_strategy}: no process has a whole layer"
            )
            self.notes.append(
                Message(f"layers are not measured ({why}).", "warning", self.state.step)
            )
            return
        probe = LayerProbe(self.task.modules, self.parameters, wanted)
        pending, unknown = self.probe, probe.unknown
        if pending is not None:
            both = (*pending.wanted, *wanted) if pending.wanted and wanted else ()
            probe = LayerProbe(self.task.modules, self.parameters, both)
        if len(unknown) < len(wanted) or not wanted:
            self.probe = probe
        if unknown:
            self.notes.append(
                Message(
                    f"no layer is called {', '.join(map(repr, unknown[:5]))}: give names"
                    f" of parameters or modules, such as {first_names(list(self.parameters), 3)}.",
                    "warning",
                    self.state.step,
                )
            )

    def layers_measured(self, probe: LayerProbe) -> LayersMeasured:
        """What a probe saw in the last update, which ends it."""
        self.probe = None
        layers = probe.close()
        if layers and all(layer.activations is None for layer in layers):
            self.notes.append(
                Message(
                    "the activations of these layers were not seen: a compiled model does not show"
                    " them, and a module that is not called has none.",
                    "info",
                    self.state.step,
                )
            )
        return LayersMeasured(self.state.step, layers, probe.left_out)

    def accumulate(self, setting: int | Mapping[int, int]) -> None:
        """Accumulate this many batches from the next update on. The planned number of updates
        does not change.
        """
        self.change_settings(accumulate_grad_batches=setting)
        self.data.accumulate(setting)
        self.total_steps.recount(self.state)

    @property
    def device_name(self) -> str:
        """The name of the device, with the number of ranks."""
        devices = (
            f"{self.ranks.world} x {self.device.type}" if self.ranks.several else str(self.device)
        )
        return f"{devices}, {self.weights.shard_strategy}" if self.weights.sharded else devices

    @property
    def seconds(self) -> float:
        """Seconds since the run began, for decisions; on several ranks, rank 0's clock at the
        latest synchronization.
        """
        return self.meter.seconds if self.ranks.seconds is None else self.ranks.seconds

    @property
    def batches(self) -> tuple[int | None, tuple[int | None, ...]]:
        """The numbers of training batches of an epoch, and of validation batches of each set;
        None where unknown.
        """
        return self.data.batches, self.data.val_batches

    @property
    def optimizations(self) -> Optimizers:
        """The optimizers, for the task."""
        return self.optimizers

    def sync_device(self) -> None:
        """Let a device that records operations (a TPU) run them; called after an update, or a
        batch of a validation.
        """
        if self.plan.lazy:
            xla.sync()

    def to_device(self, batch: Any, stage: Stage = "train") -> Any:
        """Move a batch to the session's device, by the task's own hook where it has one."""
        moved = (
            self.hooks.transfer(batch, self.device, stage)
            if self.hooks.transfers
            else to_device(batch, self.device)
        )
        if self.plan.cores > 1:
            xla.split(moved, self.plan.cores)
        return moved

    def run_padding(self, item: Any, stage: Stage, step: Callable[[Any], object]) -> None:
        """Run a step on a padding batch: a rank with sharded weights that has no batch left must
        still take part in each step.

        Buffers, attributes, random numbers and logged values are restored afterwards.
        """
        batch = item.batch if isinstance(item, Piece) else item
        with (
            rng.preserved(), self.hooks.discarding_logs(), kept_state(self.task),
            self.weights.padding(), self.precision.autocast(),
        ):  # fmt: skip
            step(self.to_device(batch, stage))

    def note_rate_set_by_code(self) -> None:
        """Add a message, once, where the user has set `lr` and the code of the run sets the rate
        itself.
        """
        for opt in self.optimizers:
            if not opt.rate_set_by_code or opt.rate_reported or self.state.searching:
                continue
            opt.rate_reported = True
            if opt.base_lr != self.task.own_lr:
                text = (
                    f"lr={rate(opt.base_lr)}: the run's own code sets the learning rate (to"
                    f" {rate(float(opt.rate))} at update {self.state.step - 1}), so lr has an"
                    " effect only where that code uses it."
                )
                self.notes.append(Message(text, "warning", self.state.step))

    def warms_up(self, opt: OptimizerHandle) -> bool:
        """Whether the next step of this optimizer takes a share of its rate. A search tries its
        rates whole.
        """
        return opt.steps < opt.warmup and not self.state.searching

    def drive(self, handle: Handle) -> None:
        """Let the task, which has manual optimization, step through this handle from now on."""
        self.handle = handle
        self.task.drive(handle)

    def train_mode(self) -> None:
        """Put the model into training mode; parts that the user holds in evaluation mode stay so
        (`train_mode` of task/modules.py).
        """
        train_mode(self.task.model)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager in which this rank works alone and does not wait for the others."""
        ranks, parallel = self.ranks, self.parallel
        self.ranks, self.parallel = (
            ProcessGroup(),
            Single(self.task, self.weights, self.plan.on_cpu),
        )
        try:
            with self.weights.alone():
                yield
        finally:
            self.ranks, self.parallel = ranks, parallel

    def refresh_parameters(self) -> None:
        """Refresh the trained parameters between two updates, on all ranks; some may also have
        been frozen.
        """
        self.optimizers.add_new_parameters()
        self.parallel.refresh()

    def freeze(self) -> None:
        """Freeze what does not train in the present epoch, and let the rest train."""
        if self.task.freezes:
            self.frozen = self.task.freeze(self.parameters, self.state.epoch)

    def unfreeze(self) -> None:
        """Let all parameters train that train in some epoch."""
        for parameter in self.frozen.values():
            parameter.requires_grad_(True)
        self.frozen = {}

    def note_freezing(self) -> None:
        """Say, at the beginning of an epoch, what is frozen and what begins to train."""
        if not self.task.freezes:
            return
        epoch = self.state.epoch
        before = [*self.task.freeze(self.parameters, epoch - 1)] if epoch else []
        self.freeze()
        text = ""
        if self.frozen and not epoch:
            text = f"Frozen from epoch 0 on: {_named([*self.frozen])}."
            epochs = 0 if self.settings.fast_dev_run else self._planned_epochs()
            never = [*self.task.freeze(self.parameters, epochs - 1)] if epochs else []
            self.freeze()
            if never:
                text += (
                    f" Frozen to the end of this run, which has {counted(epochs, 'epoch')}:"
                    f" {_named(never)}. Give a smaller unfreeze_at_epoch, or a longer run."
                )
        elif trains := [name for name in before if name not in self.frozen]:
            text = f"Training from epoch {epoch} on: {_named(trains)}."
        if text:
            self.notes.append(Message(text, "info", self.state.step))

    def _planned_epochs(self) -> int:
        """How many epochs the run begins; 0: it is not known."""
        updates = self.total_steps.planned()
        each = self.data.updates_in(0)
        if updates is None or not each or isinstance(self.settings.accumulate_grad_batches, dict):
            return self.settings.epochs or 0
        return -(-updates // each)

    def close(self) -> None:
        """Free gradients, let frozen parameters train again, and end loader processes."""
        self.unfreeze()
        self.optimizers.drop_gradients()
        self.optimizers.modes.eval()  # also of a fit that failed
        self.data.close()


def _precision_of(task: Task, settings: Settings, device: torch.device) -> Precision:
    """The precision of the settings; raises an error for a module that it does not fit."""
    if settings.precision == "64-true":
        for module in task.modules:
            Precision.refuse_single(module)
    return Precision.of(settings.precision, device)


def _named(parameters: Sequence[str]) -> str:
    """Parameters in a message, by the parts of the model that they are in."""
    parts = dict.fromkeys(name.rpartition(".")[0] or name for name in parameters)
    listed = ", ".join([*parts][:4]) + (", …" if len(parts) > 4 else "")
    return f"{counted(len(parameters), 'parameter')} ({listed})"


def _trainable(task: Task) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    trained: dict[str, Tensor] = {
        name: p for name, p in task.trained_parameters().items() if p.requires_grad
    }
    if not trained:
        raise TaskError("the model has no trainable parameters: nothing requires a gradient.")
    return trained
