"""From what the user gave to a Task: a module with a loss, an object that trains itself, or a Task as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from workbench.task import lightning_hooks as hooks
from workbench.task.data import Collate, DataSpec
from workbench.task.lightning import LightningLike
from workbench.task.protocol import Task, TaskError
from workbench.task.supervised import (
    MakeOptimizer,
    MakeScheduler,
    Supervised,
    check_optimizer,
    check_scheduler,
)


def task_of(
    model: Any,
    *,
    train: Any,
    val: Any,
    test: Any,
    loss: Callable[..., Any] | None,
    optimizer: MakeOptimizer,
    scheduler: MakeScheduler | None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None,
    collate_fn: Collate | None,
) -> Task:
    """The task that a bench works on; `TaskError` says what is missing or does not fit."""
    if isinstance(model, type):
        raise TaskError(f"model={model.__name__} is a class: give an instance, {model.__name__}(…).")
    check_optimizer(optimizer)
    check_scheduler(scheduler)
    for source in (model, train):
        if hooks.has_loader(source) or hooks.looks_like(source):
            hooks.refuse_unserved(source)
            hooks.prepare(source)
    given = {"train": train, "val": val, "test": test, "predict": None}
    specs = {name: _spec(name, data, train, collate_fn) for name, data in given.items()}
    own = {"loss": loss, "metrics": metrics, "scheduler": scheduler}
    if optimizer is not torch.optim.AdamW:  # the default, which says nothing
        own["optimizer"] = optimizer
    if isinstance(model, Task):
        _refuse(model, own)
        return _with_data(model, specs, collate_fn)
    if hooks.looks_like(model):
        _refuse(model, own)
        return LightningLike(model, **specs)
    if not isinstance(model, nn.Module):
        raise TaskError(
            f"model={model!r} is no nn.Module, and has no training_step and configure_optimizers either."
        )
    if loss is not None and not callable(loss):
        raise TaskError(f"loss={loss!r} cannot be called: give a function of (output, target).")
    return Supervised(
        model, loss=loss, optimizer=optimizer, scheduler=scheduler, metrics=metrics or {}, **specs
    )


def _with_data(task: Task, specs: dict[str, DataSpec | None], collate_fn: Collate | None) -> Task:
    """A user's own Task with its data: what was given wins over what it brought, which may be data of any kind."""
    if not isinstance(getattr(task, "model", None), nn.Module):
        raise TaskError(f"{type(task).__name__} has no model: set self.model to the nn.Module that is trained.")
    for name, spec in specs.items():
        own = getattr(task, name)
        if spec is not None:
            setattr(task, name, spec)
        elif own is not None and not isinstance(own, DataSpec):
            setattr(task, name, DataSpec.of(name, own, collate_fn))
    return task


def _spec(name: str, data: Any, train: Any, collate_fn: Collate | None) -> DataSpec | None:
    """The spec of one data set; a DataModule given as `train` serves val and test too."""
    if data is None:
        data = train if hooks.has_loader(train) else None
    if data is None:
        return None
    if hooks.has_loader(data) or hooks.has_loader(data, f"{name}_dataloader"):
        return hooks.spec_of(name, data)
    return DataSpec.of(name, data, collate_fn)


def _refuse(model: Any, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise TaskError(f"{name}= is given, but {type(model).__name__} brings its own; leave {name} out.")
