"""What follows a validation: the best weights, schedules that follow a metric, the end of the
training.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
from accelerate.utils import broadcast_object_list

from workbench.export.program.averaging import evaluation_weights, refresh_batch_norm
from workbench.export.program.constants import (
    AVERAGING,
    BATCH_NORM,
    BEST,
    BEST_IS_OF_AVERAGE,
    DISTRIBUTED,
    EARLY_STOPPING,
    FOLLOWS_TRAIN_LOSS,
    LOGS,
    MIN_EPOCHS,
    MIN_STEPS,
    MONITOR,
    OWN_SCHEDULER,
    SCHEDULE_FREE,
    TRACKS,
    VAL_SETS,
    VALIDATES,
)
from workbench.export.program.data import limited, training_loader
from workbench.export.program.logs import write_row
from workbench.export.program.validation import validate, validate_sets


def check(
    network,
    dataset,
    val_loader,
    config,
    accelerator,
    optimizer,
    scheduler,
    average,
    best,
    stoppers,
    logged,
    losses,
    epoch,
    step,
    finished,
):
    """Validate, and do what follows from the metrics."""
    if not VALIDATES:
        scores = mean_of(losses)
    else:
        with evaluation_weights(optimizer) if SCHEDULE_FREE else contextlib.nullcontext():
            scores = (validate_sets if VAL_SETS else validate)(
                network, val_loader, config, accelerator, logged
            )
            if FOLLOWS_TRAIN_LOSS:
                scores |= mean_of(losses)
            if BEST is not None and not BEST_IS_OF_AVERAGE:
                best.keep(scores[BEST], network, accelerator)
    if VALIDATES and AVERAGING and average.count:
        with average.in_place():
            if BATCH_NORM:
                refresh_batch_norm(
                    network,
                    limited(training_loader(dataset, config, accelerator), config),
                    accelerator,
                )
            averages = (validate_sets if VAL_SETS else validate)(
                network, val_loader, config, accelerator, logged
            )
            scores |= {f"{name}_averaged": value for name, value in averages.items()}
            if BEST_IS_OF_AVERAGE:
                best.keep(scores[BEST], network, accelerator)
    if DISTRIBUTED and FOLLOWS_TRAIN_LOSS:
        (scores,) = broadcast_object_list([scores])  # all processes decide alike
    if OWN_SCHEDULER == "check":
        if MONITOR in scores:
            scheduler.step(scores[MONITOR])
    if VALIDATES and (LOGS or TRACKS):
        if FOLLOWS_TRAIN_LOSS:
            row = {name: value for name, value in scores.items() if name != "train_loss"}
        else:
            row = scores
        write_row(row, config, accelerator, step)
    shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
    accelerator.print(f"epoch {epoch + 1}  step {step}  {shown}")
    if EARLY_STOPPING:
        verdicts = [stopper.should_stop(scores) for stopper in stoppers]
        ended = any(verdicts)
        if MIN_EPOCHS:
            ended = ended and finished >= config.min_epochs
        if MIN_STEPS:
            ended = ended and step >= config.min_steps
        return ended


def mean_of(losses):
    """The mean of the losses that are finite, as a metric."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return {"train_loss": float(np.cumsum(finite)[-1]) / len(finite)} if finite else {}
