"""Finds the Lightning hooks that the user's objects define, and the attributes of their trainer
that they read.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.inputs.collect import FIT, VALIDATION, WITHIN, Hook, LightningNeeds
from workbench.export.inputs.data import maker_of
from workbench.export.inputs.step import returns
from workbench.export.inputs.trainer import (
    assigned,
    attributes,
    attributes_read,
    methods,
    reads,
    words,
)
from workbench.export.source.rewrite.rebase import rebased
from workbench.export.source.source import Sliced
from workbench.task.lightning import overrides
from workbench.task.lightning.hooks import TRANSFER, DataHooks, LightningHooks
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.setup import _home_of_trainer
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task

_PROPERTIES = {
    "logger": "None",
    "loggers": "[]",
    "print": "accelerator.print",
    "global_rank": "accelerator.process_index",
    "local_rank": "accelerator.local_process_index",
    "device": "accelerator.device",
    "current_epoch": "0",
    "global_step": "0",
}
"""Properties of a LightningModule, which any other object gets as attributes while a job runs."""
_OF_MANUAL = ("manual_backward", "toggle_optimizer", "untoggle_optimizer", "toggled_optimizer")
_METHODS = ("optimizers", "lr_schedulers", "clip_gradients", "all_gather", *_OF_MANUAL)
"""Further attributes that a module gets."""
_OF_WRAPPED = {"optimizer", "toggle", "untoggle", "toggle_model"}
"""Methods that Lightning's optimizers have and torch's do not."""

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
    hooks = dict(_transfers(task, task.hooks, sources))
    asks = attributes_read(sources.values(), code)
    asks |= {"sanity_checking"} if "validating" in asks else set()
    data = next((name for name in sources if name != "network"), "None")
    needs = LightningNeeds(
        hooks=hooks,
        asks=asks,
        trainers=tuple(_homes(sources, plain)) if asks else (),
        datamodule=data,
    )
    several = task.val is not None and task.val.several
    return (
        _with_module(needs, task.hooks, sources["network"], plain, several)
        if isinstance(task.hooks, LightningHooks)
        else needs
    )


def setup_calls(sources: Mapping[str, Any]) -> Iterator[str]:
    """The calls of `prepare_data`, `setup` and `configure_model` that the bench made, in their
    order.
    """
    yield from _calls(sources, "prepare_data()")
    yield from _calls(sources, 'setup("fit")')
    yield from _calls(
        {name: source for name, source in sources.items() if name == "network"}, "configure_model()"
    )


def teardown_calls(sources: Mapping[str, Any]) -> Iterator[str]:
    """The calls after a fit."""
    yield from _calls(sources, 'teardown("fit")')


def _calls(sources: Mapping[str, Any], call: str) -> Iterator[str]:
    name, _, arguments = call.partition("(")
    for source, holder in sources.items():
        hook = own_method(holder, name)
        if hook is not None:
            stage = inspect.signature(hook).parameters.get("stage")
            must = stage is not None and stage.kind is stage.KEYWORD_ONLY
            yield f"{source}.{name}({'stage=' if must else ''}{arguments}"


# ---- hooks ---------------------------------------------------------------------------------------


def _transfers(
    task: Task, used: DataHooks, sources: Mapping[str, Any]
) -> Iterator[tuple[str, Hook]]:
    train, val = used.transfer_hooks["train"], used.transfer_hooks["val"]
    if task.val is not None and train != val:
        raise NotStandAlone(
            f"{' or '.join(TRANSFER)} of the training data are others than those of the validation"
            " data, which no script has yet."
        )
    for name, method in zip(TRANSFER, train, strict=True):
        if method is not None:
            owner = next(
                (n for n, source in sources.items() if source is getattr(method, "__self__", None)),
                "network",
            )
            yield name, Hook(owner)


def _with_module(
    own: LightningNeeds, used: LightningHooks, module: Any, plain: bool, several: bool
) -> LightningNeeds:
    """What the script needs of Lightning, with the hooks of the object with `training_step`."""
    overridden = {
        name: used.overridden[name]
        for name in (*WITHIN, *FIT, *VALIDATION)
        if name in used.overridden
    }
    hooks = {
        name: Hook("network", _arguments(hook, several), reads(hook.function, 0))
        for name, hook in overridden.items()
    }
    named = frozenset(name for code in methods(module) for name in attributes(code))
    like = (
        tuple(n for n in _PROPERTIES if n in named and not _has(module, n, plain))
        if plain or not hasattr(type(module), "current_epoch")
        else ()
    )
    reads_automatic = (
        plain
        and "automatic_optimization" in named
        and not _has(module, "automatic_optimization", True)
    )
    automatic = (
        {"automatic_optimization": str(bool(module.automatic_optimization))}
        if reads_automatic
        else {}
    )
    wanted = [name for name in _METHODS if name in named and own_method(module, name) is None]
    if "configure_gradient_clipping" in hooks:
        wanted.append("clip_gradients")
    if "all_gather" in wanted:
        raise NotStandAlone("the code calls self.all_gather, which no script has yet.")
    if "optimizer" in (overridden["backward"].names if "backward" in overridden else ()):
        raise NotStandAlone(
            "backward takes an optimizer, as in Lightning 1, which no script passes: let it take"
            " the loss alone."
        )
    begins = own_method(module, "on_train_batch_start")
    code = None if begins is None else getattr(inspect.unwrap(begins), "__code__", None)
    ends = begins is not None and (code is None or -1 in code.co_consts or "value" in returns(code))
    return dataclasses.replace(
        own,
        hooks={**own.hooks, **hooks},
        ends_epochs=ends,
        like={name: _PROPERTIES[name] for name in like} | automatic,
        methods=frozenset(wanted),
        freezes=_freezes(module, {name for name in overridden if name not in VALIDATION}),
        toggles=not _OF_WRAPPED.isdisjoint(named),
        **_logging(module, hooks),
        weighs=any("weight" in words(code) for code in methods(module)),
    )


def _freezes(module: Any, hooks: set[str]) -> bool:
    """Whether one of these hooks, or a method that it calls, changes which parameters require a
    gradient.
    """
    codes = [(code, set(attributes(code))) for code in methods(module)]
    called = hooks.union(*(names for code, names in codes if code.co_name in hooks))
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


def _logging(module: Any, hooks: Mapping[str, Hook]) -> dict[str, Any]:
    """The fields of `LightningNeeds` about logging, as far as the code shows them."""
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
    logging = [code for code in methods(module) if {"log", "log_dict"} & set(attributes(code))]
    said = {word for code in logging for word in words(code)}
    options = {"reduce_fx", "batch_size", "on_step", "add_dataloader_idx"}
    if any(value is False for code in logging for value in code.co_consts):
        # True is the default in a validation, and in training the record shows it
        options.add("on_epoch")
    widely = (
        metrics
        or not said.isdisjoint(options)
        or any(
            f"on_validation_{moment}" in hooks
            for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end")
        )
    )
    fields = {"logs_widely": widely, "logs_metrics": metrics}
    return fields | {
        "reduces": "reduce_fx" in said,
        "sizes": "batch_size" in said,
        "logs_over_ranks": "sync_dist" in said,
    }


def _arguments(hook: overrides.Hook, several: bool) -> tuple[str | None, ...]:
    """The further arguments of a hook written for Lightning 1. several: it gets the number of
    the validation set.
    """
    if not hook.of_lightning_1:
        return ()
    known = {
        name: repr(value)
        for name, value in overrides.LIGHTNING_1_ARGUMENTS.items()
        if not (several and name == overrides.SET)
    }
    return tuple(("0" if name == "optimizer_idx" else known.get(name)) for name in hook.names)


# ---- the trainer ---------------------------------------------------------------------------------


def _homes(sources: Mapping[str, Any], plain: bool) -> Iterator[str]:
    """The attributes in which these objects, and modules inside them, expect their trainer."""
    for name, source in sources.items():
        inside = source.named_modules() if isinstance(source, nn.Module) else [("", source)]
        for path, submodule in inside:
            home = (
                ""
                if submodule is not source and "_trainer" not in vars(submodule)
                else _home_of_trainer(submodule)
            )
            if home:
                home = "trainer" if plain and isinstance(submodule, nn.Module) else home
                yield f"{name}.{home}" if not path else f'{name}.get_submodule("{path}").{home}'
