"""Removes the functions, classes and settings that the script does not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Container

from workbench.export.assembly.names import parsed, read
from workbench.export.source.statements import first_line


def without_unused(functions: str, caller: str) -> str:
    """`functions` without the functions and classes that neither `caller` nor a function that it
    needs names.
    """
    defined = {
        node.name: node
        for node in parsed(functions).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    needed, left = set[str](), list(read(parsed(caller)))
    while left:
        name = left.pop()
        if name in defined and name not in needed:
            needed.add(name)
            left += read(defined[name])
    return taken_out(functions, defined.keys() - needed)[1]


def taken_out(text: str, names: Container[str]) -> tuple[list[str], str]:
    """The functions and classes of these names, and the text without them."""
    lines, found = text.split("\n"), list[str]()
    for node in reversed(parsed(text).body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            start = first_line(node) - 1
            found.insert(0, "\n".join(lines[start : node.end_lineno]))
            del lines[start : node.end_lineno]
    return found, re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip("\n")


def without_unread(config: str, program: str) -> str:
    """The class of the settings without those that the program does not read (`config.lr`)."""
    there = set(re.findall(r"\bconfig\.(\w+)", program))
    fields = [(line, re.match(r"    (\w+): ", line)) for line in config.split("\n")]
    return "\n".join(line for line, field in fields if field is None or field[1] in there)
