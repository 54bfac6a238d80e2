"""The settings of the run, each of which is an option of the script."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from workbench.export.program.constants import (
    ACCUMULATE_GRAD_BATCHES,
    ANNEALING_EPOCHS,
    AVERAGING_EVERY_N_STEPS,
    AVERAGING_START,
    AVERAGING_START_EPOCH,
    BATCH_SIZE,
    CHECK_VAL_EVERY_N_EPOCH,
    DECAY_FRACTION,
    EMA_DECAY,
    GRADIENT_CLIP_VAL,
    LIMIT_TRAIN_BATCHES,
    LIMIT_VAL_BATCHES,
    LR,
    LR_POWER,
    MAX_EPOCHS,
    MAX_STEPS,
    MIN_EPOCHS,
    MIN_LR_RATIO,
    MIN_STEPS,
    NEVER_ZERO,
    NUM_WORKERS,
    RESTARTS,
    SCHEDULED_STEPS,
    SEED,
    SWA_EPOCH_START,
    SWA_LRS,
    THREADS,
    TITLE,
    VAL_CHECK_INTERVAL,
    WARMUP,
    WEIGHT_DECAY,
)

OUTPUT = Path(__file__).with_name(Path(__file__).stem + "-output")


@dataclasses.dataclass
class Config:
    """The settings; each is an option, as in --seed 1."""

    lr: float = LR
    weight_decay: float = WEIGHT_DECAY
    batch_size: int = BATCH_SIZE  # of each process, where there are several
    accumulate_grad_batches: int = ACCUMULATE_GRAD_BATCHES  # batches in one update
    gradient_clip_val: float = GRADIENT_CLIP_VAL
    max_epochs: int = MAX_EPOCHS
    max_steps: int = MAX_STEPS  # updates
    min_epochs: int = MIN_EPOCHS  # before these no metric ends the training
    min_steps: int = MIN_STEPS  # updates, before which no metric ends the training
    scheduled_steps: int = SCHEDULED_STEPS  # updates that the schedule is made for
    warmup: float = WARMUP  # updates, or a fraction of all updates
    min_lr_ratio: float = MIN_LR_RATIO  # the lowest rate, as a share of lr
    decay_fraction: float = DECAY_FRACTION  # of the run, in which the rate falls at its end
    lr_power: float = LR_POWER  # of the share of the run that is left
    restarts: int = RESTARTS
    check_val_every_n_epoch: int = CHECK_VAL_EVERY_N_EPOCH
    val_check_interval: float = VAL_CHECK_INTERVAL  # updates, or a fraction of an epoch
    limit_train_batches: float = LIMIT_TRAIN_BATCHES  # batches, or a fraction of all batches
    limit_val_batches: float = LIMIT_VAL_BATCHES  # batches, or a fraction of all batches
    ema_decay: float = EMA_DECAY
    averaging_every_n_steps: int = AVERAGING_EVERY_N_STEPS
    averaging_start: int = AVERAGING_START  # updates before the first average
    averaging_start_epoch: int = AVERAGING_START_EPOCH
    swa_epoch_start: int = SWA_EPOCH_START  # the first epoch whose end is averaged
    swa_lrs: float = SWA_LRS
    annealing_epochs: int = ANNEALING_EPOCHS
    num_workers: int = NUM_WORKERS
    threads: int = THREADS  # of torch; with other numbers sums are rounded otherwise
    seed: int = SEED  # of the training; the weights at its start do not depend on it
    output: Path = OUTPUT  # for the trained weights
    log_file: str = ""  # gets a line of JSON for each update and validation
    tracker: str = ""  # one of accelerate's, say "tensorboard"
    resume: str = ""  # the checkpoint.pt of a training that was interrupted


def parse():
    """The settings with those of the command line."""
    parser = argparse.ArgumentParser(description=TITLE)
    for setting in dataclasses.fields(Config):
        kind, default = type(setting.default), setting.default
        parser.add_argument(f"--{setting.name}", type=kind, default=default, help="(%(default)s)")
    settings = vars(parser.parse_args())
    for name, value in settings.items():
        is_number = isinstance(value, (int, float))
        if is_number and name in NEVER_ZERO and not value > 0:
            parser.error(f"--{name} {value}: give a number above 0.")
        if is_number and not value >= 0:
            parser.error(f"--{name} {value}: give 0 or more.")
    return Config(**settings)
