"""Defines the settings as keyword arguments, which editors complete and type checkers check.

`python -m tests.settings.kwargs` writes this file from `Settings`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from workbench.values import EarlyStopping


class OtherKwargs(TypedDict, total=False):
    """Settings without `optimizer`, which is an argument of some methods."""

    lr: float
    weight_decay: float | None
    batch_size: int
    accumulate_grad_batches: int | Mapping[int, int]
    gradient_clip_val: float | None
    gradient_clip_algorithm: Literal["norm", "value"] | None
    lr_schedule: Literal[
        "constant",
        "linear",
        "cosine",
        "one_cycle",
        "wsd",
        "polynomial",
        "inverse_sqrt",
        "cosine_restarts",
    ]
    warmup: int | float
    min_lr_ratio: float
    decay_fraction: float
    decay_shape: Literal["linear", "1-sqrt", "cosine"]
    lr_power: float
    restarts: int
    precision: (
        Literal[
            "32-true",
            "16-mixed",
            "bf16-mixed",
            "64-true",
            "32",
            "16",
            "64",
            "bf16",
            "fp16",
            "fp32",
            "no",
            16,
            32,
            64,
        ]
        | None
    )
    compile: bool | str | dict[str, str | bool]
    max_epochs: int | None
    min_epochs: int | None
    max_steps: int | None
    min_steps: int | None
    max_time: str | timedelta | Mapping[str, float] | None
    shuffle: bool
    num_workers: int
    pin_memory: bool | None
    persistent_workers: bool
    prefetch_factor: int | None
    drop_last: bool
    streams: Literal["whole", "shard"]
    preload: bool
    reload_dataloaders_every_n_epochs: int
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    limit_predict_batches: int | float | None
    overfit_batches: int | float
    fast_dev_run: int
    check_val_every_n_epoch: int | None
    val_check_interval: int | float | str | timedelta | Mapping[str, float] | None
    num_sanity_val_steps: int | None
    early_stopping: (
        str
        | EarlyStopping
        | Mapping[str, Any]
        | Sequence[str | EarlyStopping | Mapping[str, Any]]
        | None
    )
    weight_averaging: Literal["ema", "swa"] | None
    ema_decay: float
    ema_warmup: bool
    averaging_every_n_steps: int
    averaging_start: int
    averaging_start_epoch: int
    swa_epoch_start: int | float
    swa_lrs: float | None
    annealing_epochs: int
    annealing_strategy: Literal["cos", "linear"]
    truncated_bptt_steps: int | None
    tbptt_time_dim: int
    find_lr_at: int | Sequence[int] | set[int] | frozenset[int]
    find_batch_size_at: int | Sequence[int] | set[int] | frozenset[int]
    track_grad_norm: Literal["inf"] | float | None
    track_update_ratio: bool
    track_noise_scale: bool | Literal["modules"]
    layer_history_mb: int | None
    log_every_n_steps: int | None
    on_nonfinite: Literal["stop", "skip"]
    on_spike: Literal["report", "skip", "rollback"] | None
    enable_progress_bar: bool | None
    detect_anomaly: bool
    checkpoint_every: int | str | timedelta | Mapping[str, float] | None
    save_top_k: int
    monitor: str | None
    monitor_mode: Literal["min", "max"] | None
    keep_runs: int
    keep_start: int | None
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "xpu", "tpu"]
    devices: Literal["auto"] | int | str | Sequence[int]
    strategy: Literal["auto", "thread", "pool", "launch"] | str
    num_nodes: int
    launch: Mapping[str, str | bool | int | float] | None
    rank_timeout: float
    seed: int
    deterministic: bool | Literal["warn"] | None
    benchmark: bool | None


class SettingsKwargs(OtherKwargs, total=False):
    """Any settings, as keyword arguments."""

    optimizer: str | Mapping[str, Any] | Callable[..., Any] | None


class LiveKwargs(TypedDict, total=False):
    """Settings that can change while a run is running, as keyword arguments."""

    lr: float
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    track_update_ratio: bool
