"""Reads the line of code of a button of a study's view: one call with plain values."""

from __future__ import annotations

import ast
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


def call_of(code: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The method of a study, its arguments and its named arguments in a line of code.

    The line is parsed and never executed. ValueError: it is anything but a call of one of `CALLS`
    with plain values.
    """
    try:
        call = ast.parse(code.strip(), mode="eval").body
        method = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if isinstance(call, ast.Call) and method in [f"study.{name}" for name in CALLS]:
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
    raise ValueError(texts.unknown_call(code, [f"study.{name}" for name in CALLS]))


def is_call(code: str) -> bool:
    """Whether a button can carry out this line of code."""
    try:
        call_of(code)
    except ValueError:
        return False
    return True
