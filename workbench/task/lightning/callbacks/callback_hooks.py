"""Calls the hooks of callbacks that need nothing else of Lightning (LambdaCallback, BaseFinetuning, a user's own), and stores and restores their state."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.device import xla
from workbench.task.errors import TaskError
from workbench.task.lightning.logging.log import Log, Shared
from workbench.task.lightning.overrides import from_lightning, with_attributes
from workbench.task.lightning.unsupported import refuse_removed_hooks
from workbench.task.rng import GENERATORS
from workbench.task.state.contents import (
    MOST_PARTS,
    content_of,
    is_container,
    put_attributes,
    put_content,
    refill,
    same_tensors,
)

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
"""The hooks of Lightning 2's Callback. Other methods are not called, also where a module's hook has the same name."""

_GIVEN = frozenset({"log", "log_dict"})
"""Attributes that a callback has only while a job runs."""
_SHARED = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_NOT_ENTERED = frozenset({"builtins", "torch", "numpy", "workbench", "threading", "_thread", "io", "_io", "weakref", "logging", "concurrent"})
"""The libraries whose objects are kept as they are: their attributes are not copied."""


class CallbackHooks(Shared):
    """The callbacks of a module whose hooks are called, each with (trainer, module, …), in the order in which they were given."""

    def __init__(self, callbacks: Sequence[Any] = (), module: Any = None, trainer: Any = None) -> None:
        self.objects = list(callbacks)
        self._module, self._trainer = module, trainer
        self._initial = KeptState(self.objects, module)
        self._left = self._initial
        self._set_up: list[Any] = []
        for callback in self.objects:
            refuse_removed_hooks(callback, _overrides)
        keys = [
            callback.state_key for callback in self.objects if _overrides(callback, "state_dict")
        ]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise TaskError(f"callbacks=: two of them keep their state as {twice[0]!r}: override state_key, or leave one out.")

    def has(self, name: str) -> bool:
        """Whether one of them has this hook."""
        return name in _HOOKS and any(_overrides(callback, name) for callback in self.objects)

    def call(self, name: str, *arguments: Any, **named: Any) -> None:
        """Call this hook of each that has it."""
        for callback in self.objects if name in _HOOKS else ():
            if _overrides(callback, name):
                getattr(callback, name)(self._trainer, self._module, *arguments, **named)

    def keep(self) -> Callable[[], None]:
        """Copy the present state of each; the returned function restores it."""
        return KeptState(self.objects, self._module).put if self.objects else _nothing

    @property
    def ready(self) -> bool:
        """Whether they are set up, as within a job that opens another one."""
        return bool(self._set_up)

    def begin_fit(self) -> None:
        """Give each the state that it had when the bench was made, with the attributes that the user has set since then."""
        self._initial.take_changes(self._left, self._module)
        self._initial.put()

    def note_left(self) -> None:
        """Note the state of each at a job's end; later differences are the user's changes."""
        self._left = KeptState(self.objects, self._module)

    def set_up(self, stage: str) -> None:
        """Call `setup` of each that is not set up."""
        for callback in self.objects:
            if not any(callback is other for other in self._set_up):
                self._set_up.append(callback)
                if _overrides(callback, "setup"):
                    callback.setup(self._trainer, self._module, stage=stage)

    def tear_down(self, stage: str) -> None:
        """Call `teardown` of each whose `setup` was called. The first error is raised once all have been called."""
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
        return {key: states[key] for key in keys if key in states} if isinstance(states, Mapping) else {}

    @contextlib.contextmanager
    def attached(self, log: Log) -> Iterator[None]:
        """Context manager in which each has Lightning's `log` and `log_dict`."""
        with contextlib.ExitStack() as stack:
            for callback in self.objects:
                stack.enter_context(
                    with_attributes(callback, {"log": log.log, "log_dict": log.log_dict})
                )
            yield


def _nothing() -> None:
    """Do nothing."""


def joined(given: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """All callbacks of a module. As in Lightning, its own come last, and each replaces given ones of its class or of a class from which it inherits."""
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


# ---- their state ------------------------------------------------------------------------------------------------


class KeptState:
    """A copy of the attributes of some objects. `put` restores the contents of containers, tensors, modules and objects in them, in place.

    It goes deeper than `task/state/contents.py`: the objects within a container stay the same ones, and their own contents are restored.
    Parts of the module that is trained, and objects of libraries, are not restored.
    """

    def __init__(self, owners: Iterable[Any], module: Any) -> None:
        seen = _parts_of(module)
        self._storages = {
            _storage(tensor) for tensor in seen.values() if isinstance(tensor, Tensor)
        }
        self._seen: dict[int, Any] = seen
        self._kept = [
            (owner, {name: self._copy(value) for name, value in _attributes_of(owner).items()})
            for owner in owners
        ]
        del self._seen, self._storages

    def put(self) -> None:
        """Restore these attributes and contents."""
        for owner, attributes in self._kept:
            put_attributes(
                owner,
                {name: value.put() for name, value in attributes.items()},
                _attributes_of(owner),
            )

    def take_changes(self, before: KeptState, module: Any) -> None:
        """Take over the attributes that the user has set on the objects since `before`."""
        now = KeptState([owner for owner, _ in self._kept], module)
        for (_, attributes), (_, old), (_, new) in zip(self._kept, before._kept, now._kept, strict=True):
            for name in old.keys() - new.keys():
                attributes.pop(name, None)
            attributes.update({name: value for name, value in new.items() if name not in old or not value.same(old[name])})

    def _copy(self, value: Any) -> _Copy:
        copied = _Copy(value)
        if id(value) in self._seen or value is None or isinstance(value, (bool, int, float, complex, str, bytes, *_SHARED)):
            return copied
        self._seen[id(value)] = value
        if isinstance(value, (Tensor, np.ndarray, *GENERATORS)):
            if not (isinstance(value, Tensor) and _storage(value) in self._storages):
                copied.content = content_of(value)
        elif is_container(value) or isinstance(value, tuple):
            if len(value) <= MOST_PARTS:
                parts = (
                    [(key, self._copy(inner)) for key, inner in value.items()]
                    if isinstance(value, dict)
                    else [(None, self._copy(inner)) for inner in value]
                )
                copied.parts = parts
        elif hasattr(value, "__dict__") and (isinstance(value, nn.Module) or type(value).__module__.partition(".")[0] not in _NOT_ENTERED):
            copied.attributes = {
                name: self._copy(attribute) for name, attribute in vars(value).items()
            }
        return copied


class _Copy:
    """One value: the object itself, and a copy of its contents."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.content: Any = None
        self.parts: list[tuple[Any, _Copy]] | None = None
        self.attributes: dict[str, _Copy] | None = None

    def put(self) -> Any:
        """Restore the object's contents; returns the object."""
        value = self.value
        if self.attributes is not None:
            put_attributes(
                value, {name: copied.put() for name, copied in self.attributes.items()}, vars(value)
            )
        elif self.parts is not None:
            contents = [(key, copied.put()) for key, copied in self.parts]
            if is_container(value):
                refill(
                    value,
                    dict(contents)
                    if isinstance(value, dict)
                    else [content for _, content in contents],
                )
        elif self.content is not None:
            put_content(value, self.content)
        return value

    def same(self, other: _Copy) -> bool:
        """Whether it is the same value, with the same contents."""
        if self.parts is not None or other.parts is not None:
            ours, theirs = self.parts or [], other.parts or []
            alike = type(self.value) is type(other.value) and len(ours) == len(theirs)
            return alike and all(
                key == name and copied.same(two)
                for (key, copied), (name, two) in zip(ours, theirs, strict=True)
            )
        if self.attributes is not None or other.attributes is not None:
            mine, their = self.attributes or {}, other.attributes or {}
            return (
                self.value is other.value
                and mine.keys() == their.keys()
                and all(copied.same(their[name]) for name, copied in mine.items())
            )
        if isinstance(self.content, Tensor) and isinstance(other.content, Tensor):
            return self.value is other.value and same_tensors(self.content, other.content)
        if isinstance(self.content, np.ndarray) and isinstance(other.content, np.ndarray):
            return self.value is other.value and self.content.tobytes() == other.content.tobytes()
        if isinstance(self.value, (bool, int, float, complex, str, bytes)):
            return type(self.value) is type(other.value) and (self.value == other.value or self.value != self.value)
        return self.value is other.value


def _attributes_of(owner: Any) -> Mapping[str, Any]:
    return {name: value for name, value in vars(owner).items() if name not in _GIVEN}


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
    stored = tensor.layout is torch.strided and not tensor.is_meta and not nn.parameter.is_lazy(tensor)
    return tensor.untyped_storage().data_ptr() if stored else 0
