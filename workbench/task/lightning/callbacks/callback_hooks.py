"""Calls the hooks of callbacks that need nothing else of Lightning: LambdaCallback, BaseFinetuning, a user's own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.task.errors import TaskError
from workbench.task.lightning.callbacks.kept_state import KeptState
from workbench.task.lightning.logging.log import Log, Shared
from workbench.task.lightning.overrides import from_lightning, with_attributes
from workbench.task.lightning.unsupported import refuse_removed_hooks

_STAGES = ("train", "validation", "test", "predict")
_HOOKS = frozenset({
    "setup", "teardown", "state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint", "on_exception",
    "on_fit_start", "on_fit_end", "on_sanity_check_start", "on_sanity_check_end",
    "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad",
    *(f"on_{stage}{part}_{moment}" for stage in _STAGES for part in ("", "_epoch", "_batch") for moment in ("start", "end")),
})  # fmt: skip
"""The hooks of Lightning 2's Callback. Another method, also of a name that a module has as a hook, is the callback's own business."""


class CallbackHooks(Shared):
    """The callbacks of a module whose hooks are called, each with (trainer, module, …), in the order in which they were given."""

    def __init__(self, callbacks: Sequence[Any] = (), module: Any = None, trainer: Any = None) -> None:
        self.objects = list(callbacks)
        self._module, self._trainer = module, trainer
        self._initial = KeptState(self.objects, module)
        self._left = self._initial
        self._set_up: list[Any] = []
        for one in self.objects:
            refuse_removed_hooks(one, _overrides)
        keys = [one.state_key for one in self.objects if _overrides(one, "state_dict")]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise TaskError(f"callbacks=: two of them keep their state as {twice[0]!r}: override state_key, or leave one out.")

    def has(self, name: str) -> bool:
        """Whether one of them has this hook."""
        return name in _HOOKS and any(_overrides(one, name) for one in self.objects)

    def call(self, name: str, *arguments: Any, **named: Any) -> None:
        """Call this hook of each that has it."""
        for one in self.objects if name in _HOOKS else ():
            if _overrides(one, name):
                getattr(one, name)(self._trainer, self._module, *arguments, **named)

    def keep(self) -> Callable[[], None]:
        """Keep the present state of each; the returned function puts it back."""
        return KeptState(self.objects, self._module).put if self.objects else _nothing

    @property
    def ready(self) -> bool:
        """Whether they are set up: within a job that opens another."""
        return bool(self._set_up)

    def begin_fit(self) -> None:
        """Give each the state from when the bench was made, with what the user has set since then."""
        self._initial.take_changes(self._left, self._module)
        self._initial.put()

    def note_left(self) -> None:
        """Note the state of each at a job's end: later differences are the user's changes."""
        self._left = KeptState(self.objects, self._module)

    def set_up(self, stage: str) -> None:
        """Call `setup` of each that is not set up."""
        for one in self.objects:
            if not any(one is other for other in self._set_up):
                self._set_up.append(one)
                if _overrides(one, "setup"):
                    one.setup(self._trainer, self._module, stage=stage)

    def tear_down(self, stage: str) -> None:
        """Call `teardown` of each whose `setup` was called. The first error is raised once all have been called."""
        done, self._set_up = self._set_up, []
        errors = []
        for one in done:
            try:
                if _overrides(one, "teardown"):
                    one.teardown(self._trainer, self._module, stage=stage)
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def state(self) -> dict[str, Any]:
        """What each keeps in a checkpoint, by its state_key."""
        found = {one.state_key: one.state_dict() for one in self.objects if _overrides(one, "state_dict")}
        return {key: state for key, state in found.items() if state}

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Give each its state from a checkpoint."""
        for one in self.objects:
            if one.state_key in states:
                one.load_state_dict(copy.deepcopy(states[one.state_key]))

    def of_lightning(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The states of these callbacks in a checkpoint that Lightning wrote."""
        states = checkpoint.get("callbacks")
        keys = [one.state_key for one in self.objects]
        return {key: states[key] for key in keys if key in states} if isinstance(states, Mapping) else {}

    @contextlib.contextmanager
    def attached(self, log: Log) -> Iterator[None]:
        """Context manager in which each has Lightning's `log` and `log_dict`."""
        with contextlib.ExitStack() as stack:
            for one in self.objects:
                stack.enter_context(with_attributes(one, {"log": log.log, "log_dict": log.log_dict}))
            yield


def _nothing() -> None:
    """Do nothing."""


def joined(given: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """All callbacks of a module: its own come last and replace given ones of the same class or of one that it inherits from, as in Lightning."""
    replaced = {type(one) for one in given if any(isinstance(mine, type(one)) for mine in own)}
    return [one for one in given if type(one) not in replaced] + list(own)


def _overrides(callback: Any, name: str) -> bool:
    """Whether a callback does something in this hook: Lightning's base class has all of them, empty."""
    if name in vars(callback):  # of a LambdaCallback
        return callable(vars(callback)[name])
    home = next((base for base in type(callback).__mro__ if name in vars(base)), None)
    return home is not None and not (home.__name__ == "Callback" and from_lightning(home))
