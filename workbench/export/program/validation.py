"""Validation: each metric's mean over the samples."""

from __future__ import annotations

import contextlib
import itertools
import math
import random

import numpy as np
import torch
from accelerate.utils import broadcast, find_batch_size, gather_object, send_to_device

from workbench.export.program.constants import (
    BATCH,
    BEST_IS_HIGHEST,
    COMPILED,
    DISTRIBUTED,
    DRAWS_ELSEWHERE,
    HAS_BUFFERS,
    KEEPS_MODES,
    LIMITS_VAL,
    LOSS_MODULE,
    LOSS_PREFIX,
    MAY_BE_EMPTY,
    METRIC_DICTS,
    METRIC_FUNCTIONS,
    METRIC_MODULES,
    METRIC_OBJECTS,
    METRICS,
    OVERRIDES_MODES,
    PRECISION,
    RESUMES,
    STOPPERS_HAVE_BOUNDS,
    STOPPERS_HAVE_GOALS,
    STOPPERS_IGNORE_NAN,
    STOPPERS_MAXIMIZE,
    STOPPERS_WARM_UP,
    TRAINS_LOSS,
    VAL_SETS,
    VALIDATION_TAKES_NUMBER,
    WEIGHS,
)
from workbench.export.program.data import first_of
from workbench.export.program.model import forward, mixed_precision
from workbench.export.program.user import loss_function, metrics


@contextlib.contextmanager
def random_numbers_kept():
    """Random numbers that are drawn inside do not change those drawn afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        yield
    random.setstate(state)
    np.random.set_state(numpy_state)


@torch.no_grad()
def validate(model, loader, config, accelerator, logged=None, index=0):
    """Each metric's mean over the samples."""
    if LOSS_MODULE or METRIC_MODULES:
        modules = [model, loss_function] if LOSS_MODULE else [model]
        if METRIC_MODULES:
            modules += [
                metric for metric in metrics.values() if isinstance(metric, torch.nn.Module)
            ]
        modes = {
            submodule: submodule.training for module in modules for submodule in module.modules()
        }
        for module in modules:
            module.eval()
    else:
        if KEEPS_MODES:
            modes = {submodule: submodule.training for submodule in model.modules()}
        model.eval()
    if DISTRIBUTED and HAS_BUFFERS:
        for buffer in (
            [*model.buffers(), *loss_function.buffers()] if LOSS_MODULE else model.buffers()
        ):
            broadcast(buffer)  # of the first process
    batches = loader
    if LIMITS_VAL == "fraction":
        batches = first_of(loader, int(len(loader) * config.limit_val_batches + 1e-9))
    if LIMITS_VAL == "batches":
        batches = itertools.islice(loader, config.limit_val_batches)
    seen = {}
    if METRIC_OBJECTS:
        objects = {name: metric for name, metric in metrics.items() if hasattr(metric, "compute")}
        for metric in objects.values():
            metric.reset()
    with random_numbers_kept() if DRAWS_ELSEWHERE else torch.random.fork_rng():
        for batch_idx, batch in enumerate(batches):
            if MAY_BE_EMPTY and batch is None:
                continue
            batch = send_to_device(batch, accelerator.device, non_blocking=True)
            if not WEIGHS:
                weight = find_batch_size(batch)
            with (
                mixed_precision(accelerator.device)
                if PRECISION != "32"
                else contextlib.nullcontext()
            ):
                if BATCH == "step":
                    logged.clear()
                    if VALIDATION_TAKES_NUMBER and VAL_SETS:
                        result = model.validation_step(batch, batch_idx, index)
                    elif VALIDATION_TAKES_NUMBER:
                        result = model.validation_step(batch, batch_idx)
                    elif VAL_SETS:
                        result = model.validation_step(batch, index)
                    else:
                        result = model.validation_step(batch)
                    loss = (
                        result.get("loss", result.get("val_loss"))
                        if isinstance(result, dict)
                        else result
                    )
                    scores = dict(logged)
                    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                        scores.setdefault("val_loss", loss)
                elif WEIGHS and METRICS:
                    loss, weight, output, target = forward(model, batch)
                    scores = {"val_loss": loss}
                elif WEIGHS:
                    loss, weight = forward(model, batch)
                    scores = {"val_loss": loss}
                elif METRICS:
                    loss, output, target = forward(model, batch)
                    scores = {"val_loss": loss}
                else:
                    scores = {"val_loss": forward(model, batch)}
                if METRIC_OBJECTS:
                    for metric in objects.values():
                        metric.update(output, target)
                if METRIC_FUNCTIONS:
                    for name, metric in metrics.items():
                        if not METRIC_OBJECTS or name not in objects:
                            scores |= named(name, metric(output, target))
            for name, value in scores.items():
                seen.setdefault(name, []).append(
                    (as_number(value) if METRICS or BATCH == "step" else value.item(), weight)
                )
    if KEEPS_MODES or LOSS_MODULE or METRIC_MODULES:
        for submodule, training in modes.items():
            if (
                OVERRIDES_MODES
                and type(submodule).train is not torch.nn.Module.train
                and submodule.training != training
            ):
                submodule.train(training)  # it may change weights
            submodule.training = training
    else:
        model.train()
    everyone = gather_object([seen])
    scores = {}
    for name in everyone[0]:
        if DISTRIBUTED:
            scores[name] = weighted_mean_of_all([each.get(name) for each in everyone])
        else:
            pairs = [pair for each in everyone for pair in each.get(name, ())]
            values, weights = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
            scores[name] = float((values * weights).sum() / weights.sum())
    if METRIC_OBJECTS:
        for name, metric in objects.items():
            scores |= {key: float(value) for key, value in named(name, metric.compute()).items()}
    return scores


def named(name, value):
    """The numbers of a metric by the names that they are reported by."""
    if METRIC_DICTS and hasattr(value, "items"):
        return {
            key if key.startswith("val_") else f"val_{key}": number for key, number in value.items()
        }
    return {f"val_{name}": value}


def as_number(value):
    """The mean of a value's numbers."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.promote_types(value.dtype, torch.float32)).mean().item()
    return float(np.mean(value))


def weighted_mean_of_all(lists):
    """The mean of (value, weight) pairs, of which each process has a list, or None."""
    total = torch.zeros(2, dtype=torch.float64)
    for pairs in filter(None, lists):
        values, weights = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
        total += torch.stack([(values * weights).sum(), weights.sum()])
    return float(total[0] / total[1])


def validate_sets(model, loaders, config, accelerator, logged=None):
    """Each metric of each validation set."""
    scores = {}
    for index, (key, loader) in enumerate(loaders.items()):
        of_set = validate(model, loader, config, accelerator, logged, index)
        scores |= {f"{name}/{key}": value for name, value in of_set.items()}
    return scores


def weights_of(network):
    """The weights to save."""
    weights = (network._orig_mod if COMPILED else network).state_dict()
    if TRAINS_LOSS:
        weights |= {LOSS_PREFIX + name: value for name, value in loss_function.state_dict().items()}
    return weights


class Best:
    """Keeps the weights with which a metric was best."""

    def __init__(self, path):
        self.path, self.value = path, float("-inf") if BEST_IS_HIGHEST else float("inf")

    if RESUMES:

        def state_dict(self):
            """The best value."""
            return {"value": self.value}

        def load_state_dict(self, state):
            """Continue from a state."""
            self.value = state["value"]

    def keep(self, value, network, accelerator):
        """Save the weights if this value is the best one so far."""
        if (value > self.value) if BEST_IS_HIGHEST else (value < self.value):
            self.value = value
            accelerator.save(weights_of(network), self.path)


class EarlyStopping:
    """Says when a metric ends the training."""

    def __init__(
        self,
        monitor,
        mode="min",
        patience=3,
        min_delta=0.0,
        warmup=0,
        stopping_threshold=None,
        divergence_threshold=None,
        check_finite=True,
    ):
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        if STOPPERS_MAXIMIZE:
            self.sign = 1.0 if mode == "min" else -1.0
        if STOPPERS_WARM_UP:
            self.warmup, self.checks = warmup, 0
        if STOPPERS_HAVE_GOALS:
            self.stopping_threshold = stopping_threshold
        if STOPPERS_HAVE_BOUNDS:
            self.divergence_threshold = divergence_threshold
        if STOPPERS_IGNORE_NAN:
            self.check_finite = check_finite
        self.best, self.waited = float("inf"), 0

    if RESUMES:

        def state_dict(self):
            """The best value and the counts."""
            state = {"best": self.best, "waited": self.waited}
            if STOPPERS_WARM_UP:
                state["checks"] = self.checks
            return state

        def load_state_dict(self, state):
            """Continue from a state."""
            self.best, self.waited = state["best"], state["waited"]
            if STOPPERS_WARM_UP:
                self.checks = state["checks"]

    def should_stop(self, scores):
        """Whether the metric ends the training after this validation."""
        if self.monitor not in scores:
            return False
        value = self.sign * scores[self.monitor] if STOPPERS_MAXIMIZE else scores[self.monitor]
        if STOPPERS_WARM_UP:
            self.checks += 1
        if not math.isfinite(value) and (not STOPPERS_IGNORE_NAN or self.check_finite):
            return True
        if value + self.min_delta < self.best:
            self.best, self.waited = value, 0
            ends = False
        elif STOPPERS_WARM_UP:
            self.waited += self.checks > self.warmup
            ends = self.waited >= self.patience and self.checks > self.warmup
        else:
            self.waited += 1
            ends = self.waited >= self.patience
        if STOPPERS_HAVE_GOALS and self.stopping_threshold is not None:
            goal = self.stopping_threshold
            if STOPPERS_MAXIMIZE:
                goal *= self.sign
            ends = ends or value < goal
        if STOPPERS_HAVE_BOUNDS and self.divergence_threshold is not None:
            bound = self.divergence_threshold
            if STOPPERS_MAXIMIZE:
                bound *= self.sign
            ends = ends or value > bound
        return ends
