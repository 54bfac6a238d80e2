"""Lists the settings that export supports, those that a script does not need, and those that it
refuses.
"""

from __future__ import annotations

SUPPORTED = {
    "optimizer",
    "lr",
    "weight_decay",
    "batch_size",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "lr_schedule",
    "warmup",
    "min_lr_ratio",
    "decay_fraction",
    "decay_shape",
    "lr_power",
    "restarts",
    "precision",
    "compile",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "shuffle",
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "limit_train_batches",
    "limit_val_batches",
    "overfit_batches",
    "check_val_every_n_epoch",
    "val_check_interval",
    "early_stopping",
    "weight_averaging",
    "ema_decay",
    "ema_warmup",
    "averaging_every_n_steps",
    "averaging_start",
    "averaging_start_epoch",
    "swa_epoch_start",
    "swa_lrs",
    "annealing_epochs",
    "annealing_strategy",
    "find_lr_at",
    "find_batch_size_at",
    "num_sanity_val_steps",
    "on_nonfinite",
    "on_spike",
    "detect_anomaly",
    "accelerator",
    "devices",
    "num_nodes",
    "seed",
    "deterministic",
    "benchmark",
}
"""The settings that export supports."""

NOT_NEEDED = {
    "track_grad_norm",
    "track_update_ratio",
    "track_noise_scale",
    "layer_history_mb",
    "log_every_n_steps",
    "keep_runs",
    "keep_start",
    "limit_test_batches",
    "limit_predict_batches",
    "checkpoint_every",
    "save_top_k",
    "monitor",
    "monitor_mode",
    "strategy",
    "launch",
    "rank_timeout",
    "preload",
    "enable_progress_bar",
    "tbptt_time_dim",
}
"""Settings that a script does not need: they decide what a run stores, where it runs, or which
measurements are made besides.
"""

REFUSED = {
    "fast_dev_run": "it was a dry run, of a few batches",
    "reload_dataloaders_every_n_epochs": "a script makes each loader once",
    "truncated_bptt_steps": "a script takes whole batches",
    "streams": "in a script each process reads a stream whole",
}
"""The settings that no script repeats when they are on, and why."""

SET = {"lr", "gradient_clip_val", "batch_size"}
"""The settings that a script can change before an update."""

REPLAYED = SET | {"accumulate_grad_batches"}
"""The live changes that a script replays: those by the user, and those of a scheduled search."""

LENGTHS = {"max_epochs", "max_steps", "max_time", "min_epochs", "min_steps"}
"""Settings that a resumed run may change, and on which a schedule may depend."""

NO_MATTER = {
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "detect_anomaly",
    "num_sanity_val_steps",
}
"""Settings whose change at an update does not change the result; an object may still read the
last one in its hooks.
"""
