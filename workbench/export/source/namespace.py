"""Defines a namespace (the notebook, the file, or a module of the user): its statements, and which of them are kept."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from workbench.export.errors import ExportError
from workbench.export.source import calls, effects, origins
from workbench.export.source.calls import Summary
from workbench.export.source.statements import Line, Statement
from workbench.export.source.uses import DOT, Uses, defaults, own_level, uses

_CONSTANT = {"types", "typing", "typing_extensions", "code", "immutable"}
"""The kinds (`capture.kind`) of constants, aliases of types, and type variables."""

Summaries = dict[tuple[object, ...], Summary | None]
"""The effects of calls of functions, by namespace, place (for methods: name), and further keys."""


class Namespaces(Protocol):
    """The interface through which a namespace uses the others of a slice. `Slicer` implements and describes the methods."""

    lazy: bool
    """Whether a layer is kept whose shapes are known only after a forward."""
    summaries: Summaries
    programs: dict[str, Namespace]
    """The notebook's or file's own ("") and those of the user's modules."""

    def is_submodule(self, name: str) -> bool: ...
    def module(self, name: str) -> Namespace: ...
    def imported(self, program: Namespace, node: ast.ImportFrom, name: str) -> tuple[Namespace, str] | None: ...
    def star_names(self, program: Namespace, node: ast.stmt) -> frozenset[str]: ...
    def method(self, name: str, open_: frozenset[str]) -> Summary | None: ...
    def accumulates(self, name: str) -> bool: ...
    def changes(self, program: Namespace, place: int) -> frozenset[str]: ...
    def tainted(self, program: Namespace, place: int) -> bool: ...
    def method_nodes(self, name: str) -> Iterator[tuple[Namespace, ast.FunctionDef, ast.ClassDef]]: ...


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
    """The place where the Workbench was made; -1: after all statements. Statements after it ran before the fit."""
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
        found: dict[str, str] = {}
        for item in (item for statement in self.statements for item in origins.imported(statement.node, self.package)):
            if origins.is_inlined(item.module) and (item.name is None or self.slicer.is_submodule(item.identity)):
                found[item.binds] = item.identity
        return found

    @cached_property
    def uses(self) -> list[Uses]:
        """The names of each statement."""
        modules = frozenset(self.modules)
        found: list[Uses] = []
        for statement in self.statements:
            try:
                found.append(uses(statement.node, modules, statement.source.postponed))
            except SyntaxError as error:
                statement.refusal = statement.refusal or f"it cannot stand in a script ({error.msg})"
                found.append(uses(ast.Pass()))
        return found

    @cached_property
    def repeats(self) -> frozenset[int]:
        """The places of definitions that ran again without a change in between (a cell run twice): they had no effect."""
        found: set[int] = set()
        changed_at: dict[str, int] = {}
        first: dict[str, tuple[int, dict[str, int | None]]] = {}
        for place, statement in enumerate(self.statements):
            own = self.uses[place]
            if isinstance(statement.node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)):
                text = ast.dump(statement.node)
                seen = {name: changed_at.get(name) for name in own.eager | own.optional}
                at, seen_at = first.get(text, (None, None))
                if at is not None and seen == seen_at and all(changed_at.get(name) == at for name in own.binds):
                    found.add(place)
                    continue
                if not isinstance(statement.node, ast.Assign) or _is_constant(statement.node.value):
                    first[text] = place, seen
            for name in self.bound(place) | own.deletes | effects.directly_changed(statement.node):
                changed_at[name] = place
        return frozenset(found)

    @cached_property
    def binders(self) -> dict[str, list[int]]:
        """The places that bind or delete each name, in order."""
        found: dict[str, list[int]] = {}
        for place, statement in enumerate(self.statements):
            if place in self.repeats:
                continue
            for name in self.bound(place) | self.uses[place].deletes:
                found.setdefault(name, []).append(place)
            if is_star(statement.node):
                for name in self.slicer.star_names(self, statement.node):
                    found.setdefault(name, []).append(place)
        return found

    def bound(self, place: int) -> frozenset[str]:
        """The names that statement `place` binds, also through the functions it calls."""
        own = self.uses[place]
        return own.binds | self._bound_by_calls.get(place, frozenset())

    def only_defines(self, place: int) -> bool:
        """Whether statement `place` is an import, a class, a function, a constant or an alias of a type."""
        node = self.statements[place].node
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            return {self.kinds.get(name) for name in self.uses[place].binds} <= _CONSTANT
        return isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef))

    @cached_property
    def _bound_by_calls(self) -> dict[int, frozenset[str]]:
        """Globals that functions called by a statement bind, themselves or through others."""
        functions: dict[str, Uses] = {}
        found: dict[int, frozenset[str]] = {}
        for place, own in enumerate(self.uses):
            written: set[str] = set()
            called: set[str] = set()
            left = [name for name in own.eager if name in functions and not _makes_workbench(self.statements[place].node)]
            while left:
                name = left.pop()
                if name not in called:
                    called.add(name)
                    written |= functions[name].written_late
                    left += [late for late in functions[name].late if late in functions]
            if written:
                found[place] = frozenset(written)
            for name in own.definite:
                functions.pop(name, None)
            if isinstance(self.statements[place].node, (ast.FunctionDef, ast.ClassDef)):
                functions |= dict.fromkeys(own.binds, own)
        return found

    def reaching(self, name: str, place: int, scope: int = 1) -> list[int]:
        """The statements whose binding of `name` may be the one that holds at `place`, the latest first."""
        found: list[int] = []
        joined = False
        binders = self.binders.get(name, ())
        local = scope and any(self.statements[at].scope == scope for at in binders)  # a variable of the function
        for at in reversed(binders):
            statement = self.statements[at]
            if at >= place or statement.scope not in (0, scope) or (local and not statement.scope):
                continue
            # Several `import name.more` add to one another.
            whole = any(item.name is None and not item.alias and item.binds == name for item in origins.imported(statement.node))
            if joined and not whole:
                break
            if name in self.uses[at].deletes:
                break
            found.append(at)
            joined = joined or whole
            if not joined and (name in self.uses[at].definite or is_star(statement.node)):
                break
        return found

    def source_of(self, name: str, place: int) -> str | None:
        """What `name` was imported as, if what it holds at `place` was imported."""
        for at in self.reaching(name, place):
            for item in origins.imported(self.statements[at].node, self.package):
                if item.binds in (name, "*"):
                    return item.identity if item.binds == name else f"{item.module}.{name}"
        return None


def _changeable_defaults(node: ast.FunctionDef) -> set[str]:
    """The parameters whose default is a list, a dict, a set or the result of a call."""
    return {name for name, value in defaults(node.args).items() if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.Call))}


def _makes_workbench(node: ast.stmt) -> bool:
    """Whether a statement makes a Workbench, which calls the functions that it gets but undoes their effects."""
    return any(isinstance(part, ast.Call) and calls.terminal(part.func) == "Workbench" for part in own_level(node))


def is_star(node: ast.stmt) -> bool:
    """Whether a statement imports all names of a module."""
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(_is_constant(item) for item in node.elts)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and _is_constant(node.operand))


# ---- the context of effects -------------------------------------------------------------------------------------


@dataclass
class At:
    """A namespace at one of its places: answers the questions of `effects` about names there."""

    program: Namespace
    place: int
    open: frozenset[str] = frozenset()
    """Functions whose summaries are being made."""
    certain: bool = False

    @property
    def lazy(self) -> bool:
        """Whether models here are finished by their first call."""
        return self.program.slicer.lazy

    def dotted(self, name: str) -> str | None:
        """The full name of an imported object; None: it was not imported."""
        return self.program.source_of(name, self.place)

    def is_module(self, name: str) -> bool:
        """Whether a name stands for a module."""
        held = self.program.kinds.get(name)
        if held is not None and len(self.program.binders.get(name, ())) <= 1:
            return held == "module"
        return (self.dotted(name) or "") in sys.modules

    def keeps_state(self, name: str) -> bool:
        """Whether calling the value of a name changes an object that a later call reads."""
        for at in self.program.reaching(name, self.place):
            node = self.program.statements[at].node
            if isinstance(node, ast.FunctionDef) and node.name == name:
                summary = self.summary(name)
                return summary is not None and not summary.may.isdisjoint(_changeable_defaults(node))
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in self.program.uses[at].binds and isinstance(node.value, ast.Call):
                held = self.kind(name)
                if held == "code":
                    made = calls.summary_of(node.value.func, At(self.program, at, self.open))
                    return made is not None and made.keeps_state
                return held not in calls.LIBRARY and self.program.slicer.accumulates("forward" if held == "network" else "__call__")
        return False

    def hands_out(self, name: str) -> bool:
        """Whether calling the value of a name may return an object that other code refers to, through a metaclass, `__new__` or a decorator."""
        for at in self.program.reaching(name, self.place):
            node = self.program.statements[at].node
            if isinstance(node, ast.ClassDef):
                return any(keyword.arg == "metaclass" for keyword in node.keywords) or any(
                    isinstance(part, ast.FunctionDef) and part.name == "__new__" for part in node.body
                )
            return isinstance(node, ast.FunctionDef) and bool(node.decorator_list)
        return False

    def bound_method(self, name: str) -> ast.Attribute | None:
        """The expression of the bound method that was assigned to a name; None: it has another value."""
        for at in self.program.reaching(name, self.place):
            node = self.program.statements[at].node
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if isinstance(value, ast.Attribute) and name in self.program.uses[at].binds and self.kind(name) == "code":
                root = calls.first_name(value)
                return value if root is not None and not self.is_module(root) else None
        return None

    def kind(self, name: str) -> str | None:
        """The kind of value that a name holds here; None: unknown."""
        held = self.program.kinds.get(name)
        # A name that is bound more than once may have had another value here.
        return held if held != "immutable" or len(self.program.binders.get(name, ())) <= 1 else None

    def summary(self, name: str) -> Summary | None:
        """The effects of calling a function or class of this name; None: unknown."""
        base, _, attribute = name.partition(DOT)
        try:
            if attribute:
                module = self.program.modules.get(base)
                found = None if module is None else (self.program.slicer.module(module), attribute)
                return None if found is None else self._from_elsewhere(found[0], found[1])
            return self._own_summary(name)
        except ExportError:  # a module without source; reported when the script needs it
            return None

    def _own_summary(self, name: str) -> Summary | None:
        opened = f"{self.program.name}:{name}"
        if opened in self.open:
            return None
        for at in self.program.reaching(name, self.place):
            node = self.program.statements[at].node
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                inside = replace(self, place=self.program.end, open=self.open | {opened})
                key = (self.program.name, at, *((self.open, self.lazy) if self.certain else ()))
                summaries = self.program.slicer.summaries
                if key not in summaries:
                    if isinstance(node, ast.ClassDef):
                        summaries[key] = effects.summarize_class(node, inside)
                    else:
                        summaries[key] = effects.summarize(node, inside)
                return summaries[key]
            if isinstance(node, ast.ImportFrom):
                found = self.program.slicer.imported(self.program, node, name)
                if found is not None:
                    return replace(self, open=self.open | {opened})._from_elsewhere(found[0], found[1])
            break
        return None

    def _from_elsewhere(self, program: Namespace, name: str) -> Summary | None:
        """The summary of a function of another module, with that module's names spelt as such."""
        found = At(program, program.end, self.open, self.certain).summary(name)
        if found is None:
            return None

        def spell(names: frozenset[str]) -> frozenset[str]:
            return frozenset(n if DOT in n else program.name + DOT + n for n in names)

        outside = found.outside
        spelled = calls.Outside(*map(spell, (outside.may, outside.does, outside.returns, outside.later)))
        return replace(found, outside=spelled)

    def method(self, name: str) -> Summary | None:
        """The effects of calling a method of this name, in any class of the user; None: unknown."""
        if f".{name}" in self.open:
            return None
        return self.program.slicer.method(name, self.open)
