"""Reads the setting `optimizer`: the name of an optimizer, with its arguments as plain data."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from workbench.values import SettingsError, is_plain, shown

_TORCH = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "LBFGS",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
NAMES: Mapping[str, tuple[str, str]] = {
    **{name.lower(): ("torch.optim", name) for name in _TORCH},
    "sparse_adam": ("torch.optim", "SparseAdam"),
    "muon": ("workbench.task.optim.muon", "MuonWithAdamW"),
    "schedule_free_adamw": ("schedulefree", "AdamWScheduleFree"),
    "schedule_free_radam": ("schedulefree", "RAdamScheduleFree"),
    "schedule_free_sgd": ("schedulefree", "SGDScheduleFree"),
}
"""The module and the class of each optimizer that has a name. A record names no others, so that
none decides which code is imported.
"""
BESIDE = ("lr", "weight_decay")
"""The arguments of optimizers that are settings of their own."""


def is_named(value: Any) -> bool:
    """Whether `optimizer=` is a name, alone or with arguments, and no object that makes one."""
    return isinstance(value, str) or (
        isinstance(value, Mapping)
        and bool(value)
        and not any(callable(arguments) for arguments in value.values())
    )


def with_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the name of an optimizer in place of its class, and with a learning rate
    or a weight decay beside the optimizer's other arguments. SettingsError: one is there twice.
    """
    named = _named(settings["optimizer"])
    if named is None:
        return dict(settings)
    name, arguments = named
    for argument in BESIDE:
        if argument in arguments and argument in settings:
            raise SettingsError(
                f"{argument}={shown(settings[argument])} is given beside optimizer="
                f"{shown(settings['optimizer'])}, which has a {argument} of its own: leave one out."
            )
    beside = {argument: arguments.pop(argument) for argument in BESIDE if argument in arguments}
    return {**settings, **beside, "optimizer": {name: arguments} if arguments else name}


def parts_of(choice: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a checked value of the setting."""
    if isinstance(choice, str):
        return choice, {}
    return next((name, dict(arguments)) for name, arguments in choice.items())


def _named(value: Any) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments that a value has; None: it has not the form of any."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and len(value) == 1:
        name, arguments = next(iter(value.items()))
        fits = isinstance(name, str) and (arguments is None or isinstance(arguments, Mapping))
        return (name, dict(arguments or {})) if fits else None
    arguments = {}
    while isinstance(value, functools.partial) and not value.args:
        arguments = {**value.keywords, **arguments}
        value = value.func
    for name, (_, kind) in NAMES.items():
        module = str(getattr(value, "__module__", "")).partition(".")[0]
        if isinstance(value, type) and value.__name__ == kind and module in _PACKAGES:
            return name, arguments
    return None


def named_or_self(make: Any) -> Any:
    """The name of an optimizer's class, with the arguments that are bound to it; what makes another
    one as it is.
    """
    named = _named(make)
    if named is None:
        return make
    name, arguments = named
    return {name: arguments} if arguments else name


_PACKAGES = ("torch", "schedulefree")


def _plain_name(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _choice(value: object) -> object:
    if value is None:
        return None
    named = _named(value)
    if named is None and isinstance(value, Mapping):
        raise ValueError(
            "should be one name with its arguments, {'sgd': {'momentum': 0.9}}; one optimizer for"
            " each part of the model is given when the bench is made, wb.Workbench(…,"
            " optimizer={'body': torch.optim.SGD, …})"
        )
    if named is None:
        raise ValueError(
            "should be the name of an optimizer, 'adamw', or {'sgd': {'momentum': 0.9}} with its"
            " arguments; any other object is given when the bench is made, wb.Workbench(…,"
            " optimizer=…)"
        )
    name, arguments = named
    spellings = {_plain_name(known): known for known in NAMES}
    known = spellings.get(_plain_name(name))
    if known is None:
        near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.6)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"should be one of {', '.join(map(repr, sorted(NAMES)))}{hint}")
    for argument, content in arguments.items():
        if not isinstance(argument, str) or not is_plain(content):
            raise ValueError(
                f"{argument}={shown(content)} should be a number, a text, or a list of these"
            )
    return {known: _frozen(arguments)} if arguments else known


def _frozen(value: Any) -> Any:
    """With tuples for lists, which a record and a YAML file have instead."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return value


NamedOptimizer = Annotated[str | dict[str, dict[str, Any]] | None, BeforeValidator(_choice)]
"""The name of an optimizer, or {name: its arguments}."""
