"""Lays out rendered code: indentation, blank lines, conditions and brackets that fit into a line.

The passes know Python and nothing of the run. A template writes a block under each of its possible
headers, and a bracket with one element in each line; parts that the run does not need leave gaps,
which these passes close.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WIDTH = 100
BLOCK = "if True:"
"""The header of a block that loses its header and moves into the block around it."""
_TOKEN = re.compile(
    r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*|[()\[\]{}]|\n|\w+| +|.'
)


@dataclass
class Line:
    """A logical line: one statement or one header, of one or more lines of text."""

    text: str
    """Without its own indentation; further lines keep theirs, relative to it."""
    indent: int
    ends: str = ""
    """Its last character before a comment and the spaces before that."""

    @property
    def header(self) -> bool:
        """Whether it begins a block."""
        return self.ends == ":"


def laid_out(text: str, template: str = "") -> str:
    """The text laid out as if written by hand. template: the name of its template, for an error."""
    filled = _filled([*_indented(_lines(text))])
    before = _statements(_indented_text(line.text, line.indent) for line in filled)
    found = [*map(_fitted, _spaced(_apart(_merged(filled))))]
    for one, other in zip(before, _statements(found), strict=True):
        if not _same(one, other, template):
            raise AssertionError(
                f"{template or 'a text'} changes its meaning when it is laid out:\n{other}"
            )
    return "\n".join(found)


def _statements(lines: Iterable[str]) -> list[str]:
    """The statements of the top level, without empty lines."""
    found: list[str] = []
    for line in filter(None, lines):
        if line[0] == " " or _ELSE.match(line):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


@functools.lru_cache(maxsize=256)
def _same(one: str, other: str, template: str) -> bool:
    """Whether two statements mean the same. Cached, since most statements were in the export
    before.
    """
    return one == other or _meaning(one, template) == _meaning(other, template)


def _meaning(text: str, template: str) -> str:
    """A form that is equal for texts with the same meaning; `if a:` around nothing but `if b:`
    counts as `if a and b:`.
    """
    try:
        return ast.dump(_Joined().visit(ast.parse(text)))
    except SyntaxError as error:
        raise AssertionError(f"{template or 'a text'} is no Python: {error}\n{text}") from error


class _Joined(ast.NodeTransformer):
    """Joins each condition with one that stands alone below it."""

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        tests, inner = [node.test], node.body[0]
        if len(node.body) == 1 and isinstance(inner, ast.If) and not (node.orelse or inner.orelse):
            tests, node.body = [node.test, inner.test], inner.body
        parts = [
            part
            for one in tests
            for part in (
                one.values if isinstance(one, ast.BoolOp) and isinstance(one.op, ast.And) else [one]
            )
        ]
        node.test = ast.BoolOp(ast.And(), parts)
        return node


def _lines(text: str) -> Iterator[Line]:
    """Yield the logical lines; an empty one for each empty line."""
    depth, start, ends = 0, 0, ""
    for token in _TOKEN.finditer(text + "\n"):
        found = token.group()
        if found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        if found == "\n" and depth == 0:
            whole = text[start : token.start()].rstrip()
            indent = len(whole) - len(whole.lstrip())
            head, *rest = whole.split("\n")
            yield Line(
                "\n".join([head.strip(), *(part.removeprefix(" " * indent) for part in rest)]),
                indent,
                ends,
            )
            start, ends = token.end(), ""
        elif not found.isspace() and found[0] != "#":
            ends = found[-1]


def _indented(lines: Iterator[Line]) -> Iterator[Line]:
    """The lines, those below a `BLOCK` moved to the indentation of its header."""
    levels = [(0, 0)]  # the indentation in the template, and that in the result
    for line in lines:
        if not line.text:
            yield line
            continue
        while levels[-1][0] > line.indent:
            levels.pop()
        written, meant = levels[-1]
        if written != line.indent:
            raise AssertionError(f"a template has no header above this line: {line.text}")
        line.indent = meant
        if line.header:
            levels.append((written + 4, meant + 4 * (line.text != BLOCK)))
        if line.text != BLOCK:
            yield line


def _filled(lines: list[Line]) -> list[Line]:
    """The lines without headers that have nothing below them; a header before an `else` is kept,
    since the `else` needs it.
    """
    found: list[Line] = []
    below: Line | None = None
    for line in reversed(lines):
        empty = line.header and (below is None or below.indent <= line.indent)
        if empty and below is not None and below.indent == line.indent and _ELSE.match(below.text):
            found.append(Line("pass", line.indent + 4))
            empty = False
        if not empty:
            found.append(line)
            below = line if line.text else below
    return found[::-1]


_ELSE = re.compile(r"else:|elif |except|finally:")


def _merged(lines: list[Line]) -> list[Line]:
    """The lines, with a condition joined to the one around it where that has nothing else below."""
    number = 0
    while number + 1 < len(lines):
        outer, inner = lines[number], lines[number + 1]
        if (
            _condition(outer)
            and _condition(inner)
            and inner.indent > outer.indent
            and _alone(lines, number + 1)
        ):
            conditions = [
                f"({c})" if " or " in c else c for c in (outer.text[3:-1], inner.text[3:-1])
            ]
            outer.text = f"if {' and '.join(conditions)}:"
            del lines[number + 1]
            for line in lines[number + 1 :]:
                if line.text and line.indent <= outer.indent:
                    break
                line.indent -= 4
        else:
            number += 1
    return lines


def _alone(lines: list[Line], number: int) -> bool:
    """Whether nothing but the block of this line follows it in the block around it, and no
    `else` of either.
    """
    rest = [line for line in lines[number + 1 :] if line.text]
    after = next((line for line in rest if line.indent <= lines[number].indent), None)
    return after is None or (
        after.indent < lines[number].indent
        and not (after.indent == lines[number].indent - 4 and _ELSE.match(after.text))
    )


def _apart(lines: list[Line]) -> list[Line]:
    """The lines, with an empty one before and after each function inside another one."""
    found: list[Line] = []
    inside: list[int] = []
    for line in lines:
        above = next((one for one in reversed(found) if one.text), None)
        while inside and line.text and line.indent <= inside[-1]:
            inside.pop()
            found.append(Line("", 0))
        if (
            re.match(r"def |@", line.text)
            and line.indent
            and above is not None
            and not above.header
            and not above.text.startswith("@")
        ):
            found.append(Line("", 0))
        if line.text.startswith("def ") and line.indent:
            inside.append(line.indent)
        found.append(line)
    return found


def _condition(line: Line) -> bool:
    return line.text.startswith("if ") and line.text.endswith(":") and "\n" not in line.text


def _fitted(line: Line) -> str:
    """The text of a line: brackets that fit are joined into one line, and a condition that is
    too long is split into several.
    """
    text, before = line.text, ""
    while text != before:
        before, text = text, _BRACKET.sub(lambda match: _closed(match, line.indent), text)
    if "\n" not in text and line.indent + len(text) > WIDTH:
        text = _opened(text, line.indent)
    if _condition(line) and line.indent + len(text) > WIDTH and (parts := _split(text[3:-1])):
        text = "if (\n    " + "\n    ".join(parts) + "\n):"
    return _indented_text(text, line.indent)


def _indented_text(text: str, indent: int) -> str:
    return "\n".join(" " * indent + part if part else "" for part in text.split("\n"))


def _opened(text: str, outer: int) -> str:
    """Split a text that is too long for a line: the arguments of a call into one line, or one line
    each; another value within its brackets, or within new ones.
    """
    match = re.fullmatch(r"((?:[\w., ]+ = |return |raise )?[\w.]*\()(.+)(\)(?: from \w+)?)", text)
    arguments = _parts(match[2], ",") if match else []
    if match is None or not arguments:
        assigned = re.fullmatch(r"([\w.]+ = )([^#]+)", text)
        if assigned is None:
            return text
        value = assigned[2]
        bracketed = value[0] in "[{" and _parts(value[1:-1], ",")
        before, inner, after = (
            (value[0], value[1:-1], value[-1]) if bracketed else ("(", value, ")")
        )
        return (
            f"{assigned[1]}{before}\n    {inner}\n{after}"
            if outer + 4 + len(inner) <= WIDTH
            else text
        )
    inner = ", ".join(arguments)
    fits = outer + 4 + len(inner) <= WIDTH or len(arguments) == 1
    return "\n".join(
        [
            match[1],
            *([f"    {inner}"] if fits else [f"    {argument}," for argument in arguments]),
            match[3],
        ]
    )


_BRACKET = re.compile(
    r"^(?P<indent> *+)(?P<head>.*[(\[{])\n(?P<items>(?:(?P=indent)   "
    r" \S.*,\n)+)(?P=indent)(?P<tail>[)\]}].*)$",
    re.MULTILINE,
)


def _closed(match: re.Match[str], outer: int) -> str:
    """Join a bracket that has one element in each line into as few lines as possible."""
    indent, head, tail = match["indent"], match["head"], match["tail"]
    items = [item.strip() for item in match["items"].splitlines()]
    if any("#" in item or re.match(r"[)\]}]|.*[(\[{],?$", item) for item in items):
        return match[0]
    inner = " ".join(items)[:-1]
    tuples = "," if head.endswith("(") and len(items) == 1 and not re.search(r"\w\($", head) else ""
    if outer + len(line := f"{indent}{head}{inner}{tuples}{tail}") <= WIDTH:
        return line
    if outer + len(line := f"{indent}    {inner}") <= WIDTH and head.endswith("("):
        return f"{indent}{head}\n{line}\n{indent}{tail}"
    return match[0]


def _split(condition: str) -> list[str]:
    """The parts of a condition joined by `and`, or else by `or`, one for each line; empty if
    there is only one.
    """
    for word in ("or", "and"):
        if len(parts := _parts(condition, f" {word} ")) > 1:
            return [parts[0], *(f"{word} {part}" for part in parts[1:])]
    return []


def _parts(text: str, separator: str) -> list[str]:
    """The text, divided where the separator stands outside of brackets and strings."""
    depth, start, parts = 0, 0, []
    for token in _TOKEN.finditer(text):
        depth += (token.group() in "([{") - (token.group() in ")]}")
        if depth < 0:
            return []
        if depth == 0 and text.startswith(separator, token.start()):
            parts.append(text[start : token.start()].strip())
            start = token.start() + len(separator)
    return [*parts, text[start:].strip()]


def _spaced(lines: list[Line]) -> list[Line]:
    """The lines with at most as many empty ones in a row as usual between functions, or within
    one; none below a header.
    """
    found: list[Line] = []
    empty = 0
    for line in lines:
        if not line.text:
            empty += 1
            continue
        if found and not found[-1].header:
            found += [Line("", 0)] * min(empty, 1 if line.indent else 2)
        found.append(line)
        empty = 0
    return found
