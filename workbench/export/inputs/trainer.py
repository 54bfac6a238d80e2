"""Finds the attributes of Lightning's Trainer that the user's code reads."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from workbench.export.errors import NotStandAlone
from workbench.task.lightning.overrides import LIGHTNING

CARRIED = {
    "current_epoch",
    "global_step",
    "should_stop",
    "is_last_batch",
    "is_global_zero",
    "global_rank",
    "local_rank",
    "node_rank",
    "world_size",
    "num_devices",
    "num_nodes",
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "estimated_stepping_batches",
    "num_training_batches",
    "num_val_batches",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "precision",
    "log_every_n_steps",
    "check_val_every_n_epoch",
    "val_check_interval",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "fast_dev_run",
    "training",
    "validating",
    "sanity_checking",
    "evaluating",
    "testing",
    "predicting",
    "logger",
    "loggers",
    "callbacks",
    "checkpoint_callback",
    "checkpoint_callbacks",
    "early_stopping_callback",
    "early_stopping_callbacks",
    "progress_bar_callback",
    "interrupted",
    "received_sigterm",
    "print",
    "lightning_module",
    "datamodule",
    "model",
    "optimizers",
    "default_root_dir",
    "log_dir",
}
"""The attributes of the script's replacement of Trainer."""

MISSING = {
    "callback_metrics",
    "logged_metrics",
    "progress_bar_metrics",
    "state",
    "lr_scheduler_configs",
    "train_dataloader",
    "val_dataloaders",
    "test_dataloaders",
    "predict_dataloaders",
    "device_ids",
    "enable_validation",
    "num_sanity_val_steps",
    "num_sanity_val_batches",
    "scaler",
    "fit_loop",
}
"""Further attributes of the workbench's own replacement."""

_READ_BY = {
    "current_epoch": ("current_epoch",),
    "global_step": ("global_step",),
    "global_rank": ("global_rank",),
    "local_rank": ("local_rank",),
    "logger": ("logger",),
    "loggers": ("loggers",),
    "print": ("is_global_zero", "progress_bar_callback"),
}
"""The attributes of the trainer that a LightningModule's properties read."""
_READS = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"}
_STORES = {"STORE_FAST", "STORE_NAME", "STORE_DEREF"}
_LOADS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF"}


def attributes_read(owners: Iterable[Any], code: str) -> frozenset[str]:
    """The attributes of a trainer that these objects' methods and the script's code read."""
    codes = [
        compile(code, "the script", "exec", dont_inherit=True),
        *(c for owner in owners for c in methods(owner)),
    ]
    names = frozenset(
        name for outer in codes for inner in _with_inner(outer) for name in _attributes_read(inner)
    )
    return names & (CARRIED | MISSING)


def refuse_missing(asked: frozenset[str]) -> None:
    """Raise NotStandAlone for attributes of a trainer that no script on torch and accelerate
    has.
    """
    missing = sorted(asked & MISSING)
    if missing:
        raise NotStandAlone(
            f"the code asks for self.trainer.{', self.trainer.'.join(missing)}, which no script "
            "has yet: for a LightningModule, "
            "format='lightning' writes a script with Lightning's own Trainer."
        )


def attributes(code: CodeType) -> Iterator[str]:
    """The names of all attributes that some code reads."""
    steps = (step for inner in _with_inner(code) for step in dis.get_instructions(inner))
    yield from (step.argval for step in steps if step.opname in ("LOAD_ATTR", "LOAD_METHOD"))


def assigned(code: CodeType) -> set[str]:
    """The names of all attributes that some code sets."""
    return {
        step.argval
        for inner in _with_inner(code)
        for step in dis.get_instructions(inner)
        if step.opname == "STORE_ATTR"
    }


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Some code, and that of the functions inside it."""
    yield code
    yield from (
        inner
        for constant in code.co_consts
        if isinstance(constant, CodeType)
        for inner in _with_inner(constant)
    )


def reads(function: Callable[..., Any], place: int) -> bool:
    """Whether a function uses its argument number `place`, as far as its code shows."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    parameters = list(inspect.signature(function).parameters.values())[: place + 1]
    if (
        code is None
        or len(parameters) <= place
        or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    ):
        return True
    name = parameters[place].name
    return name in code.co_cellvars or any(
        s.argval == name and s.opname.startswith("LOAD_") for s in dis.get_instructions(code)
    )


def words(code: CodeType) -> Iterator[str]:
    """The texts in some code, and the names of arguments in its calls."""
    for value in (value for inner in _with_inner(code) for value in inner.co_consts):
        yield from (
            word
            for word in (value if isinstance(value, tuple) else (value,))
            if isinstance(word, str)
        )


def methods(owner: Any) -> Iterator[CodeType]:
    """The code of an object's methods, except for those of Lightning's and torch's own classes."""
    for base in type(owner).__mro__:
        package, _, rest = base.__module__.partition(".")
        if package in (*LIGHTNING, "torch", "builtins") and ".demos." not in f".{rest}.":
            continue
        for value in vars(base).values():
            function = (
                inspect.unwrap(value.fget) if isinstance(value, property) and value.fget else value
            )
            function = getattr(function, "__func__", function)
            code = getattr(
                inspect.unwrap(function) if callable(function) else None, "__code__", None
            )
            if isinstance(code, CodeType):
                yield code


def _attributes_read(code: CodeType) -> Iterator[str]:
    steps = list(dis.get_instructions(code))
    pairs = list(zip(steps, [*steps[1:], steps[-1]], strict=True))
    trainers = {"trainer", "_trainer"}
    trainers |= {
        following.argval
        for step, following in pairs
        if _loads(step, trainers) and following.opname in _STORES
    }
    for step, following in pairs:
        if step.opname in _READS and step.argval in _READ_BY:
            yield from _READ_BY[step.argval]
        if not _loads(step, trainers) or following.opname in _STORES:
            continue
        if following.opname in _READS:
            yield following.argval
        elif not (following.opname == "LOAD_CONST" and following.argval is None):  # `is not None`
            # The trainer is passed on, so any of these names may be an attribute of it.
            yield from code.co_names
            yield from (text for text in code.co_consts if isinstance(text, str))


def _loads(step: dis.Instruction, names: set[str]) -> bool:
    return step.opname in _LOADS and step.argval in names
