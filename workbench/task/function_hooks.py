"""Calls the functions of `hooks=` at the places of Lightning's hooks.

They are one callback (`HookFunctions`) beside Lightning's, so each fit begins with their state, a
checkpoint stores it, and all ranks call them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from workbench.task.errors import TaskError
from workbench.task.hooks import Stage
from workbench.task.lightning.hooks import LightningHooks
from workbench.task.lightning.setup import Preparation
from workbench.task.protocol import Scores
from workbench.task.signature import parameters
from workbench.values import shown

_BATCH = ("batch", "batch_idx")
_EVALUATIONS = ("validation", "test", "predict")
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "on_fit_start": (),
    "on_sanity_check_start": (),
    "on_sanity_check_end": (),
    "on_train_start": (),
    "on_train_epoch_start": (),
    "on_train_batch_start": _BATCH,
    "on_before_zero_grad": ("optimizer",),
    "on_before_backward": ("loss",),
    "on_after_backward": (),
    "on_before_optimizer_step": ("optimizer",),
    "on_train_batch_end": ("outputs", *_BATCH),
    "on_train_epoch_end": (),
    **{
        f"on_{stage}_{moment}": ()
        for stage in _EVALUATIONS
        for moment in ("start", "epoch_start", "epoch_end", "end")
    },
    **{f"on_{stage}_batch_start": (*_BATCH, "dataloader_idx") for stage in _EVALUATIONS},
    **{f"on_{stage}_batch_end": ("outputs", *_BATCH, "dataloader_idx") for stage in _EVALUATIONS},
    "on_train_end": (),
    "on_fit_end": (),
    "on_exception": ("exception",),
}
"""The hooks that functions may be given for, each with Lightning's arguments."""
ALWAYS = ("model", "optimizer", "epoch", "step", "metrics")
"""What a function of any hook may take."""


_STATE = ("state_dict", "load_state_dict")
"""The methods of an object whose state a checkpoint stores."""


def _holder(function: Any) -> Any:
    """The object that a function may keep a state in: that of a method, or one that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__self__", function)


class _Call:
    """Calls one function of the user with those arguments that it names."""

    def __init__(self, hook: str, function: Callable[..., Any]) -> None:
        self.hook, self.function = hook, function
        self.holder = _holder(function)
        """The object whose state a checkpoint stores: that of a method, or one that is called."""
        named = parameters(function) or {}
        self._names: tuple[str, ...] | None = tuple(named)
        """None: it takes all of them."""
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in named.values()):
            self._names = None

    def __call__(
        self, trainer: Any, model: Any, arguments: tuple[Any, ...], scores: Mapping[str, float]
    ) -> Any:
        optimizers = trainer.optimizers
        values = {
            "model": model,
            "optimizer": optimizers[0] if optimizers else None,
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "metrics": {**trainer.progress.state.metrics, **scores},
            **dict(itertools.zip_longest(ARGUMENTS[self.hook], arguments)),
        }
        if self._names is not None:
            values = {name: values[name] for name in self._names if name in values}
        try:
            return self.function(**values)
        except Exception as error:
            error.add_note(f"in hooks={{{self.hook!r}: {shown(self.function)}}}")
            raise


class HookFunctions:
    """The functions of `hooks=`, as one callback of Lightning's form.

    Each hook is an attribute of the object, so that it has those alone that the user gave.
    """

    state_key = "hooks"
    leaves_out = False
    """Whether a function that was called last returned -1, as Lightning's on_train_batch_start may
    to leave out the rest of the epoch.
    """
    scores: Mapping[str, float] = MappingProxyType({})
    """The metrics of the evaluation that ends."""

    def __init__(self, hooks: Mapping[str, Any], model: Any) -> None:
        self._calls = {
            hook: tuple(
                _Call(hook, function)
                for function in (functions if isinstance(functions, list | tuple) else (functions,))
            )
            for hook, functions in hooks.items()
        }
        calls = [call for of_hook in self._calls.values() for call in of_hook]
        holders = {
            id(call.holder): call.holder
            for call in calls
            if callable(getattr(call.holder, _STATE[0], None)) and call.holder is not model
        }
        self._holders = list(holders.values())
        for hook in hooks:
            vars(self)[hook] = _Hook(self, hook)

    def run(self, hook: str, trainer: Any, model: Any, arguments: tuple[Any, ...]) -> None:
        """Call the functions of one hook, in their order."""
        results = [call(trainer, model, arguments, self.scores) for call in self._calls[hook]]
        self.leaves_out = any(type(result) is int and result == -1 for result in results)

    def state_dict(self) -> dict[str, Any]:
        """The states of the objects that have a `state_dict`, by their order in `hooks=`."""
        return {str(number): holder.state_dict() for number, holder in enumerate(self._holders)}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for number, holder in enumerate(self._holders):
            if str(number) in states:
                holder.load_state_dict(states[str(number)])


class _Hook:
    """One hook of `HookFunctions`, which ranks get by pickle."""

    def __init__(self, functions: HookFunctions, hook: str) -> None:
        self._functions, self._hook = functions, hook

    def __call__(self, trainer: Any, model: Any, *arguments: Any) -> None:
        self._functions.run(self._hook, trainer, model, arguments)


class _NoModule:
    """Stands for a LightningModule without hooks, where a plain model is trained."""


class FunctionHooks(LightningHooks):
    """The hooks of a plain model: functions of `hooks=`, and those of the objects that make the
    data.
    """

    def __init__(
        self, preparation: Preparation, sources: Mapping[str, Any], model: nn.Module
    ) -> None:
        super().__init__(preparation, sources, _NoModule(), model, manual=False)
        (self._functions,) = preparation.callbacks.objects

    def batch_started(self, batch: Any, batch_idx: int) -> bool:
        self._functions.leaves_out = False
        return super().batch_started(batch, batch_idx) and not self._functions.leaves_out

    def batch_ended(self, result: Any, batch: Any, batch_idx: int) -> None:
        if result is not None and self.needs_outputs["train"]:
            self.outputs[batch_idx] = {"loss": result.loss, **result.parts}
        super().batch_ended(result, batch, batch_idx)

    def evaluation_batch_ended(self, stage: Stage, result: Any, batch: Any, batch_idx: int) -> None:
        if self.needs_outputs[stage]:
            self.outputs[batch_idx] = result.outputs if isinstance(result, Scores) else result
        super().evaluation_batch_ended(stage, result, batch, batch_idx)

    def evaluation_ended(self, stage: Stage) -> None:
        self._functions.scores = self.scores
        try:
            super().evaluation_ended(stage)
        finally:
            self._functions.scores = {}


def checked_hooks(hooks: Any) -> Mapping[str, Any]:
    """What the user gave as `hooks=`; raises TaskError for what is none, or would not be called."""
    if hooks is None:
        return {}
    if not isinstance(hooks, Mapping):
        raise TaskError(
            f"hooks={shown(hooks)}: give a dict of functions by the names of Lightning's hooks,"
            " {'on_after_backward': f}."
        )
    for hook, functions in hooks.items():
        if hook not in ARGUMENTS:
            near = difflib.get_close_matches(str(hook), ARGUMENTS, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"There is {', '.join(ARGUMENTS)}."
            raise TaskError(f"hooks={{{hook!r}: …}}: there is no such hook. {hint}")
        for function in functions if isinstance(functions, list | tuple) else (functions,):
            _check_function(hook, function)
    return hooks


def _check_function(hook: str, function: Any) -> None:
    text = f"hooks={{{hook!r}: {shown(function)}}}"
    offered = (*dict.fromkeys((*ARGUMENTS[hook], *ALWAYS)),)
    if not callable(function) or inspect.isclass(function):
        raise TaskError(f"{text} is no function: give one that takes any of {', '.join(offered)}.")
    holder = _holder(function)
    lacking = [name for name in _STATE if not callable(getattr(holder, name, None))]
    if len(lacking) == 1:
        (has,) = {*_STATE} - {*lacking}
        raise TaskError(
            f"{text}: {type(holder).__name__} has {has}, and no {lacking[0]}: write it, so that a"
            " fit that continues has its state."
        )
    named = parameters(function)
    if named is None:
        raise TaskError(f"{text} does not say what it takes: give lambda model: … around it.")
    for name, parameter in named.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        by_place = parameter.kind is parameter.POSITIONAL_ONLY
        if by_place or (name not in offered and parameter.default is parameter.empty):
            near = difflib.get_close_matches(name, offered, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]!r}?" if near and not by_place else ""
            raise TaskError(
                f"{text} takes {name!r}, and functions of this hook get arguments by name:"
                f" {', '.join(offered)}.{hint}"
            )
