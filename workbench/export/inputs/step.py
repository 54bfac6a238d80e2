"""Finds whether the user's training step reports a weight, and whether it may return None."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch import nn

from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.export.errors import NotStandAlone
from workbench.export.inputs.collect import Step
from workbench.settings import Settings
from workbench.task.lightning.task import LightningTask
from workbench.task.supervised import Supervised


def step_of(session: Session, batch: Any, settings: Settings) -> Step:
    """What a training step may return. (With manual optimization its result is not used: it
    calls backward itself.)
    """
    task = session.task
    if task.manual:
        return Step()
    assert isinstance(task, (Supervised, LightningTask))
    by = task.module.training_step if isinstance(task, LightningTask) else task._loss
    return Step(
        reports_weight=_reports_weight(session, batch),
        in_dict=isinstance(task, Supervised)
        and by is not None
        and _form_of_loss(session, task, batch, settings) == "loss",
        skips=by is not None and may_skip(by),
    )


def _reports_weight(session: Session, batch: Any) -> bool:
    """Whether the step reports the weight of its batch: it is run on a few samples, and all
    state is restored.
    """
    task = session.task
    extra: dict[str, Any] = {}
    if isinstance(task, LightningTask) and "optimizer_idx" in task._step.extras:
        extra["optimizer_idx"] = 0
    try:
        with scratch(session):  # with gradients enabled, since a step may compute some itself
            result = task.training_step(session.to_device(batch), 0, **extra)
    except Exception as error:
        raise NotStandAlone(
            f"a training step could not be tried: {type(error).__name__}: {error}"
        ) from error
    return isinstance(result, Mapping) and "weight" in result


def _form_of_loss(session: Session, task: Supervised, batch: Any, settings: Settings) -> str:
    """The form of the loss function's result: "" for a tensor, else its keys. Raises
    NotStandAlone where training and validation differ.
    """
    forms = []
    for training in (True, False):
        with scratch(session), torch.set_grad_enabled(training):
            for module in task.modules:
                module.train(training)
            result = task._forward(session.to_device(batch), None, carries=False)[0]
        keys = ("loss", "weight") if isinstance(result, Mapping) else ()
        forms.append(" and ".join(key for key in keys if result.get(key) is not None))
    if forms[0] != forms[1] and task.val is not None and settings.limit_val_batches != 0:
        train, val = (f"a dict with {form}" if form else "a tensor" for form in forms)
        raise NotStandAlone(
            f"loss returns {train} in training and {val} in evaluation mode: a script has one"
            " forward pass for both. Return the same from both to export it."
        )
    return forms[0]


def may_skip(function: Callable[..., Any]) -> bool:
    """Whether the user's code may return None: in the function itself, or in a method of the
    same object that it names.
    """
    if isinstance(function, functools.partial):
        return may_skip(function.func)
    owner = getattr(function, "__self__", None)
    if isinstance(function, nn.Module):
        function, owner = type(function).forward, function
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or (getattr(function, "__module__", None) or "").partition(".")[0] == "torch":
        return False
    gives = set(returns(code))
    if None in gives:
        return True
    methods = (
        (getattr(type(owner), name, None) for name in code.co_names) if owner is not None else ()
    )
    codes = (getattr(method, "__code__", None) for method in methods)
    return any({None, "value"} <= set(returns(other)) for other in codes if other is not None)


def returns(code: CodeType) -> Iterator[str | None]:
    """What the return statements of a function may return: None, "value", or both."""
    steps = list(dis.get_instructions(code))
    at = {step.offset: n for n, step in enumerate(steps)}
    ends = {n for n, step in enumerate(steps) if step.opname == "RETURN_VALUE"}
    empty: set[Any] = set()  # variables that may hold None
    for n, step in enumerate(steps):
        if step.opname == "RETURN_CONST":
            yield None if step.argval is None else "value"
        elif step.opname == "LOAD_CONST" and step.argval is None:
            used = at[steps[n + 1].argval] if steps[n + 1].opname == "JUMP_FORWARD" else n + 1
            if used in ends:
                yield None
            elif steps[used].opname == "STORE_FAST":
                empty.add(steps[used].argval)
        elif n + 1 in ends:
            yield "value"
            if step.opname.startswith("LOAD_FAST") and step.argval in empty:
                yield None
