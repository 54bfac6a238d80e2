"""Finds the hooks that a user wrote on a Lightning-like object, and the attributes that hold its
settings.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader

from workbench.task.data.combined import combined_in, in_turn, is_combined
from workbench.task.data.datasets import Batches
from workbench.task.data.loader_parts import Parts, parts_of
from workbench.task.data.spec import DataSpec
from workbench.task.data.to_dataset import UNNAMED
from workbench.task.errors import TaskError

LR_NAMES = ("lr", "learning_rate")
EXTRAS = {"optimizer_idx": 0, "hiddens": None}
"""Further arguments of a training_step, passed where it has a parameter of that name, with their
values for one optimizer and no hidden state.
"""
SET = "dataloader_idx"
"""The argument for the number of the set, where a validation or a test reads several."""
LIGHTNING_1_ARGUMENTS = {
    "dataloader_idx": 0,
    "unused": 0,
    "on_tpu": False,
    "using_native_amp": False,
    "using_lbfgs": False,
}
"""Further arguments of Lightning 1's hooks, and their values here."""
LIGHTNING = ("lightning", "pytorch_lightning")
"""The packages of Lightning."""


def from_lightning(source: Any) -> bool:
    """Whether an object, or a class itself, is one of Lightning's or inherits from one."""
    kinds = (source,) if isinstance(source, type) else type(source).__mro__
    return any(kind.__module__.partition(".")[0] in LIGHTNING for kind in kinds)


def own_method(source: Any, name: str) -> Callable[..., Any] | None:
    """The method of this name if the user wrote it, and it is not inherited from Lightning's
    base classes; else None.
    """
    if name in getattr(source, "__dict__", {}):
        method = source.__dict__[name]
        return method if callable(method) else None
    for base in type(source).__mro__:
        if name in vars(base):
            library = from_lightning(base) and ".demos." not in base.__module__
            if base is object or base is nn.Module or library:
                return None
            method = getattr(source, name)
            return method if callable(method) else None
    return None


def is_lightning_like(model: Any) -> bool:
    """Whether an object trains by its own `training_step` and `configure_optimizers`."""
    return callable(getattr(model, "training_step", None)) and callable(
        getattr(model, "configure_optimizers", None)
    )


def has_loader(data: Any, name: str = "train_dataloader") -> bool:
    """Whether `data` is an object that makes its own loaders."""
    return not isinstance(data, type) and own_method(data, name) is not None


Serving = Callable[[str], contextlib.AbstractContextManager[None]]
"""Context manager in which an object is set up to make its loader of this kind of data ("train",
"val", …).
"""


def spec_of(name: str, source: Any, serving: Serving | None = None) -> DataSpec | None:
    """The data of an object's `<name>_dataloader()`; None where it has no such method.

    serving: runs the object's `setup` for this data where it has not run yet; None: `setup` runs
    each time.
    """
    make = own_method(source, f"{name}_dataloader")
    if make is None:
        return None

    setup = own_method(source, "setup") if name in ("test", "predict") and serving is None else None

    def parts() -> Parts | Mapping[str, Parts]:
        if setup is not None:
            call_with_stage(setup, name)
        with contextlib.nullcontext() if serving is None else serving(name):
            loader = make()
        while (
            isinstance(loader, Sequence)
            and len(loader) == 1
            and isinstance(loader[0], (DataLoader, list, tuple))
        ):
            loader = loader[0]
        several = _loaders_in(loader)
        if several is not None and (len(several) == 1 or name in ("val", "test")):
            sets = {key: _parts_of(name, loader) for key, loader in several.items()}
            return next(iter(sets.values())) if len(sets) == 1 else sets
        return _parts_of(name, loader)

    return DataSpec(name, parts)


def _loaders_in(loader: Any) -> dict[str, Any] | None:
    """The loaders in a list, a dict or a sequential CombinedLoader, by their keys; None: it is
    none of these.
    """
    if in_turn(loader):
        loader = loader.iterables
    if isinstance(loader, Mapping):
        loaders = {str(key): inner for key, inner in loader.items()}
    elif isinstance(loader, Sequence) and not isinstance(loader, (str, bytes)):
        loaders = {f"{UNNAMED}{number}": inner for number, inner in enumerate(loader)}
    else:
        return None
    readable = all(
        isinstance(inner, Iterable)
        and not isinstance(inner, (Tensor, np.ndarray, Mapping, Sequence))
        for inner in loaders.values()
    )
    return loaders if loaders and readable else None


def _parts_of(name: str, loader: Any) -> Parts:
    """The parts of one loader."""
    if isinstance(loader, DataLoader):
        return parts_of(loader)
    combined = combined_in(loader) if name == "train" or is_combined(loader) else None
    if combined is not None:
        return Parts(combined, ready=True)
    if isinstance(loader, (Mapping, Sequence)) or loader is None:
        several = (
            ""
            if loader is None
            else " torch.utils.data.ConcatDataset or StackDataset makes one set of several."
        )
        raise TaskError(
            f"{name}_dataloader() returned {type(loader).__name__}; one DataLoader is"
            f" needed.{several}"
        )
    return Parts(loader if isinstance(loader, Batches) else Batches(loader), ready=True)


def call_with_stage(hook: Callable[..., Any], stage: str) -> None:
    """Call `setup` or `teardown` as Lightning does: stage by its name, where there is such an
    argument.
    """
    parameters = inspect.signature(hook).parameters
    named = (
        "stage" in parameters and parameters["stage"].kind is not inspect.Parameter.POSITIONAL_ONLY
    )
    if named or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        hook(stage=stage)
    else:
        hook(stage)


class Step:
    """A step of the object, called with those of (batch, batch_idx, **extra) that it accepts.

    dataloader_idx: the number of the set, where there are several; the step must then accept it.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._function = hook
        parameters = inspect.signature(hook).parameters
        self._takes_set = takes_set(hook)
        self.extras = tuple(name for name in EXTRAS if name in parameters)
        self._usual = {
            n: EXTRAS[n] for n in self.extras if parameters[n].default is inspect.Parameter.empty
        }
        plain = [
            n
            for n, p in parameters.items()
            if p.kind is not p.VAR_KEYWORD and n not in EXTRAS and n != SET
        ]
        self.takes_index = len(plain) >= 2 or any(
            p.kind is p.VAR_POSITIONAL for p in parameters.values()
        )

    def __call__(
        self, batch: Any, batch_idx: int, dataloader_idx: int | None = None, **extra: Any
    ) -> Any:
        if dataloader_idx is not None:
            if not self._takes_set:
                raise explain_no_set(self._function)
            indices = (batch_idx, dataloader_idx) if self.takes_index else (dataloader_idx,)
            return self._function(batch, *indices)
        chosen = (
            self._usual | {name: extra[name] for name in self.extras if name in extra}
            if self.extras
            else {}
        )
        return (
            self._function(batch, batch_idx, **chosen)
            if self.takes_index
            else self._function(batch, **chosen)
        )


def takes_set(hook: Callable[..., Any]) -> bool:
    """Whether a step or a hook takes the number of the set: as Lightning, by this name or among
    further arguments.
    """
    parameters = inspect.signature(hook).parameters
    return SET in parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())


def explain_no_set(hook: Callable[..., Any]) -> TaskError:
    """The error for a step or a hook that cannot know which of several sets a batch comes from."""
    where = (
        f"{type(getattr(hook, '__self__', None)).__name__}.{getattr(hook, '__name__', 'the step')}"
    )
    return TaskError(
        f"there are several sets of this data, and {where} takes no {SET}: add {SET}=0 to its"
        " arguments, at the end."
    )


def step_of(module: Any, name: str) -> Step | None:
    """The object's own step of that name; None where it has none."""
    hook = own_method(module, name)
    return None if hook is None else Step(hook)


class Hook:
    """A hook of the object, called with Lightning 2's arguments.

    Arguments of Lightning 1 (optimizer_idx, …) are passed by name: `index` is the optimizer's
    number.
    """

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.function = hook
        parameters = inspect.signature(hook).parameters.values()
        self.names = tuple(
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        self.of_lightning_1 = any(
            name in LIGHTNING_1_ARGUMENTS or name == "optimizer_idx" for name in self.names
        )

    def __call__(
        self, *given: Any, index: int = 0, dataloader_idx: int | None = None, **named: Any
    ) -> Any:
        """Call the hook. dataloader_idx: for a hook of a batch, the number of its set; None:
        there is one set.
        """
        if dataloader_idx is not None and not takes_set(self.function):
            raise explain_no_set(self.function)
        if not self.of_lightning_1:
            return self.function(
                *given, *(() if dataloader_idx is None else (dataloader_idx,)), **named
            )
        arguments, left = [], list(given)
        for name in self.names:
            if name == "optimizer_idx":
                arguments.append(index)
            elif name == SET and dataloader_idx is not None:
                arguments.append(dataloader_idx)
            elif name in LIGHTNING_1_ARGUMENTS:
                arguments.append(LIGHTNING_1_ARGUMENTS[name])
            elif left:
                arguments.append(left.pop(0))
            else:
                break  # the rest is passed by name, or has a default
        return self.function(*arguments, *left, **named)


def hooks_of(source: Any, names: Sequence[str]) -> dict[str, Hook]:
    """Return the hooks among `names` that the user wrote."""
    methods = {name: own_method(source, name) for name in names}
    return {name: Hook(method) for name, method in methods.items() if method is not None}


def attribute_places(module: Any, names: Sequence[str]) -> list[tuple[Any, str]]:
    """Return the places where the object stores a setting: (its `__dict__` or `hparams`, the
    name there).
    """
    hparams = getattr(module, "hparams", None)
    places = [vars(module), *([hparams] if isinstance(hparams, Mapping) else [])]
    homes: list[tuple[Any, str]] = []
    for name in names:
        homes += [(namespace, name) for namespace in places if name in namespace]
    return homes


@contextlib.contextmanager
def temporarily_set(homes: Sequence[tuple[Any, str]], value: Any) -> Iterator[None]:
    """Context manager in which all these places have `value`."""
    before = [namespace[name] for namespace, name in homes]
    try:
        for namespace, name in homes:
            namespace[name] = value
        yield
    finally:
        for (namespace, name), old in zip(homes, before, strict=True):
            namespace[name] = old


@contextlib.contextmanager
def with_attributes(module: Any, members: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which the object has these attributes; its own of these names are
    restored afterwards.
    """
    attributes = vars(module)
    replaced = {name: attributes[name] for name in members if name in attributes}
    attributes.update(members)
    try:
        yield
    finally:
        for name in members:
            attributes.pop(name, None)
        attributes.update(replaced)


def networks_of(module: Any) -> nn.Module:
    """An nn.Module with the networks of an object that is not one itself."""
    networks = {name: value for name, value in vars(module).items() if isinstance(value, nn.Module)}
    if not networks:
        raise TaskError(
            f"{type(module).__name__} has training_step but holds no nn.Module as an attribute."
        )
    return next(iter(networks.values())) if len(networks) == 1 else nn.ModuleDict(networks)
