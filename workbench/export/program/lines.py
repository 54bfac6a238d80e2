"""Formats the lines of a script: calls that are wrapped, conditions, indentation."""

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
    return ["    " + part if part else "" for line in lines for part in line.split("\n")]


def when(conditions: list[str], column: int) -> str:
    """The head of an `if` for conditions that must all hold, in one line or in several."""
    line = f"if {' and '.join(conditions)}:"
    if column + len(line) <= _WIDTH:
        return line
    joined = "\n".join(f"    {'and ' if number else ''}{condition}" for number, condition in enumerate(conditions))
    return f"if (\n{joined}\n):"


def only(condition: str, lines: list[str]) -> list[str]:
    """The lines under a condition; one `if` of their own is joined with it."""
    head, *body = lines
    if head.startswith("if ") and head.endswith(":") and body and all(line.startswith("    ") for line in body):
        own = head[3:-1]
        return [f"if {condition} and {f'({own})' if ' or ' in own else own}:", *body]
    return [f"if {condition}:", *indented(lines)]
