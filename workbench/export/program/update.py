"""The gradient of an update, of one batch or of several."""

from __future__ import annotations

import contextlib

import torch
from accelerate.utils import find_batch_size, send_to_device

from workbench.export.program.constants import (
    BATCH,
    MAY_BE_EMPTY,
    MEAN,
    METRICS,
    PRECISION,
    SINGLE_PROCESS,
    TAKES_NUMBER,
    TRANSFORMS,
    WEIGHS,
)
from workbench.export.program.model import (
    forward,
    forward_prepared,
    mixed_precision,
    transformed,
)


def accumulate(model, window, first, parameters, scaler, accelerator):
    """The gradient of the batches of an update; returns their loss."""
    if MAY_BE_EMPTY:
        window = [batch for batch in window if batch is not None]
    if MEAN and not WEIGHS:
        sizes = [find_batch_size(batch) for batch in window]
    loss = 0.0
    shares = []
    for place, batch in enumerate(window):
        batch = send_to_device(batch, accelerator.device, non_blocking=True)
        last = place == len(window) - 1
        with contextlib.nullcontext() if last or SINGLE_PROCESS else accelerator.no_sync(model):
            with (
                mixed_precision(accelerator.device)
                if PRECISION != "32"
                else contextlib.nullcontext()
            ):
                if TRANSFORMS:
                    batch = transformed(batch)
                if BATCH == "step":
                    batch_loss = model(batch, first + place) if TAKES_NUMBER else model(batch)
                elif WEIGHS:
                    batch_loss, share, *_ = forward_prepared(model, batch)
                elif METRICS:
                    batch_loss, *_ = forward_prepared(model, batch)
                else:
                    batch_loss = forward_prepared(model, batch)
                if MAY_BE_EMPTY and batch_loss is None:
                    continue
                if WEIGHS:
                    batch_loss = batch_loss * share if len(window) > 1 else batch_loss
                else:
                    share = sizes[place] / sum(sizes) if MEAN else 1 / len(window)
                    batch_loss = batch_loss * share
            if PRECISION == "16":
                scaler.scale(batch_loss).backward()
            else:
                batch_loss.backward()
        loss += batch_loss.detach()
        if MAY_BE_EMPTY or WEIGHS:
            shares.append(share)
    if MAY_BE_EMPTY and not shares:
        return None
    if WEIGHS or MAY_BE_EMPTY:
        if (
            len(window) > 1 if WEIGHS else len(shares) < len(window)
        ):  # what was left out does not count
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= sum(shares)
            loss = loss / sum(shares)
    return loss


def accumulate_in_all(model, update, first, parameters, scaler, accelerator):
    """The gradient of an update in which all processes take part; returns the loss of all."""
    window, weights, total, is_complete = update
    unit = accelerator.num_processes / total
    loss = torch.zeros((), device=accelerator.device)
    for place, (batch, weight) in enumerate(zip(window, weights)):
        batch = send_to_device(batch, accelerator.device, non_blocking=True)
        # At its last batch the wrapped model averages the gradients over the processes.
        averages = is_complete and place == len(window) - 1
        through = model if averages else accelerator.unwrap_model(model)
        with mixed_precision(accelerator.device) if PRECISION != "32" else contextlib.nullcontext():
            if TRANSFORMS:
                batch = transformed(batch)
            if BATCH == "step":
                batch_loss = through(batch, first + place) if TAKES_NUMBER else through(batch)
            elif METRICS:
                batch_loss, *_ = forward(through, batch)
            else:
                batch_loss = forward(through, batch)
            batch_loss = batch_loss * (weight * unit)
        if PRECISION == "16":
            scaler.scale(batch_loss).backward()
        else:
            batch_loss.backward()
        loss = loss + batch_loss.detach()
    if not is_complete:
        average_gradients(parameters, accelerator)
    return accelerator.reduce((loss / unit).double(), "sum").to(loss.dtype) / total


def average_gradients(parameters, accelerator):
    """Gradients become their means over the processes."""
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = accelerator.reduce(gradient, "mean")
