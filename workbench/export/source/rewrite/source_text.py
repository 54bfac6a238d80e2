"""Cuts statements out of source text unchanged, and joins them into a script."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.export.source.origins import Import, imported, origin
from workbench.export.source.statements import Source, Statement, first_line

_WIDTH = 110
_CELL_MARK = re.compile(r"#\s*(%%|In\[|\+\s|type:\s*ignore\s*$|noqa)")


@dataclass(frozen=True)
class Block:
    """A piece of the script: its text, and its place in the source."""

    text: str
    definition: bool = False
    origin: str = ""
    start: int = 0
    end: int = 0


GONE = "\f"
"""A mark for a line that the script leaves out."""

Edits = tuple[tuple[ast.AST, str], ...]
"""Expressions to replace, each with its new text."""


def cut(statement: Statement, edits: Edits = ()) -> Block:
    """The text of a statement with the comments directly above it and on its last line, moved to
    the left margin.
    """
    node, source = statement.node, statement.source
    definition = isinstance(node, (ast.FunctionDef, ast.ClassDef))
    start, end = first_line(node), node.end_lineno or node.lineno
    nodes = set(ast.walk(node))
    renamed = [edit for edit in source.edits if edit[0] in nodes]
    lines = _edited(source, start, end, (*edits, *renamed))
    if statement.made:
        return Block("\n".join(lines), False, source.label)
    head = (
        source.lines[start - 1].encode()[: node.col_offset].decode() if start == node.lineno else ""
    )
    if head.strip():
        # It shares its first line with another statement: only its own text, then.
        lines[-1] = _without_tail(lines[-1], _tail(source, node))
        lines[0] = lines[0][len(head) :]
        return Block("\n".join(lines).rstrip(), definition, source.label, start, end)
    lines[-1] = _without_tail(lines[-1], _tail(source, node))
    above = _comments_above(source, start, node.col_offset)
    first = start - len(above)
    text = _dedent([*above, *lines], node.col_offset, string_lines(node, first))
    return Block(
        "\n".join(line for line in text if line != GONE).rstrip(),
        definition,
        source.label,
        first,
        end,
    )


def cut_expression(source: Source, node: ast.expr, edits: Edits = ()) -> str:
    """The text of an expression, in brackets if it has several lines and needs them."""
    start, end = node.lineno, node.end_lineno or node.lineno
    lines = _edited(
        source,
        start,
        end,
        tuple(edit for edit in (*edits, *source.edits) if _is_within(edit[0], node)),
    )
    grown = len(lines[-1].encode()) - len(source.lines[end - 1].encode())
    lines[-1] = lines[-1].encode()[: (node.end_col_offset or 0) + grown].decode()
    lines[0] = lines[0].encode()[node.col_offset :].decode()
    strings = string_lines(node, start)
    free = [
        line for index, line in enumerate(lines[1:], 1) if index not in strings and line.strip()
    ]
    shift = min((len(line) - len(line.lstrip()) for line in free), default=0)
    indent = max(0, shift - 4)
    text = "\n".join([lines[0], *_dedent(lines[1:], indent, {index - 1 for index in strings})])
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return f"({text})"
    return text


def _is_within(inner: ast.AST, outer: ast.expr) -> bool:
    if not isinstance(inner, ast.expr):
        return False
    start, end = (
        (outer.lineno, outer.col_offset),
        (outer.end_lineno or 0, outer.end_col_offset or 0),
    )
    own_start, own_end = (
        (inner.lineno, inner.col_offset),
        (inner.end_lineno or 0, inner.end_col_offset or 0),
    )
    return start <= own_start and own_end <= end


def _tail(source: Source, node: ast.stmt) -> str:
    """The text after a statement on its last line."""
    line = source.lines[(node.end_lineno or node.lineno) - 1]
    return line.encode()[node.end_col_offset or 0 :].decode()


def _without_tail(line: str, tail: str) -> str:
    """The line with nothing after its statement but a comment."""
    rest = tail.lstrip("; \t")
    if not tail.lstrip().startswith(";") and rest.startswith("#"):
        return line
    return line[: len(line) - len(tail)] + ("  " + rest if rest.startswith("#") else "")


def _edited(source: Source, start: int, end: int, edits: Edits) -> list[str]:
    """The lines `start` to `end` with the edits applied, the last ones first so that places stay
    right.
    """
    lines = [line.encode() for line in source.lines[start - 1 : end]]
    wanted = [
        (node, text)
        for node, text in edits
        if isinstance(node, ast.expr) and start <= node.lineno <= end
    ]
    for node, text in sorted(
        wanted, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True
    ):
        first, last = node.lineno - start, (node.end_lineno or node.lineno) - start
        rest = lines[last][node.end_col_offset or 0 :]
        lines[first : last + 1] = [lines[first][: node.col_offset] + text.encode() + rest]
    return [line.decode() for line in lines]


def _comments_above(source: Source, start: int, column: int) -> list[str]:
    comments: list[str] = []
    for line in reversed(source.lines[: start - 1]):
        text = line.strip()
        if (
            not text.startswith("#")
            or len(line) - len(line.lstrip()) != column
            or _CELL_MARK.match(text)
        ):
            break
        if text.startswith("#!") or re.match(r"#.*coding[:=]", text):
            break
        comments.insert(0, line)
    return comments


def string_lines(node: ast.AST, first: int) -> set[int]:
    """The lines (counted from 0 at line `first`) that begin inside a string and must not change."""
    lines: set[int] = set()
    for child in ast.walk(node):
        is_text = isinstance(child, ast.JoinedStr) or (
            isinstance(child, ast.Constant) and isinstance(child.value, (str, bytes))
        )
        if is_text and isinstance(child, ast.expr) and child.end_lineno is not None:
            lines |= {line - first for line in range(child.lineno + 1, child.end_lineno + 1)}
    return lines


def _dedent(lines: list[str], column: int, keep: set[int]) -> list[str]:
    return [
        line if index in keep else line[min(column, len(line) - len(line.lstrip())) :]
        for index, line in enumerate(lines)
    ]


def join(blocks: Iterable[Block]) -> str:
    """The blocks with blank lines between them: two around definitions, one where there was one."""
    text = ""
    before: Block | None = None
    for block in blocks:
        if before is not None:
            around = before.definition or block.definition
            together = before.origin == block.origin and 0 <= block.start - before.end <= 1
            text += "\n" if together and not around else "\n\n"
            text += "\n" * around
        text += block.text
        before = block
    return text + "\n" if text else ""


# ---- imports -------------------------------------------------------------------------------------


def parsed_imports(text: str) -> tuple[list[Import], set[str]]:
    """The imports of import statements, and the features imported from `__future__`."""
    imports = [item for node in ast.parse(text).body for item in imported(node)]
    return [item for item in imports if item.module != "__future__"], {
        str(item.name) for item in imports if item.module == "__future__"
    }


def set_imports(imports: Iterable[Import], futures: Iterable[str]) -> str:
    """The import statements: __future__, the standard library, the rest; star imports in their
    order, at the end.
    """
    unique = list(dict.fromkeys(imports))
    groups: list[list[Import]] = [[], []]
    stars = [item for item in unique if item.name == "*"]
    for item in unique:
        if item.name != "*":
            groups[origin(item.module) != "stdlib"].append(item)
    future = [f"from __future__ import {', '.join(sorted(futures))}"] if set(futures) else []
    parts = [future, *(_sorted(group) for group in groups), [item.text for item in stars]]
    if stars and unique.index(stars[0]) < len(unique) - len(stars):
        parts = [future, [item.text for item in unique]]
    text = "\n\n".join("\n".join(texts) for texts in parts if texts)
    return text + "\n" if text else ""


def _sorted(group: list[Import]) -> list[str]:
    """The statements in the order of linters; a name with an alias has its own statement."""
    plain = sorted(item.text for item in group if item.name is None)
    names_from: dict[tuple[str, str], list[str]] = {}
    for item in group:
        if item.name is not None:
            names_from.setdefault(
                (item.module, f"{item.name} as {item.alias}" if item.alias else ""), []
            ).append(item.name)
    ordered = sorted(
        names_from.items(),
        key=lambda entry: (entry[0][0].lower(), _by_type(entry[1][0]) if entry[0][1] else (-1,)),
    )
    return plain + [
        _from(module, [alias] if alias else sorted(names, key=_by_type))
        for (module, alias), names in ordered
    ]


def _by_type(name: str) -> tuple[int, str, str]:
    """Constants, then classes, then others."""
    kind = 1 if name[:1].isupper() else 2
    if name.isupper() and len(name) > 1:
        kind = 0
    return kind, name.lower(), name


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    listed = "".join(f"    {name},\n" for name in names)
    return f"from {module} import (\n{listed})"


def third_party(modules: Iterable[str]) -> frozenset[str]:
    """The packages among `modules` that must be installed."""
    tops = {module.partition(".")[0] for module in modules}
    return frozenset(
        top
        for top in tops
        if top and top not in sys.stdlib_module_names and origin(top) == "installed"
    )
