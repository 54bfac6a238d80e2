"""Reads the signatures of functions that the user gave."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """A function's parameters by name; None where its signature cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def fits(function: Callable[..., Any], *places: Any, **names: Any) -> bool:
    """Whether a function accepts these arguments; True where its signature cannot be read."""
    try:
        inspect.signature(function).bind(*places, **names)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
