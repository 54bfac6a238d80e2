"""Finds the Lightning hooks that the user's objects define, and the attributes of their trainer
that they read.
"""

from __future__ import annotations

import dataclasses
import dis
import itertools
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from torch import nn

from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.inputs.collect import FIT, VALIDATION, WITHIN, LightningNeeds
from workbench.export.inputs.data import maker_of
from workbench.export.inputs.trainer import (
    assigned,
    attributes,
    attributes_read,
    methods,
    words,
)
from workbench.export.source.rewrite.rebase import rebased
from workbench.export.source.source import Sliced
from workbench.task.lightning import overrides
from workbench.task.lightning.hooks import TRANSFER, DataHooks, LightningHooks
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task

_PROPERTIES = (
    "logger",
    "loggers",
    "print",
    "global_rank",
    "local_rank",
    "device",
    "current_epoch",
    "global_step",
    "automatic_optimization",
)
"""Properties of a LightningModule, which any other object gets as attributes while a job runs."""
_METHODS = (
    "optimizers",
    "lr_schedulers",
    "clip_gradients",
    "all_gather",
    "manual_backward",
    "toggle_optimizer",
    "untoggle_optimizer",
    "toggled_optimizer",
)
"""Methods of a LightningModule that use its trainer."""
_SETUP = ("prepare_data", "setup", "configure_model", "teardown")

_FREEZE = {"requires_grad_", "freeze", "unfreeze"}
"""Methods that change which parameters require a gradient."""


def with_plain_base(sliced: Sliced, task: Task) -> Sliced:
    """The code with nn.Module in place of LightningModule."""
    module = task.module if isinstance(task, LightningTask) else task.model
    if not any(base.__name__ == "LightningModule" for base in type(module).__mro__):
        raise ExportError(
            f"base='nn.Module' has no effect: {type(task.model).__name__} is no LightningModule."
            " Leave it out."
        )
    return rebased(sliced)


def sources_of(task: Task, sliced: Sliced) -> dict[str, Any]:
    """The objects that make the loaders, then the one with `training_step`, by their names in
    the script.
    """
    sources: dict[str, Any] = {}
    module = task.module if isinstance(task, LightningTask) else None
    for spec, name in ((task.train, "train"), (task.val, "val")):
        maker = None if spec is None else maker_of(spec)
        if maker is None or any(maker.__self__ is source for source in (module, *sources.values())):
            continue
        is_given = sliced.arguments.get(name, "None") != "None"
        sources[f"{name}_data" if is_given else "network"] = maker.__self__
    return sources if module is None else {**sources, "network": module}


def lightning_needs_of(
    task: Task, sources: Mapping[str, Any], code: str, plain: bool = False
) -> LightningNeeds:
    """What the script must provide for these objects besides training. plain: its
    LightningModules inherit from nn.Module.
    """
    if not isinstance(task.hooks, DataHooks):
        return LightningNeeds()
    setup = [name for name in _SETUP if any(own_method(held, name) for held in sources.values())]
    needs = LightningNeeds(
        hooks=frozenset([*setup, *_transfers(task, task.hooks)]),
        asks=attributes_read(sources.values(), code),
        datamodule=next((name for name in sources if name != "network"), "None"),
    )
    if isinstance(task.hooks, LightningHooks):
        return _with_module(needs, task.hooks, sources["network"], plain)
    return needs


# ---- hooks ---------------------------------------------------------------------------------------


def _transfers(task: Task, used: DataHooks) -> Iterator[str]:
    """The batch-transfer hooks."""
    train, val = used.transfer_hooks["train"], used.transfer_hooks["val"]
    if task.val is not None and train != val:
        raise NotStandAlone(
            f"{' or '.join(TRANSFER)} of the training data are others than those of the validation"
            " data, which no script has yet."
        )
    yield from (name for name, method in zip(TRANSFER, train, strict=True) if method is not None)


def _with_module(
    own: LightningNeeds, used: LightningHooks, module: Any, plain: bool
) -> LightningNeeds:
    """What the script must provide for the object with `training_step`."""
    overridden = {
        name: used.overridden[name]
        for name in (*WITHIN, *FIT, *VALIDATION)
        if name in used.overridden
    }
    needed = {name for code in methods(module) for name in _of_instance(code)}
    given = [name for name in _METHODS if own_method(module, name) is None]
    if plain or not hasattr(type(module), "current_epoch"):
        given += [name for name in _PROPERTIES if not _has(module, name, plain)]
    return dataclasses.replace(
        own,
        hooks=own.hooks | overridden.keys(),
        of_lightning_1=tuple(name for name, hook in overridden.items() if _is_old(name, hook)),
        asks=own.asks | needed.intersection(given),
        freezes=_freezes(module),
        logs_widely=_logs_widely(module),
        logs_over_ranks=any("sync_dist" in words(code) for code in _logging(module)),
        weighs=any("weight" in words(code) for code in methods(module)),
    )


def _is_old(name: str, hook: overrides.Hook) -> bool:
    """Whether a hook has arguments that Lightning 2 does not pass."""
    return hook.of_lightning_1 or (name == "backward" and "optimizer" in hook.names)


def _freezes(module: Any) -> bool:
    """Whether a step, or a method that it calls, changes which parameters require a gradient."""
    steps = {"training_step", "validation_step"}
    codes = [(code, set(attributes(code))) for code in methods(module)]
    called = steps.union(*(names for code, names in codes if code.co_name in steps))
    within = [(code, names) for code, names in codes if code.co_name in called]
    return any(
        "requires_grad" in assigned(code) or not _FREEZE.isdisjoint(names) for code, names in within
    )


def _has(module: Any, name: str, plain: bool) -> bool:
    """Whether an object has this attribute. plain: without those of LightningModule."""
    home = next((base for base in type(module).__mro__ if name in vars(base)), None)
    return not (plain and home is not None and overrides.from_lightning(home)) and hasattr(
        module, name
    )


def _logging(module: Any) -> list[CodeType]:
    """The code of the methods that log."""
    return [code for code in methods(module) if {"log", "log_dict"} & set(attributes(code))]


def _logs_widely(module: Any) -> bool:
    """Whether an object logs in more than one way, as far as its code shows it."""
    values = [*vars(module).values()]
    values += [
        item
        for held in values
        if isinstance(held, (list, tuple, dict))
        for item in (held.values() if isinstance(held, dict) else held)
    ]
    parts = [*values, *(module.modules() if isinstance(module, nn.Module) else ())]
    metrics = any(
        callable(getattr(candidate, "compute", None))
        and callable(getattr(candidate, "reset", None))
        for candidate in parts
    )
    logging = _logging(module)
    said = {word for code in logging for word in words(code)}
    options = {"reduce_fx", "batch_size", "on_step", "add_dataloader_idx"}
    if any(value is False for code in logging for value in code.co_consts):
        # True is the default in a validation, and in training the record shows it
        options.add("on_epoch")
    return metrics or not said.isdisjoint(options)


def _of_instance(code: CodeType) -> Iterator[str]:
    """The attributes of its first argument, as `self`, that a method reads."""
    first = code.co_varnames[:1]
    steps = list(dis.get_instructions(code))
    for step, following in itertools.pairwise(steps):
        loads = step.opname.startswith("LOAD_FAST") and step.argval in first
        if loads and following.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield following.argval
