"""Reads the line of code of a button of a study's view: one call with plain values."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from workbench.ui import texts

CALLS = (
    "add",
    "export",
    "more",
    "pause",
    "repeat",
    "resume",
    "seeds",
    "space",
    "stop",
    "work",
)
"""The methods of a study that its view may call."""
STEERS = tuple(name for name in CALLS if name not in ("export", "work"))
"""Those that only change the study's folder: they need no kernel, and run no code of the study."""


def call_of(code: str, calls: Collection[str] = CALLS) -> tuple[str, list[Any], dict[str, Any]]:
    """The method of a study, its arguments and its named arguments in a line of code.

    The line is parsed and never executed. ValueError: it is anything but a call of one of `calls`
    with plain values.
    """
    try:
        call = ast.parse(code.strip(), mode="eval").body
        method = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if isinstance(call, ast.Call) and method in [f"study.{name}" for name in calls]:
            arguments = [ast.literal_eval(argument) for argument in call.args]
            named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            if None not in named and ... not in [*arguments, *named.values()]:
                return (
                    method.removeprefix("study."),
                    arguments,
                    {str(name): value for name, value in named.items()},
                )
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise ValueError(texts.unknown_call(code, [f"study.{name}" for name in calls]))


def is_call(code: str, calls: Collection[str] = CALLS) -> bool:
    """Whether a button can carry out this line of code."""
    try:
        call_of(code, calls)
    except ValueError:
        return False
    return True
