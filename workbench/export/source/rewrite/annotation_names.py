"""Keeps the imports and definitions of names in annotations of kept code.

An annotation that stays text (`from __future__ import annotations`, or in quotes) is not evaluated
when the code runs. The script must still define its names for readers, linters and type checkers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workbench.export.source import origins
from workbench.export.source.namespace import Namespace
from workbench.export.source.origins import Import
from workbench.export.source.rewrite import source_text
from workbench.export.source.rewrite.source_text import Block
from workbench.export.source.slicer import Slicer
from workbench.export.source.uses import DOT


@dataclass(frozen=True)
class TypeOnly:
    """A name that the user's code imports under `if TYPE_CHECKING:`."""

    name: str
    imported: Import


def keep_annotations(slicer: Slicer, check: Callable[[], None]) -> tuple[TypeOnly, ...]:
    """Keep the definitions of names in annotations of kept code; returns the names that only type
    checkers see.

    A name stays undefined if its definition cannot be in a script, or would run other statements,
    too.
    check: raises ExportError where the kept statements cannot be in one file.
    """
    tried: set[tuple[str, str]] = set()
    type_only: dict[str, TypeOnly] = {}
    while wanted := [ask for ask in dict.fromkeys(_asked(slicer)) if ask not in tried]:
        for home, name in wanted:
            tried.add((home, name))
            program, base = slicer.programs[home], name.partition(DOT)[0]
            only = _type_only(base, program)
            if program.reaching(base, program.end):
                slicer.try_to_keep(home, name, check)
            elif only is not None and not origins.is_inlined(only.module):
                type_only.setdefault(base, TypeOnly(base, only))
            elif only is not None and only.name == base:
                slicer.try_to_keep(only.module, base, check)
    bound = {
        name
        for program in slicer.programs.values()
        for index in program.kept
        for name in program.bound(index)
    }
    return tuple(entry for name, entry in type_only.items() if name not in bound)


def type_checking_block(found: tuple[TypeOnly, ...]) -> Block:
    """The `if TYPE_CHECKING:` block that imports these names."""
    text = source_text.set_imports([entry.imported for entry in found], ()).strip()
    return Block(
        "if TYPE_CHECKING:\n"
        + "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
    )


def _asked(slicer: Slicer) -> Iterator[tuple[str, str]]:
    """The names in annotations of all kept code, each with its namespace."""
    for program, statement in [
        (p, p.statements[index]) for p in slicer.programs.values() for index in sorted(p.kept)
    ]:
        for node in ast.walk(statement.node):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node.returns is not None
            ):
                yield from ((program.name, name) for name in _names(node.returns, program))
            elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
                yield from ((program.name, name) for name in _names(node.annotation, program))


def _names(node: ast.AST, program: Namespace) -> Iterator[str]:
    """The names in one annotation, including those in its strings."""
    match node:
        case ast.Constant(value=str() as text):
            try:
                yield from _names(ast.parse(text.strip(), mode="eval").body, program)
            except SyntaxError:  # a string that is no type, as in Float[Tensor, "batch 3"]
                return
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
            yield from _names(node.value, program)
        case ast.Attribute(value=ast.Name(id=base)) if base in program.modules:
            yield base + DOT + node.attr
        case ast.Name():
            yield node.id
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _names(child, program)


def _type_only(name: str, program: Namespace) -> Import | None:
    """The import of `name` under `if TYPE_CHECKING:`."""
    node = program.line.type_only.get(name)
    imports = origins.imported(node, program.package) if node is not None else ()
    return next((item for item in imports if item.binds == name), None)
