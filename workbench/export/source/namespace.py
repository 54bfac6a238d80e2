"""Defines a namespace (the notebook, the file, or a module of the user): its statements, and
which of them are kept.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from workbench.export.errors import ExportError
from workbench.export.source import origins
from workbench.export.source.statements import Line, Statement
from workbench.export.source.uses import Uses, first_name, own_level, targets, terminal, uses

_CONSTANT = {"types", "typing", "typing_extensions", "code", "immutable"}
"""The kinds (`capture.kind`) of constants, aliases of types, and type variables."""

Summaries = dict[ast.FunctionDef, tuple[tuple[str, ...], frozenset[str]]]
"""What calls of functions change (`changes.Summary`), by their definitions."""


class Namespaces(Protocol):
    """The interface through which a namespace uses the others of a slice. `Slicer` implements
    and describes the methods.
    """

    lazy: bool
    """Whether a layer is kept whose shapes are known only after a forward."""
    summaries: Summaries
    programs: dict[str, Namespace]
    """The notebook's or file's own ("") and those of the user's modules."""

    def is_submodule(self, name: str) -> bool: ...
    def module(self, name: str) -> Namespace: ...
    def imported(
        self, program: Namespace, node: ast.ImportFrom, name: str
    ) -> tuple[Namespace, str] | None: ...
    def star_names(self, program: Namespace, node: ast.stmt) -> frozenset[str]: ...


class Definition(NamedTuple):
    """A function or a class of the user, and where it is defined."""

    program: Namespace
    node: ast.FunctionDef | ast.ClassDef


@dataclass
class Namespace:
    """The statements of one namespace, and which of them are kept."""

    name: str
    """"" for the place of the call, else the module's name."""
    label: str
    package: str
    line: Line
    kinds: Mapping[str, str]
    slicer: Namespaces
    called: int = -1
    """The place where the Workbench was made; -1: after all statements. Statements after it ran
    before the fit.
    """
    kept: set[int] = field(default_factory=set)
    needed: set[tuple[int, str]] = field(default_factory=set)
    builtins_used: set[tuple[int, str]] = field(default_factory=set)
    """(scope, name) of builtins that kept code reads."""

    def __post_init__(self) -> None:
        self.called = self.end if self.called < 0 else self.called

    @property
    def statements(self) -> list[Statement]:
        """The statements in the order in which they ran."""
        return self.line.statements

    @property
    def end(self) -> int:
        """The place after all statements."""
        return len(self.line.statements)

    @cached_property
    def modules(self) -> dict[str, str]:
        """The names that hold modules whose code is written into the script, and those modules."""
        by_name: dict[str, str] = {}
        for item in (
            item
            for statement in self.statements
            for item in origins.imported(statement.node, self.package)
        ):
            if origins.is_inlined(item.module) and (
                item.name is None or self.slicer.is_submodule(item.identity)
            ):
                by_name[item.binds] = item.identity
        return by_name

    @cached_property
    def uses(self) -> list[Uses]:
        """The names of each statement."""
        modules = frozenset(self.modules)
        all_uses: list[Uses] = []
        for statement in self.statements:
            try:
                all_uses.append(uses(statement.node, modules, statement.source.postponed))
            except SyntaxError as error:
                statement.refusal = (
                    statement.refusal or f"it cannot stand in a script ({error.msg})"
                )
                all_uses.append(uses(ast.Pass()))
        return all_uses

    @cached_property
    def repeats(self) -> frozenset[int]:
        """The places of definitions that ran again without a change in between (a cell run
        twice): they had no effect.
        """
        repeated: set[int] = set()
        changed_at: dict[str, int] = {}
        first: dict[str, tuple[int, dict[str, int | None]]] = {}
        for index, statement in enumerate(self.statements):
            used = self.uses[index]
            if isinstance(
                statement.node,
                (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign),
            ):
                text = ast.dump(statement.node)
                seen = {name: changed_at.get(name) for name in used.eager | used.optional}
                at, seen_at = first.get(text, (None, None))
                if (
                    at is not None
                    and seen == seen_at
                    and all(changed_at.get(name) == at for name in used.binds)
                ):
                    repeated.add(index)
                    continue
                if not isinstance(statement.node, ast.Assign) or _is_constant(statement.node.value):
                    first[text] = index, seen
            for name in self.bound(index) | used.deletes | _directly_changed(statement.node):
                changed_at[name] = index
        return frozenset(repeated)

    @cached_property
    def binders(self) -> dict[str, list[int]]:
        """The places that bind or delete each name, in order."""
        indices: dict[str, list[int]] = {}
        for index, statement in enumerate(self.statements):
            if index in self.repeats:
                continue
            for name in self.bound(index) | self.uses[index].deletes:
                indices.setdefault(name, []).append(index)
            if is_star(statement.node):
                for name in self.slicer.star_names(self, statement.node):
                    indices.setdefault(name, []).append(index)
        return indices

    def bound(self, place: int) -> frozenset[str]:
        """The names that statement `place` binds, also through the functions it calls."""
        used = self.uses[place]
        return used.binds | self._bound_by_calls.get(place, frozenset())

    def only_defines(self, place: int) -> bool:
        """Whether statement `place` is an import, a class, a function, a constant or an alias of
        a type.
        """
        node = self.statements[place].node
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            return {self.kinds.get(name) for name in self.uses[place].binds} <= _CONSTANT
        return isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))

    @cached_property
    def _bound_by_calls(self) -> dict[int, frozenset[str]]:
        """Globals that functions called by a statement bind, themselves or through others."""
        functions: dict[str, Uses] = {}
        bound: dict[int, frozenset[str]] = {}
        for index, used in enumerate(self.uses):
            written: set[str] = set()
            called: set[str] = set()
            left = [
                name
                for name in used.eager
                if name in functions and not _makes_workbench(self.statements[index].node)
            ]
            while left:
                name = left.pop()
                if name not in called:
                    called.add(name)
                    written |= functions[name].written_late
                    left += [late for late in functions[name].late if late in functions]
            if written:
                bound[index] = frozenset(written)
            for name in used.definite:
                functions.pop(name, None)
            if isinstance(self.statements[index].node, (ast.FunctionDef, ast.ClassDef)):
                functions |= dict.fromkeys(used.binds, used)
        return bound

    def reaching(self, name: str, place: int, scope: int = 1) -> list[int]:
        """The statements whose binding of `name` may be the one that holds at `place`, the
        latest first.
        """
        bindings: list[int] = []
        joined = False
        binders = self.binders.get(name, ())
        # a variable of the function
        local = scope and any(self.statements[at].scope == scope for at in binders)
        for at in reversed(binders):
            statement = self.statements[at]
            if at >= place or statement.scope not in (0, scope) or (local and not statement.scope):
                continue
            # Several `import name.more` add to one another.
            whole = any(
                item.name is None and not item.alias and item.binds == name
                for item in origins.imported(statement.node)
            )
            if joined and not whole:
                break
            if name in self.uses[at].deletes:
                break
            bindings.append(at)
            joined = joined or whole
            if not joined and (name in self.uses[at].definite or is_star(statement.node)):
                break
        return bindings

    def source_of(self, name: str, place: int) -> str | None:
        """What `name` was imported as, if what it holds at `place` was imported."""
        for at in self.reaching(name, place):
            for item in origins.imported(self.statements[at].node, self.package):
                if item.binds == "*":
                    return origins.identity_of(item.module, name)
                if item.binds == name and item.name is not None:
                    return origins.identity_of(item.module, item.name)
                if item.binds == name:
                    return item.identity
        return None

    def path_of(self, node: ast.expr, place: int) -> str | None:
        """The full path of a chain of attributes of an imported name ("torch.nn.init.normal_"),
        else None.
        """
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        start = self.source_of(node.id, place) if isinstance(node, ast.Name) else None
        return None if start is None else ".".join([start, *reversed(names)])

    def is_module(self, name: str, place: int) -> bool:
        """Whether a name holds a module at a place."""
        held = self.kinds.get(name)
        if held is not None and len(self.binders.get(name, ())) <= 1:
            return held == "module"
        return (self.source_of(name, place) or "") in sys.modules

    def is_object(self, name: str, place: int) -> bool:
        """Whether a name holds a function that another one made, or an object of a class of the
        user.
        """
        held = self.kinds.get(name)
        if held != "code":
            return held == "__main__" or (held in self.slicer.programs and held != "")
        nodes = [self.statements[at].node for at in self.reaching(name, place)]
        return any(isinstance(node, (ast.Assign, ast.AnnAssign)) for node in nodes)

    def kind(self, name: str) -> str | None:
        """The kind of value that a name holds; None: unknown."""
        held = self.kinds.get(name)
        # A name that is bound more than once may have had another value.
        return held if held != "immutable" or len(self.binders.get(name, ())) <= 1 else None

    def definition(self, func: ast.expr, place: int) -> Definition | None:
        """The function or class of the user with a name at a place, also in a module of the
        user.
        """
        try:
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
                module = self.modules.get(func.value.id)
                if module is None:
                    return None
                other = self.slicer.module(module)
                return other.definition(ast.Name(func.attr), other.end)
            if not isinstance(func, ast.Name):
                return None
            for at in self.reaching(func.id, place)[:1]:
                node = self.statements[at].node
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    return Definition(self, node)
                if isinstance(node, ast.ImportFrom):
                    imported = self.slicer.imported(self, node, func.id)
                    if imported is not None:
                        return imported[0].definition(ast.Name(imported[1]), imported[0].end)
        except ExportError:  # a module without source; reported when the script needs it
            return None
        return None


def _makes_workbench(node: ast.stmt) -> bool:
    """Whether a statement makes a Workbench, which calls the functions that it gets but undoes
    their effects.
    """
    return any(
        isinstance(child, ast.Call) and terminal(child.func) == "Workbench"
        for child in own_level(node)
    )


def _directly_changed(node: ast.stmt) -> set[str]:
    """The names whose attributes or items a statement sets, or whose method it calls."""
    changed = [target for target in targets(node) if not isinstance(target, ast.Name)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        changed.append(node.value.func)
    return {first_name(expression) or "" for expression in changed}


def is_star(node: ast.stmt) -> bool:
    """Whether a statement imports all names of a module."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(_is_constant(item) for item in node.elts)
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and _is_constant(node.operand)
    )
