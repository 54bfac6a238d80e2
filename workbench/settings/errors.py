"""Explains why a setting refuses a value: pydantic's errors in plain words, each with the
meaning of the setting.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from workbench.values import shown


def explain(
    error: ValidationError, values: Mapping[str, object], fields: Mapping[str, FieldInfo]
) -> str:
    """Return a line for each setting that has a wrong value. values: what was given. fields:
    those of the `Settings` class.
    """
    lines = []
    for name in dict.fromkeys(str(e["loc"][0]) for e in error.errors() if e["loc"]):
        reasons = sorted({_reason(e) for e in error.errors() if e["loc"][0] == name})
        field = fields[name]
        if name in _FOUND and values.get(name) is None:
            reasons = [_FOUND[name]]
        lines.append(f"{name}={shown(values.get(name))}: {' or '.join(reasons)}. {meaning(field)}")
    return "\n".join(lines) or str(error)


_FOUND = {
    "lr": (
        "a learning-rate search without a suggestion gives None, and the `notes` of its curve say"
        " why. Search again, from another min_lr or max_lr for instance, or give a number"
    ),
    "batch_size": (
        "a batch-size search that was stopped before a size passed gives None. Search again, or"
        " give a number"
    ),
}
"""For settings whose values searches find: where a None probably comes from, and what to do."""

_REASONS = {
    "int_from_float": "should be a whole number",
    "int_parsing": "should be a whole number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "greater_than_equal": "should be at least {ge:g}",
    "less_than_equal": "should be at most {le:g}",
    "greater_than": "should be greater than {gt:g}",
    "less_than": "should be less than {lt:g}",
}
"""Our wording of pydantic's errors, by error type; other types keep pydantic's wording."""


def _reason(error: ErrorDetails) -> str:
    if error["type"] in _REASONS:
        return _REASONS[error["type"]].format(**error.get("ctx", {}))
    message = error["msg"].removeprefix("Value error, ").removeprefix("EarlyStopping: ")
    return message[:1].lower() + message[1:]


def meaning(field: FieldInfo) -> str:
    """Return the meaning of a setting, and its default."""
    return f"{field.description} (default: {field.default!r})"
