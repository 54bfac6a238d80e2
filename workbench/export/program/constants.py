"""What a run used, as constants that the training program reads.

A script is the program with a run's own values, folded (`export/fold.py`). The values here are
those of a small run, with which the program can be imported, read and run as it stands.
"""

from __future__ import annotations

from typing import Any

TITLE: str = "Train the network."
"""The first line of `--help`."""

# ---- what export was asked for

LOGS: bool = False
"""A log file with a line for each update and validation."""
TRACKS: bool = False
"""accelerate's trackers."""
RESUMES: bool = False
"""A checkpoint after each epoch, from which `--resume` continues."""
CHECKS: bool = False
"""Comparisons with what the run began with."""
CHECKSUMS: dict[str, list[str]] = {}
"""What the run began with: checksums by "weights", "batches"."""
FIRST_NUMBERS: int = 100_000
"""How many numbers of a tensor a checksum reads."""
FIRST_WEIGHTS: int = 1000
"""How many numbers of a parameter it reads."""

# ---- settings

LR: float = 1e-3
WEIGHT_DECAY: Any = None
BATCH_SIZE: int = 64
ACCUMULATE_GRAD_BATCHES: int = 1
GRADIENT_CLIP_VAL: float = 1.0
MAX_EPOCHS: Any = 3
MAX_STEPS: Any = None
MIN_EPOCHS: Any = None
MIN_STEPS: Any = None
SCHEDULED_STEPS: Any = None
"""The number of updates that the schedule was made for, where that does not follow from the
length.
"""
NEVER_ZERO: tuple[str, ...] = ("max_epochs",)
"""The options with which nothing is trained where they are 0."""
CHECK_VAL_EVERY_N_EPOCH: int = 1
VAL_CHECK_INTERVAL: float = 1.0
LIMIT_TRAIN_BATCHES: float = 1.0
LIMIT_VAL_BATCHES: float = 1.0
LIMITS: str = ""
"""How LIMIT_TRAIN_BATCHES counts: "" (all), a "fraction" of an epoch, or "batches"."""
LIMITS_VAL: str = ""
NUM_WORKERS: int = 0
SEED: int = 42
THREADS: int = 1
WARMUP: float = 0
MIN_LR_RATIO: float = 0.0
DECAY_FRACTION: float = 0.2
LR_POWER: float = 2.0
RESTARTS: int = 3
EMA_DECAY: float = 0.999
AVERAGING_EVERY_N_STEPS: int = 1
AVERAGING_START: int = 0
AVERAGING_START_EPOCH: int = 0
SWA_EPOCH_START: int = 0
SWA_LRS: Any = None
ANNEALING_EPOCHS: int = 10
ANNEALING_STRATEGY: Any = "cos"

# ---- where it trains

CPU: bool = True
SINGLE_PROCESS: str = ""
"""Why it trains in one process alone; "": it may train in several."""
DISTRIBUTED: bool = False
"""Whether several processes made the run."""
RANKS: int = 1
"""How many processes made the run."""
DETERMINISTIC: bool | str = False
BENCHMARK: Any = None
DETECT_ANOMALY: bool = False
PRECISION: str = "32"
"""Of most products: "32", "bf16" or "16"."""
COMPILES: bool = False
"""Whether torch compiles the network."""
COMPILE_OPTIONS: dict[str, Any] = {}
"""The arguments of torch.compile."""
COMPILES_BLOCKS: bool = False
"""Whether it compiles only the blocks that the network repeats, each alone."""

# ---- the model and its loss

START: Any = None
"""The file with the weights that the run began with."""
BATCH: str = "pair"
"""The form of a batch: "pair" (inputs, target), "tuple" (several inputs, target), "dict", "single"
(one tensor, of a model that gives its loss), "step" (for the network's own training_step).
"""
TARGET: Any = "labels"
"""The key of the target, where a batch is a dict."""
LOSS: bool = True
"""Whether there is a loss function; else the model gives its loss."""
LOSS_IN_DICT: bool = False
"""Whether the loss is one of several values that are returned."""
LOSS_MODULE: bool = False
"""Whether the loss function is a module with a state."""
TRAINS_LOSS: bool = False
"""Whether the loss function has parameters that are trained."""
LOSS_PREFIX: str = "loss."
"""What names of its parameters begin with."""
KEEPS_MODES: bool = False
"""Whether parts of the model stay in eval mode while it trains."""
OVERRIDES_MODES: bool = False
"""Whether a class of the model overrides `train()`."""
COMPILED: bool = False
"""Whether the model came compiled."""

# ---- hooks of a network with a training_step

TAKES_NUMBER: bool = False
"""Whether `training_step` takes the number of the batch."""
VALIDATION_TAKES_NUMBER: bool = False
HAS_HOME: tuple[str, ...] = ()
"""The settings that the object keeps itself: "lr", "batch_size"."""
OPTIMIZER_FORM: str = "optimizer"
"""What `configure_optimizers` returns: an "optimizer", two "lists", a "dict"."""
SCHEDULER_IN_DICT: bool = False
"""Whether its scheduler is in a dict of its own, with its options."""

# ---- data

TRAIN_KIND: str = "samples"
"""How training data are read: "samples" by index, a "stream" of samples, or ready "batches"."""
VAL_KIND: str = "samples"
SHUFFLE: bool = True
DROP_LAST: bool = False
PIN_MEMORY: bool = False
PERSISTENT_WORKERS: bool = False
PREFETCH_FACTOR: Any = None
WORKER_SEEDS: bool = False
"""Whether samples may draw random numbers in workers."""
SAMPLERS_DRAW: bool = False
"""Whether the user's samplers have generators."""
SETS_EPOCH: bool = False
"""Whether samplers or data sets are told the epoch."""
TRAIN_OWN: tuple[str, ...] = ()
"""What the loader has of the user's: "sampler", "batch_sampler", "generator", "collate_fn",
"worker_init_fn".
"""
VAL_OWN: tuple[str, ...] = ()
TRAIN_FORM: str = "dataset"
"""What `train_data` is: a "dataset", a tuple of "arrays", a dict of "columns", a list of
"batches".
"""
VAL_FORM: str = "dataset"
MAY_BE_EMPTY: bool = False
"""Whether a batch may be None, or has no loss."""
SIZED: bool = True
"""Whether the number of training batches is known."""
DRAWS_ELSEWHERE: bool = False
"""Whether code may draw random numbers of Python or NumPy."""

# ---- validation

VALIDATES: bool = True
VAL_SETS: bool = False
"""Whether there are several validation sets."""
METRICS: bool = True
METRIC_OBJECTS: bool = False
"""Whether metrics have `update`, `compute` and `reset`."""
METRIC_FUNCTIONS: bool = True
METRIC_DICTS: bool = False
"""Whether a metric returns several numbers by name."""
METRIC_MODULES: bool = False
BEST: Any = None
"""The metric by which the best weights are kept."""
BEST_IS_HIGHEST: bool = False
EARLY_STOPPING: list[dict[str, Any]] = []
"""The arguments of each `EarlyStopping`."""
STOPPERS_MAXIMIZE: bool = False
"""Whether any of them follows a metric that is to be high."""
STOPPERS_WARM_UP: bool = False
"""Whether any of them lets validations pass first."""
STOPPERS_HAVE_GOALS: bool = False
"""Whether any of them has a stopping_threshold."""
STOPPERS_HAVE_BOUNDS: bool = False
"""Whether any of them has a divergence_threshold."""
STOPPERS_IGNORE_NAN: bool = False
"""Whether any of them goes on where its metric is not finite."""
FOLLOWS_TRAIN_LOSS: bool = False
"""Whether early stopping or a scheduler follows the training loss."""
LOG_EVERY_N_STEPS: int = 1
CHECKS_WITHIN_EPOCHS: str = ""
"""How VAL_CHECK_INTERVAL counts: "" (whole epochs), "fraction" of an epoch, "updates"."""

# ---- an update

ACCUMULATES: bool = False
WINDOWS: Any = None
"""How many batches make an update, from which epoch, or update, on."""
WINDOWS_BY: str = "epoch"
TRANSFORMS: bool = False
"""Whether the user's code changes each training batch."""
MEAN: bool = True
"""Whether the loss is a mean over samples, so that a batch weighs as many as it has."""
WEIGHS: bool = False
"""Whether a step reports the weight of its batch."""
CLIPS: bool = True
CLIP_ALGORITHM: str = "norm"
LEAVES_OUT: bool = False
"""Whether an update with a loss or gradient that is not finite is left out."""
SPIKES: tuple[int, ...] = ()
"""The updates that the run left out, since their loss spiked."""
CLOSURE: str = ""
"""How the optimizer evaluates the loss again: "", "always", "after gradients"."""
CHANGES: dict[int, dict[str, float]] = {}
"""What was changed before an update: settings by name."""
CHANGED: tuple[str, ...] = ()
"""The names of these settings."""
SEARCHES_AT_EPOCHS: bool = False
"""Whether searches before epochs made changes."""

# ---- the optimizer

MUON: bool = False
"""Whether the optimizer is MuonWithAdamW."""
PARTS: tuple[dict[str, float], ...] = ()
"""The arguments of each optimizer, where parts of the network have one each."""
GROUPS: bool = False
"""Whether rules divide the optimizer's parameters into groups."""
FREEZES: bool = False
"""Whether rules freeze parameters until an epoch."""
TAKES_LR: bool = True
"""Whether `make_optimizer` takes the learning rate."""
MADE_LR: Any = None
"""The rate that the optimizer is made with, where it does not take it."""
TRAINS_ALL: bool = True
"""Whether the optimizer has all parameters of the network."""
SCHEDULE_FREE: bool = False
LEADING: int = 0
"""The parameter group whose rate is reported."""
SCHEDULE: str = ""
"""The schedule that the settings ask for: "", "constant" (a warm-up), "linear", "cosine",
"one_cycle", "wsd", "polynomial", "inverse_sqrt", "cosine_restarts".
"""
DECAY_SHAPE: str = "1-sqrt"
"""How "wsd" falls: "linear", "1-sqrt", "cosine"."""
WARMS_UP: bool = False
OWN_WARMS_UP: bool = False
"""Whether a warm-up goes with the user's scheduler."""
WARMUP_IS_FRACTION: bool = False
MOMENTUM: bool = True
"""Whether a one-cycle schedule changes the momentum."""
OWN_SCHEDULER: str = ""
"""When the user's scheduler steps: "", "step", "epoch" or "check" (it follows a metric)."""
FREQUENCY: int = 1
MONITOR: str = "val_loss"
"""The metric that the scheduler follows."""

# ---- averages

AVERAGING: str = ""
"""Of the weights: "", "ema" or "swa"."""
EMA_WARMUP: bool = True
OWN_AVERAGE: bool = False
"""Whether the user gives the function that averages."""
OWN_TIMES: bool = False
"""Whether the user gives the function that says when."""
BATCH_NORM: bool = False
"""Whether averaged weights need batch-norm statistics of their own."""
HAS_BUFFERS: bool = False
BEST_IS_OF_AVERAGE: bool = False
"""Whether BEST is a metric of the averaged weights."""
LENGTH: str = "epochs"
"""What says for how many updates a schedule is made: "epochs", "steps", or "scheduled"
(SCHEDULED_STEPS).
"""
OVERSHOOTS: bool = False
"""Whether a one-cycle schedule may end before the training."""
NEEDS_PARAMETERS: bool = True
"""Whether the loop reads the parameters that the optimizer has."""
FROZEN_GROUPS: bool = False
"""Whether the rate of a parameter group is 0."""
COUNTS_TAKEN: bool = False
"""Whether updates that were taken are counted apart from those that were left out."""
HAS_CHECKS: bool = True
"""Whether anything follows an epoch: a validation, or a metric that is followed."""
LEAVES_GRADIENTS: bool = False
"""Whether the user's code may leave gradients behind."""
LOGS_IN_STEPS: bool = False
"""Whether the network calls `self.log`."""
ACCELERATOR: str = "auto"
"""The arguments of Lightning's Trainer, from here on."""
DEVICES: int = 1
NUM_NODES: int = 1
STRATEGY: str = "auto"
TRAINER_PRECISION: Any = None
MAX_TIME: Any = None
NUM_SANITY_VAL_STEPS: Any = None
SAVE_TOP_K: int = 1
MAKES_LOADERS: bool = False
"""Whether the user's objects make the loaders."""
DATAMODULE: bool = False
BRINGS_CALLBACKS: bool = False
DRAWS_TO_THE_END: bool = False
"""Whether each order of samples is drawn to its end, as the run did and Lightning does not."""
