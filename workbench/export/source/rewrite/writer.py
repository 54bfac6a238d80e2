"""Writes the kept statements of all namespaces into one, in which each name has one meaning."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from workbench.export.errors import ExportError
from workbench.export.source import changes, origins
from workbench.export.source.namespace import Namespace
from workbench.export.source.origins import Import
from workbench.export.source.rewrite import annotation_names, source_text
from workbench.export.source.rewrite.annotation_names import TypeOnly
from workbench.export.source.rewrite.secret_literals import Secrets, needs
from workbench.export.source.rewrite.source_text import Block
from workbench.export.source.slicer import Slicer
from workbench.export.source.statements import Statement
from workbench.export.source.uses import Uses


@dataclass
class Writer:
    """Collects the script's imports and blocks."""

    slicer: Slicer
    secrets: Secrets
    imports: list[Import] = field(default_factory=list)
    futures: set[str] = field(default_factory=set)
    blocks: list[Block] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _environment: bool = False

    def write(self, program: Namespace) -> None:
        """Write the kept statements of `program`; those of a module of the user are written
        where it is first imported.
        """
        if program.name in self._written:
            return
        self._written.add(program.name)
        for index in sorted(program.kept):
            statement = program.statements[index]
            if statement.source.postponed:
                self.futures.add("annotations")
            if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
                self._write_import(program, index, statement.node)
            else:
                self._write_statement(program, index, statement)

    def write_type_only(self, names: tuple[TypeOnly, ...]) -> None:
        """Write the imports that only type checkers see."""
        if names:
            self.imports.append(Import("typing", "TYPE_CHECKING"))
            self.blocks.append(annotation_names.type_checking_block(names))
            self.names |= {"TYPE_CHECKING", *(entry.name for entry in names)}

    def _write_statement(self, program: Namespace, place: int, statement: Statement) -> None:
        used = program.uses[place]
        block = self._without_secrets(statement, self.slicer.shortened(program, used))
        state = changes.PROCESS in self.slicer.changes(program, place)
        if state and isinstance(statement.node, ast.Expr) and "chdir" not in block.text:
            before = next((b for b in reversed(self.blocks) if not b.definition), None)
            if before is not None and before.text == block.text:
                return
        self._environment = self._environment or (
            state and any(word in block.text for word in ("os.environ", "os.putenv"))
        )
        self.blocks.append(block)
        self.names |= program.bound(place)
        self.modules |= {
            item.module
            for child in ast.walk(statement.node)
            for item in origins.imported(child, program.package)
        }

    def _without_secrets(self, statement: Statement, edits: source_text.Edits) -> Block:
        """The text of a statement, in which secrets are read from the environment."""
        set_here = self.secrets.sets(statement.node)
        if set_here:
            cut = source_text.cut(statement)
            return replace(cut, text=f"# {needs(set_here)}")
        secret = self.secrets.edits(statement.node)
        block = source_text.cut(statement, joined(edits, secret))
        return (
            replace(block, text=f"# {needs(self.secrets.variables_of(secret))}\n{block.text}")
            if secret
            else block
        )

    def _write_import(
        self, program: Namespace, place: int, node: ast.Import | ast.ImportFrom
    ) -> None:
        for item in origins.imported(node, program.package):
            name, is_star = item.binds, item.name == "*"
            if not is_star and (place, name) not in program.needed:
                continue
            if self.slicer.is_kept_import(item):
                self.imports.append(item)
                self.names |= {name} - {"*"}
                continue
            if origins.is_inlined(item.module):
                self._write_inlined(program, item, name)
                continue
            self.modules.add(item.module)
            self.names |= self.slicer.star_names(program, node) if is_star else {name}
            if self._environment or len(_identities(program).get(name, ())) > 1:
                self.blocks.append(
                    Block(
                        item.text,
                        origin=program.statements[place].source.label,
                        start=node.lineno,
                        end=node.lineno,
                    )
                )
            else:
                self.imports.append(item)

    def _write_inlined(self, program: Namespace, item: Import, name: str) -> None:
        if name in program.modules:
            self._write_module(program.modules[name])
        elif item.name is not None:
            home = self.slicer.home(item.module, item.name) if item.name != "*" else item.module
            self._write_module(item.module)
            self._write_module(home)
            if item.name not in ("*", name):
                self.blocks.append(Block(f"{name} = {item.name}"))
                self.names.add(name)

    def _write_module(self, name: str) -> None:
        self.write(self.slicer.module(name))
        # Objects that the module imports from other modules of the user are written with it.
        for other in list(self.slicer.inlined):
            if other.partition(".")[0] == "workbench" and name == "workbench":
                self.write(self.slicer.module(other))

    # -- one name, one meaning

    def check(self, call: Uses) -> None:
        """Raise ExportError for names that would have two meanings with all code in one
        namespace.
        """
        meanings: dict[str, dict[tuple[str, int], tuple[set[str], str]]] = {}
        for program in self._programs():
            for position in sorted(program.kept):
                statement = program.statements[position]
                for name, meaning in _meanings(program, position):
                    known = meanings.setdefault(name, {})
                    known.setdefault((program.name, statement.scope), (set(), statement.place))[
                        0
                    ].add(meaning)
        for name, spaces in sorted(meanings.items()):
            if len(spaces) > 1 and len(set().union(*(senses for senses, _ in spaces.values()))) > 1:
                raise _two_meanings(name, [position for _, position in spaces.values()])
        for program in self._programs():
            for scope, name in sorted(program.builtins_used):
                for space, (_, location) in meanings.get(name, {}).items():
                    if space != (program.name, scope):
                        raise _two_meanings(
                            name, [location, f"the built-in used in {program.label}"]
                        )
            shortened = [
                (program.uses[position], program.statements[position].place)
                for position in sorted(program.kept)
            ]
            if program.name == "":
                shortened.append((call, "the Workbench call"))
            for used, where in shortened:
                self._check_short(program, used, where, meanings)

    def _check_short(
        self,
        program: Namespace,
        own: Uses,
        where: str,
        meanings: dict[str, dict[tuple[str, int], tuple[set[str], str]]],
    ) -> None:
        for node, short in self.slicer.shortened(program, own):
            if short in own.inner or any(
                space[0] == program.name for space in meanings.get(short, {})
            ):
                raise ExportError(
                    f"`{ast.unparse(node)}` ({where}) cannot be shortened to `{short}`, which means"
                    " something else there. Import it under a name of its own: `from … import"
                    f" {short} as …`."
                )

    def _programs(self) -> list[Namespace]:
        return [program for program in self.slicer.programs.values() if program.kept]


def joined(edits: Iterable[tuple[ast.AST, str]], secret: source_text.Edits) -> source_text.Edits:
    """All edits; where two overlap, only that of the secret."""
    inside = {id(child) for node, _ in secret for child in ast.walk(node)}
    return (*(edit for edit in edits if id(edit[0]) not in inside), *secret)


def _meanings(program: Namespace, place: int) -> Iterable[tuple[str, str]]:
    """The meaning that a kept statement gives to each name."""
    node, scope = program.statements[place].node, program.statements[place].scope
    code = f"{program.name}/{scope}"
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((name, code) for name in program.bound(place))
        return
    for item in origins.imported(node, program.package):
        name = item.binds
        if name == "*" and not origins.is_inlined(item.module):
            needed = {n for at, n in program.needed if at == place}
            yield from ((n, f"import {origins.identity_of(item.module, n)}") for n in needed)
        elif (place, name) in program.needed:
            if not origins.is_inlined(item.module):
                yield name, f"import {item.identity}"
            elif name not in program.modules and item.name != name:
                yield name, code


def _identities(program: Namespace) -> dict[str, set[str]]:
    identities: dict[str, set[str]] = {}
    for index in program.kept:
        for name, meaning in _meanings(program, index):
            identities.setdefault(name, set()).add(meaning)
    return identities


def _two_meanings(name: str, places: list[str]) -> ExportError:
    listed = " and ".join(dict.fromkeys(places))
    return ExportError(
        f"`{name}` means two things in code that must stand in one file: {listed}. Rename one of"
        " them, and make the Workbench again."
    )
