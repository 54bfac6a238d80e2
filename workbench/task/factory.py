"""Makes a Task of what the user gave: a module with a loss, an object with training_step, or a
Task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from workbench.settings import Settings
from workbench.task.data.loader_parts import Collate
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.function_hooks import FunctionHooks, HookFunctions, checked_hooks
from workbench.task.hints import check_loss, refuse_unusable
from workbench.task.lightning import overrides
from workbench.task.lightning.hooks import DataHooks
from workbench.task.lightning.setup import Preparation
from workbench.task.lightning.task import LightningTask
from workbench.task.modules import uncompiled
from workbench.task.optim.schedulers import MakeScheduler, check_scheduler
from workbench.task.protocol import Task
from workbench.task.signature import fits
from workbench.task.supervised import MakeOptimizer, Supervised, check_optimizer
from workbench.values import shown


def task_of(
    model: Any,
    *,
    train: Any,
    val: Any,
    test: Any,
    loss: Callable[..., Any] | None,
    optimizer: MakeOptimizer,
    scheduler: MakeScheduler | None,
    metrics: Mapping[str, Any] | None,
    groups: Any = None,
    batch_transform: Any = None,
    hooks: Any = None,
    collate_fn: Collate | None,
    val_collate_fn: Collate | None = None,
    settings: Settings | None = None,
    callbacks: Sequence[Any] = (),
) -> Task:
    """Make the task of a bench; raises TaskError naming what is missing or does not fit.

    settings: the settings known so far, for objects that read them from their trainer in `setup`.
    callbacks: Lightning's callbacks that only have hooks (`translate.with_hooks`).
    """
    if isinstance(model, type):
        raise TaskError(
            f"model={model.__name__} is a class: give an instance, {model.__name__}(…)."
        )
    model, compiler = uncompiled(model)
    check_optimizer(optimizer)
    check_scheduler(scheduler)
    data_by_kind = {"train": train, "val": val, "test": test, "predict": None}
    sources = _sources(data_by_kind)
    lightning = not isinstance(model, Task) and overrides.is_lightning_like(model)
    if callbacks and not lightning:
        raise TaskError(
            f"callbacks=: the hooks of {type(callbacks[0]).__name__} get a LightningModule, and"
            f" model is a {type(model).__name__}: give a LightningModule that holds it, or"
            " functions, hooks={'on_after_backward': f}."
        )
    functions = checked_hooks(hooks)
    if functions and not lightning:
        callbacks = (HookFunctions(functions, model),)
    preparation = _prepared(model, lightning, sources, settings or Settings(), callbacks)
    collates = _collates(
        collate_fn,
        val_collate_fn,
        {
            name: _maker(name, data_by_kind, sources, model if lightning else None)
            for name in data_by_kind
        },
    )
    specs = {
        name: _spec(name, data, sources.get(name), collates[name], preparation)
        for name, data in data_by_kind.items()
    }
    arguments = {
        "loss": loss,
        "metrics": metrics,
        "scheduler": scheduler,
        "groups": groups,
        "batch_transform": batch_transform,
    }
    if optimizer is not torch.optim.AdamW:  # the default
        arguments["optimizer"] = optimizer
    if lightning:
        _refuse(model, {**arguments, "hooks": hooks})
        lightning_task = LightningTask(model, preparation, **specs, sources=sources)
        lightning_task.compiler = compiler
        return lightning_task
    task: Task
    if isinstance(model, Task):
        _refuse(model, arguments)
        task = _with_data(model, specs, collates)
        task.model, compiler = uncompiled(task.model)
    else:
        if not isinstance(model, nn.Module):
            if isinstance(model, (list, tuple, dict)) and model:
                raise TaskError(
                    f"model is a {type(model).__name__} of {len(model)}, and one nn.Module is"
                    " needed: make them parts of one (nn.ModuleList or nn.ModuleDict keeps them),"
                    " whose forward calls them."
                )
            raise TaskError(
                f"model={shown(model)} is not an nn.Module, and has no training_step and"
                " configure_optimizers."
            )
        refuse_unusable("model", model)
        check_loss(loss)
        task = Supervised(
            model,
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            metrics=metrics,
            groups=groups,
            batch_transform=batch_transform,
            **specs,
        )
    task.compiler = compiler or task.compiler
    _listen(task, preparation, sources)
    return task


def set_averaging(task: Task, avg_fn: Any, should_update: Any) -> None:
    """Give the task the user's own averaging functions."""
    for name, function, names in (
        ("avg_fn", avg_fn, ("averaged", "current", "count")),
        ("should_update", should_update, ("step", "epoch")),
    ):
        if function is not None:
            if not callable(function) or not fits(function, *names):
                wrong = "takes other arguments" if callable(function) else "cannot be called"
                raise TaskError(
                    f"{name}={shown(function)} {wrong}: give a function, "
                    f"{name}({', '.join(names)})."
                )
            task.averaging = replace(task.averaging, **{name: function})


def _sources(data_by_kind: Mapping[str, Any]) -> dict[str, Any]:
    """For each kind of data the object that makes its loader; the one given as `train` also
    makes the others.
    """
    sources = {}
    for name, data in data_by_kind.items():
        if data is None and overrides.has_loader(data_by_kind["train"]):
            sources[name] = data_by_kind["train"]
        elif data is not None and (
            overrides.has_loader(data) or overrides.has_loader(data, f"{name}_dataloader")
        ):
            sources[name] = data
    return sources


def _maker(
    name: str, data_by_kind: Mapping[str, Any], sources: Mapping[str, Any], module: Any
) -> Any:
    """The object that makes the loader of one kind of data; None: the user gave the data itself.
    module: the model, if it is Lightning-like.
    """
    by_module = (
        module is not None
        and data_by_kind[name] is None
        and overrides.has_loader(module, f"{name}_dataloader")
    )
    return sources.get(name, module if by_module else None)


def _collates(
    collate_fn: Collate | None, val_collate_fn: Collate | None, makers: Mapping[str, Any]
) -> dict[str, Collate | None]:
    """The collate function of each kind of data; raises TaskError for one that cannot be called
    or has no effect.
    """
    for argument, function, name in (
        ("collate_fn", collate_fn, "train"),
        ("val_collate_fn", val_collate_fn, "val"),
    ):
        if function is not None and not callable(function):
            raise TaskError(
                f"{argument}={shown(function)} cannot be called: give a function of a list of"
                " samples, which returns a batch."
            )
        if function is not None and makers[name] is not None:
            raise TaskError(
                f"{argument}= has no effect on {name}, whose loader {type(makers[name]).__name__}"
                " makes: give it to that loader."
            )
    return {
        name: collate_fn if name == "train" else val_collate_fn or collate_fn for name in makers
    }


def _prepared(
    model: Any,
    lightning: bool,
    sources: Mapping[str, Any],
    settings: Settings,
    callbacks: Sequence[Any],
) -> Preparation:
    """Set up the module, if it is a Lightning-like one, and the objects that make the loaders."""
    data = {id(source): source for source in sources.values()}
    if overrides.has_loader(model):  # a plain network may make its own loaders
        data[id(model)] = model
    if lightning:
        data.pop(id(model), None)
    preparation = Preparation(
        model if lightning else None,
        list(data.values()),
        callbacks,
        getattr(model, "model", None) if isinstance(model, Task) else model,
    )
    preparation.begin(settings)
    return preparation


def _listen(task: Task, preparation: Preparation, sources: Mapping[str, Any]) -> None:
    """Attach the objects that make the task's loaders, and their hooks; and the user's functions
    of `hooks=`.
    """
    functions = preparation.callbacks.objects
    if not preparation.data and not functions:
        return
    hooks = (
        FunctionHooks(preparation, sources, task.model)
        if functions
        else DataHooks(preparation, sources)
    )
    if task.hooks is None:
        task.hooks = hooks
    elif functions:
        raise TaskError(
            f"hooks= is given, and {type(task).__name__} has hooks of its own: leave one out."
        )
    elif hooks.transfers:
        raise TaskError(
            f"{type(task).__name__} has hooks, and its data moves batches to the device with hooks"
            " too: do both in the task's `hooks.transfer`."
        )
    task.preparation = preparation
    specs = {"train": task.train, "val": task.val, "test": task.test, "predict": task.predict}
    preparation.trainer.set_model(task.model, specs)


def _with_data(
    task: Task, specs: dict[str, DataSpec | None], collates: Mapping[str, Collate | None]
) -> Task:
    """Set the data of a user's Task: data given to the bench replace the task's own, which may
    be of any kind.
    """
    if not isinstance(getattr(task, "model", None), nn.Module):
        raise TaskError(
            f"{type(task).__name__} has no model: set self.model to the nn.Module that is trained."
        )
    for name, spec in specs.items():
        data = getattr(task, name)
        if spec is not None:
            setattr(task, name, spec)
        elif data is not None and not isinstance(data, DataSpec):
            setattr(task, name, DataSpec.of(name, data, collates[name]))
    return task


def _spec(
    name: str, data: Any, source: Any, collate_fn: Collate | None, preparation: Preparation
) -> DataSpec | None:
    """The spec of one data set; source: the object that makes its loader."""
    if source is not None:
        return overrides.spec_of(name, source, preparation.serving)
    return None if data is None else DataSpec.of(name, data, collate_fn)


def _refuse(model: Any, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise TaskError(
                f"{name}= is given, but {type(model).__name__} brings its own; leave {name} out."
            )
