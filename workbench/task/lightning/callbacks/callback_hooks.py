"""Calls the hooks of callbacks that need nothing else of Lightning (LambdaCallback,
BaseFinetuning, a user's own), and stores and restores their state.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.task.device import xla
from workbench.task.errors import TaskError
from workbench.task.lightning.logging.log import Log, Shared
from workbench.task.lightning.overrides import from_lightning, with_attributes
from workbench.task.lightning.unsupported import refuse_removed_hooks
from workbench.task.state.copies import StateCopy

_STAGES = ("train", "validation", "test", "predict")
_HOOKS = frozenset({
    "setup", "teardown", "state_dict", "load_state_dict", "on_exception",
    "on_save_checkpoint", "on_load_checkpoint", "on_fit_start", "on_fit_end",
    "on_sanity_check_start", "on_sanity_check_end",
    "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad",
    *(
        f"on_{stage}{unit}_{moment}"
        for stage in _STAGES for unit in ("", "_epoch", "_batch") for moment in ("start", "end")
    ),
})  # fmt: skip
"""The hooks of Lightning 2's Callback. Other methods are not called, also where a module's hook
has the same name.
"""

_GIVEN = frozenset({"log", "log_dict"})
"""Attributes that a callback has only while a job runs."""
_SHARED = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)


class CallbackHooks(Shared):
    """The callbacks of a module whose hooks are called, each with (trainer, module, …), in the
    order in which they were given.
    """

    def __init__(
        self, callbacks: Sequence[Any] = (), module: Any = None, trainer: Any = None
    ) -> None:
        self.objects = list(callbacks)
        self._module, self._trainer = module, trainer
        self._initial = _copied(self.objects, module)
        self._left = self._initial
        self._set_up: list[Any] = []
        for callback in self.objects:
            refuse_removed_hooks(callback, _overrides)
        keys = [
            callback.state_key for callback in self.objects if _overrides(callback, "state_dict")
        ]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise TaskError(
                f"callbacks=: two of them keep their state as {twice[0]!r}: override state_key, or"
                " leave one out."
            )

    def has(self, name: str) -> bool:
        """Whether one of them has this hook."""
        return name in _HOOKS and any(_overrides(callback, name) for callback in self.objects)

    def call(self, name: str, *arguments: Any, **named: Any) -> None:
        """Call this hook of each that has it."""
        for callback in self.objects if name in _HOOKS else ():
            if _overrides(callback, name):
                getattr(callback, name)(self._trainer, self._module, *arguments, **named)

    def keep(self) -> Callable[[], object]:
        """Copy the present state of each; the returned function restores it."""
        return _copied(self.objects, self._module).put

    @property
    def ready(self) -> bool:
        """Whether they are set up, as within a job that opens another one."""
        return bool(self._set_up)

    def begin_fit(self) -> None:
        """Give each the state that it had when the bench was made, with the attributes that the
        user has set since then.
        """
        initial, _ = self._initial.with_changes(self._left, _copied(self.objects, self._module))
        initial.put()
        self._initial = initial.reached_in(_copied(self.objects, self._module))

    def note_left(self) -> None:
        """Note the state of each at a job's end; later differences are the user's changes."""
        self._left = _copied(self.objects, self._module)

    def set_up(self, stage: str) -> None:
        """Call `setup` of each that is not set up."""
        for callback in self.objects:
            if not any(callback is other for other in self._set_up):
                self._set_up.append(callback)
                if _overrides(callback, "setup"):
                    callback.setup(self._trainer, self._module, stage=stage)

    def tear_down(self, stage: str) -> None:
        """Call `teardown` of each whose `setup` was called. The first error is raised once all
        have been called.
        """
        done, self._set_up = self._set_up, []
        errors = []
        for callback in done:
            try:
                if _overrides(callback, "teardown"):
                    callback.teardown(self._trainer, self._module, stage=stage)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def state(self) -> dict[str, Any]:
        """The state that each stores in a checkpoint, by its state_key."""
        states = {
            callback.state_key: callback.state_dict()
            for callback in self.objects
            if _overrides(callback, "state_dict")
        }
        return {key: state for key, state in states.items() if state}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Give each its state from a checkpoint."""
        for callback in self.objects:
            if callback.state_key in states:
                callback.load_state_dict(copy.deepcopy(states[callback.state_key]))

    def of_lightning(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The states of these callbacks in a checkpoint that Lightning wrote."""
        states = checkpoint.get("callbacks")
        keys = [callback.state_key for callback in self.objects]
        return (
            {key: states[key] for key in keys if key in states}
            if isinstance(states, Mapping)
            else {}
        )

    @contextlib.contextmanager
    def attached(self, log: Log) -> Iterator[None]:
        """Context manager in which each has Lightning's `log` and `log_dict`."""
        with contextlib.ExitStack() as stack:
            for callback in self.objects:
                stack.enter_context(
                    with_attributes(callback, {"log": log.log, "log_dict": log.log_dict})
                )
            yield


def joined(given: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """All callbacks of a module. As in Lightning, its own come last, and each replaces given
    ones of its class or of a class from which it inherits.
    """
    replaced = {
        type(callback)
        for callback in given
        if any(isinstance(mine, type(callback)) for mine in own)
    }
    return [callback for callback in given if type(callback) not in replaced] + list(own)


def _overrides(callback: Any, name: str) -> bool:
    """Whether a callback defines this hook; Lightning's base class has all of them, empty."""
    if name in vars(callback):  # of a LambdaCallback
        return callable(vars(callback)[name])
    home = next((base for base in type(callback).__mro__ if name in vars(base)), None)
    return home is not None and not (home.__name__ == "Callback" and from_lightning(home))


# ---- their state ---------------------------------------------------------------------------------


def _copied(callbacks: Iterable[Any], module: Any) -> StateCopy:
    """Copy the attributes of callbacks, and what these hold, without parts of `module`."""
    parts = _parts_of(module)
    storages = {_storage(part) for part in parts.values() if isinstance(part, Tensor)}

    def closed(value: Any) -> bool:
        if id(value) in parts or isinstance(value, _SHARED):
            return True
        return isinstance(value, Tensor) and _storage(value) in storages

    return StateCopy.of_attributes(callbacks, closed, without=_GIVEN)


def _parts_of(module: Any) -> dict[int, Any]:
    """The module that is trained and all its parts, by id."""
    parts = {id(module): module}
    attributes = vars(module).values() if hasattr(module, "__dict__") else ()
    for network in (module,) if isinstance(module, nn.Module) else attributes:
        if isinstance(network, nn.Module):
            parts |= {
                id(member): member
                for member in (*network.modules(), *network.parameters(), *network.buffers())
            }
    return parts


def _storage(tensor: Tensor) -> int:
    if xla.is_xla(tensor.device):
        return xla.tensor_id(tensor)
    stored = (
        tensor.layout is torch.strided and not tensor.is_meta and not nn.parameter.is_lazy(tensor)
    )
    return tensor.untyped_storage().data_ptr() if stored else 0
