"""Defines Settings: all settings, each with its type, default, bounds, unit, help and panel group.

The panel's controls, the export and the error messages are made from these fields. A setting has
Lightning 2's name where Lightning has one. Epochs and updates count from zero; an *update* is one
optimizer step.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from workbench.metric_mode import known_mode
from workbench.settings.errors import explain, meaning
from workbench.settings.file import read
from workbench.settings.kwargs import SettingsKwargs
from workbench.settings.optimizers import NamedOptimizer
from workbench.settings.spellings import NONE_IS_DEFAULT, settings_of
from workbench.values import (
    Batches,
    ByEpoch,
    Devices,
    Duration,
    EarlyStopping,
    Epochs,
    Every,
    Interval,
    LaunchOptions,
    Monitors,
    Precision,
    Strategy,
    SwaStart,
    Unlimited,
    Warmup,
    shown,
)  # fmt: skip
from workbench.values import SettingsError as SettingsError

Group = Literal[
    "optimisation",
    "length",
    "data",
    "validation",
    "early stopping",
    "averaging",
    "sequences",
    "scheduled searches",
    "monitoring",
    "checkpoints",
    "devices",
]


_PART = "batches or a fraction"


@dataclass(frozen=True, slots=True)
class SettingMetadata:
    """What the panel needs to draw one setting, besides its type and bounds."""

    group: Group
    unit: str = ""
    live: bool = False
    """Whether it can be changed while a run is running (`job.change`)."""
    log: bool = False
    """Whether its control has a logarithmic scale."""


def _setting(
    default: Any,
    help: str,
    group: Group,
    unit: str = "",
    *,
    live: bool = False,
    log: bool = False,
    **bounds: Any,
) -> Any:
    field = Field(default, description=help, **bounds)
    field.metadata.append(SettingMetadata(group, unit, live, log))
    return field


def _off_when_zero(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number, above which gradients are clipped")
    return None if value == 0 else value


def _schedule_name(value: object) -> object:
    if callable(value) or hasattr(value, "scheduler"):
        raise ValueError(
            "should be the name of a schedule, 'cosine'; one of your own is given when the bench is"
            " made, wb.Workbench(…, scheduler=lambda optimizer, updates: …)"
        )
    return value


def _some_epochs(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("input should be a number")
    return value


def _compile(value: object) -> object:
    """A mode by its name is an option, as are those of a dict; no option: True."""
    if isinstance(value, str) and value in MODES:
        return {"mode": value}
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    if not isinstance(value, dict):
        raise ValueError(_COMPILE)
    for name, option in value.items():
        if name not in _COMPILE_OPTIONS:
            raise ValueError(f"has {name!r}; it takes {', '.join(_COMPILE_OPTIONS)}")
        kind, words = _COMPILE_OPTIONS[name]
        if not isinstance(option, kind):
            raise ValueError(f"has {name}={option!r}; {name} takes {words}")
    mode = value.get("mode")
    if mode is not None and mode not in MODES:
        raise ValueError(f"has mode={mode!r}; mode takes {', '.join(map(repr, MODES))}")
    if mode is not None and "backend" in value:
        raise ValueError(
            "has a mode and a backend: give one of them, since only 'inductor' has modes"
        )
    return dict(value) or True


_COMPILE = (
    "should be True, False, a mode of torch.compile ('max-autotune'), the name of a backend, or a"
    " dict of options, {'dynamic': True}"
)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes of torch.compile."""
_COMPILE_OPTIONS: dict[str, tuple[type, str]] = {
    "backend": (str, "the name of a backend"),
    "mode": (str, "the name of a mode"),
    "dynamic": (bool, "True or False"),
    "fullgraph": (bool, "True or False"),
    "regions": (bool, "True or False"),
}
"""What `compile` takes as a dict: torch.compile's own options, and regions."""


def _norm_order(value: object) -> object:
    if value == float("inf"):
        return "inf"
    if isinstance(value, int | float) and value <= 0:
        raise ValueError("a norm's order should be greater than 0")
    return value


class Settings(BaseModel):
    """The settings of a bench or a job, frozen; `replace` makes others.

    Below, each setting has its unit, its default and what it means; `job.change` can change a live
    one while a run is running.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)

    optimizer: NamedOptimizer = _setting(
        None,
        "The optimizer by its name, 'adamw', or with its arguments, {'sgd': {'momentum': 0.9}};"
        " None: the one that the bench was given.",
        "optimisation",
    )
    lr: float = _setting(
        1e-3,
        "Base learning rate; schedules and parameter-group ratios multiply it. If it is not set,"
        " the rate that the optimizer was made with is used.",
        "optimisation",
        "per update",
        ge=0,
        le=1e3,
        live=True,
        log=True,
    )
    weight_decay: float | None = _setting(
        None, "Weight decay; None leaves the optimizer's own default.", "optimisation", ge=0
    )
    batch_size: int = _setting(
        32, "Samples in a batch on one device.", "optimisation", "samples", ge=1
    )
    accumulate_grad_batches: ByEpoch = _setting(
        1,
        "Batches whose gradients make one update; {epoch: batches} changes it at these epochs.",
        "optimisation",
        "batches",
        live=True,
    )
    gradient_clip_val: Annotated[float | None, BeforeValidator(_off_when_zero)] = _setting(
        None,
        "Gradients above this are clipped before the step. None and 0: off.",
        "optimisation",
        ge=0,
        live=True,
    )
    gradient_clip_algorithm: Literal["norm", "value"] = _setting(
        "norm",
        "'norm' scales all gradients by their total norm; 'value' clamps each entry.",
        "optimisation",
    )
    lr_schedule: Annotated[
        Literal[
            "constant",
            "linear",
            "cosine",
            "one_cycle",
            "wsd",
            "polynomial",
            "inverse_sqrt",
            "cosine_restarts",
        ],
        BeforeValidator(_schedule_name),
    ] = _setting(
        "constant",
        "How the learning rate changes after the warm-up: 'linear', 'cosine' and 'polynomial' fall;"
        " 'wsd' stays, and falls at the end of the run; 'cosine_restarts' falls several times;"
        " 'inverse_sqrt' falls with the square root of the updates.",
        "optimisation",
    )
    warmup: Warmup = _setting(
        0,
        "The learning rate rises from near 0 over this many updates, or this fraction of the run.",
        "optimisation",
        "updates or a fraction",
    )
    min_lr_ratio: float = _setting(
        0.0,
        "The lowest rate to which a schedule falls, as a share of lr.",
        "optimisation",
        ge=0,
        le=1,
    )
    decay_fraction: float = _setting(
        0.2,
        "With 'wsd': the last part of the run, in which the rate falls.",
        "optimisation",
        "of the run",
        gt=0,
        le=1,
    )
    decay_shape: Literal["linear", "1-sqrt", "cosine"] = _setting(
        "1-sqrt", "With 'wsd': how the rate falls.", "optimisation"
    )
    lr_power: float = _setting(
        2.0, "With 'polynomial': the power of the share that is left.", "optimisation", gt=0
    )
    restarts: int = _setting(
        3, "With 'cosine_restarts': how often the rate begins again.", "optimisation", ge=1
    )
    precision: Precision = _setting(
        "32-true",
        "Type of the arithmetic; mixed: weights stay float32, most products are computed in 16"
        " bits; '64-true': a model and data in double precision.",
        "optimisation",
    )
    compile: Annotated[bool | str | dict[str, str | bool], BeforeValidator(_compile)] = _setting(
        False,
        "Run the model through torch.compile. A text names a mode ('max-autotune') or a backend; a"
        " dict has options: mode, backend, dynamic, fullgraph, and regions, which compiles each"
        " repeated block alone, in less time.",
        "optimisation",
    )

    max_epochs: Annotated[int | None, BeforeValidator(_some_epochs)] = _setting(
        None,
        "Passes over the training data; 0: none, so that nothing is trained; -1: no limit. 10 when"
        " neither max_steps nor max_time is given.",
        "length",
        "epochs",
        ge=-1,
    )
    min_epochs: int | None = _setting(
        None, "Early stopping waits for this many epochs.", "length", "epochs", ge=0
    )
    max_steps: Unlimited = _setting(
        None, "Stop after this many updates.", "length", "updates", ge=0
    )
    min_steps: int | None = _setting(
        None, "Early stopping waits for this many updates.", "length", "updates", ge=0
    )
    max_time: Duration | None = _setting(
        None,
        "Stop after this much time, without pauses: 'DD:HH:MM:SS', a timedelta or a dict.",
        "length",
        "DD:HH:MM:SS",
    )

    shuffle: bool = _setting(True, "Draw the training samples in a new order each epoch.", "data")
    num_workers: int = _setting(
        0, "Processes that load batches; 0 loads in the training thread.", "data", "processes", ge=0
    )
    pin_memory: bool | None = _setting(
        None, "Page-locked batches for faster copies. None: only on CUDA.", "data"
    )
    persistent_workers: bool = _setting(
        True, "Keep loader processes from one epoch to the next.", "data"
    )
    prefetch_factor: int | None = _setting(
        None,
        "Batches that each loader process reads ahead. None: the value of your DataLoader, else"
        " torch's 2.",
        "data",
        "batches",
        ge=1,
    )
    drop_last: bool = _setting(
        False, "Leave out an epoch's last batch when it is not full.", "data"
    )
    streams: Literal["whole", "shard"] = _setting(
        "whole",
        "How several ranks read an IterableDataset: 'whole' reads all of it on each rank, which"
        " keeps its share of the batches; 'shard' lets each rank read its own share.",
        "data",
    )
    preload: bool = _setting(
        False,
        "Read all samples once before the job, into memory that all processes share, and read them"
        " from there.",
        "data",
    )
    reload_dataloaders_every_n_epochs: int = _setting(
        0,
        "Call train_dataloader() and val_dataloader() of a LightningModule or DataModule again at"
        " the start of every n-th epoch. 0: once. Data that were given to the bench stay.",
        "data",
        "epochs",
        ge=0,
    )
    limit_train_batches: Batches = _setting(
        1.0,
        "Use this many (int) or this fraction (float) of an epoch's training batches.",
        "data",
        _PART,
    )
    limit_val_batches: Batches = _setting(1.0, "The same for a validation; 0: none.", "data", _PART)
    limit_test_batches: Batches = _setting(1.0, "The same for `test`.", "data", _PART)
    limit_predict_batches: Batches = _setting(1.0, "The same for `predict`.", "data", _PART)
    overfit_batches: Batches = _setting(
        0,
        "Train on the first batches alone, unshuffled, and validate on as many: can the model learn"
        " them? 0: off.",
        "data",
        _PART,
    )
    fast_dev_run: int = _setting(
        0,
        "Try everything with this many batches of each kind of data; nothing is recorded. 0: off.",
        "data",
        "batches",
        ge=0,
    )

    check_val_every_n_epoch: int | None = _setting(
        1,
        "Validate after every n-th epoch; None: by val_check_interval alone, in updates or a time.",
        "validation",
        "epochs",
        ge=1,
    )
    val_check_interval: Interval = _setting(
        1.0,
        "How often to validate: after a fraction of an epoch (0.25), updates (500) or a time"
        " ('00:00:10:00').",
        "validation",
        "fraction, updates or time",
    )
    num_sanity_val_steps: int = _setting(
        2,
        "Validation batches tried before the first update; -1: all of them, 0: none.",
        "validation",
        "batches",
        ge=-1,
    )

    early_stopping: Monitors = _setting(
        (),
        "End the fit when a metric stops improving: EarlyStopping(monitor='val_loss', patience=3).",
        "early stopping",
    )

    weight_averaging: Literal["ema", "swa"] | None = _setting(
        None,
        "Average the weights: 'ema' exponentially over updates, 'swa' equally over the last"
        " epochs.",
        "averaging",
    )
    ema_decay: float = _setting(
        0.999, "Share of the average that stays at each averaging.", "averaging", gt=0, lt=1
    )
    ema_warmup: bool = _setting(
        True,
        "EMA: the n-th averaging keeps at most (1 + n) / (10 + n) of the average, so that the first"
        " weights do not stay in it for long.",
        "averaging",
    )
    averaging_every_n_steps: int = _setting(
        1, "EMA: average after every n-th update.", "averaging", "updates", ge=1
    )
    averaging_start: int = _setting(
        0, "EMA: how many updates at the beginning are not averaged.", "averaging", "updates", ge=0
    )
    averaging_start_epoch: int = _setting(
        0, "EMA: nothing is averaged before this epoch.", "averaging", "epochs", ge=0
    )
    swa_epoch_start: SwaStart = _setting(
        0.8,
        "SWA: the first epoch (int, from 0) whose end is averaged, or a fraction of max_epochs.",
        "averaging",
        "epoch or a fraction",
    )
    swa_lrs: float | None = _setting(
        None,
        "SWA: the learning rate that the averaged epochs move to; None does not change the"
        " schedule.",
        "averaging",
        "per update",
        gt=0,
    )
    annealing_epochs: int = _setting(
        10, "SWA: epochs in which the rate moves to swa_lrs.", "averaging", "epochs", ge=0
    )
    annealing_strategy: Literal["cos", "linear"] = _setting(
        "cos", "SWA: how the rate moves to swa_lrs.", "averaging"
    )

    truncated_bptt_steps: int | None = _setting(
        None,
        "Split a batch of sequences into pieces of this length, one update each; the hidden state"
        " passes from piece to piece.",
        "sequences",
        "time steps",
        ge=1,
    )
    tbptt_time_dim: int = _setting(
        1,
        "The dimension of time in a batch: 1 for batch-first, 0 for time-first.",
        "sequences",
        ge=0,
    )

    find_lr_at: Epochs = _setting(
        (),
        "Find a learning rate at the start of these epochs and use it.",
        "scheduled searches",
        "epochs",
    )
    find_batch_size_at: Epochs = _setting(
        (),
        "Find a batch size at the start of these epochs and use it.",
        "scheduled searches",
        "epochs",
    )

    track_grad_norm: Annotated[Literal["inf"] | float | None, BeforeValidator(_norm_order)] = (
        _setting(
            2.0, "Order p of the gradient norms, total and per layer. None: no norms.", "monitoring"
        )
    )
    track_update_ratio: bool = _setting(
        False,
        "Measure how far an update moves each layer, relative to its weights; costs a copy of the"
        " weights now and then.",
        "monitoring",
        live=True,
    )
    track_noise_scale: bool | Literal["modules"] = _setting(
        False,
        "Measure the gradient noise scale in each update of several batches"
        " (accumulate_grad_batches) or of several devices: the batch size beyond which more samples"
        " in an update gain little. 'modules': that of each module, too.",
        "monitoring",
    )
    layer_history_mb: int | None = _setting(
        256,
        "Disk space for a run's norms and update ratios by layer; beyond it those of older updates"
        " are thinned out. None: all are kept.",
        "monitoring",
        "MB",
        ge=1,
    )
    log_every_n_steps: int = _setting(
        1, "Every n-th update is kept in the record.", "monitoring", "updates", ge=1
    )
    on_nonfinite: Literal["stop", "skip"] = _setting(
        "stop",
        "When a loss or gradient is NaN or infinite: end the run, or leave that update out.",
        "monitoring",
    )
    on_spike: Literal["report", "skip", "rollback"] | None = _setting(
        "report",
        "When the loss or the gradient norm is far above the updates before it: report it, also"
        " leave that update out, or also go back to the weights of about a hundred updates before."
        " None: do not look.",
        "monitoring",
    )
    enable_progress_bar: bool = _setting(
        True, "Show progress while `result()` or `wait()` waits for a job.", "monitoring"
    )
    detect_anomaly: bool = _setting(
        False,
        "Name the operation whose backward made a NaN (torch.autograd.set_detect_anomaly); slow.",
        "monitoring",
    )

    checkpoint_every: Every | None = _setting(
        None,
        "Save all that a resumed run needs every so many updates (500) or so much time"
        " ('00:00:10:00'). None: at ends of epochs that lie ten minutes apart, and at the end.",
        "checkpoints",
        "updates or time",
    )
    save_top_k: int = _setting(
        1,
        "The number of best checkpoints by `monitor` to keep besides the last; 0: none, -1: all.",
        "checkpoints",
        "checkpoints",
        ge=-1,
    )
    monitor: str | None = _setting(
        None,
        "The metric that says which checkpoint is best; None: val_loss, where there is one.",
        "checkpoints",
        min_length=1,
    )
    monitor_mode: Literal["min", "max"] | None = _setting(
        None,
        "Whether a lower or a higher value of `monitor` is better; None: what its name says.",
        "checkpoints",
    )
    keep_runs: int = _setting(
        50,
        "Fits kept, with their checkpoints; the oldest are deleted first, each only after a message"
        " of an earlier fit has named it. Pinned fits stay and are not counted.",
        "checkpoints",
        "fits",
        ge=1,
    )
    keep_start: int | None = _setting(
        200,
        "Disk space for what a fit starts from (code, weights, data in memory, generators), from"
        " which `wb.rerun` repeats it. A fit that starts from more keeps nothing and says so. 0:"
        " nothing is kept; None: no limit.",
        "checkpoints",
        "MB",
        ge=0,
    )

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "xpu", "tpu"] = _setting(
        "auto",
        "Kind of device. 'auto' takes a GPU where there is one. 'tpu' needs torch_xla.",
        "devices",
    )
    devices: Devices = _setting(
        "auto",
        "How many devices to train on (2), or which GPUs ([0, 2]). 'auto': all GPUs, one CPU"
        " process, or one core of a TPU. The cores of a TPU divide each batch.",
        "devices",
        "devices",
    )
    strategy: Strategy = _setting(
        "auto",
        "'thread': in the notebook's own process; 'pool': one process a device, kept warm between"
        " jobs; 'launch': detached, under accelerate launch. 'auto': thread on one device, pool on"
        " several.",
        "devices",
    )
    num_nodes: int = _setting(
        1, "Machines to train on; more than 1 with strategy='launch'.", "devices", "machines", ge=1
    )
    launch: LaunchOptions | None = _setting(
        None,
        "With strategy='launch', options of `accelerate launch` by their names: {'config_file':"
        " 'two.yaml', 'main_process_ip': '10.0.0.1'}. None: those of your accelerate config.",
        "devices",
    )
    rank_timeout: float = _setting(
        600.0,
        "Seconds without progress on several ranks after which the job ends, with the stacks of"
        " all.",
        "devices",
        "seconds",
        gt=0,
    )
    seed: int = _setting(
        0,
        "Seed of weights drawn in the run, order of samples, dropout, augmentation.",
        "devices",
        ge=0,
    )
    deterministic: bool | Literal["warn"] = _setting(
        False,
        "Only deterministic kernels (torch.use_deterministic_algorithms); slower on GPUs. 'warn':"
        " where an operation has none, warn and use another.",
        "devices",
    )
    benchmark: bool | None = _setting(
        None,
        "Let cuDNN try which convolution kernels are fastest (torch.backends.cudnn.benchmark)."
        " None: torch keeps its setting, and it is off with `deterministic`.",
        "devices",
    )

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Settings from keyword arguments; a typo or a bad value is a `SettingsError` that says
        what to do.
        """
        values = _as_fields(settings_of(values, cls.model_fields))
        for name, value in values.items():
            if value is True and name != "fast_dev_run" and _is_number(cls.model_fields[name]):
                raise SettingsError(
                    f"{name}=True: input should be a number. {meaning(cls.model_fields[name])}"
                )
        try:
            settings = cls(**values)
        except ValidationError as error:
            raise SettingsError(explain(error, values, cls.model_fields)) from None
        if settings.prefetch_factor is not None and not settings.num_workers:
            raise SettingsError(
                f"prefetch_factor={settings.prefetch_factor}: only loader processes read ahead, "
                "and num_workers is 0: give num_workers=2, or "
                "prefetch_factor=None."
            )
        if settings.preload and settings.reload_dataloaders_every_n_epochs:
            raise SettingsError(
                f"reload_dataloaders_every_n_epochs={settings.reload_dataloaders_every_n_epochs} "
                "with preload=True: preload reads the samples once, "
                "and a new loader may have others. Leave one of them out."
            )
        warmup, decay = settings.warmup, settings.decay_fraction
        if settings.lr_schedule == "wsd" and isinstance(warmup, float) and warmup + decay > 1:
            raise SettingsError(
                f"warmup={warmup} and decay_fraction={decay} overlap: with lr_schedule='wsd' the"
                " rate rises, stays and falls, and both are shares of the run. Make one smaller."
            )
        for stop in settings.early_stopping:
            settings._refuse_no_best(stop)
        return settings

    def _refuse_no_best(self, stop: EarlyStopping) -> None:
        """Raise SettingsError for `restore_best` where no checkpoint has the best weights by
        this rule's metric.
        """
        if not stop.restore_best:
            return
        if not self.save_top_k:
            raise SettingsError(
                "save_top_k=0: no best weights are kept, and EarlyStopping(restore_best=True) needs"
                " them. Leave one of them out."
            )
        monitor = self.monitor or "val_loss"
        if stop.monitor != monitor:
            raise SettingsError(
                f"EarlyStopping({stop.monitor!r}, restore_best=True): the best weights are those by"
                f" monitor={monitor!r}. Give monitor={stop.monitor!r}, too."
            )
        if (self.monitor_mode or known_mode(monitor) or stop.direction) != stop.direction:
            raise SettingsError(
                f"EarlyStopping({stop.monitor!r}, restore_best=True) has mode={stop.direction!r},"
                f" and monitor_mode={self.monitor_mode!r}: give both the same."
            )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The settings in a YAML file, as `bench.export("settings.yaml")` writes it; those that it
        does not name have their defaults.

        `SettingsError` names the file, and what in it is no setting or has a bad value.
        """
        values = read(path)
        try:
            return cls.make(**values)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Settings are frozen: a bench has others by `set`."""
        raise AttributeError(
            f"settings are frozen: bench.set({name}=…) replaces them, and bench.fit({name}=…) has"
            " its own."
        )

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """For the repr: the settings that differ from their defaults. `model_dump()` has all,
        `help(Settings)` what they mean.
        """
        return iter(self.changed().items())

    def __str__(self) -> str:
        """The settings that differ from their defaults, by group, as a notebook shows them."""
        changed = self.changed()
        lines = [
            (
                "Settings that differ from their defaults (help(wb.Settings) lists all):"
                if changed
                else "All settings have their defaults."
            )
        ]
        for group in get_args(Group):
            named = [name for name in changed if metadata_of(name).group == group]
            lines += [
                f"  {group}",
                *(
                    f"    {name} = {changed[name]!r}  (default"
                    f" {type(self).model_fields[name].default!r})"
                    for name in named
                ),
            ] * bool(named)
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython, which shows a value at the end of a cell so."""
        printer.text(str(self))

    def replace(self, **changes: Any) -> Self:
        """These settings with some of them changed, checked like new ones."""
        changed = settings_of(changes, type(self).model_fields)
        if all(_stays(value, getattr(self, name)) for name, value in changed.items()):
            return self
        return self.make(**{**self.model_dump(), **changed})

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {
            name: value
            for name, value in self
            if not _same(value, type(self).model_fields[name].default)
        }

    @classmethod
    def named(
        cls, given: Mapping[str, Any], method: str = "", arguments: Collection[str] = ()
    ) -> dict[str, Any]:
        """Pick the keyword arguments that are settings; `SettingsError` for one that is unknown,
        with the nearest name.

        method, arguments: what of the bench was called with them, and what else it takes.
        """
        return settings_of(given, cls.model_fields, method, arguments)

    @property
    def epochs(self) -> int | None:
        """The number of epochs of the fit: `max_epochs`, or 10 when no length at all was given;
        None: no number ends the run.
        """
        if self.max_epochs is None and self.max_steps is None and self.max_time is None:
            return 10
        return None if self.max_epochs == -1 else self.max_epochs


Method = TypeVar("Method", bound=Callable[..., object])


class _AsSet:
    """The default of a keyword in a signature: the setting of the bench or the job holds."""

    def __repr__(self) -> str:
        return "…"


def lists_keywords(keywords: type) -> Callable[[Method], Method]:
    """Decorates a method that takes `**settings`: its signature lists these keywords, so that
    Jupyter completes them, and its help says by groups what they mean.

    keywords: a TypedDict of `workbench.settings.kwargs`. A default of `…` means that the setting
    of the bench or the job holds.
    """

    def decorate(method: Method) -> Method:
        signature = inspect.signature(method)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ]
        names = [*get_type_hints(keywords)]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_AsSet())
            for name in names
        ]
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        method.__doc__ = (
            f"{inspect.cleandoc(method.__doc__ or '')}\n\nSettings that it takes. One that is not"
            f" given has the value that is set:\n{_help(names)}"
        )
        return method

    return decorate


def _help(names: Collection[str]) -> str:
    """These settings by their groups, each with its unit, its default and its help."""
    lines = []
    for group in get_args(Group):
        texts = [_help_of(name) for name in names if metadata_of(name).group == group]
        if texts:
            lines += ["", f"{group.capitalize()}:", *texts]
    return "\n".join(lines)


@functools.cache
def _help_of(name: str) -> str:
    """The unit of a setting, its default and its help."""
    field, item = Settings.model_fields[name], metadata_of(name)
    facts = [f"default {field.default!r}"]
    if item.unit:
        facts.insert(0, item.unit)
    if item.live:
        facts.append("live")
    return textwrap.fill(
        f"{name} ({', '.join(facts)}): {field.description}",
        100,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )


def _as_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The values as the fields take them: None as the default where Lightning says so."""
    defaults = {
        name: Settings.model_fields[name].default
        for name in NONE_IS_DEFAULT
        if name in values and values[name] is None
    }
    return {**values, **defaults}


def _is_number(field: FieldInfo) -> bool:
    """Whether a field takes a number or None only: pydantic would also accept True there. A field
    with a validator of its own does not count.
    """
    looks = any(isinstance(annotation, BeforeValidator) for annotation in field.metadata)
    return not looks and {*(get_args(field.annotation) or (field.annotation,))} <= {
        int,
        float,
        type(None),
    }


def _same(value: object, default: object) -> bool:
    """Whether two values are equal and of one type: 1 is a number of batches, 1.0 all of them."""
    return type(value) is type(default) and value == default


def _stays(value: object, present: object) -> bool:
    """Whether a setting keeps its checked value. A container is checked anew: what is in it may
    be equal and of another type.
    """
    return value is None is present or (
        type(value) is type(present)
        and type(value) in (bool, int, float, str)
        and repr(value) == repr(present)
    )


def recorded_settings(values: Mapping[str, Any]) -> Settings:
    """The settings of a record, without those of a newer version. SettingsError: one has a wrong
    value.
    """
    return Settings.make(
        **{name: value for name, value in values.items() if name in Settings.model_fields}
    )


def metadata_of(name: str) -> SettingMetadata:
    """The panel's metadata of one setting."""
    return next(
        item for item in Settings.model_fields[name].metadata if isinstance(item, SettingMetadata)
    )


Settings.__doc__ = f"{inspect.cleandoc(Settings.__doc__ or '')}\n{_help(Settings.model_fields)}"
Settings.__signature__ = inspect.Signature(
    [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=Settings.model_fields[name].default,
            annotation=hint,
        )
        for name, hint in get_type_hints(SettingsKwargs).items()
    ]
)

LOCAL = (
    *(
        name
        for name in Settings.model_fields
        if metadata_of(name).group == "devices" and name not in ("seed", "deterministic")
    ),
    "keep_runs",
    "save_top_k",
    "keep_start",
)
"""Settings of where code runs, of what is kept and of what is deleted: only the bench and the call
of `fit` decide them, never a checkpoint or a record.
"""


def reason(name: str, value: object, error: Exception) -> str:
    """Why setting `name` does not take this value, without the name and the value, which the
    reader sees.
    """
    text = str(error).removeprefix(f"{name}={shown(value)}: ")
    return text.removesuffix(f". {meaning(Settings.model_fields[name])}")
