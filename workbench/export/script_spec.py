"""Defines ScriptSpec: all information from which an exported script is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

from workbench.events import Checksums
from workbench.export.inputs.changing_state import Change, changing_state
from workbench.export.inputs.collect import (
    Data,
    Hooks,
    LightningNeeds,
    LoggedNames,
    Metrics,
    Optimizer,
    Schedule,
    Step,
)
from workbench.export.resume_points import ResumePoints
from workbench.export.source.source import Sliced
from workbench.settings import Settings
from workbench.techniques.limits import is_whole
from workbench.values import EarlyStopping


@dataclasses.dataclass(frozen=True)
class ScriptSpec:
    """All information from which a script is written."""

    run: str
    model: str
    version: str
    libraries: str
    """The libraries with the versions that the run had: "torch 2.13.0, numpy 2.4.1"; "": they were
    not recorded.
    """
    script: str
    sliced: Sliced
    kinds: Mapping[str, str]
    """The kind of each of the user's names, in one word (`source/capture.py`)."""
    settings: Settings
    """The settings of the run; `overfit_batches` is written as limits."""
    ranks: int
    """How many processes made the run together."""
    threads: int
    """The number of threads of each process."""
    weights: str | None
    """The file next to the script with the weights that the run began with; None: the script
    needs no such file.
    """
    data_file: str | None
    """The file beside the script with its data; None: the user's code makes them."""
    best: tuple[str, str] | None
    """The metric by which the best weights are kept, and "min" or "max"; None: the last weights
    are kept.
    """
    ended_at: int | None
    """The number of updates after which it was stopped by hand or by the clock; None: its length
    ended it.
    """
    checksums: Checksums
    """The checksums of the run's beginning; each has eight hex digits, or is "" where the record
    has no valid one.
    """
    by_hand: bool
    stopped_in_validation: bool
    """Whether it was stopped during the validation after an epoch."""
    planned: int | None
    """The number of updates for which its scheduler was made."""
    changes: tuple[tuple[int, Mapping[str, float | None]], ...]
    sizes: tuple[tuple[int, int], ...]
    """The live changes of accumulate_grad_batches: (update, batches in each update from then
    on).
    """
    logged: LoggedNames
    spikes: tuple[int, ...]
    """The updates that `on_spike` left out."""
    rolled_back: bool
    """Whether training went back to earlier weights after a spike."""
    epoch_ends: tuple[int, ...]
    """Updates before a live change that may have been the last ones of their epochs. A script makes
    the change after what ends the epoch, the run before.
    """
    resume_points: ResumePoints
    train: Data
    val: Data | None
    """The validation data; for several sets, the description of each of them."""
    val_sets: tuple[str, ...]
    """The keys of several validation sets; () where there is one, or none."""
    batch: str
    """A training batch: "pair", "tuple", "single", "dict:<key of the target>", or "own" with
    hooks.
    """
    mean: bool
    """Whether the loss is a mean over samples, so that a batch's weight is its number of
    samples.
    """
    loss_is_module: bool
    loss_prefix: str
    """The prefix of the loss's parameter names, where it has some that are trained; "" where it
    has none.
    """
    metrics: Metrics
    hooks: Hooks | None
    lightning: LightningNeeds
    evidence: tuple[str, ...]
    """Sentences about where its settings come from."""
    step: Step
    optimizers: tuple[Optimizer, ...]
    partial: bool
    """Whether an update may leave some parameters without a gradient."""
    divides: bool
    """Whether rules of `groups=` divide the optimizer's parameters."""
    freezes: bool
    """Whether rules of `groups=` freeze parameters until an epoch."""
    double: bool
    """Whether the model computes in double precision."""
    batch_norm: bool
    """Whether the model has batch-norm statistics."""
    frozen_modes: bool
    """Whether a submodule stays in eval mode while the model trains, or overrides `train()`."""
    overrides_modes: bool
    """Whether a module overrides `train()` or `eval()`."""
    compiled: bool
    """Whether the user has compiled the model (`torch.compile(model)`), so that its weights are
    one level deeper.
    """
    compiled_parts: bool
    """Whether the user has compiled parts of it."""
    sparse: bool
    """Whether a layer has sparse gradients."""
    unsaved_buffers: bool
    """Whether the model has buffers that its `state_dict` leaves out."""
    buffers: tuple[str, ...]
    """Which of "network", "loss_function" and "metrics" hold buffers."""
    changed_by_validation: bool
    """Whether a validation step changes buffers of the model or of the loss."""

    # -- length

    @property
    def max_steps(self) -> int | None:
        """The number of updates that ends the run, if one does."""
        return self.settings.max_steps if self.ended_at is None else self.ended_at

    @property
    def max_epochs(self) -> int | None:
        """The number of epochs that ends the run, if one does."""
        return self.settings.epochs if self.ended_at is None else None

    @property
    def stops_short(self) -> bool:
        """Whether it was stopped before an operation at the end of an epoch that would have
        changed the result.
        """
        return (
            self.by_hand
            and not self.stopped_in_validation
            and self.settings.weight_averaging == "swa"
        )

    @property
    def monitors(self) -> tuple[EarlyStopping, ...]:
        """The metrics that may end the run."""
        return self.settings.early_stopping

    # -- an update

    @property
    def limits(self) -> bool:
        """Whether an epoch reads only a part of the training batches."""
        return not is_whole(self.settings.limit_train_batches)

    @property
    def accumulates(self) -> bool:
        """Whether several batches make one update at any time."""
        return self.settings.accumulate_grad_batches not in (1, {0: 1}) or self.changed(
            "accumulate_grad_batches"
        )

    @property
    def windows(self) -> dict[int, int] | None:
        """By the epoch, or the update, from which it holds, the number of batches in an update;
        None: it never changes.
        """
        size = self.settings.accumulate_grad_batches
        if self.sizes:
            return {0: size if isinstance(size, int) else size.get(0, 1), **dict(self.sizes)}
        return {0: 1, **size} if isinstance(size, dict) else None

    @property
    def clips(self) -> bool:
        """Whether gradients were clipped at any time."""
        return self.settings.gradient_clip_val is not None or self.changed("gradient_clip_val")

    @property
    def trains_loss(self) -> bool:
        """Whether model and loss are trained together: then one module holds both."""
        return bool(self.loss_prefix)

    @property
    def manual(self) -> bool:
        """Whether the training step steps the optimizers itself."""
        return self.hooks is not None and self.hooks.manual

    @property
    def several(self) -> bool:
        """Whether it has several optimizers."""
        return len(self.optimizers) > 1

    @property
    def closure(self) -> bool:
        """Whether the optimizer evaluates the loss itself."""
        return any(optimizer.closure != "never" for optimizer in self.optimizers)

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled for float16."""
        return self.settings.precision == "16-mixed"

    @property
    def may_skip_batches(self) -> bool:
        """Whether a forward pass may return no loss."""
        return self.step.skips

    @property
    def reports_weight(self) -> bool:
        """Whether a step reports the weight of its batch, where that matters."""
        return self.step.reports_weight and self.accumulates

    @property
    def leaves_out(self) -> bool:
        """Whether an update may be skipped although there was a loss."""
        return self.settings.on_nonfinite == "skip" or self.scales or bool(self.spikes)

    @property
    def restored_buffers(self) -> tuple[str, ...]:
        """The modules whose buffers must be restored when an update is left out."""
        restores = self.settings.on_nonfinite == "skip" and not self.scales
        if not restores and not self.spikes:
            return ()
        return tuple(name for name in self.buffers if name != "metrics")

    @property
    def schedules_by_batches(self) -> bool:
        """Whether a scheduler's frequency counts the batches of an epoch."""
        return any(
            s.by_batches and s.interval == "step" and s.frequency > 1 for s in self.schedules
        )

    @property
    def step_takes_batch_idx(self) -> bool:
        """Whether a training step takes the number of its batch."""
        return self.hooks is not None and self.hooks.train_index

    @property
    def may_skip_updates(self) -> bool:
        """Whether all batches of a window may be left out; such a window is no update."""
        return self.may_skip_batches or self.train.empty

    @property
    def distributed(self) -> bool:
        """Whether several processes made the run."""
        return self.ranks > 1

    @property
    def local_ranks(self) -> int:
        """The number of processes on each machine."""
        return self.ranks // self.settings.num_nodes

    @property
    def on_tpu(self) -> bool:
        """Whether the run trained on a device of torch_xla."""
        return self.settings.accelerator == "tpu"

    @property
    def single_process_reason(self) -> str:
        """Why it can only train in one process; "" where there is no reason."""
        reasons = {
            "the optimizer evaluates the loss again": self.closure,
            "an update may be left out": self.settings.on_nonfinite == "skip",
            "the samples of a stream's batches are counted": (
                any(d.kind == "stream" and self.counts(d) for d in self.loaders)
                and not self.distributed
            ),
            "batches may be left out": self.may_skip_batches or self.train.empty,
            "batches say how much they count": self.reports_weight,
            "layers are frozen until an epoch": self.freezes,
            "batch-norm statistics are collected anew": (
                self.refreshes_batch_norm and not self.distributed
            ),
        }
        return next((why for why, holds in reasons.items() if holds), "")

    # -- learning rates

    @property
    def built_in(self) -> bool:
        """Whether the settings ask for a schedule, and the user has none."""
        asked = self.settings.lr_schedule != "constant" or bool(self.settings.warmup)
        return asked and self.planned != 0 and not self.schedules

    @property
    def warms_up(self) -> bool:
        """Whether the user's own schedule has a warm-up beside it."""
        return bool(self.settings.warmup and self.schedules) and self.planned != 0

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The user's schedulers, of all optimizers."""
        return tuple(schedule for optimizer in self.optimizers for schedule in optimizer.schedules)

    @property
    def schedule_free(self) -> bool:
        """Whether the optimizer trains other weights than it evaluates (schedule-free)."""
        return any(optimizer.schedule_free for optimizer in self.optimizers)

    # -- averaging

    @property
    def averages(self) -> bool:
        """Whether weights are averaged."""
        return self.settings.weight_averaging is not None

    @property
    def refreshes_batch_norm(self) -> bool:
        """Whether batch-norm statistics are collected anew for averaged weights."""
        return self.averages and self.batch_norm

    @property
    def changes_meet_epochs(self) -> bool:
        """Whether what ends an epoch depends on the settings that a script can change."""
        by_epochs = any(s.interval == "epoch" or s.monitor is not None for s in self.schedules)
        return self.changed("batch_size") or self.has_swa_lrs or by_epochs

    @property
    def has_swa_lrs(self) -> bool:
        """Whether SWA has its own learning rates (`swa_lrs`)."""
        return self.settings.weight_averaging == "swa" and self.settings.swa_lrs is not None

    # -- validations

    @property
    def validates(self) -> bool:
        """Whether it validates."""
        return self.val is not None and self.settings.limit_val_batches != 0

    @property
    def logs_widely(self) -> bool:
        """Whether the values that the object logs need a class in the script that collects them."""
        # on_step=True, on_epoch=True
        of_both = any(name.endswith("_step") for name in self.logged.in_updates)
        return (
            self.lightning.logs_widely
            or bool(self.logged.in_epochs or self.logged.marked)
            or self.logs_over_ranks
            or of_both
        )

    @property
    def logs_over_ranks(self) -> bool:
        """Whether values of single updates are reduced over the processes."""
        return self.distributed and self.lightning.logs_over_ranks and bool(self.logged.in_updates)

    @property
    def has_metrics(self) -> bool:
        """Whether there are metrics to report besides the loss."""
        return self.validates and self.given("metrics") is not None

    def weighs(self, data: Data) -> bool:
        """Whether the script counts the samples that were drawn for each batch of this data, as
        its weight.
        """
        if data is self.train:
            return bool(self.logged.in_epochs) or (
                self.mean
                and (self.accumulates or self.distributed)
                and not self.step.reports_weight
            )
        return self.validates and not (
            self.step.reports_weight if self.hooks is None else self.lightning.weighs
        )

    def counts(self, data: Data) -> bool:
        """Whether the loader of this data notes of how many samples a batch was made, which its
        collate function may not show.
        """
        return data.collate is not None and data.kind != "batches" and self.weighs(data)

    @property
    def tries_validation(self) -> bool:
        """Whether the sanity check may change buffers, or what code keeps."""
        seen = self.changed_by_validation or not all(change.of_data for change in self._changes)
        return self.validates and self.settings.num_sanity_val_steps != 0 and seen

    @cached_property
    def state(self) -> str:
        """The state that the user's code changes from update to update and that no checkpoint
        has; "": none.
        """
        return next(iter(self._changes), "")

    @cached_property
    def _changes(self) -> tuple[Change, ...]:
        return changing_state(self.sliced.code, tuple(self.sliced.arguments.values()))

    @property
    def validates_in_epoch(self) -> bool:
        """Whether there are validations within epochs; without validation data there are only
        the ends of epochs.
        """
        return not is_whole(self.settings.val_check_interval) and self.validates

    @property
    def checks(self) -> bool:
        """Whether the script has code for the times of validations."""
        return self.validates or bool(self.monitored)

    @property
    def monitored(self) -> set[str]:
        """The metrics that early stopping or a scheduler uses."""
        return {monitor.monitor for monitor in self.monitors} | {
            s.monitor for s in self.schedules if s.monitor is not None
        }

    @property
    def monitors_train_loss(self) -> bool:
        """Whether the training loss is among the `monitored` metrics."""
        return "train_loss" in self.monitored

    # -- data

    @property
    def loaders(self) -> tuple[Data, ...]:
        """The data of training, and of validation if it has any."""
        return (self.train,) if self.val is None else (self.train, self.val)

    @property
    def remakes_loader(self) -> bool:
        """Whether the training loader is made more than once."""
        return self.refreshes_batch_norm or self.changed("batch_size")

    # -- the text

    @property
    def sets_threads(self) -> bool:
        """Whether the user's code sets the number of threads: then the script must set it
        afterwards.
        """
        return "set_num_threads" in self.sliced.code

    def changed(self, name: str) -> bool:
        """Whether a setting was changed during the run."""
        return any(name in values for _, values in self.changes) or (
            name == "accumulate_grad_batches" and bool(self.sizes)
        )

    @property
    def another_length(self) -> bool:
        """Whether the run may have had more updates than was known at its beginning."""
        return self.changed("batch_size") or bool(self.sizes)

    def given(self, name: str) -> str | None:
        """The expression that was given for an argument of the bench; None where there was none."""
        expression = self.sliced.arguments.get(name, "None")
        return None if expression == "None" else expression
