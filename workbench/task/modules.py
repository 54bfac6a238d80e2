"""Reads and restores the modes, buffers and attributes of modules, and finds where their tensors
are stored.

It also finds the original of a model that the user has compiled (`torch.compile(model)`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.task.state.contents import overwrite

_WRAPPED = "_orig_mod."
_COMMON = frozenset(vars(nn.Module()))
"""The attributes that every module has; all others are its own."""
Slot = tuple[nn.Module, str, str]
"""Where a tensor is stored: a module, "_parameters" or "_buffers", and the name there."""


def named_parts(modules: Iterable[nn.Module]) -> Iterator[tuple[tuple[int, str], nn.Module]]:
    """All modules within these, each once, with the index of the whole and the name in it, which
    are the same in another process.
    """
    seen: set[int] = set()
    for number, whole in enumerate(modules):
        for path, module in whole.named_modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield (number, path), module


def parts_of(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """All modules within these, each once."""
    return list(dict.fromkeys(module for whole in modules for module in whole.modules()))


def slots_of(parts: Iterable[nn.Module]) -> Iterator[tuple[Slot, Tensor]]:
    """The slot of each parameter and buffer; a tensor with two slots is yielded twice."""
    for module in parts:
        for kind in ("_parameters", "_buffers"):
            for name, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield (module, kind, name), tensor


# ---- attributes ----------------------------------------------------------------------------------


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes, without those that every module has."""
    return {name: value for name, value in vars(module).items() if is_own_name(name)}


def is_own_name(name: str) -> bool:
    """Whether a module's attribute of this name is its own, and not one that every module has
    (hooks, submodules, its class).
    """
    return name not in _COMMON and not name.startswith("__")


# ---- modes, buffers, state -----------------------------------------------------------------------


@dataclass(frozen=True)
class Modes:
    """Which modules are in training mode."""

    modules: tuple[tuple[nn.Module, bool], ...]
    """Each module after those that contain it."""

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> Modes:
        """Read the present modes of all modules within these."""
        return cls(tuple((module, module.training) for module in parts_of(modules)))

    def restore(self) -> None:
        """Put each module back into its mode.

        The `train()` and `eval()` of a class that overrides them are called, since they may change
        weights, too. They also set the modes of the module's parts, which come after it.
        """
        for module, training in self.modules:
            if module.training == training:
                continue
            if not overrides_modes(module):
                module.training = training
            elif training:
                module.train()
            else:
                module.eval()


def overrides_modes(module: nn.Module) -> bool:
    """Whether a module has a `train()` or `eval()` other than torch's."""
    return any(
        getattr(getattr(module, name), "__func__", None) is not getattr(nn.Module, name)
        for name in ("train", "eval")
    )


def train_mode(model: nn.Module) -> None:
    """Put a model into training mode. If it is in training mode, parts in evaluation mode stay so.

    Where a class overrides `train()`, it is called in any case: it may keep parts in evaluation
    mode.
    """
    before = Modes.of([model])
    if not model.training:
        model.train()
    elif any(map(overrides_modes, model.modules())):
        model.train()
        Modes(
            tuple((module, training) for module, training in before.modules if not training)
        ).restore()


@contextlib.contextmanager
def in_training_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager for modules whose weights may depend on their mode: inside, they have those
    that are trained and stored.

    It changes nothing where no class overrides `train()` or `eval()`.
    """
    wholes = list(modules)
    if not any(map(overrides_modes, parts_of(wholes))):
        yield
        return
    before = Modes.of(wholes)
    for whole in wholes:
        train_mode(whole)
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def kept_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager that restores the buffers afterwards, also after an error: a forward
    changes statistics, for example.
    """
    slots = [(module, dict(module._buffers)) for module in parts_of(modules)]
    buffers = dict.fromkeys(buffer for _, by_name in slots for buffer in by_name.values())
    values = [(buffer, buffer.detach().clone()) for buffer in buffers if buffer is not None]
    try:
        yield
    finally:
        for module, by_name in slots:
            module._buffers.clear()
            module._buffers.update(by_name)
        with torch.no_grad():
            for buffer, value in values:
                overwrite(buffer, value)


@contextlib.contextmanager
def kept_weights(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager that restores the weights of modules which override `train()` or `eval()`,
    whatever their modes were meanwhile.

    Such a module may add one weight to another and subtract it again, which rounds.
    """
    parts = [module for module in parts_of(modules) if overrides_modes(module)]
    values = [
        (weight, weight.detach().clone())
        for weight in dict.fromkeys(p for module in parts for p in module.parameters())
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in values:
                overwrite(weight, value)


def set_by_modes(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The weights that a change of the mode may change: the frozen ones of modules that override
    `train()` or `eval()`.
    """
    frozen: list[nn.Parameter] = []
    for module in parts_of(modules):
        if overrides_modes(module):
            parameters = module._parameters.values()
            frozen += [p for p in parameters if p is not None and not p.requires_grad]
    return frozen


def uncompiled(model: Any) -> tuple[Any, Callable[..., Any] | None]:
    """Return the original model, and the compiler of its calls; None: it is not compiled.

    Weights have the names that they have in the original. While a job runs, calls of the model go
    through the same compiler (engine/runtime/torch_compile.py), except in the dry run.
    """
    dynamo = sys.modules.get("torch._dynamo")  # imported if a model was compiled
    if dynamo is None or not isinstance(model, dynamo.OptimizedModule):
        return model, None
    inner, _ = uncompiled(model._orig_mod)
    return inner, model.dynamo_ctx


def own_name(name: str) -> str:
    """Return the name of a parameter in the model, without the prefix of a compiled part."""
    return name.replace(_WRAPPED, "")
