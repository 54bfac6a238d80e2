"""Writes the line of code for a call, as it is shown and can be run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.secrets import without_secrets


class Name(str):
    """A name in the line, for a value that has no text of its own."""

    def __repr__(self) -> str:
        return str(self)


def line(name: str, keywords: Mapping[str, Any], *positional: Any, of: str = "bench") -> str:
    """`bench.name(…)` with these arguments, without secrets; `of`: the object of the method."""
    arguments = [repr(value) for value in positional]
    arguments += [f"{key}={_short(without_secrets(value, key))}" for key, value in keywords.items()]
    return f"{of}.{name}({', '.join(arguments)})"


def differing(request: Any, default: Any) -> dict[str, Any]:
    """The fields of a request that differ from the default's."""
    return {name: value for name, value in vars(request).items() if value != getattr(default, name)}


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and float(f"{value:.6g}") == value else repr(value)
