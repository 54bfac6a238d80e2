"""Calls a function of the user's that makes a model, and the data and more where it wants to."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from workbench.task.errors import TaskError
from workbench.values import shown


def arguments_from(
    build: Callable[..., Any], parameters: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Call `build(**parameters)`; returns the arguments of a bench: {"model": its model}, or the
    dict that it has returned.

    name: what errors call it. TaskError: it does not take these parameters, or returns something
    else.
    """
    _check_parameters(build, parameters, name)
    result = build(**parameters)
    if isinstance(result, Mapping):
        keys = [key for key in result if not isinstance(key, str)]
        if keys:
            raise TaskError(
                f"{name} has returned a dict with the key {shown(keys[0])}: give names of arguments"
                ' of wb.Workbench, {"model": …, "train": …}.'
            )
        return dict(result)
    if result is None or isinstance(result, (tuple, list)):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise TaskError(
            f"{name} has returned {kind}: let it return the model, or a dict of arguments of"
            ' wb.Workbench, {"model": …, "train": …}.'
        )
    return {"model": result}


def _check_parameters(build: Callable[..., Any], parameters: Mapping[str, Any], name: str) -> None:
    """Raise TaskError for a parameter that the function does not have, or that is missing."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some built-in ones have none
        return
    known = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    unknown = next((key for key in parameters if key not in known), None)
    if unknown is not None and not takes_any:
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" It has: {', '.join(known) or 'none'}."
        raise TaskError(f"{name} has no parameter {unknown!r}.{hint}")
    try:
        signature.bind(**parameters)
    except TypeError as error:
        raise TaskError(f"{name} cannot be called with these parameters: {error}.") from None
