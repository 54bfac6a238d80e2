"""Finds the user's functions and objects that read a module that is not passed to them: with a
copy of the model they would read the original.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_DEEP = 4
"""How many nested calls of the user's functions are followed."""


def reads_modules(value: Any, deep: int = _DEEP) -> bool:
    """Whether calling `value` may read a module that is not among its arguments; False for
    anything that is not called.
    """
    if isinstance(value, (list, tuple)):
        return any(reads_modules(item, deep) for item in value)
    if isinstance(value, functools.partial):
        return _holds((value.func, *value.args, *value.keywords.values()), deep)
    if isinstance(value, MethodType):
        owner = () if isinstance(value.__self__, nn.Module) else _own(value.__self__)
        return reads_modules(value.__func__, deep) or _holds(owner, deep)
    if isinstance(value, FunctionType):
        return deep > 0 and not _of_torch(value) and _holds(_names(value), deep - 1)
    if (
        isinstance(value, (nn.Module, type))
        or _of_torch(type(value))
        or (not callable(value) and not hasattr(value, "compute"))
    ):
        return False
    return _holds(_own(value), deep) or any(
        reads_modules(item, deep)
        for item in vars(type(value)).values()
        if isinstance(item, FunctionType)
    )


def _holds(values: Iterable[Any], deep: int) -> bool:
    return any(
        isinstance(getattr(value, "__self__", value), nn.Module) or reads_modules(value, deep)
        for value in values
    )


def _names(function: FunctionType) -> list[Any]:
    """The values of the names that a function reads from outside, as they are now."""
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return []
    return [*variables.nonlocals.values(), *variables.globals.values()]


def _own(value: Any) -> list[Any]:
    attributes = getattr(value, "__dict__", {})
    return list(attributes.values()) if isinstance(attributes, Mapping) else []


def _of_torch(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in ("torch", "torchmetrics")
