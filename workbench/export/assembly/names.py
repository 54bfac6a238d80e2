"""Chooses names: the user's names stay, and those of the script's own code change where they are
the same.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Mapping, Sequence

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> ast.Module:
    """The tree of a program. It is cached, since each step of an export reads it again, and must
    not be changed.
    """
    return ast.parse(text)


def replaced(text: str, names: Mapping[str, str]) -> str:
    """`text` with some of its names replaced; attributes, methods, keywords and strings do not
    change.
    """
    if not names:
        return text
    classes = [node for node in ast.walk(parsed(text)) if isinstance(node, ast.ClassDef)]
    methods = {
        node.lineno for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)
    }
    every = tokenize.generate_tokens(io.StringIO(text).readline)
    tokens = [token for token in every if token.type not in (tokenize.NL, tokenize.COMMENT)]
    lines = text.splitlines(keepends=True)
    depth, matching = 0, []
    for number, token in enumerate(tokens):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.type != tokenize.NAME or token.string not in names:
            continue
        is_keyword = (
            depth > 0
            and tokens[number + 1].string == "="
            and tokens[number - 1].string in ("(", ",")
        )
        is_method = tokens[number - 1].string == "def" and token.start[0] in methods
        if not is_keyword and not is_method and tokens[number - 1].string != ".":
            matching.append(token)
    for token in reversed(matching):
        row, start, end = token.start[0] - 1, token.start[1], token.end[1]
        lines[row] = lines[row][:start] + names[token.string] + lines[row][end:]
    return "".join(lines)


def read(tree: ast.AST) -> set[str]:
    """All names that are read or bound anywhere."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def defined(tree: ast.Module) -> set[str]:
    """The names that the top level binds."""
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def fits(name: str, expression: str, functions: Sequence[tuple[set[str], set[str]]]) -> bool:
    """Whether `expression` can replace `name` in all functions that read it. functions: for each,
    the names that it binds and reads.

    The expression must be a name that has the same meaning in them, or attributes of one; an
    attribute cannot replace a parameter.
    """
    if not _DOTTED.fullmatch(expression):
        return False
    root, dot, _ = expression.partition(".")
    return not any(
        (name in names and root in bound) or (dot and name in bound) for bound, names in functions
    )


def bound_in(function: ast.stmt) -> set[str]:
    """The names that a function (or a class's methods) binds."""
    nodes = list(ast.walk(function))
    bound = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {
        node.name for node in nodes if isinstance(node, ast.FunctionDef) and node is not function
    }
    return bound | {node.arg for node in nodes if isinstance(node, ast.arg)}


def ordered(function: ast.stmt) -> list[str]:
    """The names that a function reads, in the order in which it first does."""
    loads = [
        name
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    ]
    return list(
        dict.fromkeys(
            name.id for name in sorted(loads, key=lambda name: (name.lineno, name.col_offset))
        )
    )


def binding(name: str, expression: str) -> str:
    """A statement that gives `expression` a name: a function where it is a lambda."""
    text = expression.strip()
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Lambda):
        return f"{name} = {text}"
    body = ast.get_source_segment(text, node.body) or ast.unparse(node.body)
    if "\n" in body:
        body = f"(\n        {body}\n    )"
    return f"def {name}({ast.unparse(node.args)}):\n    return {body}"
