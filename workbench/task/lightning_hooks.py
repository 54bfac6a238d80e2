"""What a Lightning-like object has: its own hooks, found by name, and the places where its settings live."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from workbench.task.data import DataSpec, Parts, parts_of
from workbench.task.datasets import Batches
from workbench.task.protocol import TaskError

# What Lightning would call and this task does not: silence would train something else than was written.
UNSERVED = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start",
    "on_train_epoch_end", "on_train_batch_start", "on_train_batch_end", "on_validation_start",
    "on_validation_end", "on_validation_epoch_start", "on_validation_epoch_end",
    "on_validation_batch_start", "on_validation_batch_end", "on_before_batch_transfer",
    "on_after_batch_transfer", "transfer_batch_to_device", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad",
    "lr_scheduler_step", "backward", "configure_gradient_clipping", "configure_model",
    "configure_callbacks", "configure_sharded_model", "on_sanity_check_start", "on_sanity_check_end",
)  # fmt: skip
LR_NAMES = ("lr", "learning_rate")
EXTRAS = {"optimizer_idx": 0, "hiddens": None}
"""What a training_step is told beside the batch, where it has an argument of that name; and what, where there is one
optimizer and no hidden state is carried."""


def own_method(source: Any, name: str) -> Callable[..., Any] | None:
    """A method that the user wrote: one that is not merely inherited from Lightning's own base classes."""
    if name in getattr(source, "__dict__", {}):
        found = source.__dict__[name]
        return found if callable(found) else None
    for base in type(source).__mro__:
        if name in vars(base):
            library = base.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")
            if base is object or base is nn.Module or (library and ".demos." not in base.__module__):
                return None
            found = getattr(source, name)
            return found if callable(found) else None
    return None


def looks_like(model: Any) -> bool:
    """Whether an object is trained by its own `training_step` and `configure_optimizers`."""
    return callable(getattr(model, "training_step", None)) and callable(getattr(model, "configure_optimizers", None))


def has_loader(data: Any, name: str = "train_dataloader") -> bool:
    """Whether `data` is an object that makes its own loaders."""
    return not isinstance(data, type) and own_method(data, name) is not None


def refuse_unserved(source: Any) -> None:
    """Refuse, by name, a module or a DataModule that counts on something that is not done here."""
    found = [hook for hook in UNSERVED if own_method(source, hook) is not None]
    if found:
        name = type(source).__name__
        raise TaskError(f"{name} defines {', '.join(found)}, which the workbench does not call yet.")


def prepare(source: Any) -> None:
    """Run an object's `prepare_data` and `setup("fit")`, which its loaders count on."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        hook = own_method(source, name)
        if hook is not None:
            hook(*arguments)


def spec_of(name: str, source: Any) -> DataSpec | None:
    """The data that an object's `<name>_dataloader()` gives; None where it has no such method."""
    make = own_method(source, f"{name}_dataloader")
    if make is None:
        return None

    # `prepare` has done it for training and validation.
    setup = own_method(source, "setup") if name in ("test", "predict") else None

    def parts() -> Parts:
        if setup is not None:
            setup(name)
        loader = make()
        while isinstance(loader, Sequence) and len(loader) == 1 and isinstance(loader[0], DataLoader):
            loader = loader[0]
        if isinstance(loader, DataLoader):
            return parts_of(loader)
        if isinstance(loader, (Mapping, Sequence)) or loader is None:
            raise TaskError(f"{name}_dataloader() returned {type(loader).__name__}; one DataLoader is needed.")
        return Parts(Batches(loader), ready=True)

    return DataSpec(name, parts)


class Step:
    """A step of the object's as a function of (batch, batch_idx, **extra), whichever of these it takes."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook
        parameters = inspect.signature(hook).parameters
        self.extras = tuple(name for name in EXTRAS if name in parameters)
        self._usual = {n: EXTRAS[n] for n in self.extras if parameters[n].default is inspect.Parameter.empty}
        plain = [n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD and n not in EXTRAS]
        self.takes_index = len(plain) >= 2

    def __call__(self, batch: Any, batch_idx: int, **extra: Any) -> Any:
        chosen = self._usual | {name: extra[name] for name in self.extras if name in extra} if self.extras else {}
        return self._hook(batch, batch_idx, **chosen) if self.takes_index else self._hook(batch, **chosen)


def step_of(module: Any, name: str) -> Step | None:
    """The object's own step of that name; None where it has none."""
    hook = own_method(module, name)
    return None if hook is None else Step(hook)


def homes_of(module: Any, names: Sequence[str]) -> list[tuple[Any, str]]:
    """Everywhere a setting lives on the object: (its `__dict__` or `hparams`, the name there)."""
    hparams = getattr(module, "hparams", None)
    places = [vars(module), *([hparams] if isinstance(hparams, Mapping) else [])]
    return [(place, name) for name in names for place in places if name in place]


@contextlib.contextmanager
def written(homes: Sequence[tuple[Any, str]], value: Any) -> Iterator[None]:
    """Inside, `value` stands in all these places."""
    before = [place[name] for place, name in homes]
    try:
        for place, name in homes:
            place[name] = value
        yield
    finally:
        for (place, name), old in zip(homes, before, strict=True):
            place[name] = old


@contextlib.contextmanager
def attached(module: Any, members: Mapping[str, Any]) -> Iterator[None]:
    """Inside, these are attributes of the object itself; what it had under these names is put back after."""
    attributes = vars(module)
    own = {name: attributes[name] for name in members if name in attributes}
    attributes.update(members)
    try:
        yield
    finally:
        for name in members:
            attributes.pop(name, None)
        attributes.update(own)


def networks_of(module: Any) -> nn.Module:
    """The networks of an object that is not one itself."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, nn.Module)}
    if not found:
        raise TaskError(f"{type(module).__name__} has training_step but holds no nn.Module as an attribute.")
    return next(iter(found.values())) if len(found) == 1 else nn.ModuleDict(found)
