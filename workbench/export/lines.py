"""Lines of an exported script."""

from __future__ import annotations

_WIDTH = 100


def call(start: str, function: str, arguments: list[str], column: int) -> list[str]:
    """A call in one line, or in several where it is long."""
    line = f"{start}{function}({', '.join(arguments)})"
    if column + len(line) <= _WIDTH:
        return [line]
    inner = f"    {', '.join(arguments)}"
    if column + len(inner) <= _WIDTH:
        return [f"{start}{function}(", inner, ")"]
    return [f"{start}{function}(", *(f"    {argument}," for argument in arguments), ")"]


def indented(lines: list[str]) -> list[str]:
    """The lines one step further in."""
    return ["    " + line for line in lines]
