"""Lays out code that was changed: brackets that it does not need, and the breaks of its lines."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize

WIDTH = 100
_ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict)
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_BEFORE = {"=", "return", "if", "elif", "while", "in", ",", "(", "[", "+=", "|=", "-=", "*=", "/="}
_AFTER = {"", ",", ")", "]", ":"}
_STRINGS = re.compile(r'"\n *f?"')
"""A string that is continued in the next line."""


def bare(text: str) -> str:
    """The text without brackets around single values and around whole ones: `x = (y)`, `f((a +
    b))`.
    """
    while True:
        tokens = [
            each
            for each in tokenize.generate_tokens(io.StringIO(text).readline)
            if each.type != tokenize.NL
        ]
        lines = text.splitlines(keepends=True)
        starts = [0, *itertools.accumulate(map(len, lines))]
        opened: list[int] = []
        for number, token in enumerate(tokens):
            if token.type != tokenize.OP:
                continue
            if token.string in _OPENING:
                opened.append(number)
            elif token.string in _CLOSING:
                first = opened.pop()
                before, after = tokens[first - 1], tokens[number + 1]
                start, end = (
                    starts[row - 1] + column for row, column in (tokens[first].start, token.start)
                )
                inside = text[start + 1 : end]
                if token.string == ")" and _is_spare(inside, before, after):
                    text = text[:start] + inside.strip() + text[end + 1 :]
                    break
        else:
            return text


def _is_spare(inside: str, before: tokenize.TokenInfo, after: tokenize.TokenInfo) -> bool:
    """Whether code may stand without the brackets around it."""
    is_word = before.type == tokenize.NAME and before.string not in _WORDS
    if is_word or before.string in _CLOSING or before.type == tokenize.STRING:
        return False  # the brackets of a call
    try:
        node = ast.parse(f"({inside}\n)", mode="eval").body
    except SyntaxError:
        return False
    if isinstance(node, _ATOMS):
        return not (isinstance(node, ast.Constant) and after.string == ".")
    if isinstance(node, ast.Tuple):
        return before.string == "return" and after.string.strip() == ""
    is_whole = before.string in _BEFORE and after.string.strip() in _AFTER
    return (
        is_whole
        and "\n" not in inside
        and not isinstance(node, (ast.GeneratorExp, ast.NamedExpr, ast.Lambda, ast.Yield))
    )


_WORDS = {
    "return",
    "if",
    "elif",
    "else",
    "while",
    "in",
    "and",
    "or",
    "not",
    "is",
    "with",
    "for",
    "yield",
    "lambda",
    "assert",
}


def laid_out(text: str) -> str:
    """The text with each statement in one line, or in several where it would be too long."""
    lines = text.splitlines()
    new: list[str] = []
    after = 0
    for row, end in _logical_lines(text):
        new += [line.rstrip() for line in lines[after : row - 1]]
        after = end
        statement = [line.removesuffix("  # fmt: skip") for line in lines[row - 1 : end]]
        joined = _joined(statement)
        new += _broken(joined) if joined is not None else statement
    return "\n".join([*new, *lines[after:]]).rstrip("\n") + "\n"


def _logical_lines(text: str) -> list[tuple[int, int]]:
    """The first and the last line of each statement, or of what stands before its body."""
    spans, first = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (
            tokenize.NL,
            tokenize.COMMENT,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            continue
        first = first or token.start[0]
        if token.type == tokenize.NEWLINE:
            spans.append((first, token.end[0]))
            first = 0
    return spans


def _joined(lines: list[str]) -> str | None:
    """A statement in one line; None where it has comments, or strings of several lines."""
    if len(lines) > 1 and any("#" in line or '"""' in line for line in lines):
        return None
    if _STRINGS.search("\n".join(lines)):
        return None
    whole = lines[0]
    for line in map(str.strip, lines[1:]):
        if line.startswith(_CLOSING):
            whole = whole.removesuffix(",") + line
        else:
            whole += line if whole.endswith(_OPENING) else f" {line}"
    return whole


def _broken(line: str) -> list[str]:
    """A line, or several ones that are not too long: broken in its last bracket with the most in
    it.
    """
    if len(line) <= WIDTH or "  # " in line:
        return [line]
    indent = len(line) - len(line.lstrip())
    pairs = [(end - start, start, end) for depth, start, end in _brackets(line) if depth == 0]
    if not pairs or max(pairs)[0] < 2:
        return [line]
    _, start, end = max(pairs)
    inside, margin = line[start + 1 : end], " " * (indent + 4)
    middle = [f"{margin}{inside.strip()}"]
    if len(middle[0]) > WIDTH:
        items, comma = _items(inside)
        if len(items) == 1 and re.search(
            r"(^|[^\w\])}])$|\b(return|in|if|and|or|not) $", line[:start]
        ):
            comma = ""  # the bracket groups a value; with a comma it would be a tuple
        middle = [broken for item in items for broken in _broken(f"{margin}{item}{comma}")]
    return [line[: start + 1], *middle, " " * indent + line[end:]]


def _brackets(line: str) -> list[tuple[int, int, int]]:
    """The depth, the start and the end of each bracket in a line."""
    pairs, opened = [], []
    for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline):
        column = token.start[1] + len(line) - len(line.lstrip())
        if token.type == tokenize.OP and token.string in _OPENING:
            opened.append(column)
        elif token.type == tokenize.OP and token.string in _CLOSING and opened:
            start = opened.pop()
            pairs.append((len(opened), start, column))
    return pairs


def _items(inside: str) -> tuple[list[str], str]:
    """The parts of what is in a bracket, each in a line of its own, and what each ends with."""
    commas: list[int] = []
    clauses: list[int] = []
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(f"({inside})\n").readline):
        depth += (token.string in _OPENING) - (token.string in _CLOSING)
        if depth == 1 and token.string == ",":
            commas.append(token.start[1] - 1)
        if depth == 1 and token.string in ("for", "if") and (clauses or token.string == "for"):
            clauses.append(token.start[1] - 2)
    bounds = [-1, *(clauses or commas), len(inside)]
    items = [inside[first + 1 : last].strip() for first, last in itertools.pairwise(bounds)]
    return [item for item in items if item], "" if clauses else ","
